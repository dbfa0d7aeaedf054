//! LoRA adapters through the coordinator to a real worker (EN-9): by manifests and by vLLM's routes, beside each other
//! on one loaded model, without a reload.

use std::path::{Path, PathBuf};

use http::StatusCode;
use model_boss_tests::{Boss, PATIENCE, Sandbox, until};
use serde_json::{Value, json};

use crate::real_model::guide;

const COMPLETIONS: &str = "/v1/completions";
const ROOTS: &str = "model_roots = [\"models\"]";

/// Writes a folder of PEFT for the guide: products of rank 2 beside queries, values and the way down, of numbers that
/// `seed` chooses.
fn adapter(folder: &Path, seed: u32, change: impl Fn(&str, &mut [usize; 2])) -> PathBuf {
    let config: Value = serde_json::from_slice(&std::fs::read(guide().join("config.json")).unwrap()).unwrap();
    let size = |key: &str| usize::try_from(config[key].as_u64().unwrap()).unwrap();
    let (hidden, heads, inner) = (size("hidden_size"), size("num_attention_heads"), size("intermediate_size"));
    let head_dim = config["head_dim"].as_u64().map_or(hidden / heads, |width| usize::try_from(width).unwrap());
    let modules = [
        ("self_attn.q_proj", hidden, heads * head_dim),
        ("self_attn.v_proj", hidden, size("num_key_value_heads") * head_dim),
        ("mlp.down_proj", inner, hidden),
    ];
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut state = seed;
    for layer in 0..size("num_hidden_layers") {
        for (module, ins, outs) in modules {
            for (part, mut shape, width) in [("lora_A", [2, ins], 1.0), ("lora_B", [outs, 2], 0.35)] {
                let name = format!("base_model.model.model.layers.{layer}.{module}.{part}.weight");
                change(&name, &mut shape);
                let first = data.len();
                for _ in 0..shape[0] * shape[1] {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let unit = (state >> 8) as f32 / 16_777_216.0 - 0.5;
                    data.extend((unit * width * (4.0 / shape[1] as f32).sqrt()).to_le_bytes());
                }
                let about = json!({ "dtype": "F32", "shape": shape, "data_offsets": [first, data.len()] });
                header.insert(name, about);
            }
        }
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(data);
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "down_proj"],
    });
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    folder.to_owned()
}

fn body(model: &str) -> Value {
    let prompt = "What is a lease, and which port does the coordinator listen on? ".repeat(4);
    json!({ "model": model, "prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true })
}

async fn answer(boss: &Boss, model: &str) -> (String, u64) {
    let answer = boss.client().post(COMPLETIONS, &body(model)).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let json = answer.json();
    assert_eq!((&json["model"], answer.header("x-served-model")), (&json!(model), Some(model)));
    let cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (json["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

fn manifest(adapters: &[(&str, &Path)]) -> String {
    let lines = adapters.iter().map(|(name, path)| format!("{name} = \"{}\"\n", path.display()));
    if adapters.is_empty() { String::new() } else { format!("[adapters]\n{}", lines.collect::<String>()) }
}

/// The number of loads of the base so far.
async fn loads(boss: &Boss) -> usize {
    let decisions = boss.read("/api/v1/decisions").await.to_string();
    decisions.matches("\"load\"").count()
}

#[tokio::test]
async fn en_9_adapters_of_a_manifest_answer_beside_the_model_and_keep_their_own_prefixes() {
    let sandbox = Sandbox::new();
    let one = adapter(&sandbox.path("models").join("one"), 1, |_, _| {});
    let two = adapter(&sandbox.path("models").join("two"), 2, |_, _| {});
    sandbox.model("guide", &guide(), &manifest(&[("one", &one), ("two", &two)]));
    let boss = sandbox.start_with_real_worker().await;
    let (plain, _) = answer(&boss, "guide").await;
    let (first, cached) = answer(&boss, "guide:one").await;
    assert_eq!(cached, 0, "keys of the model alone are not the adapter's");
    let (second, cached) = answer(&boss, "guide:two").await;
    assert_eq!(cached, 0, "nor are those of another adapter");
    assert!(plain != first && first != second && plain != second, "{plain:?}, {first:?}, {second:?}");
    // Each finds its own prefix again, and several answer together as alone.
    let asked = ["guide", "guide:one", "guide:two", "guide:one", "guide"];
    let tasks = asked.map(|model| {
        let (client, body) = (boss.client(), body(model));
        tokio::spawn(async move { client.post(COMPLETIONS, &body).await.json() })
    });
    for (model, task) in asked.into_iter().zip(tasks) {
        let json = task.await.unwrap();
        let expected = match model {
            "guide" => &plain,
            "guide:one" => &first,
            _ => &second,
        };
        assert_eq!(json["choices"][0]["text"], json!(expected), "{model}");
        assert!(json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0, "{json}");
    }
    // All dialects take the name.
    let chat = json!({ "model": "guide:one", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 4 });
    assert_eq!(boss.client().post("/v1/chat/completions", &chat).await.json()["model"], "guide:one");
    let ollama = json!({ "model": "guide:one", "messages": [{ "role": "user", "content": "hi" }], "stream": false });
    assert_eq!(boss.client().post("/api/chat", &ollama).await.status, StatusCode::OK);
    let anthropic = json!({ "model": "guide:two", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 4 });
    assert_eq!(boss.client().post("/v1/messages", &anthropic).await.status, StatusCode::OK);
    // Ollama's tag of the model itself is no adapter.
    assert_eq!(boss.client().post("/api/show", &json!({ "model": "guide:latest" })).await.status, StatusCode::OK);
    // An unknown one lists those there are.
    let unknown = boss.client().post(COMPLETIONS, &body("guide:three")).await;
    let error = unknown.json()["error"].clone();
    assert_eq!((unknown.status, &error["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert!(error["message"].as_str().unwrap().contains("one, two"), "{error}");
    // They are listed with their model.
    let models = boss.read("/v1/models").await;
    let entry = models["data"].as_array().unwrap().iter().find(|entry| entry["id"] == "guide:one").unwrap().clone();
    assert_eq!((&entry["parent"], &entry["kind"]), (&json!("guide"), &json!("adapter")));
    assert_eq!(boss.read("/v1/models/guide:two").await["parent"], "guide");
    assert_eq!(boss.read("/v1/models/guide").await["adapters"], json!(["guide:one", "guide:two"]));
    boss.finish().await;
}

#[tokio::test]
async fn en_9_adapters_come_and_go_without_a_reload() {
    let sandbox = Sandbox::new().with_config(ROOTS);
    let folder = sandbox.path("models");
    let one = adapter(&folder.join("one"), 1, |_, _| {});
    sandbox.model("guide", &guide(), "");
    let boss = sandbox.start_with_real_worker().await;
    let (plain, _) = answer(&boss, "guide").await;
    let before = loads(&boss).await;
    let load = |name: &str, path: &Path, inplace: bool| {
        let body = json!({ "lora_name": name, "lora_path": path, "base_model_name": "guide", "load_inplace": inplace });
        let client = boss.client();
        async move { client.post("/v1/load_lora_adapter", &body).await }
    };
    let loaded = load("sql", &one, false).await;
    assert_eq!((loaded.status, loaded.json()), (StatusCode::OK, json!({ "status": "loaded", "model": "guide:sql" })));
    let (with, _) = answer(&boss, "guide:sql").await;
    assert_ne!(with, plain);
    // vLLM's clients name the adapter alone.
    let alone = boss.client().post(COMPLETIONS, &body("sql")).await.json();
    assert_eq!(alone["choices"][0]["text"], json!(with));
    assert_eq!(load("sql", &one, false).await.status, StatusCode::BAD_REQUEST, "the name is taken");
    // Other files under the same name are another adapter, with no prefix of the first.
    let two = adapter(&folder.join("two"), 2, |_, _| {});
    assert_eq!(load("sql", &two, true).await.status, StatusCode::OK);
    let (other, cached) = answer(&boss, "guide:sql").await;
    assert!(other != with && cached == 0, "{other:?} after {with:?}");
    let unload = json!({ "lora_name": "guide:sql" });
    assert_eq!(boss.client().post("/v1/unload_lora_adapter", &unload).await.status, StatusCode::OK);
    assert_eq!(boss.client().post(COMPLETIONS, &body("guide:sql")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(boss.client().post("/v1/unload_lora_adapter", &unload).await.status, StatusCode::NOT_FOUND);
    // A manifest that is edited does the same.
    let file = sandbox.path("manifests").join("guide.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n{}", manifest(&[("style", &one)]))).unwrap();
    until(PATIENCE, "the edit is seen", async || {
        let answer = boss.client().post(COMPLETIONS, &body("guide:style")).await;
        (answer.status == StatusCode::OK).then_some(())
    })
    .await;
    assert_eq!(answer(&boss, "guide:style").await.0, with);
    assert_eq!(answer(&boss, "guide").await.0, plain);
    assert_eq!(loads(&boss).await, before, "the model was loaded once");
    boss.finish().await;
}

#[tokio::test]
async fn en_9_bad_adapters_are_named_and_the_model_goes_on() {
    let sandbox = Sandbox::new().with_config(ROOTS);
    let folder = sandbox.path("models");
    let wide = adapter(&folder.join("wide"), 1, |name, shape| {
        if name.contains("lora_A") {
            shape[1] += 8;
        }
    });
    sandbox.model("guide", &guide(), &manifest(&[("wide", &wide), ("gone", &folder.join("nothing"))]));
    let boss = sandbox.start_with_real_worker().await;
    let (plain, _) = answer(&boss, "guide").await;
    for (name, words) in [("wide", "another base"), ("gone", "not there")] {
        let refused = boss.client().post(COMPLETIONS, &body(&format!("guide:{name}"))).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, &error["param"]), (StatusCode::BAD_REQUEST, &json!("model")), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words) && message.contains(name), "{message}");
    }
    let outside = adapter(&sandbox.path("elsewhere"), 1, |_, _| {});
    let body = json!({ "lora_name": "x", "lora_path": outside, "base_model_name": "guide" });
    let refused = boss.client().post("/v1/load_lora_adapter", &body).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::NOT_FOUND, &json!("lora_path")));
    let body = json!({ "lora_name": "x", "lora_path": wide, "base_model_name": "guide" });
    let refused = boss.client().post("/v1/load_lora_adapter", &body).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("lora_path")));
    assert_eq!(boss.client().post(COMPLETIONS, &self::body("guide:x")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(answer(&boss, "guide").await.0, plain);
    boss.finish().await;
}
