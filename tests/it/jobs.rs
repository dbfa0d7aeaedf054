//! Jobs are accepted once and for all: a coordinator that is killed at any moment goes on with them at its next start,
//! and each has one result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use http::Method;
use model_boss_tests::{Answer, Behaviour, Boss, Dice, Event, FakeError, PATIENCE, Sandbox, amount, question, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const JOBS: &str = "/api/v1/jobs";

/// Few times between renewals, so that a killed coordinator's leases are soon free.
const SHORT: &str = "[leases]\nterm = \"2s\"\nheartbeat = \"200ms\"\n";

fn order(kind: &str, body: Value) -> Value {
    json!({ "kind": kind, "body": body })
}

async fn submit(boss: &Boss, kind: &str, body: Value) -> String {
    let answer = boss.client().post(JOBS, &order(kind, body)).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()["id"].as_str().unwrap().to_owned()
}

async fn ended(boss: &Boss, id: &str) -> Value {
    until(PATIENCE, "the job ends", async || {
        let job = boss.read(&format!("{JOBS}/{id}?wait=10s")).await;
        (!job["ended"].is_null()).then_some(job)
    })
    .await
}

async fn result(boss: &Boss, id: &str) -> Answer {
    boss.client().get(&format!("{JOBS}/{id}/result")).await
}

/// The state of jobs is read from the store at the start.
async fn jobs_are_open(boss: &Boss) {
    let open = async || (boss.client().get(JOBS).await.status == 200).then_some(());
    until(PATIENCE, "jobs are open", open).await;
}

/// The body of the `number`th job, of one of three kinds.
fn numbered(number: usize) -> Value {
    match number % 3 {
        0 => order("chat", question("talks", &format!("number {number}."))),
        1 => order("embeddings", json!({ "model": "vectors", "input": format!("number {number}.") })),
        _ => {
            order("rerank", json!({ "model": "ranks", "query": format!("number {number}."), "documents": ["a", "b"] }))
        }
    }
}

#[tokio::test]
async fn rc_26_jobs_survive_kill_9_and_each_has_one_result() {
    let (kills, jobs) = (amount("MODEL_BOSS_JOB_KILLS", 4), 200);
    let sandbox = Sandbox::new().with_config(SHORT);
    let slow = Behaviour { first_token_ms: 20, ..Behaviour::default() };
    let _talks = sandbox.fake_model("talks", Behaviour { echo: true, ..slow.clone() });
    for (name, category) in [("vectors", "embedding"), ("ranks", "reranking")] {
        let fake = format!("category = \"{category}\"\nvram = \"64MiB\"\n[custom.fake]\nfirst_token_ms = 20\n");
        sandbox.model(name, &sandbox.path("models"), &fake);
    }
    let mut dice = Dice::new(26);
    let mut accepted: BTreeMap<usize, String> = BTreeMap::new();
    for life in 0..kills {
        let boss = sandbox.start().await;
        jobs_are_open(&boss).await;
        let upto = jobs * (usize::try_from(life).unwrap() + 1) / (usize::try_from(kills).unwrap() + 1);
        let orders = send(&boss, 0..upto, &accepted);
        // The kill comes between any two answers to orders, and in every other life when an earlier job has ended too.
        let answers = dice.below(orders.len() as u64 + 1);
        let came =
            async || (orders.iter().filter(|(_, order)| order.is_finished()).count() as u64 >= answers).then_some(());
        until(PATIENCE, "some orders are answered", came).await;
        if life % 2 == 1 && !accepted.is_empty() {
            let earlier = usize::try_from(dice.below(accepted.len() as u64)).unwrap();
            ended(&boss, accepted.values().nth(earlier).unwrap()).await;
        }
        boss.kill().await;
        answered(orders, &mut accepted).await;
    }
    let boss = sandbox.start().await;
    jobs_are_open(&boss).await;
    for (number, order) in send(&boss, 0..jobs, &accepted) {
        let answer = order.await.unwrap();
        assert!(answer.status.is_success(), "{number}: {answer:?}");
        accepted.insert(number, answer.json()["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(accepted.len(), jobs);
    for (number, id) in &accepted {
        let job = ended(&boss, id).await;
        assert_eq!(job["state"], "succeeded", "{number}: {job}");
        let answer = result(&boss, id).await;
        assert_eq!(answer.body.len() as u64, job["result"]["bytes"].as_u64().unwrap(), "{job}");
        let body: Value = serde_json::from_slice(&answer.body).expect("the result is whole");
        if number % 3 == 0 {
            let said = body["choices"][0]["message"]["content"].as_str().unwrap();
            assert!(said.contains(&format!("number {number}.")), "{number} got another one's answer: {said}");
        }
    }
    // No order became two jobs.
    let (mut names, mut after) = (BTreeSet::new(), "~".to_owned());
    loop {
        let page = boss.read(&format!("{JOBS}?limit=64&after={after}")).await;
        names.extend(page["data"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        if page["has_more"] == false {
            break;
        }
        after = page["last_id"].as_str().unwrap().to_owned();
    }
    assert_eq!(names, accepted.values().cloned().collect());
    for folder in ["results", "bodies"] {
        let files = std::fs::read_dir(sandbox.path("state/jobs").join(folder)).unwrap();
        let files: BTreeSet<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(files, names, "{folder} has what the jobs have, and no halves");
    }
    boss.finish().await;
}

/// Orders on their way, by number.
type Orders = Vec<(usize, JoinHandle<Answer>)>;

/// Sends the orders that were not accepted before. Each has a name, by which it may be sent again.
fn send(boss: &Boss, numbers: Range<usize>, accepted: &BTreeMap<usize, String>) -> Orders {
    let order = |number: usize| {
        let client = boss.client();
        let mut request = client.request(Method::POST, JOBS, numbered(number).to_string());
        request.headers_mut().insert("idempotency-key", format!("order-{number}").parse().unwrap());
        (number, tokio::spawn(async move { client.send(request).await }))
    };
    numbers.filter(|number| !accepted.contains_key(number)).map(order).collect()
}

/// Collects the names of accepted jobs. An order whose connection broke may have been accepted or not.
async fn answered(orders: Orders, accepted: &mut BTreeMap<usize, String>) {
    for (number, order) in orders {
        // An order that is sent again is answered with its job, 200 if that has ended.
        if let Ok(answer) = order.await
            && answer.status.is_success()
        {
            accepted.insert(number, answer.json()["id"].as_str().unwrap().to_owned());
        }
    }
}

#[tokio::test]
async fn rc_26_a_job_that_runs_at_a_shutdown_waits_and_runs_again() {
    let sandbox = Sandbox::new().with_config("drain_grace = \"60s\"");
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_after_tokens: Some(1), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let id = submit(&boss, "chat", question("alpha", "?")).await;
    model.worker().await.held().await;
    let running = boss.read(&format!("{JOBS}/{id}")).await;
    assert_eq!((&running["state"], &running["progress"]["model"]), (&json!("running"), &json!("alpha")), "{running}");
    // Its answer is not streamed; its worker tells how far it is.
    let progress = &running["progress"];
    assert_eq!((&progress["unit"], &progress["done"], &progress["tokens"]), (&json!("tokens"), &json!(1), &json!(1)));
    assert_eq!(progress["preview"], "one", "{progress}");
    // A stream's latest text is shown while it comes.
    let mut streamed = question("alpha", "?");
    streamed["stream"] = json!(true);
    let other = submit(&boss, "chat", streamed).await;
    let preview = async || {
        let job = boss.read(&format!("{JOBS}/{other}")).await;
        job["progress"]["preview"].as_str().map(str::to_owned)
    };
    let preview = until(PATIENCE, "a preview comes", preview).await;
    assert!(!preview.trim().is_empty(), "{preview:?}");
    // The shutdown does not wait for the job, which nobody waits for.
    boss.finish().await;
    model.behave(Behaviour::default());
    let boss = sandbox.start().await;
    jobs_are_open(&boss).await;
    assert_eq!(ended(&boss, &id).await["state"], "succeeded");
    boss.finish().await;
}

#[tokio::test]
async fn rc_26_a_job_says_why_it_waits_and_ends_where_it_is_cancelled() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_load: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let id = submit(&boss, "chat", question("alpha", "?")).await;
    let worker = model.worker().await;
    let why = async || {
        let job = boss.read(&format!("{JOBS}/{id}")).await;
        (job["queue"]["reason"] == "loading").then_some(job)
    };
    let waits = until(PATIENCE, "the job waits for the load", why).await;
    assert_eq!((&waits["state"], &waits["queue"]["position"]), (&json!("queued"), &json!(1)), "{waits}");
    assert_eq!(result(&boss, &id).await.error_code(), "job_not_finished");
    worker.finish_load();
    assert_eq!(ended(&boss, &id).await["state"], "succeeded");

    model.behave(Behaviour { hold_after_tokens: Some(2), ..Behaviour::default() });
    assert!(boss.client().post("/api/v1/unload", &json!({})).await.status.is_success());
    let mut body = question("alpha", "?");
    body["stream"] = true.into();
    let id = submit(&boss, "chat", body).await;
    model.worker().await.held().await;
    let client = boss.client();
    let mut events = client.follow(client.request(Method::GET, &format!("{JOBS}/{id}/events"), "")).await;
    assert_eq!(events.chunk().await["state"], "running");
    let cancelled = client.send(client.request(Method::DELETE, &format!("{JOBS}/{id}"), "")).await;
    assert_eq!(cancelled.json()["state"], "cancelled");
    let mut last = Value::Null;
    while let Some(event) = events.next().await {
        if let Event::Data(view) = event {
            last = view;
        }
    }
    assert_eq!(last["state"], "cancelled");
    assert_eq!(result(&boss, &id).await.error_code(), "request_cancelled");
    let queue = boss.read("/api/v1/queue").await;
    assert_eq!(queue["running"], json!([]), "its request is cancelled too");
    // An ended job is forgotten.
    assert!(client.send(client.request(Method::DELETE, &format!("{JOBS}/{id}"), "")).await.status.is_success());
    assert_eq!(client.get(&format!("{JOBS}/{id}")).await.error_code(), "job_not_found");
    boss.finish().await;
}

#[tokio::test]
async fn rc_26_jobs_that_fail_keep_their_error_and_what_does_not_fit_is_refused() {
    let sandbox = Sandbox::new().with_config("[jobs]\nstorage = \"20KiB\"\nopen = 3");
    let refuses = FakeError {
        status: 400,
        code: "invalid_request".to_owned(),
        message: "this request makes no sense".to_owned(),
    };
    let _bad = sandbox.fake_model("bad", Behaviour { refuse: Some(refuses), ..Behaviour::default() });
    let _held = sandbox.fake_model("held", Behaviour { hold_load: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let id = submit(&boss, "chat", question("bad", "?")).await;
    let job = ended(&boss, &id).await;
    assert_eq!((&job["state"], &job["error"]["status"]), (&json!("failed"), &json!(400)), "{job}");
    let error = result(&boss, &id).await;
    assert_eq!((error.status.as_u16(), error.error_message().as_str()), (400, "this request makes no sense"));

    let post = async |body: Value| boss.client().post(JOBS, &body).await;
    let other = post(order("embeddings", json!({ "model": "held", "input": "?" }))).await;
    assert_eq!((other.status.as_u16(), other.error_code().as_str()), (400, "unsupported_by_model"), "{other:?}");
    let typed = post(json!({ "kind": "chat", "body": question("held", "?"), "priority": ["`"] })).await;
    assert_eq!((typed.status.as_u16(), &typed.json()["error"]["param"]), (400, &json!("priority")), "{typed:?}");
    let missing = post(order("chat", question("nobody", "?"))).await;
    assert_eq!((missing.status.as_u16(), missing.error_code().as_str()), (404, "model_not_found"));
    let large = post(order("chat", question("held", &"x".repeat(30_000)))).await;
    assert_eq!((large.status.as_u16(), large.error_code().as_str()), (507, "storage_full"));
    for _ in 0..3 {
        submit(&boss, "chat", question("held", "?")).await;
    }
    let full = post(order("chat", question("held", "?"))).await;
    assert_eq!((full.status.as_u16(), full.error_code().as_str()), (429, "queue_full"));
    let late = post(json!({ "kind": "chat", "body": question("held", "?"), "deadline": 0 })).await;
    assert_eq!(late.status, 400);
    boss.finish().await;
}
