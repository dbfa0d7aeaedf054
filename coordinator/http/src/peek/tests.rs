use proptest::prelude::*;

use super::*;

const LIMITS: JsonLimits = JsonLimits { depth: 64, values: 1_000 };

fn look(body: &str) -> Result<Peeked, ApiError> {
    peek(body.as_bytes(), &head(HeaderMap::new()), LIMITS)
}

fn head(headers: HeaderMap) -> Parts {
    let mut head = http::Request::new(()).into_parts().0;
    head.headers = headers;
    head
}

fn with_headers(body: &str, headers: &[(&'static str, &str)]) -> Result<Peeked, ApiError> {
    let headers = headers.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
    peek(body.as_bytes(), &head(headers.collect()), LIMITS)
}

fn forwarded(body: &str) -> String {
    let bytes =
        look(body).unwrap().forwarded(&Bytes::copy_from_slice(body.as_bytes()), &BodyChanges::default()).unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn rc_2_fields_are_read_and_stripped() {
    let body = r#"{"model":"guide","x_client_id":"me","stream":true,"x_priority":"batch","messages":[{"x_in":1}],
        "x_keep_alive":"10m","x_budget_s":2.5,"x_fallback":"none","keep_alive":1}"#;
    let peeked = look(body).unwrap();
    assert_eq!(peeked.model.as_deref(), Some("guide"));
    assert!(peeked.stream);
    assert_eq!(peeked.client, Some("me".into()));
    assert_eq!(peeked.priority, Some(Priority::BATCH));
    assert_eq!(peeked.keep_alive, Some(KeepAlive::For(Duration::from_secs(600))));
    assert_eq!(peeked.budget, Some(Duration::from_millis(2_500)));
    assert_eq!(peeked.unknown, None);
    assert_eq!(forwarded(body), r#"{"model":"guide","stream":true,"messages":[{"x_in":1}]}"#);
}

#[test]
fn rc_2_a_body_without_our_fields_goes_on_byte_for_byte() {
    let body = "{ \"model\" : \"m\" ,\n \"temperature\":1.0e-1, \"note\":\"x_client_id\" }";
    assert_eq!(forwarded(body), body);
}

fn with_task(body: &str, defaults: serde_json::Value, thinking: Option<ThinkingSource>) -> serde_json::Value {
    let defaults: BTreeMap<String, serde_json::Value> = serde_json::from_value(defaults).unwrap();
    let changes = BodyChanges { without_model: true, defaults: Some(&defaults), thinking };
    let bytes = look(body).unwrap().forwarded(&Bytes::copy_from_slice(body.as_bytes()), &changes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn tr_1_a_tasks_fields_stand_in_for_what_the_request_does_not_set() {
    let defaults = serde_json::json!({ "temperature": 0.2, "max_tokens": 9, "stop": ["x"] });
    let with = |body: &str| with_task(body, defaults.clone(), None);
    assert_eq!(with("{}"), defaults);
    assert_eq!(
        with(r#"{"model":"task:chat","temperature":1.5,"x_priority":3,"stop":null}"#),
        serde_json::json!({ "temperature": 1.5, "max_tokens": 9, "stop": ["x"] })
    );
    assert_eq!(with(r#"{"max_completion_tokens":3}"#).get("max_tokens"), None);
    assert_eq!(forwarded(r#"{"model":"m","stop":null}"#), r#"{"model":"m","stop":null}"#);
}

#[test]
fn rc_23_a_tasks_thinking_is_put_in_unless_the_request_says_something_itself() {
    let budget = Some(ThinkingSource::Task(Thinking::Budget(9)));
    let with = |body: &str| with_task(body, serde_json::json!({}), budget);
    let enabled = serde_json::json!({ "type": "enabled", "budget_tokens": 9 });
    for body in ["{}", r#"{"thinking":null}"#, r#"{"chat_template_kwargs":{"enable_thinking":true}}"#] {
        assert_eq!(with(body)["thinking"], enabled, "{body}");
    }
    for (body, field) in [
        (r#"{"thinking":"off"}"#, "thinking"),
        (r#"{"thinking":7,"reasoning_effort":"low"}"#, "thinking"),
        (r#"{"reasoning_effort":"low"}"#, "reasoning_effort"),
        (r#"{"thinking_budget_tokens":7}"#, "llama-server's budget"),
        (r#"{"thinking_token_budget":7}"#, "vLLM's budget"),
        (r#"{"reasoning_budget":-1,"chat_template_kwargs":{"enable_thinking":true}}"#, "no limit"),
    ] {
        assert_eq!(with(body), serde_json::from_str::<serde_json::Value>(body).unwrap(), "{field}");
    }
    for field in ["reasoning_effort", "reasoning_budget"] {
        assert_eq!(with(&format!(r#"{{"{field}":null}}"#))["thinking"], enabled, "{field}: null says nothing");
    }
    let shut = with(r#"{"chat_template_kwargs":{"enable_thinking":false,"a":1}}"#);
    assert_eq!(shut["thinking"], serde_json::json!({ "type": "disabled" }));
    assert_eq!(shut["chat_template_kwargs"], serde_json::json!({ "enable_thinking": false, "a": 1 }));
    let off = with_task("{}", serde_json::json!({}), Some(ThinkingSource::Task(Thinking::Off)));
    assert_eq!(off, serde_json::json!({ "thinking": { "type": "disabled" } }));
}

#[test]
fn rc_23_what_the_request_says_to_us_goes_before_all_it_says_to_the_model() {
    let peeked = look(r#"{"x_thinking":9,"thinking":"off"}"#).unwrap();
    assert_eq!(peeked.thinking, Some(Thinking::Budget(9)));
    let header = with_headers("{}", &[("x-thinking", "off")]).unwrap();
    assert_eq!(header.thinking, Some(Thinking::Off));
    assert_eq!(with_headers(r#"{"x_thinking":"on"}"#, &[("x-thinking", "off")]).unwrap().thinking, Some(Thinking::On));
    let body = r#"{"x_thinking":9,"thinking":"off","reasoning_budget":3,"reasoning_effort":"low"}"#;
    let wish = Some(ThinkingSource::Request(Thinking::Budget(9)));
    let enabled = serde_json::json!({ "type": "enabled", "budget_tokens": 9 });
    assert_eq!(
        with_task(body, serde_json::json!({}), wish),
        serde_json::json!({ "reasoning_effort": "low", "thinking": enabled })
    );
    assert_eq!(look(r#"{"x_thinking":"much"}"#).unwrap_err().param.as_deref(), Some("x_thinking"));
    assert_eq!(with_headers("{}", &[("x-thinking", "much")]).unwrap_err().param.as_deref(), Some("x-thinking"));
}

#[test]
fn rc_2_headers_say_the_same_and_the_body_wins() {
    let headers = [
        ("x-client-id", "header"),
        ("x-priority", "interactive"),
        ("x-keep-alive", "90"),
        ("x-budget-s", "3"),
        ("x-task", "t"),
    ];
    let peeked = with_headers("{}", &headers).unwrap();
    assert_eq!(peeked.client, Some("header".into()));
    assert_eq!(peeked.priority, Some(Priority::INTERACTIVE));
    assert_eq!(peeked.keep_alive, Some(KeepAlive::For(Duration::from_secs(90))));
    assert_eq!(peeked.budget, Some(Duration::from_secs(3)));
    assert_eq!(peeked.task.as_deref(), Some("t"));
    let peeked = with_headers(r#"{"x_client_id":"body","x_priority":7,"keep_alive":-1}"#, &headers).unwrap();
    assert_eq!(peeked.client, Some("body".into()));
    assert_eq!(peeked.priority.map(Priority::number), Some(7));
    assert_eq!(peeked.keep_alive, Some(KeepAlive::Forever));
}

#[test]
fn rc_2_a_bad_value_is_a_400_that_names_the_field() {
    for (body, field) in [
        (r#"{"model":7}"#, "model"),
        (r#"{"stream":"yes"}"#, "stream"),
        (r#"{"x_priority":12}"#, "x_priority"),
        (r#"{"x_priority":"urgent"}"#, "x_priority"),
        (r#"{"x_priority":[]}"#, "x_priority"),
        (r#"{"x_client_id":""}"#, "x_client_id"),
        (r#"{"x_client_id":"a\nb"}"#, "x_client_id"),
        (r#"{"x_client_id":3}"#, "x_client_id"),
        (r#"{"x_keep_alive":"soon"}"#, "x_keep_alive"),
        (r#"{"keep_alive":"3600"}"#, "keep_alive"),
        (r#"{"x_budget_s":0}"#, "x_budget_s"),
        (r#"{"x_budget_s":-1}"#, "x_budget_s"),
        (r#"{"x_budget_s":1e300}"#, "x_budget_s"),
        (r#"{"x_budget_s":"2"}"#, "x_budget_s"),
        (r#"{"x_fallback":"any"}"#, "x_fallback"),
        (r#"{"x_task":{}}"#, "x_task"),
    ] {
        let error = look(body).expect_err(body);
        assert_eq!(error.param.as_deref(), Some(field), "{body}");
        assert_eq!(error.code.status(), 400);
        assert!(error.message.contains(field), "{}", error.message);
    }
    for (name, value) in [("x-priority", "10"), ("x-keep-alive", "soon"), ("x-budget-s", "nan"), ("x-fallback", "x")] {
        assert_eq!(with_headers("{}", &[(name, value)]).expect_err(name).param.as_deref(), Some(name));
    }
}

#[test]
fn rc_2_unknown_fields_are_named_not_passed_on() {
    let body = r#"{"x_colour":"red","x_\u0000,é":1,"model":"m"}"#;
    let peeked = look(body).unwrap();
    assert_eq!(peeked.unknown.unwrap(), "x_colour, x_???");
    assert_eq!(forwarded(body), r#"{"model":"m"}"#);
}

#[test]
fn null_means_not_given() {
    let body =
        r#"{"model":null,"stream":null,"x_client_id":null,"x_priority":null,"x_budget_s":null,"keep_alive":null}"#;
    let peeked = look(body).unwrap();
    assert_eq!(peeked, Peeked { strip: true, ..Peeked::default() });
}

#[test]
fn a_body_that_is_no_object_is_malformed() {
    for body in [
        "",
        " ",
        "{",
        "[]",
        "null",
        "7",
        "{}{}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{'a':1}",
        "{\"a\":1} x",
        "\u{feff}{}",
        "{\"a\":NaN}",
    ] {
        let error = look(body).expect_err(body);
        assert_eq!(error.code.as_str(), "invalid_request", "{body}");
    }
    assert!(peek(b"{\"a\":\"\xff\"}", &head(HeaderMap::new()), LIMITS).is_err());
}

#[test]
fn nesting_is_bounded_and_brackets_in_texts_do_not_count() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    assert!(look(&nested(64)).is_ok());
    assert!(look(&nested(65)).unwrap_err().message.contains("64"));
    assert!(look(&nested(1_000_000)).is_err());
    assert!(look(&format!("{{\"a\":\"{}\"}}", "[\\\"{".repeat(500))).is_ok());
}

#[test]
fn rc_2_a_field_spelt_with_escapes_is_the_same_field() {
    let body = r#"{"\u0078_priority":3,"model":"m"}"#;
    assert_eq!(look(body).unwrap().priority.map(Priority::number), Some(3));
    assert_eq!(forwarded(body), r#"{"model":"m"}"#);
}

proptest! {
    #[test]
    fn rc_2_stripping_keeps_everything_else(fields in prop::collection::btree_map("(x_)?[a-w]{1,6}", "\\PC{0,12}", 0..8)) {
        let kept: serde_json::Map<_, _> =
            fields.iter().filter(|(name, _)| !name.starts_with("x_")).map(|(n, v)| (n.clone(), v.clone().into())).collect();
        let unknown: std::collections::BTreeMap<_, _> = fields.iter().filter(|(name, _)| {
            !matches!(name.as_str(), "model" | "stream" | "x_task" | "x_fallback" | "keep_alive")
        }).collect();
        prop_assume!(unknown.len() == fields.len());
        let body = serde_json::to_string(&fields).unwrap();
        let got: serde_json::Value = serde_json::from_str(&forwarded(&body)).unwrap();
        prop_assert_eq!(got, serde_json::Value::Object(kept));
    }

    #[test]
    fn any_bytes_end_in_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = peek(&bytes, &head(HeaderMap::new()), LIMITS);
    }
}

#[test]
fn op_5_a_key_is_a_client_and_takes_no_other_name() {
    let ask = |body: &str, header: Option<&str>, may_name_others: bool| {
        let mut head = head(HeaderMap::new());
        if let Some(name) = header {
            head.headers.insert(CLIENT_ID, name.parse().unwrap());
        }
        head.extensions.insert(KeyClient { client: "anna".into(), may_name_others });
        peek(body.as_bytes(), &head, LIMITS).map(|peeked| peeked.client.unwrap().to_string())
    };
    let other = r#"{"x_client_id":"bert"}"#;
    assert_eq!(ask("{}", None, false).unwrap(), "anna");
    assert_eq!(ask(r#"{"x_client_id":"anna"}"#, Some("anna"), false).unwrap(), "anna");
    for (body, header) in [(other, None), ("{}", Some("bert")), (other, Some("anna"))] {
        let error = ask(body, header, false).unwrap_err();
        assert_eq!((error.code, error.param.as_deref()), (ErrorCode::InsufficientScope, Some("x_client_id")));
        assert!(error.message.contains("'anna'") && error.message.contains("'bert'"), "{}", error.message);
        assert_eq!(ask(body, header, true).unwrap(), "bert");
    }
    assert_eq!(ask("{}", None, true).unwrap(), "anna");
    assert_eq!(named_client(&HeaderMap::new(), None).unwrap(), None);
}
