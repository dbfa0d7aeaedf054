//! `serve --simulate`: a machine with four GPUs of 24 GB, simulated by fake workers.

use model_boss_tests::{Behaviour, Boss, PATIENCE, Sandbox, until};
use serde_json::{Value, json};

const FOUR: &str = "[[gpu]]\nname = \"Simulated\"\nmemory = \"24GiB\"\ncount = 4\n";
const GIB: u64 = 1 << 30;

async fn device(boss: &Boss, id: &str) -> Value {
    let all = boss.read("/api/v1/devices").await;
    let found = all["devices"].as_array().into_iter().flatten().find(|device| device["id"] == id);
    found.unwrap_or_else(|| panic!("no '{id}' in {all}")).clone()
}

#[tokio::test]
async fn dm_3_four_models_go_to_four_gpus_and_what_they_hold_shows() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(FOUR);
    let names = ["alpha", "beta", "gamma", "delta"];
    let _models = names.map(|name| sandbox.fake_model_with(name, "vram = \"18GiB\"", Behaviour::default()));
    let boss = sandbox.start().await;
    for name in names {
        assert!(boss.chat(name, "?").await.status.is_success(), "{name}");
    }
    let slots = boss.read("/api/v1/slots").await;
    let mut places: Vec<&str> =
        slots["slots"].as_array().unwrap().iter().map(|slot| slot["parts"][0][0].as_str().unwrap()).collect();
    places.sort_unstable();
    assert_eq!(places, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]);
    let used = async || (device(&boss, "cuda:2").await["used"] == 18 * GIB).then_some(());
    until(PATIENCE, "the probe sees what the worker holds", used).await;
    let shown = device(&boss, "cuda:2").await;
    assert_eq!(
        (&shown["total"], &shown["name"], &shown["foreign"]),
        (&json!(24 * GIB), &"Simulated".into(), &0.into())
    );
    let models = boss.read("/v1/models/alpha").await;
    assert_eq!((&models["backend"], &models["device"]), (&"fake".into(), &slots["slots"][0]["parts"][0][0]));
    boss.finish().await;
}

#[tokio::test]
async fn a_foreign_program_is_simulated_by_an_edit() {
    let mut sandbox = Sandbox::new();
    let file = sandbox.simulate("[[gpu]]\nmemory = \"24GiB\"\n");
    let _model = sandbox.fake_model_with("alpha", "vram = \"2GiB\"\ndevice = \"cuda:0\"", Behaviour::default());
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    std::fs::write(&file, "[[gpu]]\nmemory = \"24GiB\"\nforeign = \"5GiB\"\n").unwrap();
    let seen = async || (device(&boss, "cuda:0").await["foreign"] == 5 * GIB).then_some(());
    until(PATIENCE, "the foreign memory is seen", seen).await;
    boss.finish().await;
}

#[tokio::test]
async fn a_machine_that_makes_no_sense_is_named() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate("[[gpu]]\nmemory = \"much\"\n");
    let (status, output) = sandbox.launch(&model_boss_tests::binary("model-boss-fake-worker")).end().await;
    assert!(!status.success());
    assert!(output.contains("gpus.toml") && output.contains("much"), "{output}");
}

#[tokio::test]
async fn where_the_driver_does_not_tell_processes_apart_models_are_not_taken_for_strangers() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate("[[gpu]]\nmemory = \"24GiB\"\nblind = true\n");
    let names = ["alpha", "beta", "gamma"];
    let of_ten = "vram = \"10GiB\"\ndevice = \"cuda:0\"";
    let _models = names.map(|name| sandbox.fake_model_with(name, of_ten, Behaviour::default()));
    let boss = sandbox.start().await;
    // The third model must evict one of the others. If their memory were counted twice, the second would have to, too.
    for (name, loaded) in [("alpha", 1), ("beta", 2), ("gamma", 2)] {
        assert!(boss.chat(name, "?").await.status.is_success(), "{name}");
        let slots = boss.read("/api/v1/slots").await;
        let ready = slots["slots"].as_array().unwrap().iter().filter(|slot| slot["state"] == "ready").count();
        assert_eq!(ready, loaded, "{slots}");
    }
    let shown = device(&boss, "cuda:0").await;
    assert_eq!((&shown["accounting"], &shown["foreign"]), (&"degraded".into(), &0.into()), "{shown}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_models_of_every_category_are_simulated() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(FOUR);
    let _vectors = sandbox.fake_model_with("vectors", "labels = [\"embedding\"]", Behaviour::default());
    std::fs::write(sandbox.path("tasks.yaml"), "tasks: {search: {ladder: [vectors]}, sort: {ladder: [ranks]}}\n")
        .unwrap();
    let _ranks = sandbox.fake_model_with("ranks", "labels = [\"reranking\"]", Behaviour::default());
    let boss = sandbox.start().await;
    for (input, vectors) in
        [(json!("a b"), 1), (json!(["a", "b"]), 2), (json!([1, 2, 3]), 1), (json!([[1, 2], [3]]), 2)]
    {
        let answer = boss.client().post("/v1/embeddings", &json!({ "model": "vectors", "input": input })).await;
        assert_eq!(answer.json()["data"].as_array().map(Vec::len), Some(vectors), "{input}: {answer:?}");
    }
    let asked = json!({ "model": "ranks", "query": "a", "documents": ["a", "bb"] });
    let answer = boss.client().post("/v1/rerank", &asked).await;
    assert_eq!(answer.json()["results"].as_array().map(Vec::len), Some(2), "{answer:?}");
    for (name, can) in [("vectors", "embedding"), ("task:search", "embedding"), ("task:sort", "reranking")] {
        let shown = boss.client().post("/api/show", &json!({ "model": name })).await.json();
        assert_eq!(shown["capabilities"], json!([can]), "{name}");
    }
    boss.finish().await;
}
