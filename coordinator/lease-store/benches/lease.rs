//! The time of one operation on the ledger with 64 leases and 8 clients. The stores are a real Redis server over TCP
//! on loopback, and the embedded one. An operation is two round trips and two passes over the document. `PING` over
//! the same kind of connection is therefore its lower bound.
//!
//! `scripts/bench lease`

#![allow(clippy::unwrap_used, reason = "a measurement that cannot be set up has nothing to say")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use model_boss_lease_store::{
    Accounting, AcquireRequest, Acquired, DeviceDeclaration, DeviceKey, Evidence, Holder, LeaseDurations, LeaseHandle,
    Observation, Owner, OwnerKind, StoreError, this_process,
};
use model_boss_protocol::{ByteCount, DeviceId, Later, Priority};

const CLIENTS: usize = 8;
const LEASES_EACH: usize = 8;
/// The pause between operations of a client. Real holders do one operation in three seconds; this is thirty times as
/// much.
const PACE: Duration = Duration::from_millis(100);
const PACED: Duration = Duration::from_secs(20);
const UNPACED: Duration = Duration::from_secs(5);
const SIZE: ByteCount = ByteCount(1 << 30);

fn main() {
    println!("lease: {CLIENTS} clients with {LEASES_EACH} leases each; times in ms");
    println!("{:<34} {:>9} {:>7} {:>7} {:>7} {:>7}", "", "ops/s", "p50", "p99", "max", "failed");
    let embedded = tempfile::tempdir().unwrap();
    let open = |_: usize| {
        Holder::embedded(embedded.path(), Some(&embedded.path().join("run")), owner(), LeaseDurations::default())
    };
    let mut one = hold(&open, 0, CLIENTS * LEASES_EACH);
    declare_and_look(&mut one.holder);
    report("embedded, one client, paced", &work(std::slice::from_mut(&mut one), Some(PACE), PACED));
    report("embedded, one client, unpaced", &work(std::slice::from_mut(&mut one), None, UNPACED));
    drop(one);

    let Some(server) = Server::start() else { return };
    let run = server.folder.path().join("run");
    let open = |_: usize| Holder::redis(&server.url, Some(&run), owner(), LeaseDurations::default());
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| hold(&open, number, LEASES_EACH)).collect();
    report("redis PING, paced", &ping(&server.url, Some(PACE), PACED));
    report("redis, paced", &work(&mut clients, Some(PACE), PACED));
    report("redis PING, unpaced", &ping(&server.url, None, UNPACED));
    report("redis, unpaced", &work(&mut clients, None, UNPACED));
    let document = clients[0].holder.leases().len();
    println!("{document} leases in the ledger at the end, {} bytes", server.document());
}

fn owner() -> Owner {
    Owner::new(this_process().unwrap(), "bench", OwnerKind::Coordinator)
}

/// A client that holds leases.
struct Client {
    number: usize,
    holder: Holder,
    held: Vec<LeaseHandle>,
    turn: usize,
}

/// The measured times.
struct Times {
    all: Vec<Duration>,
    failed: usize,
    took: Duration,
}

fn hold(open: &dyn Fn(usize) -> Result<Holder, StoreError>, number: usize, leases: usize) -> Client {
    let mut holder = open(number).unwrap();
    declare_and_look(&mut holder);
    let mut client = Client { number, holder, held: Vec::new(), turn: 0 };
    for lease in 0..leases {
        let handle = client.acquire(&format!("held-{number}-{lease}")).unwrap();
        client.holder.attach(&handle, std::process::id()).unwrap();
        client.look().unwrap();
        client.held.push(handle);
    }
    client
}

fn declare_and_look(holder: &mut Holder) {
    let (device, key, accounting) = (DeviceId::Cpu, DeviceKey::cpu(), Accounting::PerProcess);
    let (capacity, reserve) = (ByteCount(1 << 50), ByteCount::ZERO);
    holder.declare(&DeviceDeclaration { device, key, capacity, reserve, accounting }).unwrap();
}

impl Client {
    fn acquire(&mut self, request: &str) -> Result<LeaseHandle, StoreError> {
        self.look()?;
        let parts = vec![(DeviceId::Cpu, SIZE)];
        match self.holder.acquire(AcquireRequest::new(request, "bench", Priority::NORMAL, parts))? {
            Acquired::Granted(handle) => Ok(handle),
            other => panic!("not granted: {other:?}"),
        }
    }

    fn look(&mut self) -> Result<(), StoreError> {
        let (device, used, processes) = (DeviceId::Cpu, Some(ByteCount::ZERO), Vec::new());
        self.holder.observe(&Observation { device, used, processes, sampled_at: Instant::now() }).map(drop)
    }

    /// One operation, each kind in turn: mostly heartbeats, as in real use.
    fn step(&mut self) -> Result<(), StoreError> {
        self.turn += 1;
        let handle = self.held[self.turn % self.held.len()].clone();
        let parts = |bytes| [(DeviceId::Cpu, bytes)];
        match self.turn % 8 {
            1 => self.holder.resize(&handle, &parts(ByteCount(SIZE.0 / 2))).map(drop),
            3 => self.holder.resize(&handle, &parts(SIZE)).map(drop),
            5 => {
                let request = format!("extra-{}-{}", self.number, self.turn);
                match self.holder.acquire(AcquireRequest::new(
                    request,
                    "bench",
                    Priority::NORMAL,
                    parts(SIZE).into(),
                ))? {
                    Acquired::Granted(extra) => self.held.push(extra),
                    // A revoked lease of another client is not shrunk here: the answer counts like any other.
                    _ => self.turn += 2,
                }
                Ok(())
            }
            7 => match self.held.len() > LEASES_EACH {
                true => {
                    let extra = self.held.pop();
                    extra.map_or(Ok(()), |extra| self.holder.release(&extra, Evidence::Gone))
                }
                false => self.holder.renew().map(drop),
            },
            4 => self.look(),
            _ => self.holder.renew().map(drop),
        }
    }
}

/// Runs every client's operations for the given time.
fn work(clients: &mut [Client], pace: Option<Duration>, limit: Duration) -> Times {
    let steps = clients
        .iter_mut()
        .map(|client| Box::new(move || client.step().is_ok()) as Box<dyn FnMut() -> bool + Send + '_>)
        .collect();
    measure(steps, pace, limit)
}

fn ping(url: &str, pace: Option<Duration>, limit: Duration) -> Times {
    let client = redis::Client::open(url).unwrap();
    let steps = (0..CLIENTS)
        .map(|_| {
            let mut connection = client.get_connection().unwrap();
            Box::new(move || redis::cmd("PING").exec(&mut connection).is_ok()) as Box<dyn FnMut() -> bool + Send>
        })
        .collect();
    measure(steps, pace, limit)
}

fn measure(steps: Vec<Box<dyn FnMut() -> bool + Send + '_>>, pace: Option<Duration>, limit: Duration) -> Times {
    let start = Barrier::new(steps.len());
    let number = u32::try_from(steps.len()).unwrap();
    let begun = Instant::now();
    let found: Vec<(Vec<Duration>, usize)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..number)
            .zip(steps)
            .map(|(place, mut step)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let begun = Instant::now();
                    let (mut times, mut failed) = (Vec::new(), 0);
                    // Heartbeats of different holders are spread over time.
                    let mut due = begun.later(pace.unwrap_or_default().saturating_mul(place) / number);
                    while begun.elapsed() < limit {
                        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|_| pace.is_some()) {
                            thread::park_timeout(left);
                        }
                        due = due.later(pace.unwrap_or_default());
                        let before = Instant::now();
                        failed += usize::from(!step());
                        times.push(before.elapsed());
                    }
                    (times, failed)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let failed = found.iter().map(|(_, failed)| failed).sum();
    let mut all: Vec<Duration> = found.into_iter().flat_map(|(times, _)| times).collect();
    all.sort_unstable();
    Times { all, failed, took: begun.elapsed() }
}

fn report(what: &str, times: &Times) {
    let at = |percent: usize| times.all[(times.all.len() * percent / 100).min(times.all.len() - 1)].as_secs_f64() * 1e3;
    let rate = times.all.len() as f64 / times.took.as_secs_f64();
    println!(
        "{what:<34} {rate:>9.0} {:>7.2} {:>7.2} {:>7.2} {:>7}",
        at(50),
        at(99),
        times.all.last().unwrap().as_secs_f64() * 1e3,
        times.failed
    );
}

/// A Redis server of its own that writes its log as it does by default.
struct Server {
    process: Child,
    folder: tempfile::TempDir,
    url: String,
}

impl Server {
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for program in ["redis-server", "valkey-server"] {
            let started = Command::new(program)
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--port", &port.to_string()])
                .arg("--dir")
                .arg(folder.path())
                .stdout(Stdio::null())
                .spawn();
            if let Ok(process) = started {
                let url = format!("redis://127.0.0.1:{port}");
                let client = redis::Client::open(url.as_str()).unwrap();
                let deadline = Instant::now().later(Duration::from_secs(10));
                while client.get_connection().is_err() && Instant::now() < deadline {
                    thread::park_timeout(Duration::from_millis(10));
                }
                return Some(Self { process, folder, url });
            }
        }
        println!("skipped: neither redis-server nor valkey-server is installed");
        None
    }

    /// The size of the ledger in bytes.
    fn document(&self) -> usize {
        let mut connection = redis::Client::open(self.url.as_str()).unwrap().get_connection().unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("mb:*:ledger").query(&mut connection).unwrap();
        let text: String = redis::cmd("HGET").arg(&keys[0]).arg("document").query(&mut connection).unwrap();
        text.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
