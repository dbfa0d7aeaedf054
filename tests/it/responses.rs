//! OpenAI's Responses API with every kind of model: whole, as typed events, continued, forgotten; and the vocabulary's
//! routes.

use http::{Method, StatusCode};
use model_boss_tests::{Answer, Behaviour, Boss, Sandbox};
use serde_json::{Value, json};

use crate::real_model::guide;

const RESPONSES: &str = "/v1/responses";

fn reply(text: &str) -> Behaviour {
    Behaviour { reply: Some(text.to_owned()), ..Behaviour::default() }
}

async fn ask(boss: &Boss, body: &Value) -> Answer {
    boss.client().post(RESPONSES, body).await
}

async fn delete(boss: &Boss, path: &str) -> Answer {
    boss.client().send(boss.client().request(Method::DELETE, path, "")).await
}

/// The events of a stream, each checked for its name and its number.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (StatusCode::OK, Some("text/event-stream")),
        "{answer:?}"
    );
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let mut name = "";
    let mut events: Vec<Value> = Vec::new();
    for line in text.lines() {
        if let Some(event) = line.strip_prefix("event: ") {
            name = event;
        } else if let Some(data) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(events.len())));
            events.push(event);
        }
    }
    events
}

#[tokio::test]
async fn en_7_a_response_is_whole_or_a_stream_of_typed_events() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", reply("four and more"));
    let boss = sandbox.start().await;
    let asked = json!({ "model": "alpha", "instructions": "Be brief.", "input": "2 + 2?", "max_output_tokens": 9 });
    let answer = ask(&boss, &asked).await;
    assert_eq!(answer.header("x-served-model"), Some("alpha"));
    let whole = answer.json();
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["model"]),
        (&json!("response"), &json!("completed"), &json!("alpha"))
    );
    assert_eq!(whole["output"][0]["content"][0]["text"], "four and more");
    assert!(whole["usage"]["input_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{whole}");
    let request = model.worker().await.request().await.body;
    assert_eq!(
        (&request["messages"], &request["max_tokens"]),
        (&json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "2 + 2?" }]), &json!(9))
    );

    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let events = events(&ask(&boss, &streamed).await);
    let text: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .filter_map(|event| event["delta"].as_str())
        .collect();
    assert_eq!(text, "four and more");
    let last = &events.last().unwrap()["response"];
    assert_eq!((&events[0]["type"], &last["status"]), (&json!("response.created"), &json!("completed")));
    assert_eq!(last["usage"], whole["usage"]);
    streamed["max_output_tokens"] = json!(1);
    let cut = self::events(&ask(&boss, &streamed).await);
    let cut = cut.last().unwrap();
    assert_eq!(
        (&cut["type"], &cut["response"]["incomplete_details"]["reason"]),
        (&json!("response.incomplete"), &json!("max_output_tokens"))
    );
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_response_is_continued_shown_and_deleted_by_its_own_client() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", reply("fine"));
    let boss = sandbox.start().await;
    let first = ask(&boss, &json!({ "model": "alpha", "input": "one", "stream": true })).await;
    let first = events(&first).last().unwrap()["response"].clone();
    let second = json!({ "model": "alpha", "input": [{ "role": "user", "content": "two" }], "previous_response_id": first["id"] });
    let second = ask(&boss, &second).await.json();
    let third = json!({ "model": "alpha", "input": "three", "previous_response_id": second["id"], "store": false });
    let third = ask(&boss, &third).await.json();
    assert_eq!((&third["store"], &third["previous_response_id"]), (&json!(false), &second["id"]));
    let mut worker = model.worker().await;
    let (_, _, request) = (worker.request().await, worker.request().await, worker.request().await);
    let said: Vec<&str> =
        request.body["messages"].as_array().unwrap().iter().map(|said| said["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["one", "fine", "two", "fine", "three"]);

    let id = |response: &Value| response["id"].as_str().unwrap().to_owned();
    let path = |response: &Value| format!("{RESPONSES}/{}", id(response));
    assert_eq!(boss.read(&path(&second)).await, second);
    let items = boss.read(&format!("{}/input_items?order=asc", path(&second))).await;
    assert_eq!(
        (&items["object"], &items["data"][0]["content"], &items["has_more"]),
        (&json!("list"), &json!([{ "type": "input_text", "text": "two" }]), &json!(false))
    );
    for (wrong, field) in [("limit=0", "limit"), ("order=up", "order")] {
        let refused = boss.client().get(&format!("{}/input_items?{wrong}", path(&second))).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)));
    }
    assert_eq!(boss.client().get(&path(&third)).await.status, StatusCode::NOT_FOUND, "it was not stored");
    let others = json!({ "model": "alpha", "input": "?", "previous_response_id": first["id"], "x_client_id": "other" });
    let refused = ask(&boss, &others).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains(&id(&first)), "{refused:?}");

    let deleted = delete(&boss, &path(&first)).await;
    assert_eq!((deleted.status, &deleted.json()["deleted"]), (StatusCode::OK, &json!(true)));
    assert_eq!(delete(&boss, &path(&first)).await.status, StatusCode::NOT_FOUND);
    let lost = json!({ "model": "alpha", "input": "?", "previous_response_id": second["id"] });
    let refused = ask(&boss, &lost).await;
    let continues = format!("'{}', which '{}' continues", id(&first), id(&second));
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains(&continues), "{refused:?}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_the_memory_for_responses_is_a_setting_and_their_store_stays_within_it() {
    let sandbox = Sandbox::new().with_config("limits.responses = \"16KiB\"");
    let _model = sandbox.fake_model("alpha", reply("fine"));
    let boss = sandbox.start().await;
    let mut ids = Vec::new();
    for _ in 0..8 {
        let asked = json!({ "model": "alpha", "input": "word ".repeat(800) });
        ids.push(ask(&boss, &asked).await.json()["id"].as_str().unwrap().to_owned());
    }
    let mut kept = Vec::new();
    for id in &ids {
        kept.push(boss.client().get(&format!("{RESPONSES}/{id}")).await.status == StatusCode::OK);
    }
    assert!(kept.ends_with(&[true]) && kept.starts_with(&[false, false, false]), "{kept:?}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_fault_is_named_as_the_client_named_its_field() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", reply("fine"));
    let _small = sandbox.fake_model("small", Behaviour { context_length: 3, ..reply("fine") });
    let boss = sandbox.start().await;
    let with = |more: Value| {
        let mut asked = json!({ "model": "alpha", "input": "?" });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        asked
    };
    for (asked, field) in [
        (with(json!({ "background": true })), "background"),
        (with(json!({ "conversation": { "id": "c" } })), "conversation"),
        (with(json!({ "tools": [{ "type": "web_search" }] })), "tools[0]"),
        (
            with(
                json!({ "input": [{ "role": "user", "content": [{ "type": "input_image", "image_url": "http://x.example/a" }] }] }),
            ),
            "input[0].content[0].image_url",
        ),
        (with(json!({ "input": 7 })), "input"),
        (with(json!({ "previous_response_id": 7 })), "previous_response_id"),
        (with(json!({ "previous_response_id": "resp_nobody" })), "previous_response_id"),
    ] {
        let refused = ask(&boss, &asked).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{asked}: {refused:?}");
        let error = &refused.json()["error"];
        assert!(error["param"].as_str().is_some_and(|param| param.starts_with(field)), "{asked}: {error}");
    }
    let unknown = ask(&boss, &with(json!({ "model": "nobody" }))).await;
    assert_eq!((unknown.status, unknown.error_code().as_str()), (StatusCode::NOT_FOUND, "model_not_found"));
    let long = json!({ "model": "small", "input": [
        { "role": "user", "content": "one two three" }, { "role": "assistant", "content": "four" }, { "role": "user", "content": "and now" }] });
    let refused = ask(&boss, &long).await;
    assert_eq!(refused.error_code(), "context_length_exceeded");
    let mut shortened = long;
    shortened["truncation"] = json!("auto");
    assert_eq!(ask(&boss, &shortened).await.status, StatusCode::OK);
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_model_that_dies_in_the_middle_fails_the_response() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour { crash_after_tokens: Some(2), ..reply("one two three four") });
    let boss = sandbox.start().await;
    let events = events(&ask(&boss, &json!({ "model": "alpha", "input": "?", "stream": true })).await);
    let failed = events.last().unwrap();
    assert_eq!(
        (&failed["type"], &failed["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("worker_crashed"))
    );
    let id = failed["response"]["id"].as_str().unwrap();
    assert_eq!(boss.client().get(&format!("{RESPONSES}/{id}")).await.status, StatusCode::NOT_FOUND);
    boss.finish().await;
}

#[tokio::test]
async fn en_7_tokens_of_every_model_of_this_machine_are_told() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    sandbox.model("guide", &guide(), "");
    let _engine = sandbox.gguf_model("engine", "backend = \"llama-server\"", reply("x"));
    let _vectors =
        sandbox.gguf_model("vectors", "labels = [\"embedding\"]\nbackend = \"llama-server\"", Behaviour::default());
    let boss = sandbox.start_with_real_worker().await;
    let post = async |path: &str, body: Value| boss.client().post(path, &body).await;
    let text = "Which port does model-boss listen on?";
    let plain = post("/tokenize", json!({ "model": "guide", "content": text })).await.json();
    let tokens = plain["tokens"].as_array().unwrap();
    assert!(tokens.len() > 3 && plain["count"] == tokens.len(), "{plain}");
    let back = post("/v1/detokenize", json!({ "model": "guide", "tokens": tokens })).await.json();
    assert_eq!((&back["content"], &back["prompt"]), (&json!(text), &json!(text)));
    let pieces = post("/v1/tokenize", json!({ "model": "guide", "content": text, "with_pieces": true })).await.json();
    let joined: String =
        pieces["tokens"].as_array().unwrap().iter().filter_map(|token| token["piece"].as_str()).collect();
    assert_eq!(joined.trim_start(), text, "{pieces}");
    let strings =
        post("/v1/tokenize", json!({ "model": "guide", "prompt": text, "return_token_strs": true })).await.json();
    assert_eq!(strings["token_strs"].as_array().map(Vec::len), strings["tokens"].as_array().map(Vec::len), "{strings}");
    let messages = json!([{ "role": "user", "content": text }]);
    let chat = post("/v1/tokenize", json!({ "model": "guide", "messages": messages })).await.json();
    let answer = json!({ "model": "guide", "messages": messages, "max_tokens": 1 });
    let answer = post("/v1/chat/completions", answer).await.json();
    assert_eq!(chat["count"], answer["usage"]["prompt_tokens"], "as its template writes it: {chat}");
    for model in ["engine", "vectors"] {
        let told = post("/v1/tokenize", json!({ "model": model, "content": "a b c" })).await.json();
        assert_eq!((&told["count"], &told["tokens"]), (&json!(3), &json!([0, 1, 2])), "{model}: {told}");
    }
    let refused = post("/v1/tokenize", json!({ "model": "engine", "messages": messages })).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("messages")));
    let refused = post("/v1/tokenize", json!({ "model": "claude:opus", "content": "a" })).await;
    assert!(refused.status.is_client_error(), "{refused:?}");
    boss.finish().await;
}
