//! `/v1/rerank`, `/v1/score` and `/v1/classify` over a real socket, with a model that judges by the length of texts.

use std::collections::BTreeMap;
use std::sync::Arc;

use model_boss_engine::{DecoderError, EncoderInfo, EncoderText, LabelShares, PairForm, PlaceUse, TextEncoder};
use model_boss_protocol::{Category, DeviceId};
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

/// A model whose number for the n-th label is the length of the second text, or of the only one, times n + 1.
pub(super) struct Judge(EncoderInfo);

impl Judge {
    pub(super) fn new(labels: usize) -> Self {
        Self(EncoderInfo {
            vocab_size: 300,
            max_tokens: 12,
            width: labels,
            labels: (0..labels).map(|label| format!("label {label}")).collect(),
            shares: if labels == 1 { LabelShares::Apart } else { LabelShares::Together },
            pairs: PairForm::Joined,
            weight_bytes: 7,
            workspace_bytes: 0,
            kv_tokens: Some(0),
            prompts: BTreeMap::new(),
            default_prompt: None,
            leaves_prompts_out: false,
            tasks: Vec::new(),
        })
    }
}

impl TextEncoder for Judge {
    fn info(&self) -> &EncoderInfo {
        &self.0
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        [PlaceUse::new(DeviceId::Cpu, 0..1, (7, 0), (0, 0))].into()
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        let numbers = |text: &EncoderText<'_>| {
            let from = if text.second_from == text.tokens.len() && text.tokens[0] != u32::from(b'q') {
                0
            } else {
                text.second_from
            };
            let length = (text.tokens.len() - from) as f32;
            (1..=self.0.labels.len()).map(|label| length * label as f32).collect()
        };
        Ok(texts.iter().map(numbers).collect())
    }
}

async fn judge(labels: usize) -> Rig {
    Setup { category: Category::Reranking, labels, ..Setup::default() }.start().await
}

async fn post(rig: &Rig, path: &str, body: Value) -> (u16, Value) {
    let answer = rig.send("POST", path, "", body.to_string().as_bytes()).await;
    (answer.status, serde_json::from_str(&answer.chunks.concat()).unwrap())
}

fn logistic(number: f64) -> f64 {
    1.0 / (1.0 + (-number).exp())
}

fn close(got: &Value, want: f64) -> bool {
    (got.as_f64().unwrap() - want).abs() < 1e-6
}

#[tokio::test]
async fn em_2_documents_come_in_the_order_of_their_scores() {
    let rig = judge(1).await;
    let documents = json!(["a", "", {"text": "abcd"}, "ab", "cd"]);
    let (status, answer) = post(&rig, "/v1/rerank", json!({"query": "qq", "documents": documents})).await;
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().unwrap();
    let order: Vec<u64> = results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
    assert_eq!(order, [2, 3, 4, 0, 1], "equal ones stay in order, and an empty one is scored");
    for (result, length) in results.iter().zip([4.0, 2.0, 2.0, 1.0, 0.0]) {
        assert!(close(&result["relevance_score"], logistic(length)), "{result}");
        assert!(result.get("document").is_none());
    }
    assert_eq!((&answer["model"], &answer["usage"]["total_tokens"]), (&json!("test/tiny"), &json!(19)));

    let body = json!({"query": "qq", "documents": documents, "top_n": 2, "return_documents": true});
    let (_, answer) = post(&rig, "/v1/rerank", body).await;
    let documents: Vec<&Value> =
        answer["results"].as_array().unwrap().iter().map(|result| &result["document"]["text"]).collect();
    assert_eq!(documents, [&json!("abcd"), &json!("ab")]);
}

#[tokio::test]
async fn em_2_long_documents_are_cut_unless_that_is_refused() {
    let rig = judge(1).await;
    let body = |truncate: Value| json!({"query": "qq", "documents": ["a".repeat(30)], "truncate": truncate});
    let (_, answer) = post(&rig, "/v1/rerank", body(json!(null))).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 12);
    let (status, answer) = post(&rig, "/v1/rerank", body(json!(false))).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("32 tokens"), "{answer}");
}

#[tokio::test]
async fn em_2_pairs_are_scored_one_with_each_or_each_with_each() {
    let rig = judge(1).await;
    let scores = async |body: Value| {
        let (status, answer) = post(&rig, "/v1/score", body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!((&answer["object"], &answer["data"][0]["object"]), (&json!("list"), &json!("score")));
        answer["data"].as_array().unwrap().iter().map(|data| data["score"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let one = scores(json!({"text_1": "q", "text_2": ["a", "abc"]})).await;
    assert_eq!(one.len(), 2);
    assert!((one[1] - logistic(3.0)).abs() < 1e-6, "{one:?}");
    let each = scores(json!({"text_1": ["q", "qq"], "text_2": ["abc", "a"]})).await;
    assert_eq!((each[0], each[1]), (one[1], one[0]));
    assert_eq!(scores(json!({"queries": "q", "documents": "a"})).await, [one[0]], "vLLM's other names");
    for body in [
        json!({"text_1": ["q", "q"], "text_2": ["a"]}),
        json!({"text_1": ["q"], "text_2": ["a", "b"]}),
        json!({"text_1": "q", "text_2": []}),
        json!({"text_2": "q"}),
        json!({"text_1": 7, "text_2": "q"}),
    ] {
        let (status, answer) = post(&rig, "/v1/score", body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("text_"), "{answer}");
    }
}

#[tokio::test]
async fn em_2_texts_and_pairs_get_the_shares_of_labels() {
    let rig = judge(3).await;
    let input = json!(["ab", {"text": "q", "text_pair": "a"}, {"text": "abc"}]);
    let (status, answer) = post(&rig, "/v1/classify", json!({"input": input})).await;
    assert_eq!(status, 200, "{answer}");
    for (at, length) in [2.0_f64, 1.0, 3.0].into_iter().enumerate() {
        let data = &answer["data"][at];
        assert_eq!((&data["index"], &data["num_classes"], &data["label"]), (&json!(at), &json!(3), &json!("label 2")));
        let weights: Vec<f64> = (1..=3).map(|label| (length * f64::from(label)).exp()).collect();
        let all: f64 = weights.iter().sum();
        assert!(
            data["probs"].as_array().unwrap().iter().zip(weights).all(|(got, want)| close(got, want / all)),
            "{data}"
        );
    }
    let (_, one) = post(&rig, "/v1/classify", json!({"input": "ab"})).await;
    assert_eq!(one["data"][0]["probs"], answer["data"][0]["probs"]);
    // Several labels are no relevance.
    for (path, body) in [
        ("/v1/rerank", json!({"query": "q", "documents": ["a"]})),
        ("/v1/score", json!({"text_1": "q", "text_2": "a"})),
    ] {
        let (status, answer) = post(&rig, path, body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("unsupported_by_model")), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("/v1/classify"), "{answer}");
    }
}

#[tokio::test]
async fn em_2_what_cannot_be_judged_is_refused_by_name() {
    let rig = judge(1).await;
    for (path, body, named) in [
        ("/v1/rerank", json!({"query": "q", "documents": []}), "documents"),
        ("/v1/rerank", json!({"query": "q"}), "documents"),
        ("/v1/rerank", json!({"documents": ["a"]}), "query"),
        ("/v1/rerank", json!({"query": "q", "documents": [7]}), "documents"),
        ("/v1/rerank", json!({"query": "q", "documents": ["a"], "top_n": 0}), "top_n"),
        ("/v1/classify", json!({"input": []}), "input"),
        ("/v1/classify", json!({"input": {"text_pair": "a"}}), "input"),
    ] {
        let (status, answer) = post(&rig, path, body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(named), "{answer}");
    }
    let (status, answer) = post(&rig, "/v1/embeddings", json!({"input": "a"})).await;
    assert_eq!(status, 404, "{answer}");
}
