//! The sandbox of real workers under a real coordinator. The attempts to leave it are in `worker/sandbox/tests`.

use std::fs;

use model_boss_protocol::{DeviceId, SandboxMode, SandboxState, WorkerExit, WorkerHealth};
use model_boss_tests::{LoneWorker, Processes, Sandbox, question};

use crate::real_model::guide;

/// The line of `/proc/PID/status` that names the mode of seccomp: 2 is a filter.
fn filtered(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]))
}

/// The confinement that a worker with this choice reports, and whether each of its processes has a filter.
async fn confined(mode: SandboxMode) -> (SandboxState, Vec<bool>) {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| spec.sandbox = mode);
    worker.ready().await;
    let health: WorkerHealth = serde_json::from_slice(&worker.get("/health").await.body).unwrap();
    let below = Processes::below(worker.pid());
    let filters = [worker.pid()].into_iter().chain(below.pids()).map(filtered).collect();
    (health.sandbox.unwrap(), filters)
}

#[tokio::test]
async fn op_5_a_worker_is_confined_by_default() {
    let (on, filters) = confined(SandboxMode::default()).await;
    if !on.is_whole() {
        eprintln!("left out: {on}");
        return;
    }
    // The worker, its text host and a renderer; the launcher between them reads nothing of a stranger.
    assert_eq!(filters.iter().filter(|filtered| **filtered).count(), filters.len() - 1, "{filters:?}");
    assert!(filters[0] && filters.len() >= 4, "{filters:?}");
}

#[tokio::test]
async fn op_5_a_worker_is_not_confined_where_that_is_turned_off() {
    let (off, filters) = confined(SandboxMode::Off).await;
    assert_eq!(off, SandboxState::off("sandbox = \"off\""));
    assert!(filters.iter().all(|filtered| !filtered), "{filters:?}");
}

#[tokio::test]
async fn op_5_a_required_sandbox_refuses_a_gpu_and_says_why() {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| {
        spec.sandbox = SandboxMode::Required;
        spec.device = DeviceId::Cuda(0);
    });
    let (code, words) = worker.end().await;
    assert_eq!(code, Some(WorkerExit::BadSpec.code()), "{words}");
    let last = words.lines().last().unwrap();
    assert!(last.contains("sandbox = \"required\"") && last.contains("not yet run on a GPU"), "{last}");
}

#[tokio::test]
async fn op_5_the_coordinator_says_how_workers_are_confined() {
    let sandbox = Sandbox::new().with_config("sandbox = \"auto\"");
    sandbox.model("guide", &guide(), "");
    let boss = sandbox.start_with_real_worker().await;
    let answer = boss.client().post("/v1/chat/completions", &question("guide", "What is a lease?")).await;
    assert!(answer.status.is_success(), "{answer:?}");
    let devices = boss.read("/api/v1/devices").await;
    let of = |id: &str| devices["devices"].as_array().unwrap().iter().find(|device| device["id"] == id).cloned();
    let on_cpu: SandboxState = serde_json::from_value(of("cpu").unwrap()["sandbox"].clone()).unwrap();
    let slots = boss.read("/api/v1/slots").await;
    let pid =
        slots["slots"][0]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_else(|| panic!("{slots}"));
    // Workers are confined as the coordinator says.
    let filters = Processes::below(pid).pids().filter(|pid| filtered(*pid)).count();
    assert_eq!(filters > 0, on_cpu.seccomp, "{on_cpu}");
    boss.finish().await;
}
