//! Readers of the coordinator's own views, which wait until a state shows.

use model_boss_tests::{Boss, PATIENCE, until};
use serde_json::Value;

/// Waits until exactly `count` requests are queued; returns their entries.
pub(crate) async fn waiting(boss: &Boss, count: usize) -> Vec<Value> {
    let look = async || Some(queue(boss).await).filter(|entries| entries.len() == count);
    until(PATIENCE, &format!("{count} requests wait"), look).await
}

/// The queued requests now.
pub(crate) async fn queue(boss: &Boss) -> Vec<Value> {
    let view = boss.read("/api/v1/queue").await;
    let entries = view.as_array().or(view["queue"].as_array()).or(view["waiting"].as_array());
    entries.unwrap_or_else(|| panic!("a queue: {view}")).clone()
}

/// Waits until `count` requests of a client have ended; returns the outcome of each, oldest first.
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

/// The sum of the samples of our own names at `/metrics` whose name and labels contain all of `parts`.
pub(crate) async fn metric(boss: &Boss, parts: &[&str]) -> f64 {
    let answer = boss.client().get("/metrics?names=model_boss").await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
