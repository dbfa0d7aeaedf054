//! The death of a worker: every client gets a proper answer, and the next request works.

use http::StatusCode;
use model_boss_tests::{Behaviour, Event, Sandbox, question, text_of_events};

fn holding(tokens: u64) -> Behaviour {
    Behaviour { reply: Some("one two three".to_owned()), hold_after_tokens: Some(tokens), ..Behaviour::default() }
}

fn fine() -> Behaviour {
    Behaviour { reply: Some("one two three".to_owned()), ..Behaviour::default() }
}

#[tokio::test]
async fn killed_while_loading_the_request_goes_to_a_fresh_worker() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", fine());
    model.behave_next(Behaviour { hold_load: true, ..fine() });
    let boss = sandbox.start().await;
    let answer = boss.ask(question("alpha", "?"));
    model.worker().await.kill();
    assert_eq!(answer.await.unwrap().text(), "one two three");
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn killed_in_a_whole_answer_the_request_is_sent_again() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", fine());
    model.behave_next(holding(2));
    let boss = sandbox.start().await;
    let answer = boss.ask(question("alpha", "?"));
    let mut worker = model.worker().await;
    worker.held().await;
    worker.kill();
    assert_eq!(answer.await.unwrap().text(), "one two three");
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn killed_before_the_first_byte_of_a_stream_the_request_is_sent_again() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", fine());
    model.behave_next(Behaviour { crash_at_request: Some(1), ..fine() });
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    assert_eq!(stream.status, StatusCode::OK);
    let events = stream.rest().await;
    assert_eq!(text_of_events(&events), "one two three");
    assert_eq!(events.last(), Some(&Event::Done));
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn killed_mid_stream_the_client_is_told_in_the_stream_and_the_next_request_works() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", fine());
    model.behave_next(holding(2));
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    assert_eq!(stream.token().await, "one ");
    assert_eq!(stream.token().await, "two ");
    let mut worker = model.worker().await;
    worker.held().await;
    worker.kill();
    let rest = stream.rest().await;
    let [Event::Data(error)] = rest.as_slice() else { panic!("one error event and the end, not {rest:?}") };
    assert_eq!(error["error"]["code"], "worker_crashed", "{error}");
    assert_eq!(error["source"], "coordinator");
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn killed_while_idle_the_next_request_works() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", fine());
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    let mut worker = model.worker().await;
    worker.kill();
    worker.gone().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn every_request_in_flight_gets_its_answer() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 8", fine());
    model.behave_next(holding(1));
    let boss = sandbox.start().await;
    let answers: Vec<_> = (0..8).map(|_| boss.ask(question("alpha", "?"))).collect();
    let mut worker = model.worker().await;
    for _ in 0..8 {
        worker.held().await;
    }
    worker.kill();
    for answer in answers {
        assert_eq!(answer.await.unwrap().text(), "one two three");
    }
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_that_always_dies_ends_in_an_error_with_its_last_words() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", Behaviour { crash_at_request: Some(1), ..fine() });
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    assert!(matches!(answer.status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE), "{answer:?}");
    assert!(matches!(answer.error_code().as_str(), "worker_crashed" | "model_backing_off"), "{answer:?}");
    assert!(answer.error_message().contains("crash at request 1, as told"), "{answer:?}");
    assert!(model.spawns() <= 4, "a request is sent at most 1 + 3 times, not {} times", model.spawns());
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_that_hangs_is_replaced() {
    let sandbox = Sandbox::new().with_config("hang_timeout = \"400ms\"");
    let mut model = sandbox.fake_model("alpha", fine());
    model.behave_next(holding(1));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    model.worker().await.gone().await;
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_stopped_by_a_signal_is_replaced() {
    let sandbox = Sandbox::new().with_config("hang_timeout = \"400ms\"");
    let mut model = sandbox.fake_model("alpha", fine());
    model.behave_next(holding(1));
    let boss = sandbox.start().await;
    let answer = boss.ask(question("alpha", "?"));
    let mut worker = model.worker().await;
    worker.held().await;
    worker.signal(nix::sys::signal::Signal::SIGSTOP);
    assert_eq!(answer.await.unwrap().text(), "one two three");
    worker.gone().await;
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

/// Workers die under load, again and again, while clients send requests and some disconnect. Every request that is
/// still wanted gets its whole answer or an error.
#[tokio::test]
async fn no_request_is_lost_while_workers_die() {
    const REQUESTS: usize = 60;
    let sandbox = Sandbox::new();
    let manifest = "vram = \"64MiB\"\nmax_concurrent = 4";
    let names = ["alpha", "beta"];
    let models = names.map(|name| {
        let model = sandbox.fake_model_with(name, manifest, fine());
        // The second worker dies in the middle of its first answer, the third at a later request. The others do not
        // die.
        model.behave_next(Behaviour { crash_at_request: Some(5), ..fine() });
        model.behave_next(Behaviour { crash_after_tokens: Some(2), ..fine() });
        model.behave_next(Behaviour { crash_at_request: Some(9), ..fine() });
        model
    });
    let boss = sandbox.start().await;
    let client = boss.client();
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| {
            let mut body = question(names[number % 2], "?");
            body["stream"] = (number % 3 == 0).into();
            let gone_early = number % 10 == 7;
            tokio::spawn(async move {
                let mut answer = client.stream("/v1/chat/completions", &body).await;
                if gone_early {
                    return;
                }
                if body["stream"] == false || answer.status != StatusCode::OK {
                    let answer = answer.into_answer().await;
                    assert!(answer.status.is_success() || answer.error_code() == "worker_crashed", "{answer:?}");
                    return;
                }
                let events = answer.rest().await;
                let whole = events.last() == Some(&Event::Done) && text_of_events(&events) == "one two three";
                let told =
                    matches!(events.last(), Some(Event::Data(last)) if last["error"]["code"] == "worker_crashed");
                assert!(whole || told, "{events:?}");
            })
        })
        .collect();
    for request in requests {
        request.await.unwrap();
    }
    for (name, model) in names.into_iter().zip(models) {
        assert_eq!(boss.chat(name, "?").await.text(), "one two three");
        assert!(model.spawns() >= 3, "{} workers of '{name}'", model.spawns());
    }
    boss.finish().await;
}
