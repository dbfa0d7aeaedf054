//! `model-boss lease run` with real processes and a real Redis server, and no coordinator.
//!
//! Without `redis-server` or `valkey-server` on the PATH each test prints so and checks nothing; `scripts/test` reports
//! it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

mod hold;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use model_boss_lease_store::{
    Accounting, DeviceDeclaration, DeviceKey, Holder, LeaseDurations, LeaseState, Owner, OwnerKind, is_gone, process,
    this_process,
};
use model_boss_protocol::{ByteCount, DeviceId, Later};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A Redis server with a ledger whose host memory is so large that the machine's real use does not matter.
struct Bench {
    server: Child,
    folder: tempfile::TempDir,
}

const TIB: u64 = 1 << 40;

impl Bench {
    fn start() -> Option<Self> {
        let runs = |name: &&str| {
            Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let Some(program) = ["redis-server", "valkey-server"].into_iter().find(runs) else {
            eprintln!("skipped: neither redis-server nor valkey-server is installed");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let server = Command::new(program)
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(folder.path().join("redis.sock"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let bench = Self { server, folder };
        let mut holder = until(|| bench.holder().ok());
        let (device, key, accounting) = (DeviceId::Cpu, DeviceKey::cpu(), Accounting::PerProcess);
        let (capacity, reserve) = (ByteCount(1_000 * TIB), ByteCount::ZERO);
        holder.declare(&DeviceDeclaration { device, key, capacity, reserve, accounting }).unwrap();
        Some(bench)
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join("redis.sock").display())
    }

    fn runtime(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn holder(&self) -> Result<Holder, model_boss_lease_store::StoreError> {
        let owner = Owner::new(this_process()?, "test", OwnerKind::Coordinator);
        Holder::redis(&self.url(), Some(&self.runtime()), owner, LeaseDurations::default())
    }

    fn lease(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_model-boss"));
        command.arg("lease").args(arguments).env("MODEL_BOSS_REDIS_URL", self.url());
        command.env("MODEL_BOSS_RUNTIME_DIR", self.runtime()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `lease run --device cpu` with these options and a shell script.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut arguments = vec!["run", "--device", "cpu"];
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", script]);
        self.lease(&arguments)
    }

    fn held(&self) -> usize {
        self.holder().unwrap().leases().len()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Repeats `ask` until it returns a value, for at most thirty seconds.
fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now().later(Duration::from_secs(30));
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "it never came");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn first_line(child: &mut Child) -> (String, BufReader<ChildStdout>) {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    (line.trim().to_owned(), output)
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists() && process(pid).is_ok_and(|process| !is_gone(&process))
}

#[test]
fn le_2_a_program_runs_with_its_lease_and_its_exit_code_is_passed_on() {
    let Some(bench) = Bench::start() else { return };
    let script = "echo \"$MODEL_BOSS_LEASE [$CUDA_VISIBLE_DEVICES]\"; exit 7";
    let output = bench.run(&["--vram", "1GiB", "--label", "train"], script).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", words(&output));
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(said.starts_with("lease-") && said.trim().ends_with("[]"), "{said}");
    assert!(words(&output).contains("holds 1.00 GiB on cpu"), "{}", words(&output));
    assert_eq!(bench.held(), 0, "the memory is given back");
    let missing =
        bench.lease(&["run", "--device", "cpu", "--vram", "1MiB", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    assert!(words(&missing).contains("cannot run /no/such/program"), "{}", words(&missing));
}

#[test]
fn what_a_program_calls_itself_does_not_steer_the_terminal_and_has_a_length() {
    let Some(bench) = Bench::start() else { return };
    let evil = format!("\x1b]0;mine\x07\u{9b}31m\u{202e}\u{2028}a\nb{}", "x".repeat(100_000));
    let mut run = bench
        .run(&["--vram", "600TiB", "--label", &evil], "echo up; read line || true")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (line, _output) = first_line(&mut run);
    assert_eq!(line, "up");
    let late = bench.run(&["--vram", "600TiB", "--wait", "200ms"], "true").output().unwrap();
    let missing = bench.lease(&["show", &evil]).output().unwrap();
    let list = bench.lease(&["list"]).output().unwrap();
    let json = bench.lease(&["list", "--json"]).output().unwrap();
    for text in [&late.stderr, &missing.stderr, &list.stdout, &json.stdout] {
        let text = String::from_utf8(text.clone()).unwrap();
        let steering = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
        assert!(!text.contains(steering) && !text.contains(['\u{202e}', '\u{2028}']), "{text:?}");
    }
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("\\u001b]0;mine") && list.lines().all(|line| line.len() < 400), "{list}");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["leases"][0]["label"].as_str().unwrap().len() <= 128, "{json}");
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
}

#[test]
fn le_2_it_waits_its_turn_and_says_for_whom() {
    let Some(bench) = Bench::start() else { return };
    let mut first = bench
        .run(&["--vram", "600TiB", "--label", "first"], "echo up; read line || true")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (line, _output) = first_line(&mut first);
    assert_eq!(line, "up");
    let late = bench.run(&["--vram", "600TiB", "--wait", "200ms"], "true").output().unwrap();
    assert_eq!(late.status.code(), Some(1));
    assert!(
        words(&late).contains("1 in the queue: cpu has") && words(&late).contains("held by first 600 TiB"),
        "{}",
        words(&late)
    );
    assert!(words(&late).contains("did not come free within"), "{}", words(&late));
    let never = bench.run(&["--vram", "2000TiB"], "true").output().unwrap();
    assert!(words(&never).contains("it can never fit"), "{}", words(&never));

    let mut second = bench.run(&["--vram", "600TiB", "--label", "second"], "true").spawn().unwrap();
    until(|| bench.holder().unwrap().waiters().iter().any(|waiter| waiter.label == "second").then_some(()));
    let list = bench.lease(&["list"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("first") && list.contains("600 TiB on cpu") && list.contains("waits, 1."), "{list}");
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    assert!(second.wait().unwrap().success());
    assert_eq!(bench.held(), 0);
}

#[test]
fn le_3_a_preemptible_program_gets_its_signal_and_makes_way() {
    let Some(bench) = Bench::start() else { return };
    let script = "trap 'echo saved; exit 9' USR1; echo up; while :; do sleep 0.05; done";
    let options = ["--vram", "600TiB", "--on-revoke", "USR1", "--min-hold", "0s", "--priority", "8", "--label", "soft"];
    let mut soft = bench.run(&options, script).spawn().unwrap();
    let (line, mut output) = first_line(&mut soft);
    assert_eq!(line, "up");
    let urgent = bench.run(&["--vram", "600TiB", "--preempt", "--priority", "2"], "exit 4").output().unwrap();
    assert_eq!(urgent.status.code(), Some(4), "{}", words(&urgent));
    assert!(words(&urgent).contains("asked: soft has"), "{}", words(&urgent));
    assert_eq!(soft.wait().unwrap().code(), Some(9));
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.trim(), "saved");
}

#[test]
fn le_3_who_does_not_yield_is_ended_by_its_own_holder_when_the_grace_is_over() {
    let Some(bench) = Bench::start() else { return };
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let options = [
        "--vram",
        "600TiB",
        "--preemptible",
        "--grace",
        "1s",
        "--min-hold",
        "0s",
        "--priority",
        "8",
        "--label",
        "deaf",
    ];
    let mut deaf = bench.run(&options, script).spawn().unwrap();
    first_line(&mut deaf);
    let urgent = bench.run(&["--vram", "600TiB", "--preempt", "--priority", "2"], "exit 4").output().unwrap();
    assert_eq!(urgent.status.code(), Some(4), "{}", words(&urgent));
    assert_eq!(deaf.wait().unwrap().code(), Some(137));
}

#[test]
fn what_a_program_leaves_behind_is_ended_before_its_memory_is_given_back() {
    let Some(bench) = Bench::start() else { return };
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3";
    let output = bench.run(&["--vram", "1GiB"], script).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    let left: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(!is_running(left));
    assert_eq!(bench.held(), 0);
}

#[test]
fn le_4_a_killed_holder_takes_its_program_with_it_and_its_memory_is_counted_until_then() {
    let Some(bench) = Bench::start() else { return };
    let mut run = bench
        .run(&["--vram", "600TiB"], "sleep 1000 >/dev/null 2>&1 & echo $!; read never")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (line, _output) = first_line(&mut run);
    let grandchild: u32 = line.parse().unwrap();
    let holder = bench.holder().unwrap();
    assert_eq!(holder.leases()[0].state, LeaseState::Active);
    let id = holder.leases()[0].lease.to_string();
    let refused = bench.lease(&["release", &id]).output().unwrap();
    assert!(words(&refused).contains("end its program first"), "{}", words(&refused));
    run.kill().unwrap();
    run.wait().unwrap();
    until(|| (!is_running(grandchild)).then_some(()));
    // Without a coordinator, the queued request itself must notice that the lease's holder is gone.
    let next = bench.run(&["--vram", "600TiB", "--wait", "30s"], "exit 4").output().unwrap();
    assert_eq!(next.status.code(), Some(4), "{}", words(&next));
    assert_eq!(bench.held(), 0);
}

#[test]
fn le_4_a_waiting_program_gets_what_a_killed_holder_held() {
    let Some(bench) = Bench::start() else { return };
    let mut run = bench.run(&["--vram", "600TiB"], "echo $$; read never").stdin(Stdio::piped()).spawn().unwrap();
    let (line, _output) = first_line(&mut run);
    let program: u32 = line.parse().unwrap();
    let waits = bench.run(&["--vram", "600TiB", "--label", "next"], "exit 4").spawn().unwrap();
    until(|| bench.holder().unwrap().waiters().iter().any(|waiter| waiter.label == "next").then_some(()));
    run.kill().unwrap();
    run.wait().unwrap();
    let next = waits.wait_with_output().unwrap();
    assert_eq!(next.status.code(), Some(4), "{}", words(&next));
    assert!(!is_running(program), "nothing of the killed job was left when its memory was given away");
    assert_eq!(bench.held(), 0);
}

#[test]
fn ctrl_c_reaches_the_program_and_a_waiter_leaves_the_queue() {
    let Some(bench) = Bench::start() else { return };
    let script = "trap 'exit 5' INT; echo up; while :; do sleep 0.05; done";
    let mut run = bench.run(&["--vram", "600TiB"], script).spawn().unwrap();
    first_line(&mut run);
    let waiter = bench.run(&["--vram", "600TiB"], "true").spawn().unwrap();
    until(|| (!bench.holder().unwrap().waiters().is_empty()).then_some(()));
    let interrupt = |child: &Child| kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    interrupt(&waiter);
    assert_eq!(waiter.wait_with_output().unwrap().status.code(), Some(130));
    assert!(bench.holder().unwrap().waiters().is_empty());
    interrupt(&run);
    assert_eq!(run.wait().unwrap().code(), Some(5));
    assert_eq!(bench.held(), 0);
}
