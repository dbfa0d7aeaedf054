//! A model that reads texts and images, with both real binaries: it stays where it is pinned while language models take
//! turns around it, and images come through the coordinator's door.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use model_boss_tests::{Answer, Boss, Sandbox};
use serde_json::{Value, json};

use crate::real_model::guide;
use crate::rule::{TensorRule, safetensors};

/// Tokens of the tiny SigLIP, in the order of their numbers from 2 on.
const WORDS: [&str; 7] = ["a", "photo", "of", "cat", "dog", "this", "is"];

/// The case of `scripts/reference/towers.py` that is served here.
fn case() -> Value {
    serde_json::from_str(include_str!("../../worker/candle/tests/towers/siglip.json")).unwrap()
}

/// A folder with the tiny SigLIP of the case, and a vocabulary of words.
fn siglip(sandbox: &Sandbox) -> PathBuf {
    let (folder, case) = (sandbox.path("siglip"), case());
    std::fs::create_dir(&folder).unwrap();
    for (name, text) in case["files"].as_object().unwrap() {
        std::fs::write(folder.join(name), text.to_string()).unwrap();
    }
    let mut vocabulary = json!({"<unk>": 0, "<pad>": 1});
    (2..).zip(WORDS).for_each(|(id, word)| vocabulary[word] = json!(id));
    let special = |id: u64, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "decoder": null, "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [special(0, "<unk>"), special(1, "<pad>")],
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let weights = &case["weights"]["model.safetensors"];
    let tensors: Vec<TensorRule> = serde_json::from_value(weights["tensors"].clone()).unwrap();
    std::fs::write(folder.join("model.safetensors"), safetensors(&tensors, weights["seed"].as_u64().unwrap())).unwrap();
    folder
}

/// A part with the case's image of this number.
fn image(at: usize) -> Value {
    let file = case()["images"][at].as_str().unwrap().to_owned();
    json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{file}")}})
}

async fn post(boss: &Boss, path: &str, body: Value) -> Answer {
    boss.client().post(path, &body).await
}

async fn vectors(boss: &Boss, input: Value) -> Vec<Vec<f64>> {
    let answer = post(boss, "/v1/embeddings", json!({"model": "eyes", "input": input})).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let data = answer.json()["data"].as_array().unwrap().clone();
    data.iter().map(|one| serde_json::from_value(one["embedding"].clone()).unwrap()).collect()
}

fn cosine(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

async fn slots(boss: &Boss) -> Vec<(String, u64)> {
    let view = boss.read("/api/v1/slots").await;
    let named = |slot: &Value| Some((slot["model"].as_str()?.to_owned(), slot["generation"].as_u64()?));
    let mut all: Vec<(String, u64)> = view["slots"].as_array().unwrap().iter().filter_map(named).collect();
    all.sort();
    all
}

#[tokio::test]
async fn em_3_a_pinned_small_siglip_stays_while_language_models_swap_around_it() {
    let sandbox = Sandbox::new().with_config("host_memory = \"500MiB\"");
    sandbox.model("eyes", &siglip(&sandbox), "category = \"vision\"\npin = true\nvram = \"80MiB\"\ndevice = \"cpu\"");
    for name in ["alpha", "beta"] {
        sandbox.model(name, &guide(), "vram = \"300MiB\"\ndevice = \"cpu\"");
    }
    let boss = sandbox.start_with_real_worker().await;
    let input = || json!([image(0), "a photo of a cat", image(1)]);
    let first = vectors(&boss, input()).await;
    let eyes = slots(&boss).await;
    assert_eq!(eyes.len(), 1, "{eyes:?}");
    let mut swapped = Vec::new();
    for name in ["alpha", "beta", "alpha"] {
        assert_eq!(boss.chat(name, "What is a lease?").await.status, StatusCode::OK);
        assert_eq!(vectors(&boss, input()).await, first, "the same worker gives the same vectors");
        let now = slots(&boss).await;
        assert!(now.contains(&eyes[0]) && now.len() == 2, "{now:?}");
        swapped.push(now.into_iter().find(|(model, _)| model != "eyes").unwrap().0);
    }
    assert_eq!(swapped, ["alpha", "beta", "alpha"]);
    boss.finish().await;
}

#[tokio::test]
async fn em_3_images_come_through_the_coordinators_door() {
    let sandbox = Sandbox::new();
    sandbox.model("eyes", &siglip(&sandbox), "category = \"vision\"");
    sandbox.model("guide", &guide(), "");
    let boss = sandbox.start_with_real_worker().await;
    // The vectors of the reference, in any order and company.
    let case = case();
    let reference: Vec<Vec<f64>> = serde_json::from_value(case["vectors"][1].clone()).unwrap();
    let ours = vectors(&boss, json!([image(2), "a dog", image(0), image(1)])).await;
    for (at, theirs) in [(2, 0), (3, 1), (0, 2)] {
        assert!(cosine(&ours[at], &reference[theirs]) > 0.9999, "{at}");
    }
    assert!(ours.iter().all(|vector| (cosine(vector, vector) - 1.0).abs() < 1e-5));

    let model = boss.read("/v1/models/eyes").await;
    assert_eq!((&model["category"], &model["input_modalities"]), (&json!("vision"), &json!(["text", "image"])));
    let shown = post(&boss, "/api/show", json!({"model": "eyes"})).await.json();
    assert_eq!(shown["capabilities"], json!(["embedding", "vision"]));

    let labels = json!({"model": "eyes", "input": image(0), "labels": ["cat", "dog"]});
    let classified = post(&boss, "/v1/classify", labels).await.json();
    let data = &classified["data"][0];
    assert_eq!((&data["index"], &data["num_classes"]), (&json!(0), &json!(2)), "{classified}");
    assert!(["cat", "dog"].contains(&data["label"].as_str().unwrap()), "{classified}");

    let link = json!([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}]);
    let refused = post(&boss, "/v1/embeddings", json!({"model": "eyes", "input": link})).await;
    assert!(refused.status == 400 && refused.error_message().contains("must be a data: URL"), "{refused:?}");
    for (path, model) in [("/v1/chat/completions", "eyes"), ("/v1/embeddings", "guide"), ("/v1/rerank", "eyes")] {
        let wrong = json!({"model": model, "input": "x", "messages": [{"role": "user", "content": "x"}]});
        let refused = post(&boss, path, wrong).await;
        assert!(refused.status == 400 && refused.error_message().contains("cannot do what this route"), "{refused:?}");
    }
    let large = format!("data:image/png;base64,{}", STANDARD.encode(vec![0; 21 << 20]));
    let large = json!([{"type": "image_url", "image_url": {"url": large}}]);
    let refused = post(&boss, "/v1/embeddings", json!({"model": "eyes", "input": large})).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (413, "request_too_large"), "{refused:?}");
    boss.finish().await;
}
