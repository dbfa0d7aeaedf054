//! `/v1/embeddings` over a real socket, with an encoder that counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use model_boss_engine::{
    DecoderError, EncodedForm, EncoderInfo, EncoderText, LabelShares, PairForm, PlaceUse, TextEncoder,
};
use model_boss_protocol::{Category, DeviceId};
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

/// An encoder whose vectors tell what it was given: the number of tokens, with the task and those left out, the first,
/// the last, and their sum.
pub(super) struct CountingEncoder(EncoderInfo);

impl CountingEncoder {
    pub(super) fn new() -> Self {
        Self(EncoderInfo {
            vocab_size: 300,
            max_tokens: 10,
            width: 4,
            labels: Vec::new(),
            shares: LabelShares::Apart,
            pairs: PairForm::Joined,
            weight_bytes: 7,
            workspace_bytes: 0,
            kv_tokens: Some(0),
            prompts: BTreeMap::from([("query".to_owned(), "q:".to_owned()), ("none".to_owned(), String::new())]),
            default_prompt: None,
            leaves_prompts_out: true,
            tasks: vec!["query".to_owned(), "sorting".to_owned()],
        })
    }
}

impl TextEncoder for CountingEncoder {
    fn info(&self) -> &EncoderInfo {
        &self.0
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        [PlaceUse::new(DeviceId::Cpu, 0..1, (7, 0), (0, 0))].into()
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        if texts.iter().any(|text| text.tokens.contains(&13)) {
            return Err(DecoderError::Step("thirteen".to_owned()));
        }
        let vector = |text: &EncoderText<'_>| {
            let text = text.tokens;
            let ends = [text.first(), text.last()].map(|token| token.map_or(0.0, |token| *token as f32));
            vec![text.len() as f32, ends[0], ends[1], text.iter().sum::<u32>() as f32]
        };
        let of_task = |text: &EncoderText<'_>| {
            let mut vector = vector(text);
            vector[0] += 100.0 * text.task.map_or(0.0, |task| 1.0 + task as f32) + 1000.0 * text.left_out as f32;
            vector
        };
        Ok(texts.iter().map(of_task).collect())
    }

    fn has_form(&self, _: EncodedForm) -> bool {
        true
    }

    /// A token's own number is its vector.
    fn encode_as(&mut self, texts: &[EncoderText<'_>], form: EncodedForm) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        if form == EncodedForm::EachToken {
            let rows = |text: &EncoderText<'_>| text.tokens.iter().map(|token| vec![*token as f32]).collect();
            return Ok(texts.iter().map(rows).collect());
        }
        Ok(self.encode(texts)?.into_iter().map(|vector| vec![vector]).collect())
    }
}

async fn rig() -> Rig {
    Setup { category: Category::Embedding, ..Setup::default() }.start().await
}

async fn vectors(rig: &Rig, body: Value) -> Vec<Vec<f32>> {
    let answer = rig.send("POST", "/v1/embeddings", "", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.chunks.concat());
    let answer: Value = serde_json::from_str(&answer.chunks.concat()).unwrap();
    answer["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| serde_json::from_value(one["embedding"].clone()).unwrap())
        .collect()
}

#[tokio::test]
async fn em_1_every_form_of_input_has_its_vectors_in_order() {
    let rig = rig().await;
    // A byte is its own token here, and nothing is around a text.
    assert_eq!(vectors(&rig, json!({"input": "ab"})).await, [[2.0, 97.0, 98.0, 195.0]]);
    assert_eq!(
        vectors(&rig, json!({"input": ["c", "abc"]})).await,
        [[1.0, 99.0, 99.0, 99.0], [3.0, 97.0, 99.0, 294.0]]
    );
    assert_eq!(vectors(&rig, json!({"input": [5, 6]})).await, [[2.0, 5.0, 6.0, 11.0]]);
    assert_eq!(vectors(&rig, json!({"input": [[5], [6, 7]]})).await, [[1.0, 5.0, 5.0, 5.0], [2.0, 6.0, 7.0, 13.0]]);
    assert_eq!(vectors(&rig, json!({"input": "a".repeat(30)})).await[0][0], 10.0, "a long text is cut");
    // A task chooses adapters, and the text that the model has for it; each may be named by itself.
    assert_eq!(vectors(&rig, json!({"input": "b", "task": "query"})).await, [[2103.0, 113.0, 98.0, 269.0]]);
    let apart = json!({"input": "b", "task": "sorting", "prompt_name": "query"});
    assert_eq!(vectors(&rig, apart).await, [[2203.0, 113.0, 98.0, 269.0]]);
    assert_eq!(vectors(&rig, json!({"input": [98], "task": "sorting"})).await[0][0], 201.0);
    assert_eq!(vectors(&rig, json!({"input": "b", "prompt_name": "query"})).await, [[2103.0, 113.0, 98.0, 269.0]]);
    let short = vectors(&rig, json!({"input": [3, 4], "dimensions": 2})).await;
    assert!((short[0][0] - 2.0 / 13.0_f32.sqrt()).abs() < 1e-6 && short[0].len() == 2);
    let many: Vec<String> = (0..300).map(|at| format!("{at:03}")).collect();
    let all = vectors(&rig, json!({"input": many})).await;
    assert!(all.len() == 300 && all[299][2] == 57.0);
    let body = json!({"input": [5], "encoding_format": "base64"}).to_string();
    let answer: Value =
        serde_json::from_str(&rig.send("POST", "/v1/embeddings", "", body.as_bytes()).await.chunks.concat()).unwrap();
    assert_eq!(answer["data"][0]["embedding"], "AACAPwAAoEAAAKBAAACgQA==");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 1, "total_tokens": 1}));
}

#[tokio::test]
async fn em_1_what_cannot_be_embedded_is_refused_by_name() {
    let rig = rig().await;
    for (body, status, said) in [
        (json!({}), 400, "'input' is missing"),
        (json!({"input": []}), 400, "0 texts"),
        (json!({"input": ""}), 400, "without a token"),
        (json!({"input": [[1], []]}), 400, "without a token"),
        (json!({"input": [300]}), 400, "300"),
        (json!({"input": {"a": 1}}), 400, "a list of texts"),
        (json!({"input": "x", "dimensions": 5}), 400, "from 1 to 4"),
        (json!({"input": "x", "encoding_format": "binary"}), 400, "encoding_format"),
        (json!({"input": "x", "prompt_name": "document"}), 400, "query"),
        (json!({"input": "x", "task": "cooking"}), 400, "sorting"),
        (json!({"input": "a".repeat(30), "truncate": false}), 400, "30"),
        (json!({"input": vec![1; 11], "truncate": false}), 400, "11 tokens"),
        (json!({"input": [13]}), 500, "thirteen"),
    ] {
        let answer = rig.send("POST", "/v1/embeddings", "", body.to_string().as_bytes()).await;
        let text = answer.chunks.concat();
        assert!(answer.status == status && text.contains(said), "{body}: {} {text}", answer.status);
    }
    assert_eq!(vectors(&rig, json!({"input": "ab"})).await.len(), 1, "it goes on");
    for path in ["/v1/chat/completions", "/v1/completions"] {
        assert_eq!(rig.send("POST", path, "", b"{}").await.status, 404);
    }
}
