//! Every fault that can come from outside, in one run against two coordinators. The disk refuses writes; Redis is
//! killed, stopped and emptied; GPUs are pulled; a driver hangs. Workers and leased jobs are killed with their trees,
//! and clients give up at any moment. A loaded model always answers, each request ends, health reports each fault, and
//! no process or lease is left.
//!
//! The tests run each fault once. For an hour: `MODEL_BOSS_CHAOS_SECS=3600 MODEL_BOSS_CHAOS_SEED=7 cargo nextest run -P
//! chaos -p model-boss-tests all_at_once`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use model_boss_protocol::ByteCount;
use model_boss_tests::{
    Behaviour, Boss, Client, Dice, FailingWrites, FakeGpus, FakeModel, PATIENCE, RedisServer, Sandbox, amount, binary,
    question, until,
};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::give_ups::nothing_is_left;
use crate::process_trees::{Job, Unruly, VICTIMS, kill_at_once};

/// Time limits shorter than the defaults, so that many periods fit into the test.
const CONFIG: &str = "stop_grace = \"300ms\"\ndevice_patience = \"300ms\"\nback_off_first = \"50ms\"\n\
    back_off_limit = \"500ms\"\nmin_hold = \"200ms\"\naging_step = \"500ms\"\n\
    [leases]\nterm = \"2s\"\nheartbeat = \"300ms\"\npatience = \"500ms\"\n";
/// The number of clients of each coordinator.
const CROWD: u64 = 6;
/// The deadline of a request, in seconds.
const BUDGET_S: u64 = 6;
/// The longest time of a request: its deadline, and the delay of a busy machine.
const LONGEST: Duration = Duration::from_secs(60);
/// Models that share two GPUs of 24 GiB: one more than fits.
const LARGE: [&str; 3] = ["red", "green", "blue"];

/// A fault that a test causes from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Disk(Errno),
    RedisKilled,
    RedisStopped,
    RedisEmptied,
    GpuPulled,
    DriverHangs,
    WorkersKilled,
}

/// A coordinator and the parts around it that can fail.
struct House {
    name: &'static str,
    boss: Boss,
    gpus: FakeGpus,
    uuids: [String; 2],
    disk: Option<FailingWrites>,
    redis: Option<RedisServer>,
    unruly: Unruly,
    faults: Vec<Fault>,
    // The control sockets and the folder are needed for as long as workers are started.
    _models: Vec<FakeModel>,
    _sandbox: Sandbox,
}

impl House {
    /// A coordinator whose ledger is a file on a disk that can fail. `None` without a C compiler.
    async fn with_a_disk() -> Option<Self> {
        let sandbox = Sandbox::new().with_config(CONFIG);
        let disk = FailingWrites::below(&sandbox, &sandbox.path("state"))?;
        let faults = vec![
            Fault::Disk(Errno::ENOSPC),
            Fault::GpuPulled,
            Fault::WorkersKilled,
            Fault::Disk(Errno::EIO),
            Fault::DriverHangs,
        ];
        Self::start("disk", sandbox, Some(disk), None, faults).await
    }

    /// A coordinator whose ledger is in Redis. `None` without Redis or a C compiler.
    async fn with_redis() -> Option<Self> {
        let server = RedisServer::start()?;
        let sandbox = Sandbox::new().with_config(&format!("redis_url = \"{}\"\n{CONFIG}", server.url()));
        let faults =
            vec![Fault::RedisKilled, Fault::GpuPulled, Fault::RedisEmptied, Fault::WorkersKilled, Fault::RedisStopped];
        Self::start("redis", sandbox, None, Some(server), faults).await
    }

    async fn start(
        name: &'static str,
        sandbox: Sandbox,
        disk: Option<FailingWrites>,
        redis: Option<RedisServer>,
        faults: Vec<Fault>,
    ) -> Option<Self> {
        let gpus = FakeGpus::new(&sandbox)?;
        let uuids = ["one", "two"].map(|number| format!("GPU-{name}-{}-{number}", std::process::id()));
        for uuid in &uuids {
            gpus.plug(uuid, ByteCount::gib(24));
        }
        let behaviour = || Behaviour { reply: Some("one two three".to_owned()), ..Behaviour::default() };
        let steady = "vram = \"64MiB\"\npin = true\ndevice = \"cpu\"\nmax_concurrent = 3";
        let mut models = vec![sandbox.fake_model_with("steady", steady, behaviour())];
        for large in LARGE {
            let model = sandbox.fake_model_with(large, "vram = \"15GiB\"\nmax_concurrent = 2", behaviour());
            model.on_gpus(&gpus);
            models.push(model);
        }
        let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
        gpus.under(&mut launch);
        if let Some(disk) = &disk {
            disk.under(&mut launch);
        }
        let boss = launch.start().await;
        let unruly = Unruly::new(&sandbox);
        let answer = boss.chat("steady", "?").await;
        assert!(answer.status.is_success(), "{name}: {answer:?}");
        Some(Self { name, boss, gpus, uuids, disk, redis, unruly, faults, _models: models, _sandbox: sandbox })
    }

    async fn health(&self) -> Value {
        self.boss.read("/api/v1/health").await
    }

    /// Waits until the health route's answer satisfies `says`.
    async fn health_says(&self, what: &str, says: impl Fn(&Value) -> bool) {
        let told = async || says(&self.health().await).then_some(());
        if timeout(PATIENCE, until(2 * PATIENCE, what, told)).await.is_err() {
            panic!("{}: health does not say within {PATIENCE:?}: {what}; it says {}", self.name, self.health().await);
        }
    }

    /// Waits until health reports no fault, all devices are listed, and no job has a lease.
    async fn is_well(&self) {
        self.health_says("all is well", |health| health["status"] == "ok" && health["problems"] == json!([])).await;
        let devices = async || {
            let devices = self.boss.read("/api/v1/devices").await;
            let there = |device: &Value| device["available"] == true;
            devices["devices"].as_array().is_some_and(|all| all.len() >= 3 && all.iter().all(there)).then_some(())
        };
        until(PATIENCE, "every device is available", devices).await;
        let mut left = Vec::new();
        let no_job = async || {
            left = self.jobs().await;
            left.is_empty().then_some(())
        };
        let ended = timeout(PATIENCE, until(2 * PATIENCE, "no job has a lease", no_job)).await;
        assert!(ended.is_ok(), "{}: jobs that ended have leases after {PATIENCE:?}: {left:?}", self.name);
    }

    /// Leases of jobs, and jobs that wait for one.
    async fn jobs(&self) -> Vec<Value> {
        let ledger = self.boss.read("/api/v1/leases").await;
        let all = ["leases", "waiters"].map(|list| ledger[list].as_array().cloned().unwrap_or_default());
        let is_job = |entry: &Value| entry["label"].as_str().is_some_and(|label| label.contains("unruly"));
        all.into_iter().flatten().filter(is_job).collect()
    }

    /// Causes the fault, and waits until health reports it.
    async fn breaks(&mut self, fault: Fault, dice: &mut Dice) {
        match fault {
            Fault::Disk(error) => {
                self.disk.as_ref().expect("a house with a disk").fail(error);
                let why = std::io::Error::from_raw_os_error(error as i32).to_string();
                self.health_says("the disk fails", |health| {
                    health["leases"]["state"] == "away" && health["problems"].to_string().contains(&why)
                })
                .await;
            }
            Fault::RedisKilled | Fault::RedisStopped => {
                let redis = self.redis.as_mut().expect("a house with Redis");
                if fault == Fault::RedisKilled {
                    redis.kill()
                } else {
                    redis.signal(Signal::SIGSTOP)
                }
                self.health_says("Redis is away", |health| {
                    health["leases"]["state"] == "away" && health["problems"].to_string().contains("redis")
                })
                .await;
            }
            Fault::RedisEmptied => {
                _ = self.redis.as_ref().expect("a house with Redis").ask(&["FLUSHALL"]);
            }
            Fault::GpuPulled => {
                let gpu = dice.one_of(&self.uuids).clone();
                self.gpus.unplug(&gpu);
                self.health_says("a GPU is gone", |health| health["problems"].to_string().contains(&gpu)).await;
            }
            Fault::DriverHangs => {
                self.gpus.hang("nvmlDeviceGetMemoryInfo_v2");
                self.health_says("the driver does not answer", |health| health["problems"] != json!([])).await;
            }
            Fault::WorkersKilled => {
                let slots = self.boss.read("/api/v1/slots").await;
                for slot in slots["slots"].as_array().into_iter().flatten().filter(|slot| slot["model"] != "steady") {
                    if let Some(pid) = slot["pid"].as_u64().and_then(|pid| i32::try_from(pid).ok()) {
                        // The process may have ended by itself.
                        _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                    }
                }
            }
        }
    }

    /// Removes the fault.
    fn heals(&mut self, fault: Fault) {
        match fault {
            Fault::Disk(_) => self.disk.as_ref().expect("a house with a disk").work(),
            Fault::RedisKilled => self.redis.as_mut().expect("a house with Redis").start_again(),
            Fault::RedisStopped => self.redis.as_ref().expect("a house with Redis").signal(Signal::SIGCONT),
            Fault::GpuPulled => {
                for uuid in &self.uuids {
                    self.gpus.unplug(uuid);
                    self.gpus.plug(uuid, ByteCount::gib(24));
                }
            }
            Fault::DriverHangs => self.gpus.mend(),
            Fault::RedisEmptied | Fault::WorkersKilled => {}
        }
    }

    /// Causes one fault after another, each with a job that dies meanwhile; returns how often each happened.
    async fn live(mut self, seed: u64, length: Duration) -> (Self, BTreeMap<String, u64>) {
        let mut dice = Dice::new(seed);
        let mut done: BTreeMap<String, u64> = BTreeMap::new();
        let mut round = 0;
        let begun = Instant::now();
        while round < self.faults.len() || begun.elapsed() < length {
            let fault = self.faults.get(round).copied().unwrap_or_else(|| *dice.one_of(&self.faults));
            round += 1;
            self.is_well().await;
            let mut tree = self.unruly.listen();
            let mut job = Job::unruly(&self.boss, &self.unruly);
            if timeout(PATIENCE, tree.all_stand()).await.is_err() {
                let (name, job, house) = (self.name, job.report(), described(&self.boss).await);
                panic!("{name}, round {round}: a job got no memory in {PATIENCE:?}: {job}{house}");
            }
            let line: Vec<u32> = [job.0.id()].into_iter().chain(job.line()).collect();
            self.breaks(fault, &mut dice).await;
            let victims: &[usize] = dice.one_of::<&[usize]>(&VICTIMS);
            kill_at_once(&victims.iter().filter_map(|place| line.get(*place)).copied().collect::<Vec<_>>());
            tree.ends().await;
            sleep(Duration::from_millis(dice.below(1_000))).await;
            self.heals(fault);
            *done.entry(format!("{fault:?}")).or_default() += 1;
        }
        self.is_well().await;
        (self, done)
    }
}

/// The number of requests by their end.
#[derive(Debug, Default)]
struct Ends(BTreeMap<String, u64>);

/// Sends requests until `over` is set, and abandons some of them early.
async fn ask_on(client: Client, seed: u64, over: Arc<AtomicBool>) -> Ends {
    let mut dice = Dice::new(seed);
    let mut ends = Ends::default();
    while !over.load(Ordering::Acquire) {
        let model = if dice.below(2) == 0 { "steady" } else { *dice.one_of(&LARGE) };
        let mut body = question(model, "?");
        body["x_client_id"] = format!("client-{}", dice.below(4)).into();
        body["x_priority"] = (3 + dice.below(6)).into();
        if model != "steady" {
            body["x_budget_s"] = BUDGET_S.into();
        }
        let patience = if dice.below(3) == 0 { Duration::from_millis(dice.below(300)) } else { LONGEST };
        let end = match timeout(patience, client.post("/v1/chat/completions", &body)).await {
            Ok(answer) if answer.status == StatusCode::OK => "answered".to_owned(),
            Ok(answer) => {
                assert_ne!(model, "steady", "a loaded model did not answer: {answer:?}");
                assert!(answer.status.is_server_error() || answer.status == StatusCode::CONFLICT, "{answer:?}");
                answer.error_code()
            }
            Err(_) => {
                assert!(patience < LONGEST, "a request to '{model}' did not end within {LONGEST:?}");
                "given up".to_owned()
            }
        };
        *ends.0.entry(end).or_default() += 1;
        sleep(Duration::from_millis(dice.below(30))).await;
    }
    ends
}

/// Runs the faults with clients around them, and checks that no process, lease or queue entry is left.
async fn survives(house: House, seed: u64, length: Duration) {
    let over = Arc::new(AtomicBool::new(false));
    let mut crowd = JoinSet::new();
    for number in 0..CROWD {
        crowd.spawn(ask_on(house.boss.client(), seed ^ (number << 32), Arc::clone(&over)));
    }
    let name = house.name;
    // A client with a wrong answer ends the run at once.
    let (house, faults) = tokio::select! {
        lived = house.live(seed, length) => lived,
        Some(Err(failed)) = crowd.join_next() => std::panic::resume_unwind(failed.into_panic()),
    };
    over.store(true, Ordering::Release);
    let mut ends = Ends::default();
    for one in crowd.join_all().await {
        for (end, count) in one.0 {
            *ends.0.entry(end).or_default() += count;
        }
    }
    eprintln!("{name}, seed {seed}: {faults:?}, requests: {ends:?}");
    assert!(ends.0.contains_key("answered"), "{ends:?}");
    nothing_is_left(&house.boss).await;
    for model in LARGE.iter().chain(&["steady"]) {
        let Ok(answer) = timeout(PATIENCE / 2, house.boss.chat(model, "?")).await else {
            panic!("{name}: '{model}' does not answer in a house that is well: {}", described(&house.boss).await);
        };
        assert!(answer.status.is_success(), "{name}: {answer:?}");
    }
    let unloaded = house.boss.client().post("/api/v1/unload", &json!({})).await;
    assert_eq!(unloaded.status, StatusCode::OK, "{unloaded:?}");
    let none = async || {
        let leases = house.boss.read("/api/v1/leases").await["leases"].as_array().map(Vec::is_empty);
        (leases == Some(true)).then_some(())
    };
    until(PATIENCE, "no lease is left", none).await;
    house.boss.finish().await;
}

/// The reasons why requests wait, for the message of a failed test.
async fn described(boss: &Boss) -> String {
    let mut told = String::new();
    for view in ["queue", "slots", "devices", "leases", "health", "decisions"] {
        told.push_str(&format!("\n{view}: {}", boss.read(&format!("/api/v1/{view}")).await));
    }
    told
}

/// The seed, and the time for which faults are caused.
fn run() -> (u64, Duration) {
    (amount("MODEL_BOSS_CHAOS_SEED", 1), Duration::from_secs(amount("MODEL_BOSS_CHAOS_SECS", 0)))
}

#[tokio::test]
async fn le_4_a_disk_gpus_workers_and_jobs_that_fail_together_lose_nothing() {
    let Some(house) = House::with_a_disk().await else { return };
    let (seed, length) = run();
    survives(house, seed, length).await;
}

#[tokio::test]
async fn le_4_redis_gpus_workers_and_jobs_that_fail_together_lose_nothing() {
    let Some(house) = House::with_redis().await else { return };
    let (seed, length) = run();
    survives(house, seed, length).await;
}
