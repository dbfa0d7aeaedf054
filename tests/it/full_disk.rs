//! The disk below the state folder is full, fails, or refuses writes. Loaded models still serve, and no accepted
//! request is lost. Health reports the fault for as long as it lasts, and everything recovers when there is space
//! again.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use http::{Method, StatusCode};
use model_boss_lease_store::this_process;
use model_boss_tests::{Answer, Behaviour, Boss, FailingWrites, Mounts, PATIENCE, Sandbox, binary, question, until};
use nix::errno::Errno;
use serde_json::json;

const ONE: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\n";
const SHORT: &str = "[leases]\nterm = \"30s\"\nheartbeat = \"200ms\"\npatience = \"500ms\"";

fn sandbox() -> Sandbox {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    sandbox.with_config(SHORT)
}

async fn problems(boss: &Boss) -> String {
    boss.read("/api/v1/health").await["problems"].to_string()
}

async fn is_ready(boss: &Boss, word: &str) {
    let ready = async || {
        let answer = boss.client().get("/ready").await;
        (answer.status == StatusCode::OK && answer.json()["status"] == word).then_some(())
    };
    until(PATIENCE, word, ready).await;
}

/// Requests a lease for a program, through the coordinator.
async fn lease(boss: &Boss, request: &str) -> Answer {
    let owner = this_process().unwrap();
    let body = json!({
        "request_id": request,
        "owner": { "pid": owner.pid, "start_time": owner.start_time, "pid_ns": owner.pid_ns, "label": "job" },
        "parts": [{ "device": "cuda:0", "memory": "1GiB" }],
    });
    let client = boss.client();
    client.send(client.request(Method::POST, "/api/v1/leases", body.to_string())).await
}

async fn give_back(boss: &Boss, granted: &Answer) {
    let lease = granted.json()["lease"].clone();
    let (id, body) = (lease["id"].as_str().unwrap().to_owned(), json!({ "token": lease["token"] }));
    let client = boss.client();
    let released = client.send(client.request(Method::DELETE, &format!("/api/v1/leases/{id}"), body.to_string())).await;
    assert_eq!(released.status, StatusCode::OK, "{released:?}");
}

async fn granted(boss: &Boss, request: &str) -> Answer {
    until(PATIENCE, "the lease is granted", async || {
        Some(lease(boss, request).await).filter(|answer| answer.status == StatusCode::CREATED)
    })
    .await
}

#[tokio::test]
async fn a_disk_that_takes_nothing_is_away_as_redis_is_and_comes_back_by_itself() {
    for error in [Errno::ENOSPC, Errno::EIO, Errno::EROFS] {
        let sandbox = sandbox();
        let Some(disk) = FailingWrites::below(&sandbox, &sandbox.path("state")) else { return };
        let manifest = "vram = \"4GiB\"\ndevice = \"cuda:0\"";
        let alpha = sandbox.fake_model_with("alpha", manifest, Behaviour::default());
        let beta = sandbox.fake_model_with("beta", manifest, Behaviour::default());
        let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
        disk.under(&mut launch);
        let boss = launch.start().await;
        assert!(boss.chat("alpha", "?").await.status.is_success());
        let before = granted(&boss, "before").await;
        assert_eq!(problems(&boss).await, "[]");

        disk.fail(error);
        is_ready(&boss, "lease_store_unavailable").await;
        let (said, why) = (problems(&boss).await, std::io::Error::from_raw_os_error(error as i32).to_string());
        assert!(said.contains("leases.redb") && said.contains(&why), "{error}: {said}");
        assert_eq!(boss.read("/api/v1/health").await["leases"]["state"], "away");
        assert!(boss.chat("alpha", "?").await.status.is_success(), "what is loaded serves on");
        let refused = boss.chat("beta", "?").await;
        assert_eq!(
            (refused.status, refused.error_code()),
            (StatusCode::SERVICE_UNAVAILABLE, "lease_store_unavailable".into())
        );
        let refused = lease(&boss, "meanwhile").await;
        assert_eq!(
            (refused.status, refused.error_code()),
            (StatusCode::SERVICE_UNAVAILABLE, "lease_store_unavailable".into())
        );
        assert!(refused.header("retry-after").is_some());
        is_ready(&boss, "lease_store_unavailable").await;

        disk.work();
        is_ready(&boss, "ok").await;
        until(PATIENCE, "no problem is left", async || (problems(&boss).await == "[]").then_some(())).await;
        assert!(boss.chat("beta", "?").await.status.is_success());
        assert_eq!((alpha.spawns(), beta.spawns()), (1, 1));
        let held = boss.read("/api/v1/leases").await.to_string();
        assert!(held.contains(before.json()["lease"]["id"].as_str().unwrap()), "{held}");
        give_back(&boss, &before).await;
        give_back(&boss, &granted(&boss, "meanwhile").await).await;
        boss.finish().await;
    }
}

#[tokio::test]
async fn a_coordinator_starts_on_a_full_disk_and_waits_for_room() {
    let sandbox = sandbox();
    let Some(disk) = FailingWrites::below(&sandbox, &sandbox.path("state")) else { return };
    let _alpha = sandbox.fake_model("alpha", Behaviour::default());
    disk.fail(Errno::ENOSPC);
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    disk.under(&mut launch);
    let boss = launch.start().await;
    boss.output().line("says that it waits", |line| line.contains("tried until") && line.contains("No space")).await;
    let ready = boss.client().get("/ready").await;
    assert_eq!(
        (ready.status, &ready.json()["status"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"lease_store_unavailable".into())
    );
    disk.work();
    is_ready(&boss, "ok").await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn rc_20_what_is_learned_while_the_disk_takes_nothing_is_written_when_it_does() {
    let sandbox = sandbox();
    let Some(disk) = FailingWrites::below(&sandbox, &sandbox.path("state")) else { return };
    let holds = Some("6GiB".parse().unwrap());
    let behaviour = Behaviour { hold_load: true, holds, ..Behaviour::default() };
    let mut alpha = sandbox.fake_model_with("alpha", "device = \"cuda:0\"", behaviour);
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    disk.under(&mut launch);
    let boss = launch.start().await;
    let asked = boss.ask(question("alpha", "?"));
    let mut worker = alpha.worker().await;
    disk.fail(Errno::ENOSPC);
    is_ready(&boss, "lease_store_unavailable").await;
    // The worker is measured with 6 GiB now.
    worker.finish_load();
    worker.ready().await;
    assert!(asked.await.unwrap().status.is_success());
    disk.work();
    is_ready(&boss, "ok").await;
    let file = sandbox.path("state/simulation/leases.redb");
    let written = async || contains(&std::fs::read(&file).ok()?, b"\"max_concurrent\":").then_some(());
    until(PATIENCE, "what was learned is in the file", written).await;
    boss.finish().await;
    // A new process uses the footprint that this one measured.
    let boss = sandbox.start().await;
    let asked = boss.ask(question("alpha", "?"));
    alpha.worker().await.finish_load();
    assert!(asked.await.unwrap().status.is_success());
    let loads = boss.read("/api/v1/decisions").await.to_string();
    assert!(loads.contains("learned"), "{loads}");
    boss.finish().await;
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// Fills the rest of a file system.
fn fill(folder: &Path) {
    let mut file = File::create(folder.join("filler")).unwrap();
    for size in [4096, 64, 1] {
        while file.write_all(&vec![b'x'; size]).is_ok() {}
    }
}

#[tokio::test]
async fn a_file_system_without_room_is_named_and_nothing_stops() {
    let sandbox = sandbox();
    let state = sandbox.path("state");
    let Some(mounts) = Mounts::with(&format!("mount -t tmpfs -o size=2m tmpfs '{}'", state.display())) else { return };
    let alpha = sandbox.fake_model_with("alpha", "vram = \"4GiB\"\ndevice = \"cuda:0\"", Behaviour::default());
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    mounts.hold(&mut launch, None);
    let boss = launch.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    for round in 0..3 {
        fill(&mounts.path(&state));
        let named = async || problems(&boss).await.contains("state").then_some(());
        until(PATIENCE, "the full disk is named", named).await;
        assert!(boss.chat("alpha", "?").await.status.is_success(), "what is loaded serves on");
        let answer = lease(&boss, &format!("full-{round}")).await;
        assert!([201, 202, 503].contains(&answer.status.as_u16()), "{answer:?}");
        std::fs::remove_file(mounts.path(&state).join("filler")).unwrap();
        is_ready(&boss, "ok").await;
        until(PATIENCE, "no problem is left", async || (problems(&boss).await == "[]").then_some(())).await;
        give_back(&boss, &granted(&boss, &format!("full-{round}")).await).await;
    }
    assert_eq!(alpha.spawns(), 1);
    boss.finish().await;
}

#[tokio::test]
async fn a_log_on_a_full_disk_ends_nothing_and_is_named() {
    let sandbox = sandbox();
    let _alpha = sandbox.fake_model("alpha", Behaviour::default());
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.args(["--log-level", "trace"]);
    let boss = launch.start_with_log(File::options().write(true).open("/dev/full").unwrap()).await;
    for _ in 0..3 {
        assert!(boss.chat("alpha", "?").await.status.is_success());
        let unloaded = boss.client().post("/api/v1/unload", &json!({ "model_name": "alpha" })).await;
        assert_eq!(unloaded.status, StatusCode::OK, "{unloaded:?}");
    }
    let said = problems(&boss).await;
    assert!(said.contains("the log on standard error cannot be written: No space left"), "{said}");
    boss.finish().await;
}

#[tokio::test]
async fn pipes_and_links_in_the_state_folder_are_refused_at_once() {
    use nix::sys::stat::Mode;

    for name in ["spend.json", "leases.redb", "lock"] {
        for kind in ["a named pipe", "a link"] {
            let sandbox = Sandbox::new();
            let path = sandbox.path("state").join(name);
            let target = sandbox.path("target");
            std::fs::write(&target, "kept").unwrap();
            match kind {
                "a link" => std::os::unix::fs::symlink(&target, &path).unwrap(),
                _ => nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap(),
            }
            let (status, output) = sandbox.launch(&binary("model-boss-fake-worker")).end().await;
            assert!(!status.success());
            assert!(output.contains(path.to_str().unwrap()) && output.contains(&format!("it is {kind}")), "{output}");
            assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        }
    }
    // A model's log and the copy of the settings are not essential: their faults are reported, and models are served.
    let sandbox = sandbox();
    let _alpha = sandbox.fake_model("alpha", Behaviour::default());
    let logs = sandbox.path("state/simulation/logs");
    std::fs::create_dir_all(&logs).unwrap();
    nix::unistd::mkfifo(&logs.join("alpha.log"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let copy = sandbox.path("state/simulation/runtime-config.json");
    nix::unistd::mkfifo(&copy, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    until(PATIENCE, "the pipe is named", async || {
        problems(&boss).await.contains("alpha.log: a worker's lines cannot be written").then_some(())
    })
    .await;
    let said = problems(&boss).await;
    assert!(said.contains("runtime-config.json") && said.contains("it is a named pipe"), "{said}");
    let log = boss.client().get("/api/v1/logs/alpha").await;
    assert!(log.error_message().contains("it is a named pipe"), "{log:?}");
    boss.finish().await;
}
