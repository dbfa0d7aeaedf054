//! Many processes and threads on one ledger. Each also counts in the server what it holds at the moment: that sum
//! must never exceed the device.

use std::io::Read;
use std::process::{Command, Stdio};

use model_boss_lease_store::{
    AcquireRequest, Acquired, Evidence, Holder, LeaseDurations, Mode, Owner, OwnerKind, StoreError, this_process,
};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use crate::server::Server;
use crate::{declare, observe};

const URL: &str = "LEASE_STORE_TEST_URL";
const RUNTIME: &str = "LEASE_STORE_TEST_RUNTIME";
const PROCESSES: usize = 3;
const THREADS: u64 = 2;
const ROUNDS: u64 = 15;

/// The test starts its own binary again, as the processes that compete.
#[test]
fn le_4_nothing_is_granted_twice_however_many_compete() {
    if let (Ok(url), Ok(runtime)) = (std::env::var(URL), std::env::var(RUNTIME)) {
        return compete(&url, &runtime);
    }
    let Some(server) = Server::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let name = "hammer::le_4_nothing_is_granted_twice_however_many_compete";
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(URL, server.url())
            .env(RUNTIME, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    for mut process in processes {
        let (mut out, mut err) = (String::new(), String::new());
        process.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        process.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(process.wait().unwrap().success(), "{out}{err}");
    }
    let mut people = server.connection();
    let (held, grants): (i64, u64) = redis::cmd("MGET").arg("held").arg("grants").query(&mut people).unwrap();
    assert_eq!(held, 0);
    assert_eq!(grants, u64::try_from(PROCESSES).unwrap() * THREADS * ROUNDS, "every thread got its turns");
}

fn compete(url: &str, runtime: &str) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || take_turns(url, runtime, thread));
        }
    });
}

fn take_turns(url: &str, runtime: &str, thread: u64) {
    let owner = Owner::new(this_process().unwrap(), "hammer", OwnerKind::Job);
    let mut holder =
        persist(|| Holder::redis(url, Some(std::path::Path::new(runtime)), owner.clone(), LeaseDurations::default()));
    persist(|| declare(&mut holder));
    let mut count = redis::Client::open(url).unwrap().get_connection().unwrap();
    for round in 0..ROUNDS {
        let gib = 2 + (round * 7 + thread * 3 + u64::from(std::process::id())) % 5;
        let request = AcquireRequest {
            mode: Mode::Wait,
            ..AcquireRequest::new(
                format!("{}-{thread}-{round}", std::process::id()),
                "hammer",
                Priority::NORMAL,
                vec![(DeviceId::Cpu, ByteCount::gib(gib))],
            )
        };
        let handle = loop {
            persist(|| observe(&mut holder));
            match persist(|| holder.acquire(request.clone())) {
                Acquired::Granted(handle) => break handle,
                Acquired::Wait { .. } => std::thread::park_timeout(std::time::Duration::from_millis(3)),
                never @ Acquired::NeverFits { .. } => panic!("{never:?}"),
            }
        };
        let held: i64 = redis::cmd("INCRBY").arg("held").arg(gib).query(&mut count).unwrap();
        assert!(held <= 8, "{held} GiB are held of 8");
        redis::cmd("INCR").arg("grants").exec(&mut count).unwrap();
        redis::cmd("DECRBY").arg("held").arg(gib).exec(&mut count).unwrap();
        persist(|| holder.release(&handle, Evidence::Gone));
    }
}

/// Repeats an operation until it succeeds. With many competitors it may lose sixteen races in a row, and on a slow
/// machine it may take too long.
fn persist<T>(mut act: impl FnMut() -> Result<T, StoreError>) -> T {
    loop {
        match act() {
            Ok(done) => return done,
            Err(error) if error.is_outage() => std::thread::park_timeout(std::time::Duration::from_millis(3)),
            Err(error) => panic!("{error}"),
        }
    }
}
