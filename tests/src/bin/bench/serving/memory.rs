//! The memory of keys and values, by what the system says of the worker's process.

use std::fs;
use std::path::Path;

use model_boss_protocol::KvCacheType;
use model_boss_tests::LoneWorker;
use serde_json::{Value, json};

use crate::table::Table;

/// Conversations that are kept at the same time.
pub(super) const KEPT: usize = 8;

/// Loads the model in a worker of its own, and adds for each type of keys and values how much its memory grows with the
/// conversations that it keeps, over what their tokens need. There is one prompt more than is kept.
pub(super) async fn kept(file: &Path, context: usize, prompts: &[String], table: &mut Table) {
    for kind in [KvCacheType::F16, KvCacheType::Q8_0] {
        let mut worker = LoneWorker::spawn("model-boss-worker");
        worker.open_gate_with(file, |spec| {
            spec.context_length = Some(context as u64);
            spec.max_concurrent = 1;
            spec.residency.kv_cache_type = kind;
        });
        worker.ready().await;
        // The first prompt is not kept: with it, the memory of a step is as large as it will be.
        ask(&worker, &prompts[0], false).await;
        let before = resident_of([worker.pid()].into_iter());
        let mut tokens = 0;
        for prompt in &prompts[1..=KEPT] {
            tokens += ask(&worker, prompt, true).await;
        }
        let grown = resident_of([worker.pid()].into_iter()) - before;
        let of_token = worker.figure("model_boss_worker_kv_bytes_per_token").await;
        let found =
            ask(&worker, &prompts[1], true).await - worker.figure("model_boss_worker_cached_tokens_total").await;
        assert!(found <= 32, "the first conversation was not kept: {found} of its tokens are new");
        println!(
            "- {kind}: {KEPT} conversations of {tokens} tokens, {of_token} bytes each: {:.1} MiB more",
            grown / (1 << 20) as f64
        );
        let figure =
            format!("memory that {KEPT} kept conversations take over what their keys and values in {kind} need");
        table.add(&figure, Some(grown / (tokens * of_token) as f64), None);
    }
}

/// Asks for one token, and returns the number of tokens in the prompt.
async fn ask(worker: &LoneWorker, prompt: &str, is_kept: bool) -> u64 {
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1, "ignore_eos": true, "cache_prompt": is_kept});
    let answer = worker.post("/v1/completions", &body).await;
    assert!(answer.status.is_success(), "{answer:?}");
    let usage: Value = answer.json()["usage"].clone();
    usage["prompt_tokens"].as_u64().expect("answers count their tokens")
}

/// Resident bytes of some processes. Shared memory counts once.
pub(super) fn resident_of(pids: impl Iterator<Item = u32>) -> f64 {
    let of = |pid: u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) * 1024.0
    };
    pids.map(of).sum()
}
