//! Folders as `sentence-transformers` saves them, in a real worker: texts become the vectors and scores that the
//! package gives.

use std::path::Path;

use model_boss_protocol::Category;
use model_boss_tests::LoneWorker;
use serde_json::{Value, json};

use crate::rule::{TensorRule, safetensors};

/// The cases of `scripts/reference/saved.py`.
const VECTORS: [&str; 2] = [
    include_str!("../../worker/candle/tests/encoders/saved-vectors.json"),
    include_str!("../../worker/candle/tests/encoders/saved-without-prompts.json"),
];
const JUDGES: [&str; 2] = [
    include_str!("../../worker/candle/tests/encoders/judge-saved.json"),
    include_str!("../../worker/candle/tests/encoders/judge-saved-modules.json"),
];

fn write(case: &Value, folder: &Path) {
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    case["files"].as_object().unwrap().iter().for_each(|(name, text)| put(name, text.to_string().as_bytes()));
    for (name, weights) in case["weights"].as_object().unwrap() {
        let tensors: Vec<TensorRule> = serde_json::from_value(weights["tensors"].clone()).unwrap();
        put(name, &safetensors(&tensors, weights["seed"].as_u64().unwrap()));
    }
}

async fn serving(case: &Value, folder: &Path, category: Category) -> LoneWorker {
    write(case, folder);
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(folder, |spec| spec.category = category);
    worker.ready().await;
    worker
}

async fn answer(worker: &LoneWorker, path: &str, body: &Value) -> Value {
    let answer = worker.post(path, body).await;
    assert!(answer.status.is_success(), "{body}: {answer:?}");
    answer.json()
}

fn near(got: &[f64], expected: &[f64], what: &Value) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let apart = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max);
    assert!(apart < 2e-5, "{what}: {apart} apart");
}

fn numbers(of: &Value) -> Vec<f64> {
    serde_json::from_value(of.clone()).unwrap()
}

#[tokio::test]
async fn em_1_a_saved_folder_gives_the_vectors_of_encode() {
    for text in VECTORS {
        let case: Value = serde_json::from_str(text).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let worker = serving(&case, folder.path(), Category::Embedding).await;
        for asked in case["asked"].as_array().unwrap() {
            let mut body = json!({"model": "tiny", "input": asked["input"]});
            if let Some(name) = asked.get("prompt_name") {
                body["prompt_name"] = name.clone();
            }
            let answer = answer(&worker, "/v1/embeddings", &body).await;
            let data = answer["data"].as_array().unwrap();
            for (got, expected) in data.iter().zip(asked["vectors"].as_array().unwrap()) {
                near(&numbers(&got["embedding"]), &numbers(expected), &body);
            }
        }
    }
}

#[tokio::test]
async fn em_2_a_saved_folder_gives_the_scores_of_predict() {
    for text in JUDGES {
        let case: Value = serde_json::from_str(text).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let worker = serving(&case, folder.path(), Category::Reranking).await;
        for asked in case["asked"].as_array().unwrap() {
            let of =
                |at: usize| asked["pairs"].as_array().unwrap().iter().map(|pair| pair[at].clone()).collect::<Value>();
            let body = json!({"model": "tiny", "text_1": of(0), "text_2": of(1)});
            let answer = answer(&worker, "/v1/score", &body).await;
            let got: Vec<f64> =
                answer["data"].as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap()).collect();
            near(&got, &numbers(&asked["scores"]), &body);
            // A relevance is between 0 and 1, also where scores are not.
            let (query, documents) = (of(0)[0].clone(), of(1));
            let body = json!({"model": "tiny", "query": query, "documents": documents});
            let ranking = self::answer(&worker, "/v1/rerank", &body).await;
            let found = |result: &&Value| result["index"] == 0;
            let first = ranking["results"].as_array().unwrap().iter().find(found).unwrap();
            let own = case["vectors"][0][0].as_f64().unwrap();
            near(&[first["relevance_score"].as_f64().unwrap()], &[1.0 / (1.0 + (-own).exp())], &body);
        }
    }
}
