//! Files that block: pipes and links at the paths of logs, and programs and logs on a disk that hangs. No request and
//! no order waits for them.

use std::os::unix::fs::symlink;

use model_boss_tests::{Behaviour, HeldFile, PATIENCE, Sandbox, binary, until};
use nix::sys::stat::Mode;

fn fine() -> Behaviour {
    Behaviour { reply: Some("yes".to_owned()), ..Behaviour::default() }
}

/// The path of the log of the model "alpha".
fn log(sandbox: &Sandbox) -> std::path::PathBuf {
    let folder = sandbox.path("state").join("logs");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("alpha.log")
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_log_holds_neither_requests_nor_the_end() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", fine());
    nix::unistd::mkfifo(&log(&sandbox), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let shown = boss.client().get("/api/v1/logs/alpha").await;
    assert!(shown.error_message().contains("not a file"), "{shown:?}");
    boss.finish().await;
}

#[tokio::test]
async fn a_link_in_the_place_of_a_log_is_not_followed() {
    let sandbox = Sandbox::new();
    let behaviour = Behaviour { load_exit: Some(3), load_message: "some words".to_owned(), ..fine() };
    let _model = sandbox.fake_model("alpha", behaviour);
    let target = sandbox.path("precious");
    std::fs::write(&target, "precious").unwrap();
    symlink(&target, log(&sandbox)).unwrap();
    let boss = sandbox.start().await;
    let failed = boss.chat("alpha", "?").await;
    assert!(failed.error_message().contains("some words"), "{failed:?}");
    boss.finish().await;
    assert_eq!(std::fs::read_to_string(target).unwrap(), "precious");
}

#[tokio::test]
async fn a_log_on_a_disk_that_hangs_holds_neither_requests_nor_the_end() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", fine());
    std::fs::write(log(&sandbox), "[1] earlier\n").unwrap();
    let Some(_held) = HeldFile::hold(&log(&sandbox)) else { return };
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_whose_program_is_on_a_disk_that_hangs_can_be_stopped() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", fine());
    let program = sandbox.path("worker-on-a-disk");
    std::fs::copy(binary("model-boss-fake-worker"), &program).unwrap();
    let boss = sandbox.launch(&program).start().await;
    let Some(held) = HeldFile::hold(&program) else { return boss.finish().await };
    let load = serde_json::json!({ "model_name": "alpha", "wait": false });
    assert!(boss.client().post("/api/v1/load", &load).await.status.is_success());
    until(PATIENCE, "its guards are there", async || (!boss.processes().is_empty()).then_some(())).await;
    let begun = boss.processes();
    let unloaded = boss.client().post("/api/v1/unload", &serde_json::json!({ "model_name": "alpha" })).await;
    assert!(unloaded.status.is_success(), "{unloaded:?}");
    // The order to load the model remains, so new processes may start: only the earlier ones must be gone.
    until(PATIENCE, "its processes are gone", async || begun.alive().is_empty().then_some(())).await;
    // The disk works again.
    drop(held);
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    boss.finish().await;
}
