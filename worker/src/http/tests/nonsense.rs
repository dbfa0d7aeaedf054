use super::rig::Setup;

use axum::body::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::http::{chat, completions};

/// Words and numbers that requests are made of, and some they are not.
fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0.0..2.0).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        proptest::sample::select(vec!["user", "assistant", "tool", "text", "function", "auto", "hi"])
            .prop_map(Value::from),
    ]
}

const KEYS: [&str; 30] = [
    "messages",
    "prompt",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "id",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stop",
    "seed",
    "max_tokens",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "include_usage",
    "logit_bias",
    "echo",
    "suffix",
    "response_format",
    "chat_template_kwargs",
];

fn json_value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((proptest::sample::select(KEYS.to_vec()), inner), 0..5)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// Any body becomes work or a 400, without a panic.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_the_clients_fault() {
    let rig = Setup::default().start().await;
    let fields = proptest::collection::vec((proptest::sample::select(KEYS.to_vec()), json_value()), 0..6);
    let mut runner = TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() });
    runner
        .run(&fields, |fields| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"});
            body.as_object_mut().unwrap().extend(fields.into_iter().map(|(key, value)| (key.to_owned(), value)));
            let body = Bytes::from(body.to_string());
            let prepared = async {
                [chat::prepare(&rig.worker, body.clone()).await, completions::prepare(&rig.worker, body.clone()).await]
            };
            let runtime = tokio::runtime::Handle::current();
            for prepared in tokio::task::block_in_place(|| runtime.block_on(prepared)) {
                match prepared {
                    Ok(plan) => prop_assert!(!plan.works.is_empty()),
                    Err(failure) => prop_assert_eq!(failure.0.code.status(), 400, "{:?}", failure),
                }
            }
            Ok(())
        })
        .unwrap();
}
