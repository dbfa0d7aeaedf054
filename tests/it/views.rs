//! What tests read from the coordinator's own views, and how long they wait for it to show.

use model_boss_tests::{Boss, PATIENCE, until};
use serde_json::Value;

/// Waits until exactly `count` requests wait in the queue; their entries.
pub(crate) async fn waiting(boss: &Boss, count: usize) -> Vec<Value> {
    let look = async || Some(queue(boss).await).filter(|entries| entries.len() == count);
    until(PATIENCE, &format!("{count} requests wait"), look).await
}

/// The waiting requests now.
pub(crate) async fn queue(boss: &Boss) -> Vec<Value> {
    let view = boss.read("/api/v1/queue").await;
    let entries = view.as_array().or(view["queue"].as_array()).or(view["waiting"].as_array());
    entries.unwrap_or_else(|| panic!("a queue: {view}")).clone()
}

/// Waits until so many requests of a client have ended; how each did, oldest first.
pub(crate) async fn outcomes(boss: &Boss, client: &str, count: usize) -> Vec<String> {
    let look = async || {
        let view = boss.read("/api/v1/clients").await;
        let client = view["clients"].as_array()?.iter().find(|shown| shown["id"] == client)?;
        let ended = client["recent"].as_array()?.iter().filter_map(|request| request["outcome"].as_str());
        Some(ended.map(str::to_owned).collect::<Vec<_>>()).filter(|ended| ended.len() == count)
    };
    until(PATIENCE, &format!("{count} requests of '{client}' have ended"), look).await
}

/// Waits until the model's state is `state` (`unloaded`, `loading`, `loaded`, `failed`).
pub(crate) async fn model_state(boss: &Boss, model: &str, state: &str) {
    let look = async || {
        let view = boss.read(&format!("/v1/models/{model}")).await;
        (view["status"]["value"] == state).then_some(())
    };
    until(PATIENCE, &format!("'{model}' is {state}"), look).await;
}

/// Samples of `/metrics` whose name and labels contain all of `parts`, added up.
pub(crate) async fn metric(boss: &Boss, parts: &[&str]) -> f64 {
    let answer = boss.client().get("/metrics").await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
