//! Batches: every line is answered once, also by a coordinator that is killed meanwhile, and as the least important
//! request.

use std::collections::BTreeSet;

use http::Method;
use http::header::CONTENT_TYPE;
use model_boss_tests::{Answer, Behaviour, Boss, Dice, PATIENCE, Sandbox, question, until};
use serde_json::{Value, json};

const ENDPOINT: &str = "/v1/chat/completions";

fn line(number: usize, model: &str) -> String {
    let body = question(model, &format!("number {number}."));
    json!({ "custom_id": format!("line-{number}"), "method": "POST", "url": ENDPOINT, "body": body }).to_string() + "\n"
}

/// Uploads a file as a form.
async fn upload(boss: &Boss, text: &str) -> Answer {
    let form = format!(
        "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{text}\r\n--edge--\r\n"
    );
    let client = boss.client();
    let mut request = client.request(Method::POST, "/v1/files", form);
    request.headers_mut().insert(CONTENT_TYPE, "multipart/form-data; boundary=edge".parse().unwrap());
    client.send(request).await
}

async fn start(boss: &Boss, text: &str, window: &str) -> String {
    let file = upload(boss, text).await;
    assert_eq!(file.status, 200, "{file:?}");
    let body = json!({ "input_file_id": file.json()["id"], "endpoint": ENDPOINT, "completion_window": window });
    let batch = boss.client().post("/v1/batches", &body).await;
    assert_eq!(batch.status, 200, "{batch:?}");
    batch.json()["id"].as_str().unwrap().to_owned()
}

async fn ended(boss: &Boss, id: &str) -> Value {
    until(PATIENCE, "the batch ends", async || {
        let batch = boss.client().get(&format!("/v1/batches/{id}")).await;
        let word = batch.json()["status"].as_str().unwrap_or_default().to_owned();
        ["completed", "failed", "expired", "cancelled"].contains(&word.as_str()).then(|| batch.json())
    })
    .await
}

async fn lines_of(boss: &Boss, id: &Value) -> Vec<Value> {
    let content = boss.client().get(&format!("/v1/files/{}/content", id.as_str().unwrap())).await;
    assert_eq!(content.status, 200, "{content:?}");
    body_of(&content).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn body_of(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

fn names(lines: &[Value]) -> BTreeSet<String> {
    let names: BTreeSet<String> = lines.iter().map(|line| line["custom_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), lines.len(), "no line is answered twice");
    names
}

#[tokio::test]
async fn rc_26_a_batch_goes_on_after_kill_9_with_no_line_lost_and_none_twice() {
    let sandbox = Sandbox::new().with_config("[leases]\nterm = \"2s\"\nheartbeat = \"200ms\"\n");
    let _model = sandbox.fake_model("alpha", Behaviour { echo: true, first_token_ms: 10, ..Behaviour::default() });
    let text: String = (0..300).map(|number| line(number, "alpha")).collect();
    let mut boss = sandbox.start().await;
    let id = start(&boss, &text, "24h").await;
    let (mut dice, mut answers) = (Dice::new(3), 0);
    for _ in 0..3 {
        answers += 1 + dice.below(60);
        let begun = async || {
            let batch = boss.client().get(&format!("/v1/batches/{id}")).await;
            let completed = || batch.json()["request_counts"]["completed"].as_u64().unwrap_or_default();
            (batch.status == 200 && completed() >= answers).then_some(())
        };
        until(PATIENCE, "some lines are answered", begun).await;
        boss.kill().await;
        boss = sandbox.start().await;
    }
    let batch = ended(&boss, &id).await;
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({ "total": 300, "completed": 300, "failed": 0 }));
    let lines = lines_of(&boss, &batch["output_file_id"]).await;
    assert_eq!(names(&lines), (0..300).map(|number| format!("line-{number}")).collect());
    // Tokens of lines that earlier processes had answered are counted, too.
    let of_lines = |field: &str| -> u64 {
        lines.iter().map(|line| line["response"]["body"]["usage"][field].as_u64().unwrap()).sum()
    };
    let (usage, counted) = (&batch["usage"], (of_lines("prompt_tokens"), of_lines("completion_tokens")));
    assert!(counted.1 >= 300, "{counted:?}");
    assert_eq!((usage["input_tokens"].as_u64(), usage["output_tokens"].as_u64()), (Some(counted.0), Some(counted.1)));
    assert_eq!((&batch["model"], &usage["total_tokens"]), (&json!("alpha"), &json!(counted.0 + counted.1)));
    for line in lines {
        let number = line["custom_id"].as_str().unwrap().strip_prefix("line-").unwrap().to_owned();
        let said = &line["response"]["body"]["choices"][0]["message"]["content"];
        assert!(said.as_str().unwrap().contains(&format!("number {number}.")), "{line}");
        assert_eq!((&line["response"]["status_code"], &line["error"]), (&json!(200), &Value::Null));
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_26_faults_of_a_batch_are_named_and_its_end_keeps_what_was_answered() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let mut slow = sandbox.fake_model("slow", Behaviour { hold_after_tokens: Some(1), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let id = start(&boss, &format!("{}{{\n{}", line(1, "alpha"), line(1, "alpha")), "24h").await;
    let batch = ended(&boss, &id).await;
    let errors = batch["errors"]["data"].as_array().unwrap();
    let told: Vec<_> = errors.iter().map(|error| (error["code"].as_str().unwrap(), error["line"].as_u64())).collect();
    assert_eq!(told, [("invalid_json_line", Some(2)), ("duplicate_custom_id", Some(3))], "{batch}");
    assert_eq!((&batch["status"], &batch["output_file_id"]), (&json!("failed"), &Value::Null));

    // A line that its route refuses is in the file of errors, and the others are answered.
    let id = start(&boss, &format!("{}{}", line(1, "alpha"), line(2, "nobody")), "24h").await;
    let batch = ended(&boss, &id).await;
    assert_eq!(batch["request_counts"], json!({ "total": 2, "completed": 1, "failed": 1 }), "{batch}");
    let wrong = lines_of(&boss, &batch["error_file_id"]).await;
    assert_eq!(wrong[0]["response"]["body"]["error"]["code"], "model_not_found", "{wrong:?}");

    // A cancelled batch and an expired one.
    let id = start(&boss, &format!("{}{}", line(1, "alpha"), line(2, "slow")), "24h").await;
    slow.worker().await.held().await;
    let cancelled = boss.client().post(&format!("/v1/batches/{id}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let batch = ended(&boss, &id).await;
    assert_eq!(batch["status"], "cancelled");
    assert_eq!(names(&lines_of(&boss, &batch["output_file_id"]).await), BTreeSet::from(["line-1".to_owned()]));
    let id = start(&boss, &format!("{}{}", line(1, "alpha"), line(2, "slow")), "1s").await;
    let batch = ended(&boss, &id).await;
    assert_eq!(batch["status"], "expired", "{batch}");
    let late = lines_of(&boss, &batch["error_file_id"]).await;
    assert_eq!((&late[0]["custom_id"], &late[0]["error"]["code"]), (&json!("line-2"), &json!("batch_expired")));

    // Files: facts, parts, and an end.
    let file = batch["input_file_id"].as_str().unwrap();
    let client = boss.client();
    let mut request = client.request(Method::GET, &format!("/v1/files/{file}/content"), "");
    request.headers_mut().insert("range", "bytes=1-9".parse().unwrap());
    let part = client.send(request).await;
    assert_eq!((part.status.as_u16(), body_of(&part).as_str()), (206, &line(1, "alpha")[1..10]));
    let gone = client.send(client.request(Method::DELETE, &format!("/v1/files/{file}"), "")).await;
    assert_eq!(gone.json()["deleted"], true);
    assert_eq!(client.get(&format!("/v1/files/{file}")).await.error_code(), "file_not_found");
    boss.finish().await;
}
