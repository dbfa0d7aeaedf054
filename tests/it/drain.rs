//! SIGTERM, SIGHUP and Ctrl-C: accepted requests finish; a second signal ends them at once.

use model_boss_tests::{Behaviour, Event, PATIENCE, Sandbox, binary, question, text_of_events, until};
use nix::sys::signal::Signal;

fn holding() -> Behaviour {
    Behaviour { reply: Some("one two three".to_owned()), hold_after_tokens: Some(1), ..Behaviour::default() }
}

#[tokio::test]
async fn accepted_work_finishes_running_and_queued() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let sandbox = Sandbox::new();
        let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 1", holding());
        let boss = sandbox.start().await;
        let mut stream = boss.chat_streamed("alpha", "?").await;
        assert_eq!(stream.token().await, "one ");
        let queued = boss.ask(question("alpha", "?"));
        crate::views::waiting(&boss, 1).await;
        boss.signal(signal);
        boss.output().line("says that it drains", |line| line.to_lowercase().contains("drain")).await;
        model.worker().await.decode();
        let events = stream.rest().await;
        assert_eq!(text_of_events(&events), "two three");
        assert_eq!(events.last(), Some(&Event::Done));
        assert_eq!(queued.await.unwrap().text(), "one two three");
        assert!(boss.exit().await.success());
    }
}

#[tokio::test]
async fn a_hangup_that_nohup_ignores_ends_nothing() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.launch(&binary("model-boss-fake-worker")).after("trap '' HUP").start().await;
    boss.signal(Signal::SIGHUP);
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert_eq!(boss.client().get("/ready").await.status, 200);
    boss.finish().await;
}

#[tokio::test]
async fn new_work_is_refused_while_draining() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", holding());
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    stream.token().await;
    boss.signal(Signal::SIGTERM);
    let client = boss.client();
    // The request must not hang or be lost: its connection is refused, or the answer is a 503 with the reason.
    let refused = async || {
        if !client.listens().await {
            return Some(());
        }
        let answer = client.get("/ready").await;
        (answer.status == 503).then_some(())
    };
    until(PATIENCE, "it is not ready any more", refused).await;
    if client.listens().await {
        let answer = boss.chat("alpha", "?").await;
        assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (503, "draining"));
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    }
    model.worker().await.decode();
    assert_eq!(text_of_events(&stream.rest().await), "two three");
    assert!(boss.exit().await.success());
}

#[tokio::test]
async fn a_second_signal_ends_it_now_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour { ignore_sigterm: true, ..holding() });
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    stream.token().await;
    boss.signal(Signal::SIGINT);
    boss.output().line("says that it drains", |line| line.to_lowercase().contains("drain")).await;
    boss.signal(Signal::SIGINT);
    assert!(!boss.exit().await.success(), "work was lost, and the exit code says so");
    model.worker().await.gone().await;
}

#[tokio::test]
async fn work_that_outlasts_the_grace_is_told() {
    let sandbox = Sandbox::new().with_config("drain_grace = \"300ms\"\nstop_grace = \"300ms\"");
    let mut model = sandbox.fake_model("alpha", holding());
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    stream.token().await;
    boss.signal(Signal::SIGTERM);
    let rest = stream.rest().await;
    let Some(Event::Data(error)) = rest.last() else { panic!("an error event, not {rest:?}") };
    assert!(error["error"]["code"].is_string(), "{error}");
    boss.exit().await;
    model.worker().await.gone().await;
}
