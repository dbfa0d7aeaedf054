//! LE-4 under faults: several coordinators and training jobs share one ledger in a real Redis server. Processes are
//! killed and stopped; the store is emptied, restored from an older copy, slowed down and cut off. The ledger never
//! promises more than a device has, and no request to a loaded model fails.
//!
//! The tests run a fixed time. For more: `MODEL_BOSS_CHAOS_SECS=600 MODEL_BOSS_CHAOS_SEED=7 cargo nextest run -P chaos
//! -p model-boss-tests lease_chaos`.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model_boss_tests::{Behaviour, Boss, Dice, PATIENCE, RedisServer, Sandbox, amount, binary, question, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::time::sleep;

const MACHINE: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\ncount = 2\n";
/// Terms shorter than the defaults, so that many terms fit into the test. The recovery window is 1.8 s.
const TERMS: &str = "[leases]\nterm = \"1s\"\nheartbeat = \"400ms\"\npatience = \"300ms\"";
/// A stop that is longer than the term of a lease.
const LONG_STOP: Duration = Duration::from_millis(1_300);
const SECONDS: u64 = 20;
/// The interval between two reads of the ledger.
const LOOK: Duration = Duration::from_millis(10);
/// The interval between requests to a loaded model.
const ASK: Duration = Duration::from_millis(40);

/// A connection to the server that can be slow, or cut.
struct Proxy {
    socket: PathBuf,
    cut: Arc<AtomicBool>,
    delay_ms: Arc<AtomicU64>,
}

impl Proxy {
    fn start(server: &RedisServer, folder: &Path) -> Self {
        let socket = folder.join("proxy.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (cut, delay_ms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let proxy = Self { socket, cut: Arc::clone(&cut), delay_ms: Arc::clone(&delay_ms) };
        let target = server.socket();
        // These threads end with the test's process, and hold no other resource.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&target) else { continue };
                let (there, back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                for (from, to) in [(there, server), (back, client)] {
                    let (cut, delay_ms) = (Arc::clone(&cut), Arc::clone(&delay_ms));
                    std::thread::spawn(move || pass_on(from, to, &cut, &delay_ms));
                }
            }
        });
        proxy
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }
}

fn pass_on(mut from: UnixStream, mut to: UnixStream, cut: &AtomicBool, delay_ms: &AtomicU64) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(count) = from.read(&mut bytes) {
        let delay = Duration::from_millis(delay_ms.load(Ordering::Acquire));
        if !delay.is_zero() {
            std::thread::park_timeout(delay);
        }
        if count == 0 || cut.load(Ordering::Acquire) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [&from, &to] {
        _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// `model-boss lease run` at one of the coordinators.
struct Job(Child);

impl Job {
    fn start(boss: &Boss, rng: &mut Dice) -> Self {
        let mut command = Command::new(binary("model-boss"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
            command.env_remove(name);
        }
        command.args(["--url", &format!("http://{}", boss.client().address()), "lease", "run"]);
        command.args(["--vram", &format!("{}GiB", 2 + rng.below(14)), "--min-hold", "0s", "--grace", "1s"]);
        match rng.below(3) {
            0 => command.args(["--gpus", "1"]),
            1 => command.args(["--device", "cuda:0", "--device", "cuda:1"]),
            _ => command.args(["--device", "cuda:1"]),
        };
        if rng.below(2) == 0 {
            command.arg("--preemptible");
        }
        command.args(["--priority", &rng.below(10).to_string(), "--", "sleep"]);
        command.arg(format!("{}.{}", rng.below(3), rng.below(10)));
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        // The process may have ended by itself.
        _ = kill(Pid::from_raw(self.0.id().cast_signed()), signal);
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The excess of the ledger's promises over what a device can lease, if there is any.
fn overcommitted(ledger: &Value) -> Option<String> {
    for (key, device) in ledger["devices"].as_object()? {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let leasable = number(&device["capacity"]).saturating_sub(number(&device["reserve"]));
        let parts = ledger["leases"].as_object().into_iter().flatten();
        let parts = parts.flat_map(|(_, lease)| lease["parts"].as_array().into_iter().flatten());
        let charged: u64 = parts
            .filter(|part| part["device"] == key.as_str())
            .map(|part| number(&part["bytes"]).max(number(&part["measured"])))
            .sum();
        if charged > leasable {
            return Some(format!("{key} can lease {leasable} and {charged} are promised: {}", ledger["leases"]));
        }
    }
    None
}

/// Counts of faults and observations.
#[derive(Debug, Default)]
struct Score {
    looks: u64,
    answers: u64,
    faults: std::collections::BTreeMap<&'static str, u64>,
}

#[tokio::test]
async fn le_4_nothing_is_promised_twice_and_loaded_models_answer_whatever_happens() {
    let Some(mut server) = RedisServer::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(&server, folder.path());
    let seed = amount("MODEL_BOSS_CHAOS_SEED", 1);
    let mut rng = Dice::new(seed);
    let steady = "vram = \"2GiB\"\npin = true\ndevice = \"cuda:0\"";
    let cold = "vram = \"9GiB\"";
    // The first coordinator uses the proxy, the second connects directly, the third is killed again and again.
    let mut models = Vec::new();
    let mut sandboxes = Vec::new();
    for url in [proxy.url(), server.url(), server.url()] {
        let mut sandbox = Sandbox::new();
        sandbox.simulate(MACHINE);
        let sandbox = sandbox.with_config(&format!("redis_url = \"{url}\"\n{TERMS}"));
        models.push(sandbox.fake_model_with("steady", steady, Behaviour::default()));
        models.push(sandbox.fake_model_with("cold", cold, Behaviour::default()));
        models.push(sandbox.fake_model_with("other", cold, Behaviour::default()));
        sandboxes.push(sandbox);
    }
    let (one, two) = (sandboxes[0].start().await, sandboxes[1].start().await);
    let mut third = Some(sandboxes[2].start().await);
    for boss in [&one, &two] {
        assert!(boss.chat("steady", "?").await.status.is_success());
    }

    let over = Arc::new(AtomicBool::new(false));
    let audit = {
        let (over, socket) = (Arc::clone(&over), server.socket());
        std::thread::spawn(move || {
            let mut looks = 0;
            while !over.load(Ordering::Acquire) {
                if let Some(ledger) = RedisServer::ledger_at(&socket) {
                    assert_eq!(overcommitted(&ledger), None);
                    looks += 1;
                }
                std::thread::park_timeout(LOOK);
            }
            looks
        })
    };
    let asking: Vec<_> = [&one, &two]
        .map(|boss| {
            let (client, over) = (boss.client(), Arc::clone(&over));
            tokio::spawn(async move {
                let mut answers = 0;
                while !over.load(Ordering::Acquire) {
                    let answer = client.post("/v1/chat/completions", &question("steady", "?")).await;
                    assert!(answer.status.is_success(), "a loaded model did not answer: {answer:?}");
                    answers += 1;
                    sleep(ASK).await;
                }
                answers
            })
        })
        .into();

    let mut score = Score::default();
    let mut jobs: Vec<Job> = Vec::new();
    let mut older = None;
    let end = Instant::now() + Duration::from_secs(amount("MODEL_BOSS_CHAOS_SECS", SECONDS));
    while Instant::now() < end && !audit.is_finished() && asking.iter().all(|task| !task.is_finished()) {
        jobs.retain_mut(|job| !job.has_ended());
        for boss in [Some(&one), Some(&two), third.as_ref()].into_iter().flatten() {
            if jobs.len() < 6 && rng.below(3) == 0 {
                jobs.push(Job::start(boss, &mut rng));
            }
            let mut body = question(["cold", "other"][usize::try_from(rng.below(2)).unwrap()], "?");
            body["x_priority"] = rng.below(10).into();
            body["x_budget_s"] = 2.into();
            // The result depends on the free memory; the request only must not disturb others.
            drop(boss.ask(body));
        }
        let fault = match rng.below(9) {
            0 => {
                server.ask(&["FLUSHALL"]);
                "flush"
            }
            1 => {
                server.kill();
                sleep(Duration::from_millis(rng.below(600))).await;
                server.start_again();
                "restart"
            }
            2 => {
                server.kill();
                let copy = folder.path().join("older");
                match older.take() {
                    Some(()) => server.put_files(&copy),
                    None => {
                        _ = std::fs::remove_dir_all(&copy);
                        server.copy_files(&copy);
                        older = Some(());
                    }
                }
                server.start_again();
                "older file"
            }
            3 => {
                server.kill();
                server.put_files(&folder.path().join("nothing"));
                server.start_again();
                "empty file"
            }
            4 => {
                proxy.cut.store(true, Ordering::Release);
                sleep(Duration::from_millis(300)).await;
                proxy.cut.store(false, Ordering::Release);
                "cut"
            }
            5 => {
                proxy.delay_ms.store(100 + rng.below(300), Ordering::Release);
                sleep(Duration::from_millis(800)).await;
                proxy.delay_ms.store(0, Ordering::Release);
                "slow"
            }
            6 => {
                if let Some(job) = jobs.first() {
                    job.signal(Signal::SIGKILL);
                }
                "kill a job"
            }
            7 => {
                if let Some(job) = jobs.first() {
                    job.signal(Signal::SIGSTOP);
                    sleep(LONG_STOP).await;
                    job.signal(Signal::SIGCONT);
                }
                "stop a job"
            }
            _ => {
                if let Some(boss) = third.take() {
                    if rng.below(2) == 0 {
                        boss.signal(Signal::SIGSTOP);
                        sleep(LONG_STOP).await;
                        boss.signal(Signal::SIGCONT);
                        third = Some(boss);
                    } else {
                        boss.kill().await;
                        third = Some(sandboxes[2].start().await);
                    }
                }
                "kill or stop a coordinator"
            }
        };
        *score.faults.entry(fault).or_default() += 1;
        // Lost leases are reasserted before the next fault: the ledger promises nothing for two faults at once.
        sleep(Duration::from_millis(500 + rng.below(1_500))).await;
    }
    over.store(true, Ordering::Release);
    score.looks = audit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    for task in asking {
        score.answers += task.await.unwrap();
    }
    eprintln!("seed {seed}: {score:?}");
    drop(jobs);
    let third = third.expect("it was started again");
    for boss in [one, two, third] {
        boss.finish().await;
    }
    // No lease of a dead process is counted forever: the last coordinator to end has settled it, or a new one does.
    let last = sandboxes[1].start().await;
    let settled = async || {
        let ledger = server.ledger()?;
        ledger["leases"].as_object().is_none_or(serde_json::Map::is_empty).then_some(())
    };
    until(PATIENCE, "every lease has ended", settled).await;
    last.finish().await;
    assert!(score.looks > 100 && score.answers > 100, "{score:?}");
}
