//! The routes of text-embeddings-inference over a real socket.

use model_boss_protocol::Category;
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

async fn post(rig: &Rig, path: &str, body: &Value) -> (u16, Value) {
    let answer = rig.send("POST", path, "", body.to_string().as_bytes()).await;
    (answer.status, serde_json::from_str(&answer.chunks.concat()).unwrap())
}

/// The encoder of this rig gives the number of tokens, the first, the last and the sum.
#[tokio::test]
async fn em_1_vectors_come_as_a_plain_list() {
    let rig = Setup { category: Category::Embedding, ..Setup::default() }.start().await;
    let embed = async |body: Value| post(&rig, "/embed", &body).await;
    let (status, answer) = embed(json!({"inputs": "ab"})).await;
    let length = f64::sqrt(4.0 + 97.0 * 97.0 + 98.0 * 98.0 + 195.0 * 195.0);
    let vector = answer[0].as_array().unwrap();
    assert!(status == 200 && answer.as_array().unwrap().len() == 1, "{answer}");
    assert!((vector[0].as_f64().unwrap() - 2.0 / length).abs() < 1e-6, "it has the length 1: {answer}");
    let raw = async |more: Value| {
        let mut body = json!({"normalize": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        embed(body).await
    };
    assert_eq!(raw(json!({"inputs": ["a", "ab"]})).await.1, json!([[1.0, 97.0, 97.0, 97.0], [2.0, 97.0, 98.0, 195.0]]));
    assert_eq!(raw(json!({"inputs": [5, 6]})).await.1, json!([[2.0, 5.0, 6.0, 11.0]]));
    assert_eq!(raw(json!({"inputs": ["a", [5]]})).await.1, json!([[1.0, 97.0, 97.0, 97.0], [1.0, 5.0, 5.0, 5.0]]));
    assert_eq!(raw(json!({"inputs": "b", "prompt_name": "query"})).await.1[0][0], 2103.0, "by its task");
    assert_eq!(raw(json!({"inputs": "ab", "dimensions": 2})).await.1, json!([[2.0, 97.0]]));
    let long = "abcdefghijklm";
    assert_eq!(raw(json!({"inputs": long, "truncate": true})).await.1[0], json!([10.0, 97.0, 106.0, 1015.0]));
    let left = json!({"inputs": long, "truncate": true, "truncation_direction": "Left"});
    assert_eq!(raw(left).await.1[0], json!([10.0, 100.0, 109.0, 1045.0]));
    for (body, said) in [
        (json!({}), "'inputs' is missing"),
        (json!({"inputs": []}), "0 texts"),
        (json!({"inputs": long}), "13"),
        (json!({"inputs": "a", "truncation_direction": "up"}), "'Left' or 'Right'"),
        (json!({"inputs": "a", "dimensions": 9}), "from 1 to 4"),
        (json!({"inputs": [[300]]}), "300"),
    ] {
        let (status, answer) = embed(body.clone()).await;
        assert!(status == 400 && answer.to_string().contains(said), "{body}: {status} {answer}");
    }
    let (status, answer) = post(&rig, "/embed_all", &json!({"inputs": ["ab", "c"]})).await;
    assert_eq!((status, answer), (200, json!([[[97.0], [98.0]], [[99.0]]])));
}

/// The judge of this rig gives the length of the second text, or of the only one, times the number of the label.
#[tokio::test]
async fn em_2_predictions_come_as_plain_lists() {
    let rig = Setup { category: Category::Reranking, labels: 2, ..Setup::default() }.start().await;
    let predict = async |body: Value| post(&rig, "/predict", &body).await;
    let raw = |score: f32, label: usize| json!({"score": score, "label": format!("label {label}")});
    let (status, answer) = predict(json!({"inputs": "abc", "raw_scores": true})).await;
    assert_eq!((status, answer), (200, json!([raw(6.0, 1), raw(3.0, 0)])));
    let (_, answer) = predict(json!({"inputs": ["q", "ab"], "raw_scores": true})).await;
    assert_eq!(answer, json!([raw(4.0, 1), raw(2.0, 0)]), "two texts are a pair");
    let (_, answer) = predict(json!({"inputs": [["abc"], ["q", "a"]]})).await;
    let share = 1.0 / (1.0 + f64::exp(-3.0));
    assert!((answer[0][0]["score"].as_f64().unwrap() - share).abs() < 1e-6, "{answer}");
    assert_eq!((answer.as_array().unwrap().len(), &answer[1][0]["label"]), (2, &json!("label 1")));
    for (body, said) in [
        (json!({"inputs": ["a", "b", "c"]}), "'inputs' has 3 texts"),
        (json!({"inputs": [["a"], []]}), "'inputs[1]' has 0 texts"),
        (json!({"inputs": [["q", "a"]], "truncate": true, "truncation_direction": "Left"}), "truncation_direction"),
        (json!({"inputs": "a".repeat(20)}), "20"),
        (json!({"inputs": 7}), "a pair of texts"),
    ] {
        let (status, answer) = predict(body.clone()).await;
        assert!(status == 400 && answer.to_string().contains(said), "{body}: {status} {answer}");
    }
}

#[tokio::test]
async fn em_2_texts_are_ranked_in_a_plain_list() {
    let rig = Setup { category: Category::Reranking, ..Setup::default() }.start().await;
    let body = json!({"query": "qq", "texts": ["a", "abcd", "ab"], "raw_scores": true, "return_text": true});
    let (status, answer) = post(&rig, "/v1/rerank", &body).await;
    let expected = json!([
        {"index": 1, "score": 4.0, "text": "abcd"}, {"index": 2, "score": 2.0, "text": "ab"}, {"index": 0, "score": 1.0, "text": "a"}
    ]);
    assert_eq!((status, answer), (200, expected));
    let (_, answer) = post(&rig, "/v1/rerank", &json!({"query": "qq", "texts": ["a"]})).await;
    assert!((answer[0]["score"].as_f64().unwrap() - 1.0 / (1.0 + f64::exp(-1.0))).abs() < 1e-6, "{answer}");
    assert!(answer[0].get("text").is_none());
    let (status, answer) = post(&rig, "/v1/rerank", &json!({"query": "qq", "texts": ["a".repeat(20)]})).await;
    assert!(status == 400 && answer["error"]["code"] == "context_length_exceeded", "{answer}");
}
