//! Jobs on a full disk, with a form as their body, and with a receiver of webhooks that goes away in the middle.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use model_boss_tests::{Answer, Behaviour, Boss, FailingWrites, PATIENCE, Sandbox, binary, question, until};
use nix::errno::Errno;
use ring::hmac;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const JOBS: &str = "/api/v1/jobs";

/// Few times between renewals, so that a killed coordinator's leases are soon free.
const SHORT: &str = "[leases]\nterm = \"2s\"\nheartbeat = \"200ms\"\n";

async fn accepted(boss: &Boss, order: &Value) -> String {
    let answer = boss.client().post(JOBS, order).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()["id"].as_str().unwrap().to_owned()
}

async fn job(boss: &Boss, id: &str) -> Value {
    boss.read(&format!("{JOBS}/{id}?wait=5s")).await
}

async fn ended(boss: &Boss, id: &str) -> Value {
    until(PATIENCE, "the job ends", async || {
        let open = boss.client().get(JOBS).await.status == 200;
        let job = if open { job(boss, id).await } else { Value::Null };
        (!job["ended"].is_null()).then_some(job)
    })
    .await
}

async fn result(boss: &Boss, id: &str) -> Answer {
    boss.client().get(&format!("{JOBS}/{id}/result")).await
}

#[tokio::test]
async fn rc_26_a_full_disk_refuses_new_jobs_and_no_accepted_one_is_lost() {
    let sandbox = Sandbox::new().with_config("[leases]\nterm = \"30s\"\nheartbeat = \"200ms\"\npatience = \"500ms\"");
    let Some(disk) = FailingWrites::below(&sandbox, &sandbox.path("state")) else { return };
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_after_tokens: Some(1), ..Behaviour::default() });
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    disk.under(&mut launch);
    let boss = launch.start().await;
    let order = |text: &str| json!({ "kind": "chat", "body": question("alpha", text) });
    let running = accepted(&boss, &order("first.")).await;
    let mut worker = model.worker().await;
    worker.held().await;
    let waiting = accepted(&boss, &order("second.")).await;

    disk.fail(Errno::ENOSPC);
    let refused = boss.client().post(JOBS, &order("third.")).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (507, "disk_full"), "{refused:?}");
    worker.decode();
    // The answer is there, and cannot be kept: the job has not ended.
    until(PATIENCE, "the disk's fault is said", async || {
        boss.read("/api/v1/health").await["problems"].to_string().contains("No space left").then_some(())
    })
    .await;
    for id in [&running, &waiting] {
        let seen = boss.read(&format!("{JOBS}/{id}")).await;
        assert!(seen["ended"].is_null() && seen["error"].is_null(), "{seen}");
    }

    disk.work();
    for id in [&running, &waiting] {
        let seen = ended(&boss, id).await;
        assert_eq!(seen["state"], "succeeded", "{seen}");
        let answer = result(&boss, id).await;
        assert_eq!(answer.body.len() as u64, seen["result"]["bytes"].as_u64().unwrap(), "{seen}");
        assert!(!answer.json()["choices"][0]["message"]["content"].as_str().unwrap().is_empty(), "{answer:?}");
    }
    let third = accepted(&boss, &order("third.")).await;
    assert_eq!(ended(&boss, &third).await["state"], "succeeded");
    boss.finish().await;
}

#[tokio::test]
async fn rc_26_a_form_is_a_job_whose_file_is_on_the_disk_and_survives_kill_9() {
    let sandbox = Sandbox::new().with_config(SHORT);
    let manifest = "vram = \"64MiB\"\ncategory = \"transcription\"";
    let mut model = sandbox.fake_model_with("ears", manifest, Behaviour { hold_load: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let sound = b"\r\n--limi\r\n".repeat(100_000);
    let part = |head: &str, content: &[u8]| {
        let head = format!("--limit\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        [head.as_bytes(), content, b"\r\n"].concat()
    };
    let form = [
        part("name=\"file\"; filename=\"meeting.wav\"", &sound),
        part("name=\"model\"", b"ears"),
        part("name=\"language\"", b"en"),
        b"--limit--\r\n".to_vec(),
    ]
    .concat();
    let stranger =
        [part("name=\"file\"", b"abc"), part("name=\"model\"", b"nobody"), b"--limit--\r\n".to_vec()].concat();
    let send = async |query: &str, kind: &'static str, form: &[u8]| {
        let mut request = boss.client().request(Method::POST, &format!("{JOBS}?{query}"), form.to_vec());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        boss.client().send(request).await
    };
    const FORM: &str = "multipart/form-data; boundary=limit";
    let answer = send("kind=transcription&priority=7", FORM, &form).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    model.worker().await;
    let kept = std::fs::metadata(sandbox.path("state/jobs/bodies").join(&id)).unwrap();
    assert_eq!(kept.len(), form.len() as u64, "the body is on the disk as it came");
    for (query, kind, form, code) in [
        ("kind=transcription", "multipart/form-data", &form[..], "invalid_request"),
        ("kind=sing", FORM, &form, "invalid_request"),
        ("kind=transcription&priority=77", FORM, &form, "invalid_request"),
        ("kind=transcription", FORM, &form[..form.len() / 2], "invalid_request"),
        ("kind=transcription", FORM, b"--limit--\r\n", "invalid_request"),
        ("kind=transcription", FORM, &stranger, "model_not_found"),
    ] {
        let refused = send(query, kind, form).await;
        assert!(refused.status.is_client_error(), "{query}, {kind}: {refused:?}");
        assert_eq!(refused.error_code(), code, "{refused:?}");
    }
    // The same form again, as clients send it: with another boundary.
    let named = async |form: &[u8], boundary: &str, query: &str| {
        let mut request =
            boss.client().request(Method::POST, &format!("{JOBS}?kind=transcription{query}"), form.to_vec());
        let kind = format!("multipart/form-data; boundary={boundary}");
        request.headers_mut().insert(CONTENT_TYPE, kind.parse().unwrap());
        request.headers_mut().insert("idempotency-key", HeaderValue::from_static("minutes"));
        boss.client().send(request).await
    };
    let small = [part("name=\"file\"", b"abc"), part("name=\"model\"", b"ears"), b"--limit--\r\n".to_vec()].concat();
    let first = named(&small, "limit", "").await;
    let again = String::from_utf8(small.clone()).unwrap().replace("--limit", "--other");
    let second = named(again.as_bytes(), "other", "").await;
    assert_eq!((first.status.as_u16(), &first.json()["id"]), (202, &second.json()["id"]), "{second:?}");
    let other = String::from_utf8(small.clone()).unwrap().replace("abc", "abd");
    for (form, query) in [(other.as_bytes(), ""), (&small[..], "&priority=1")] {
        assert_eq!(named(form, "limit", query).await.error_code(), "idempotency_mismatch");
    }
    let left = std::fs::read_dir(sandbox.path("state/jobs/bodies")).unwrap().count() - 1;
    assert_eq!(left, 1, "nothing is kept of what was refused");
    boss.kill().await;
    model.behave(Behaviour::default());
    let boss = sandbox.start().await;
    assert_eq!(ended(&boss, &id).await["state"], "succeeded");
    let expected = json!({ "text": format!("{} bytes of sound", sound.len()), "model": "ears" });
    assert_eq!(result(&boss, &id).await.json(), expected);
    boss.finish().await;
}

/// A webhook as it came.
struct Delivery {
    connection: TcpStream,
    head: String,
    body: Vec<u8>,
}

impl Delivery {
    async fn next(listener: &TcpListener) -> Self {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        loop {
            let mut piece = [0; 4096];
            let read = connection.read(&mut piece).await.unwrap();
            assert_ne!(read, 0, "the request ends early");
            bytes.extend_from_slice(&piece[..read]);
            let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let mut delivery = Self { connection, head, body: bytes[end + 4..].to_vec() };
            let length: usize = delivery.header("content-length").parse().unwrap();
            if delivery.body.len() == length {
                return delivery;
            }
            connection = delivery.connection;
            delivery.body.clear();
        }
    }

    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(own, _)| own.eq_ignore_ascii_case(name));
        found.next().unwrap_or_else(|| panic!("no {name} in {}", self.head)).1.trim()
    }

    async fn answer(mut self, status: &str) {
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        self.connection.write_all(answer.as_bytes()).await.unwrap();
        self.connection.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn rc_26_a_webhook_that_was_cut_by_kill_9_comes_again_with_its_id_and_a_signature() {
    let receiver = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://127.0.0.1:{}/hook?of=jobs", receiver.local_addr().unwrap().port());
    let config = format!("{SHORT}[jobs]\nwebhook_private_hosts = [\"127.0.0.1\"]");
    let sandbox = Sandbox::new().with_config(&config);
    let _model = sandbox.fake_model("alpha", Behaviour { echo: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let order = json!({ "kind": "chat", "body": question("alpha", "tell them."), "webhook": url });
    let id = accepted(&boss, &order).await;
    // The receiver takes it, and its answer never arrives.
    let cut = Delivery::next(&receiver).await;
    boss.kill().await;
    let boss = sandbox.start().await;
    let again = Delivery::next(&receiver).await;
    assert!(again.head.starts_with("POST /hook?of=jobs HTTP/1.1"), "{}", again.head);
    assert_eq!(again.header("webhook-id"), cut.header("webhook-id"), "receivers know it by its id");
    let told: Value = serde_json::from_slice(&again.body).unwrap();
    assert_eq!((&told["type"], &told["data"]["id"]), (&json!("job.succeeded"), &json!(id)), "{told}");
    // The signature is made anew here, as its standard says.
    let secret = std::fs::read_to_string(sandbox.path("state/jobs/webhook-secret")).unwrap();
    let secret = STANDARD.decode(secret.trim().strip_prefix("whsec_").unwrap()).unwrap();
    for delivery in [&cut, &again] {
        let signed = format!("{}.{}.", delivery.header("webhook-id"), delivery.header("webhook-timestamp"));
        let signed = [signed.as_bytes(), &delivery.body].concat();
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), &signed);
        assert_eq!(delivery.header("webhook-signature"), format!("v1,{}", STANDARD.encode(signature)));
    }
    again.answer("200 OK").await;
    let delivered = until(PATIENCE, "the delivery is recorded", async || {
        let seen = boss.read(&format!("{JOBS}/{id}")).await;
        (seen["webhook"]["state"] == "delivered").then_some(seen)
    })
    .await;
    assert_eq!(delivered["state"], "succeeded", "{delivered}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_26_jobs_and_lines_for_a_model_that_is_away_do_not_keep_those_of_others() {
    let sandbox = Sandbox::new().with_config("[jobs]\nin_flight = 8\nbatch_in_flight = 8\nbatches = 2");
    let held = Behaviour { hold_load: true, ..Behaviour::default() };
    let mut away = sandbox.fake_model_with("away", "vram = \"64MiB\"", held);
    let _free = sandbox.fake_model_with("free", "vram = \"64MiB\"", Behaviour::default());
    let boss = sandbox.start().await;
    // Models are loaded one after the other, and this one is there.
    assert!(boss.chat("free", "?").await.status.is_success());
    let order = |model: &str| json!({ "kind": "chat", "body": question(model, "?") });
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(accepted(&boss, &order("away")).await);
    }
    let worker = away.worker().await;
    for _ in 0..5 {
        let id = accepted(&boss, &order("free")).await;
        assert_eq!(ended(&boss, &id).await["state"], "succeeded");
    }
    // Two batches, of which one cannot go on.
    let batch = async |model: &str| {
        let line = |at: usize| json!({ "custom_id": at.to_string(), "method": "POST", "url": "/v1/chat/completions", "body": question(model, "?") });
        let lines: String = (0..12).map(|at| format!("{}\n", line(at))).collect();
        let form = format!(
            "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: \
             form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{lines}\r\n--b--\r\n"
        );
        let mut request = boss.client().request(Method::POST, "/v1/files", form);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("multipart/form-data; boundary=b"));
        let file = boss.client().send(request).await.json()["id"].clone();
        let wish = json!({ "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h" });
        let made = boss.client().post("/v1/batches", &wish).await;
        made.json()["id"].as_str().unwrap_or_else(|| panic!("{made:?}")).to_owned()
    };
    let status = async |id: &str| boss.read(&format!("/v1/batches/{id}")).await["status"].as_str().unwrap().to_owned();
    let stuck = batch("away").await;
    let done = batch("free").await;
    let completed = async || (status(&done).await == "completed").then_some(());
    until(PATIENCE, "the batch for the free model is answered", completed).await;
    assert_eq!(status(&stuck).await, "in_progress");
    worker.finish_load();
    for id in &waiting {
        assert_eq!(ended(&boss, id).await["state"], "succeeded");
    }
    until(PATIENCE, "the other batch too", async || (status(&stuck).await == "completed").then_some(())).await;
    let sound = json!({ "input_file_id": "file-1", "endpoint": "/v1/audio/speech", "completion_window": "24h" });
    let refused = boss.client().post("/v1/batches", &sound).await;
    assert!(refused.status == 400 && refused.error_message().contains("sound"), "{refused:?}");
    boss.finish().await;
}
