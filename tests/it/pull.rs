//! Models of a hub: the command `pull` against a hub on loopback, with the faults of real lines and disks. Requirement
//! OP-6.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use model_boss_tests::{FakeHub, HubHost, Mounts, PATIENCE, Sandbox, binary, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const REPO: &str = "org/tiny-GGUF";
const FILE: &str = "tiny-Q4_K_M.gguf";
const MIB: usize = 1 << 20;

/// A hub with one model, and a home folder for the programs that pull it.
struct PullScene {
    hub: FakeHub,
    sandbox: Sandbox,
    content: Vec<u8>,
}

impl PullScene {
    fn new(size: usize) -> Self {
        let (hub, sandbox) = (FakeHub::new(), Sandbox::new());
        fs::create_dir(sandbox.path("home")).unwrap();
        let content = hub.large_file(REPO, FILE, size, 1);
        hub.file(REPO, "README.md", "a model");
        Self { hub, sandbox, content }
    }

    /// `model-boss ARGS` in the sandbox, with no coordinator.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("model-boss"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
            command.env_remove(name);
        }
        self.hub.set(&mut command, &self.sandbox.path("home"));
        command.env("MODEL_BOSS_URL", "http://127.0.0.1:9").current_dir(self.sandbox.path("")).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    fn cached(&self) -> PathBuf {
        self.sandbox.path("home/.cache/huggingface/hub/models--org--tiny-GGUF")
    }

    /// The file as the cache shows it.
    fn pulled(&self) -> PathBuf {
        self.cached().join("snapshots").join(self.hub.commit(REPO)).join(FILE)
    }

    /// Checks that the whole file is visible, and no part of it is left.
    fn is_whole(&self) {
        assert!(fs::read(self.pulled()).unwrap() == self.content, "the file is not the hub's");
        assert_eq!(files_in(&self.cached().join("blobs")).len(), 1, "no part and no journal is left");
    }

    /// Checks that no file is visible.
    fn shows_nothing(&self) {
        assert!(!self.cached().join("snapshots").exists() && !self.cached().join("refs").exists());
        let visible = |name: &String| !name.contains("model-boss");
        assert_eq!(files_in(&self.cached().join("blobs")).into_iter().filter(visible).count(), 0);
    }

    /// The bytes that the journal of the part lists.
    fn journaled(&self) -> u64 {
        let blobs = self.cached().join("blobs");
        let name = files_in(&blobs).into_iter().find(|name| name.ends_with("model-boss.json"));
        let text = name.and_then(|name| fs::read(blobs.join(name)).ok()).unwrap_or_default();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let length = |range: &serde_json::Value| Some(range[1].as_u64()? - range[0].as_u64()?);
        json["have"].as_array().into_iter().flatten().filter_map(length).sum()
    }
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn op_6_a_pull_over_a_bad_line_works_and_its_token_stays_at_the_hub() {
    let scene = PullScene::new(40 * MIB);
    scene.hub.behave(|now| (now.cut_after, now.token) = (Some(3 << 20), Some("hf_secret".to_owned())));
    let pulled = scene.command(&["pull", "org/tiny-GGUF:q4_k_m"]).env("HF_TOKEN", "hf_secret").output().unwrap();
    let said = stdout(&pulled);
    assert!(
        said.contains("40.0 MiB of them downloaded now") && said.contains("manifests/org-tiny-GGUF-q4_k_m.toml"),
        "{said}"
    );
    scene.is_whole();
    let target = fs::read_link(scene.pulled()).unwrap();
    assert!(target.starts_with("../../blobs"), "{target:?}");
    assert_eq!(fs::read_to_string(scene.cached().join("refs/main")).unwrap(), scene.hub.commit(REPO));
    let requests = scene.hub.requests();
    let content: Vec<_> = requests.iter().filter(|request| request.host == HubHost::Content).collect();
    assert!(content.len() > 12, "each answer is cut after 3 MiB: {}", content.len());
    assert!(content.iter().all(|request| request.authorization.is_none()), "the token went to another host");
    assert!(requests.iter().any(|request| request.authorization.as_deref() == Some("Bearer hf_secret")));
    let all = format!("{pulled:?}");
    assert!(!all.contains("hf_secret") && !all.contains("signature"), "{all}");
    let before = scene.hub.sent();
    let again = stdout(&scene.run(&["pull", "org/tiny-GGUF:q4_k_m"]));
    assert!(again.contains("0 B of them") && scene.hub.sent() == before, "{again}");
}

#[tokio::test]
async fn op_6_a_killed_pull_goes_on_where_it_was() {
    let scene = PullScene::new(24 * MIB);
    let held = 10 << 20;
    scene.hub.behave(|now| now.hold_after = Some(held));
    let mut first = scene.spawn(&["pull", "hf://org/tiny-GGUF/tiny-Q4_K_M.gguf", "--connections", "3"]);
    let most = held - (1 << 20);
    until(PATIENCE, "the journal lists what came", async || (scene.journaled() > most).then_some(())).await;
    first.kill().unwrap();
    first.wait().unwrap();
    scene.shows_nothing();
    scene.hub.behave(|now| now.hold_after = None);
    let before = scene.hub.sent();
    stdout(&scene.run(&["pull", "hf://org/tiny-GGUF/tiny-Q4_K_M.gguf"]));
    scene.is_whole();
    let sent = scene.hub.sent() - before;
    // The connections of the killed pull may still be sent some bytes.
    assert!(sent <= (25 << 20) - most, "the second pull asked for {sent} bytes");
}

#[tokio::test]
async fn op_6_an_interrupted_pull_keeps_what_came() {
    let scene = PullScene::new(8 * MIB);
    scene.hub.behave(|now| now.hold_after = Some(2 << 20));
    let pull = scene.spawn(&["pull", REPO]);
    until(PATIENCE, "the journal lists what came", async || (scene.journaled() > 1 << 20).then_some(())).await;
    kill(Pid::from_raw(i32::try_from(pull.id()).unwrap()), Signal::SIGINT).unwrap();
    let ended = pull.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("what came is kept"), "{ended:?}");
    scene.shows_nothing();
    assert!(scene.journaled() > 1 << 20);
}

#[test]
fn op_6_two_pulls_at_once_download_once() {
    let scene = PullScene::new(20 * MIB);
    scene.hub.behave(|now| now.hold_after = Some(4 << 20));
    let pulls = [scene.spawn(&["pull", REPO]), scene.spawn(&["pull", REPO])];
    scene.hub.behave(|now| now.hold_after = None);
    for pull in pulls {
        stdout(&pull.wait_with_output().unwrap());
    }
    scene.is_whole();
    assert_eq!(scene.hub.sent(), 20 << 20);
    assert_eq!(files_in(&scene.sandbox.path("manifests")), ["org-tiny-GGUF-Q4_K_M.toml"]);
}

#[test]
fn op_6_a_file_with_a_wrong_checksum_is_never_visible() {
    let scene = PullScene::new(3 * MIB);
    scene.hub.behave(|now| now.is_wrong = true);
    let error = stderr(&scene.run(&["pull", REPO]));
    assert!(error.contains("checksum") && error.contains(FILE), "{error}");
    scene.shows_nothing();
    assert_eq!(scene.hub.sent(), 2 * (3 << 20), "it is downloaded once more, and not again and again");
    assert!(files_in(&scene.sandbox.path("manifests")).is_empty());
    scene.hub.behave(|now| now.is_wrong = false);
    stdout(&scene.run(&["pull", REPO]));
    scene.is_whole();
}

#[test]
fn op_6_a_gated_repository_says_how_to_get_in() {
    let scene = PullScene::new(2 * MIB);
    scene.hub.behave(|now| now.token = Some("hf_right".to_owned()));
    let error = stderr(&scene.run(&["pull", REPO]));
    assert!(
        error.contains("is gated") && error.contains("/org/tiny-GGUF") && error.contains("set HF_TOKEN"),
        "{error}"
    );
    let wrong = scene.command(&["pull", REPO]).env("HF_TOKEN", "hf_wrong").output().unwrap();
    let error = stderr(&wrong);
    assert!(error.contains("the token of HF_TOKEN") && !error.contains("hf_wrong"), "{error}");
    scene.shows_nothing();
    let token = scene.sandbox.path("home/.cache/huggingface/token");
    fs::write(token, "hf_right\n").unwrap();
    stdout(&scene.run(&["pull", REPO]));
    scene.is_whole();
}

#[test]
fn op_6_names_that_the_hub_does_not_have_are_told_with_what_there_is() {
    let scene = PullScene::new(2 * MIB);
    for (name, words) in [
        ("org/nothing", ["has no repository org/nothing", "HF_TOKEN"]),
        ("org/tiny-GGUF:Q8_0", ["no GGUF file of the quantisation 'Q8_0'", FILE]),
        ("hf://org/tiny-GGUF/other.gguf", ["no file 'other.gguf'", FILE]),
        ("hf://org/tiny-GGUF@v9", ["no branch, tag or commit 'v9'", "org/tiny-GGUF"]),
        ("tiny", ["'tiny' names no model of a hub", "no manifest in"]),
        ("../../etc/passwd", ["names no repository", "ORG/NAME"]),
    ] {
        let error = stderr(&scene.run(&["pull", name]));
        assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
    }
    scene.shows_nothing();
}

#[test]
fn op_6_without_permission_to_connect_only_the_cache_is_used() {
    let scene = PullScene::new(2 * MIB);
    let offline = || scene.command(&["pull", REPO]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let error = stderr(&offline());
    assert!(error.contains("HF_HUB_OFFLINE") && scene.hub.requests().is_empty(), "{error}");
    stdout(&scene.run(&["pull", REPO]));
    let before = scene.hub.requests().len();
    assert!(stdout(&offline()).contains(FILE));
    assert_eq!(scene.hub.requests().len(), before);
}

#[test]
fn op_6_servers_without_ranges_lists_or_redirects_are_served_too() {
    let scene = PullScene::new(3 * MIB);
    scene.hub.behave(|now| {
        (now.ignores_ranges, now.lists_names_only, now.no_redirects) = (true, true, true);
    });
    stdout(&scene.run(&["pull", REPO]));
    scene.is_whole();
    assert_eq!(scene.hub.sent(), 3 << 20);
}

#[tokio::test]
async fn op_6_a_file_that_changes_is_downloaded_as_it_is_now() {
    let mut scene = PullScene::new(24 * MIB);
    scene.hub.behave(|now| now.hold_after = Some(4 << 20));
    let pull = scene.spawn(&["pull", REPO, "--connections", "1"]);
    until(PATIENCE, "the first bytes come", async || (scene.journaled() > 0).then_some(())).await;
    scene.content = scene.hub.large_file(REPO, FILE, 24 * MIB, 2);
    scene.hub.behave(|now| (now.hold_after, now.cut_after) = (None, Some(1 << 20)));
    stdout(&pull.wait_with_output().unwrap());
    assert!(fs::read(scene.pulled()).unwrap() == scene.content, "the file is not the hub's present one");
    let visible: Vec<String> = files_in(&scene.cached().join("snapshots"));
    assert_eq!(visible, [scene.hub.commit(REPO)], "of the first commit nothing is visible");
}

#[test]
fn op_6_a_full_disk_is_told_before_the_download_begins() {
    let scene = PullScene::new(24 * MIB);
    let home = scene.sandbox.path("home");
    let script = format!("mount -t tmpfs -o size=16m tmpfs '{}'", home.display());
    let Some(mounts) = Mounts::with(&script) else { return };
    let mut pull = mounts.command(&scene.command(&["pull", REPO]), None);
    let error = stderr(&pull.stdin(Stdio::null()).output().unwrap());
    assert!(error.contains("24.0 MiB are needed") && error.contains("are free"), "{error}");
    assert_eq!(scene.hub.sent(), 0);
}

#[test]
fn op_6_files_of_other_programs_are_linked_and_not_downloaded() {
    use std::os::unix::fs::MetadataExt;

    let scene = PullScene::new(2 * MIB);
    stdout(&scene.run(&["pull", REPO]));
    let blob = fs::canonicalize(scene.pulled()).unwrap();
    let digest = blob.file_name().unwrap().to_string_lossy().into_owned();
    for store in [
        format!("home/.ollama/models/blobs/sha256-{digest}"),
        "home/.lmstudio/models/org/tiny/some-name.gguf".to_owned(),
    ] {
        let file = scene.sandbox.path(&store);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::rename(fs::canonicalize(scene.pulled()).unwrap(), &file).unwrap();
        let before = scene.hub.sent();
        let said = stdout(&scene.run(&["pull", REPO]));
        assert!(said.contains("2.00 MiB found in another program's store"), "{said}");
        assert_eq!(scene.hub.sent(), before, "{store}");
        assert_eq!(fs::metadata(scene.pulled()).unwrap().ino(), fs::metadata(&file).unwrap().ino(), "no copy");
        let removed = stdout(&scene.run(&["rm", "org/tiny-GGUF:Q4_K_M", "--yes"]));
        assert!(removed.contains("0 B freed"), "{removed}");
        assert_eq!(fs::read(&file).unwrap(), scene.content, "the other program's file stays");
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        stdout(&scene.run(&["pull", REPO]));
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn op_6_a_removed_model_leaves_no_files() {
    let scene = PullScene::new(2 * MIB);
    stdout(&scene.run(&["pull", REPO, "--name", "tiny"]));
    stdout(&scene.run(&["pull", "tiny"]));
    let error = stderr(&scene.run(&["rm", "tiny"]));
    assert!(error.contains("2.00 MiB") && error.contains("--yes"), "{error}");
    scene.is_whole();
    let removed = stdout(&scene.run(&["rm", "tiny", "--yes"]));
    assert!(removed.contains("1 files removed, 2.00 MiB freed"), "{removed}");
    assert!(
        files_in(&scene.sandbox.path("manifests")).is_empty() && files_in(&scene.cached().join("blobs")).is_empty()
    );
    assert!(stderr(&scene.run(&["rm", "tiny", "--yes"])).contains("'tiny'"));
}
