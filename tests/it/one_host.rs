//! Several users and sessions on one machine. Two coordinators never count one device, with any users and any runtime
//! folders. Every coordinator notices a lost ledger, and no user prevents another from starting. The tests run in a
//! mount namespace with shared folders of its own, so that the machine's are not touched.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use model_boss_tests::{Boss, Launch, Mounts, RedisServer, Sandbox, binary};
use nix::unistd::geteuid;

const SHARED: &str = "mkdir -p /run/lock && for f in /dev/shm /run/lock; do mount -t tmpfs -o mode=1777 tmpfs $f; done";
const NOBODY: u32 = 65_534;

/// A coordinator of this user, which uses the default folder for claims.
fn launch(sandbox: &Sandbox, mounts: &Mounts, user: Option<u32>) -> Launch {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    let config = sandbox.path("model-boss.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("runtime_dir")).collect();
    std::fs::write(&config, lines.join("\n")).unwrap();
    // Sessions have different values of this variable, and services have none.
    launch.command.env("XDG_RUNTIME_DIR", sandbox.path("run"));
    if let Some(user) = user {
        give(&sandbox.path(""), user);
    }
    mounts.hold(&mut launch, user);
    launch
}

/// Makes a user the owner of a folder.
fn give(folder: &Path, user: u32) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            give(&path, user);
        }
        chown(&path, Some(user), Some(user)).unwrap();
    }
    chown(folder, Some(user), Some(user)).unwrap();
}

fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can start processes of another user");
    }
    root
}

async fn refused(launch: Launch, holder: &Boss, whose: &str) {
    let (status, output) = launch.end().await;
    assert_eq!(status.code(), Some(75), "{output}");
    let expected = format!("device cpu is in use by process {}{whose} (state folder", holder.pid());
    assert!(output.contains(&expected), "{expected}\n{output}");
}

#[tokio::test]
async fn two_sessions_of_one_user_do_not_count_one_device_twice() {
    let Some(mounts) = Mounts::with(SHARED) else { return };
    let (one, two) = (Sandbox::new(), Sandbox::new());
    let first = launch(&one, &mounts, None).start().await;
    refused(launch(&two, &mounts, None), &first, "").await;
    first.kill().await;
    // The claims of a killed coordinator remain, and do not count.
    let second = launch(&two, &mounts, None).start().await;
    assert_eq!(claims(&mounts).len(), 2, "its own, one in each folder");
    second.finish().await;
}

#[tokio::test]
async fn two_users_do_not_count_one_device_twice() {
    let (true, Some(mounts)) = (is_root(), Mounts::with(SHARED)) else { return };
    let (one, two) = (Sandbox::new(), Sandbox::new());
    let first = launch(&one, &mounts, Some(NOBODY)).start().await;
    refused(launch(&two, &mounts, None), &first, " of user 65534").await;
    first.finish().await;
    let first = launch(&two, &mounts, None).start().await;
    refused(launch(&one, &mounts, Some(NOBODY)), &first, " of user 0").await;
    first.finish().await;
}

/// The claims in the shared folders.
fn claims(mounts: &Mounts) -> Vec<PathBuf> {
    let folders = ["/dev/shm", "/run/lock"].map(|folder| mounts.path(Path::new(folder)));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("model-boss-device-cpu.")).collect()
}

/// A program of another user, which is killed when this value is dropped.
struct Attacker(Child);

impl Attacker {
    fn runs(mounts: &Mounts, script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir("/");
        let mut command = mounts.command(&command, Some(NOBODY));
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn done(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The script's last program reads until its input ends.
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn no_user_blocks_another_by_planted_files_links_or_locks() {
    let (true, Some(mounts)) = (is_root(), Mounts::with(SHARED)) else { return };
    let sandbox = Sandbox::new();
    let target = sandbox.path("target");
    std::fs::write(&target, "kept").unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // The named process is another user's, and its lock is held forever.
    let forged = r#"{"process":{"pid":1,"start_time":0,"pid_ns":""},"claim":{"alone":"me"}}"#;
    let plant = format!(
        "cd /dev/shm && for n in model-boss-device-cpu. model-boss-ledger-{}.; do ln -s '{}' ${{n}}0; mkfifo ${{n}}1; \
         echo garbage >${{n}}2; chmod 0 ${{n}}2; echo garbage >${{n}}3; mkdir ${{n}}4; ln -s ${{n}}5 ${{n}}5; done; \
         echo '{forged}' >model-boss-device-cpu.6",
        boot.trim(),
        target.display()
    );
    Attacker::runs(&mounts, &plant).done();
    let mine = r#"printf '{"process":{"pid":%s,"start_time":1,"pid_ns":"%s"},"claim":{"alone":"me"}}' 1 "$(readlink /proc/self/ns/pid)""#;
    let hold = format!("cd /run/lock; {mine} >model-boss-device-cpu.7; exec flock model-boss-device-cpu.7 cat");
    let _holding = Attacker::runs(&mounts, &hold);
    let boss = launch(&sandbox, &mounts, None).start().await;
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");

    // A claim of a dead process that another user keeps locked.
    let own: Vec<PathBuf> = claims(&mounts).into_iter().filter(|path| is_own_file(path)).collect();
    assert_eq!(own.len(), 2, "one in each folder");
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    boss.kill().await;
    let locks: Vec<Attacker> = own
        .iter()
        .flat_map(|path| ["/dev/shm", "/run/lock"].map(|folder| format!("{folder}/{}", name(path))))
        .filter(|path| mounts.path(Path::new(path)).exists())
        .map(|path| Attacker::runs(&mounts, &format!("exec 9<{path} && flock -s 9 && exec cat")))
        .collect();
    assert_eq!(locks.len(), 2);
    for path in &own {
        model_boss_tests::until(model_boss_tests::PATIENCE, "the lock is held", async || {
            let file = std::fs::File::open(path).unwrap();
            file.try_lock().is_err().then_some(())
        })
        .await;
    }
    let boss = launch(&sandbox, &mounts, None).start().await;
    assert!(own.iter().all(|path| !path.exists()), "what is left of a dead process is cleared");
    boss.finish().await;
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
}

fn is_own_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.is_file() && about.uid() == geteuid().as_raw())
}

#[tokio::test]
async fn an_emptied_redis_is_noticed_by_another_user() {
    let (true, Some(mounts), Some(server)) = (is_root(), Mounts::with(SHARED), RedisServer::start()) else { return };
    let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    open(&server.socket());
    open(server.socket().parent().unwrap());
    let sandboxes = [(); 2].map(|()| Sandbox::new().with_config(&format!("redis_url = \"{}\"", server.url())));
    let first = launch(&sandboxes[0], &mounts, None).start().await;
    assert!(!first.output().text().contains("may have lost records"), "the first of this boot");
    first.kill().await;
    server.ask(&["FLUSHALL"]).unwrap();
    let second = launch(&sandboxes[1], &mounts, Some(NOBODY)).start().await;
    second.output().line("says it", |line| line.contains("may have lost records")).await;
    second.kill().await;
}

#[tokio::test]
async fn where_no_folder_is_for_all_that_is_said() {
    let sandbox = Sandbox::new();
    let own = sandbox.path("");
    // The sandbox is below /tmp and stays writable.
    let script = format!(
        "mount --bind '{0}' '{0}' && for f in /dev/shm /run/lock; do mkdir -p $f; mount -t tmpfs -o mode=755 tmpfs $f; done; \
         mount --rbind /tmp /tmp && mount -o remount,bind,ro /tmp",
        own.display()
    );
    let Some(mounts) = Mounts::with(&script) else { return };
    let boss = launch(&sandbox, &mounts, None).start().await;
    boss.output()
        .line("says so", |line| line.contains("none of /dev/shm, /run/lock, /tmp can be used by every user"))
        .await;
    let problems = boss.read("/api/v1/health").await["problems"].to_string();
    assert!(problems.contains("may count the same memory"), "{problems}");
    boss.finish().await;
}
