//! `kill -9` of the coordinator in each of its states: no process is left 2 s later, and a new coordinator in the same
//! folder works.

use model_boss_tests::{Behaviour, FakeModel, PATIENCE, Sandbox, question, until};
use nix::sys::signal::Signal;

const CHAT: &str = "/v1/chat/completions";

/// Workers that ignore SIGTERM: only the lifeline and the death signal can end them.
fn stubborn() -> Behaviour {
    Behaviour { ignore_sigterm: true, ..Behaviour::default() }
}

async fn works_again(sandbox: &Sandbox, model: &FakeModel) {
    model.behave(Behaviour::default());
    let boss = sandbox.start().await;
    assert!(boss.chat(model.name(), "?").await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn killed_while_idle() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", stubborn());
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    boss.kill().await;
    works_again(&sandbox, &model).await;
}

#[tokio::test]
async fn killed_while_a_worker_loads() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_load: true, ..stubborn() });
    let boss = sandbox.start().await;
    let _lost = boss.ask(question("alpha", "?"));
    let mut worker = model.worker().await;
    boss.kill().await;
    worker.gone().await;
    works_again(&sandbox, &model).await;
}

#[tokio::test]
async fn killed_while_a_worker_decodes() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_after_tokens: Some(2), ..stubborn() });
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    stream.token().await;
    let mut worker = model.worker().await;
    worker.held().await;
    boss.kill().await;
    worker.gone().await;
    works_again(&sandbox, &model).await;
}

#[tokio::test]
async fn killed_the_moment_a_worker_appears() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", stubborn());
    // The kill happens at a random moment between fork, gate and readiness.
    for _ in 0..10 {
        let boss = sandbox.start().await;
        let _lost = boss.ask(question("alpha", "?"));
        until(PATIENCE, "a worker appears", async || (!boss.processes().is_empty()).then_some(())).await;
        boss.kill().await;
    }
    works_again(&sandbox, &model).await;
}

#[tokio::test]
async fn killed_while_draining() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_after_tokens: Some(1), ..stubborn() });
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    stream.token().await;
    boss.signal(Signal::SIGTERM);
    let client = boss.client();
    let draining = async || (!client.listens().await || client.get("/ready").await.status != 200).then_some(());
    until(PATIENCE, "it drains", draining).await;
    boss.kill().await;
    model.worker().await.gone().await;
    works_again(&sandbox, &model).await;
}

#[tokio::test]
async fn killed_while_it_stops_a_worker() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", stubborn());
    let boss = sandbox.start().await;
    let mut body = question("alpha", "?");
    body["keep_alive"] = 0.into();
    assert!(boss.client().post(CHAT, &body).await.status.is_success());
    let mut worker = model.worker().await;
    worker.terminating().await;
    boss.kill().await;
    worker.gone().await;
    works_again(&sandbox, &model).await;
}

#[tokio::test]
async fn killed_while_a_worker_is_stopped_by_a_signal() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", stubborn());
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let mut worker = model.worker().await;
    // The stopped worker cannot react to the lifeline's end, so the death signal must end it.
    worker.signal(Signal::SIGSTOP);
    boss.kill().await;
    worker.gone().await;
    works_again(&sandbox, &model).await;
}
