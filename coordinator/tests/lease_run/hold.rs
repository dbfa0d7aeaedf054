//! `model-boss lease hold`: requests and messages over a pipe.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use model_boss_lease_store::LeaseState;
use serde_json::{Value, json};

use super::{Bench, TIB, until};

/// A pipe to `lease hold`.
struct Pipe {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Pipe {
    fn open(bench: &Bench) -> Self {
        let mut child = bench.lease(&["hold"]).stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn say(&mut self, line: &Value) {
        writeln!(self.input.as_ref().unwrap(), "{line}").unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: '{line}'"))
    }

    /// The next line whose event is not in this list.
    fn hear_but(&mut self, events: &[&str]) -> Value {
        loop {
            let heard = self.hear();
            if !events.contains(&heard["event"].as_str().unwrap()) {
                return heard;
            }
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// A child process, killed when dropped.
struct Process(Child);

impl Process {
    fn start() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn le_2_a_program_in_another_language_holds_leases_over_a_pipe() {
    let Some(bench) = Bench::start() else { return };
    let mut pipe = Pipe::open(&bench);
    let process = Process::start();
    pipe.say(&json!({"op": "acquire", "id": "a", "vram": "1GiB", "devices": ["cpu"], "label": "train"}));
    let asking = pipe.hear();
    assert!(asking["event"] == "asking" && asking["source"].as_str().unwrap().contains("redis"), "{asking}");
    let granted = pipe.hear();
    assert_eq!((&granted["event"], &granted["id"]), (&json!("granted"), &json!("a")), "{granted}");
    assert_eq!(granted["parts"], json!([{"device": "cpu", "bytes": 1_u64 << 30, "uuid": null}]));
    assert_eq!(granted["cuda_visible_devices"], "");
    pipe.say(&json!({"op": "attach", "id": "a", "pids": [process.0.id()]}));
    assert_eq!(pipe.hear(), json!({"event": "attached", "id": "a"}));
    let holder = bench.holder().unwrap();
    assert_eq!((&holder.leases()[0].state, &*holder.leases()[0].label), (&LeaseState::Active, "train"));

    pipe.say(&json!({"op": "release", "id": "a"}));
    let released = pipe.hear();
    assert_eq!((&released["event"], &released["counted"]), (&json!("released"), &json!("its processes live")));
    let holder = bench.holder().unwrap();
    assert_eq!(holder.leases()[0].state, LeaseState::Limbo);
    assert_eq!(holder.leases()[0].parts[0].bytes.0, 1, "nothing more is promised than what is in use");
    let id = holder.leases()[0].lease.to_string();
    drop(process);
    drop(pipe);
    assert!(bench.lease(&["release", &id]).status().unwrap().success());
    assert_eq!(bench.held(), 0);
}

#[test]
fn le_4_who_waits_over_a_pipe_finds_out_that_a_killed_holder_holds_nothing() {
    let Some(bench) = Bench::start() else { return };
    let acquire = json!({"op": "acquire", "id": "a", "vram": "600TiB", "devices": ["cpu"]});
    let (mut pipe, process) = (Pipe::open(&bench), Process::start());
    pipe.say(&acquire);
    assert_eq!(pipe.hear_but(&["asking"])["event"], "granted");
    pipe.say(&json!({"op": "attach", "id": "a", "pids": [process.0.id()]}));
    assert_eq!(pipe.hear()["event"], "attached");
    let mut next = Pipe::open(&bench);
    next.say(&acquire);
    assert_eq!(next.hear_but(&["asking"])["event"], "waiting");
    // The holder is killed, so the processes of its leases must end: no process is left to release the leases.
    pipe.child.kill().unwrap();
    pipe.child.wait().unwrap();
    drop(process);
    assert_eq!(next.hear_but(&["waiting"])["event"], "granted");
    drop(next);
    assert_eq!(bench.held(), 0);
}

#[test]
fn what_is_wrong_in_a_line_is_told_and_the_rest_goes_on() {
    let Some(bench) = Bench::start() else { return };
    let mut pipe = Pipe::open(&bench);
    pipe.say(&json!("hello"));
    let error = pipe.hear();
    assert!(error["event"] == "error" && error["id"].is_null(), "{error}");
    pipe.say(&json!({"op": "acquire", "id": "a", "vram": "eighteen", "devices": ["cpu"]}));
    let error = pipe.hear();
    assert!(error["id"] == "a" && error["message"].as_str().unwrap().contains("eighteen"), "{error}");
    pipe.say(&json!({"op": "attach", "id": "b", "pids": [1]}));
    assert!(pipe.hear()["message"].as_str().unwrap().contains("nothing was acquired as 'b'"));
    pipe.say(&json!({"op": "acquire", "id": "a", "vram": "1GiB", "gpus": 2, "devices": ["cpu"]}));
    let failed = pipe.hear();
    assert!(failed["event"] == "failed" && failed["message"].as_str().unwrap().contains("exclude"), "{failed}");
    pipe.say(&json!({"op": "acquire", "id": "a", "vram": 2_000 * TIB, "devices": ["cpu"]}));
    let failed = pipe.hear_but(&["asking"]);
    assert!(failed["event"] == "failed" && failed["message"].as_str().unwrap().contains("never fit"), "{failed}");
    pipe.say(&json!({"op": "acquire", "id": "a", "vram": "600TiB", "devices": ["cpu"]}));
    assert_eq!(pipe.hear_but(&["asking"])["event"], "granted", "a failed request leaves its id free");
    pipe.say(&json!({"op": "acquire", "id": "a", "vram": "1GiB", "devices": ["cpu"]}));
    assert!(pipe.hear()["message"].as_str().unwrap().contains("'a' is taken"));
    pipe.say(&json!({"op": "acquire", "id": "b", "vram": "600TiB", "devices": ["cpu"], "wait": "0s"}));
    let failed = pipe.hear_but(&["asking", "waiting"]);
    assert!(failed["event"] == "failed" && failed["message"].as_str().unwrap().contains("held by"), "{failed}");
    assert!(bench.holder().unwrap().waiters().is_empty());
    drop(pipe);
    assert_eq!(bench.held(), 0, "what was never let through the gate is taken back");
}

#[test]
fn le_3_a_revocation_is_told_and_who_dies_closes_the_pipe() {
    let Some(bench) = Bench::start() else { return };
    let mut pipe = Pipe::open(&bench);
    let process = Process::start();
    pipe.say(&json!({
        "op": "acquire", "id": "a", "vram": "600TiB", "devices": ["cpu"], "preemptible": true, "min_hold": 0,
        "grace": "30s", "priority": 8, "label": "soft",
    }));
    assert_eq!(pipe.hear_but(&["asking"])["event"], "granted");
    pipe.say(&json!({"op": "attach", "id": "a", "pids": [process.0.id()]}));
    assert_eq!(pipe.hear()["event"], "attached");
    let mut urgent = bench
        .run(&["--vram", "600TiB", "--preempt", "--priority", "2", "--label", "urgent"], "exit 4")
        .spawn()
        .unwrap();
    let revoked = pipe.hear();
    assert_eq!((&revoked["event"], &revoked["by"]), (&json!("revoked"), &json!("urgent")));
    assert!(revoked["grace_left_ms"].as_u64().unwrap() > 1_000, "{revoked}");
    drop(process);
    drop(pipe);
    assert_eq!(urgent.wait().unwrap().code(), Some(4));
    until(|| (bench.held() == 0).then_some(()));
}
