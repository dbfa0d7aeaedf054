//! Files that earlier releases wrote are read, and what a later one wrote is left as it is. The folder `schemas` has
//! the files of each released form; a release that changes a form adds its own beside them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use model_boss_lease_store::{EmbeddedStore, LedgerStore, StoredDocuments, Swap, boot_id};
use model_boss_tests::{Boss, PATIENCE, Sandbox, binary, until};
use serde_json::{Value, json};

fn schema(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("it/schemas").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Stores the documents beside the ledger, and the ledger itself, as the files have them.
fn write_documents(sandbox: &Sandbox, documents: &[(&str, &str)], ledger: &str) {
    let mut store = EmbeddedStore::open(&sandbox.path("state")).unwrap();
    for (name, file) in documents {
        let loaded = store.load_document(name).unwrap();
        let text = fs::read_to_string(schema(file)).unwrap();
        assert_eq!(store.swap_document(name, &loaded, &text).unwrap(), Swap::Done);
    }
    let text = fs::read_to_string(schema(ledger)).unwrap().replace("THIS-BOOT", &boot_id().unwrap());
    let loaded = store.load().unwrap();
    let etag = model_boss_lease_store::Etag::random().unwrap();
    assert_eq!(store.compare_and_swap(&loaded, etag, &text).unwrap(), Swap::Done);
}

fn stored(sandbox: &Sandbox, name: &str) -> Value {
    let mut store = EmbeddedStore::open(&sandbox.path("state")).unwrap();
    serde_json::from_str(&store.load_document(name).unwrap().content.unwrap()).unwrap()
}

async fn ended(boss: &Boss, path: &str, field: &str) -> Value {
    until(PATIENCE, "it ends", async || {
        let answer = boss.client().get(path).await;
        (answer.status == 200 && !answer.json()[field].is_null()).then(|| answer.json())
    })
    .await
}

#[tokio::test]
async fn rc_26_jobs_of_the_first_form_go_on_with_their_results_files_and_batches() {
    let sandbox = Sandbox::new().with_config("[jobs]\nkeep = \"36500d\"");
    for name in ["alpha", "later"] {
        sandbox.model(name, &sandbox.path("models"), "vram = \"64MiB\"");
    }
    let from = schema("jobs_1");
    copy(&from.join("jobs"), &sandbox.path("state/jobs"));
    fs::copy(from.join("jobs.redb"), sandbox.path("state/jobs.redb")).unwrap();
    let ids: Value = serde_json::from_str(&fs::read_to_string(from.join("ids.json")).unwrap()).unwrap();
    let id = |name: &str| ids[name].as_str().unwrap().to_owned();
    let boss = sandbox.start().await;
    let job = ended(&boss, &format!("/api/v1/jobs/{}", id("queued")), "ended").await;
    assert_eq!(job["state"], "succeeded", "a job that waited is answered: {job}");
    for (name, state) in [("succeeded", "succeeded"), ("failed", "failed"), ("cancelled", "cancelled")] {
        let job = boss.read(&format!("/api/v1/jobs/{}", id(name))).await;
        assert_eq!(job["state"], state, "{job}");
    }
    let result = boss.read(&format!("/api/v1/jobs/{}/result", id("succeeded"))).await;
    assert_eq!(result["object"], "list", "{result}");
    let hook = boss.read(&format!("/api/v1/jobs/{}", id("hook"))).await;
    assert_eq!(hook["webhook"]["url"], "http://127.0.0.1:9/x");
    let batch = boss.read(&format!("/v1/batches/{}", id("batch"))).await;
    assert_eq!((&batch["status"], &batch["metadata"]["a"]), (&json!("completed"), &json!("b")));
    let output = boss.client().get(&format!("/v1/files/{}/content", batch["output_file_id"].as_str().unwrap())).await;
    assert_eq!(String::from_utf8_lossy(&output.body).lines().count(), 3);
    // The batch that was in work goes on. Its window ends some day, and then its last line has expired.
    let open = format!("/v1/batches/{}", id("open_batch"));
    let batch = until(PATIENCE, "the batch ends", async || {
        let batch = boss.read(&open).await;
        matches!(batch["status"].as_str(), Some("completed" | "expired")).then_some(batch)
    })
    .await;
    let mut names = BTreeSet::new();
    for file in ["output_file_id", "error_file_id"].iter().filter_map(|field| batch[*field].as_str()) {
        let lines = boss.client().get(&format!("/v1/files/{file}/content")).await.body;
        for line in String::from_utf8_lossy(&lines).lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            assert!(names.insert(line["custom_id"].as_str().unwrap().to_owned()), "{line} is there twice");
        }
    }
    assert_eq!(names.len(), 3, "no line is lost: {batch}");
    boss.finish().await;
}

#[tokio::test]
async fn tr_4_settings_footprints_and_ledger_of_the_first_form_are_used() {
    let sandbox = Sandbox::new();
    sandbox.model("alpha", &sandbox.path("models"), "vram = \"64MiB\"");
    let documents = [("runtime-config", "runtime_config_1.json"), ("footprints", "footprints_1.json")];
    write_documents(&sandbox, &documents, "ledger_1.json");
    let boss = sandbox.start().await;
    let config = boss.read("/api/v1/config").await;
    assert_eq!(config["maxQueue"], 77, "{config}");
    assert!(boss.chat("alpha", "?").await.status.is_success(), "memory is leased by the ledger of before");
    boss.finish().await;
    assert_eq!(stored(&sandbox, "runtime-config")["values"]["maxQueue"], 77);
    let kept = stored(&sandbox, "footprints");
    assert!(kept.as_array().unwrap().iter().any(|entry| entry["model"] == "elsewhere"), "{kept}");
}

#[tokio::test]
async fn tr_4_what_a_later_release_wrote_is_refused_by_name_and_stays() {
    let sandbox = Sandbox::new();
    sandbox.model("alpha", &sandbox.path("models"), "vram = \"64MiB\"");
    let documents = [("runtime-config", "runtime_config_later.json"), ("footprints", "footprints_later.json")];
    write_documents(&sandbox, &documents, "ledger_later.json");
    let (config, footprints) = (stored(&sandbox, "runtime-config"), stored(&sandbox, "footprints"));
    let (status, output) = sandbox.launch(&binary("model-boss-fake-worker")).end().await;
    assert!(!status.success() && output.contains("the ledger has schema 2, this program knows 1"), "{output}");
    let mut store = EmbeddedStore::open(&sandbox.path("state")).unwrap();
    let ledger: Value = serde_json::from_str(&store.load().unwrap().document.unwrap()).unwrap();
    assert_eq!((&ledger["schema"], &ledger["orchard"]["apples"]), (&json!(2), &json!(7)), "it stays as it is");
    drop(store);
    assert_eq!(stored(&sandbox, "runtime-config"), config);
    assert_eq!(stored(&sandbox, "footprints"), footprints);
}
