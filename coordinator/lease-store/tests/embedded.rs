//! Leases that outlive their holder: the embedded store with real files, real locks and real processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use model_boss_lease_store::{
    Accounting, AcquireRequest, Acquired, DeviceDeclaration, DeviceKey, EmbeddedStore, Etag, Evidence, Holder,
    LeaseDurations, LeaseHandle, LedgerStore, Observation, Owner, OwnerKind, StoreError, this_process,
};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

fn open(state_dir: &Path, runtime_dir: &Path) -> Result<Holder, StoreError> {
    let owner = Owner::new(this_process()?, "test", OwnerKind::Coordinator);
    Holder::embedded(state_dir, Some(runtime_dir), owner, LeaseDurations::default())
}

fn declare(holder: &mut Holder) -> Result<(), StoreError> {
    let (device, key) = (DeviceId::Cpu, DeviceKey::cpu());
    let (capacity, reserve, accounting) = (ByteCount::gib(8), ByteCount::ZERO, Accounting::PerProcess);
    holder.declare(&DeviceDeclaration { device, key, capacity, reserve, accounting })
}

fn acquire(holder: &mut Holder, request_id: &str, bytes: ByteCount) -> Result<Acquired, StoreError> {
    let (used, sampled_at) = (Some(ByteCount::ZERO), Instant::now());
    holder.observe(&Observation { device: DeviceId::Cpu, used, processes: Vec::new(), sampled_at })?;
    holder.acquire(AcquireRequest::new(request_id, "guide", Priority::NORMAL, vec![(DeviceId::Cpu, bytes)]))
}

fn granted(acquired: Acquired) -> LeaseHandle {
    match acquired {
        Acquired::Granted(handle) => handle,
        other => panic!("{other:?}"),
    }
}

/// A process that ends when its standard input does.
fn worker() -> std::io::Result<Child> {
    Command::new("cat").stdin(Stdio::piped()).spawn()
}

#[test]
fn le_1_leases_survive_a_reopen() {
    let folder = tempfile::tempdir().unwrap();
    let (state, runtime) = (folder.path().join("state"), folder.path().join("run"));
    let handle = {
        let mut holder = open(&state, &runtime).unwrap();
        declare(&mut holder).unwrap();
        granted(acquire(&mut holder, "a", ByteCount::gib(5)).unwrap())
    };
    let mut holder = open(&state, &runtime).unwrap();
    declare(&mut holder).unwrap();
    assert!(matches!(acquire(&mut holder, "b", ByteCount::gib(4)).unwrap(), Acquired::Wait { .. }));
    let again = granted(acquire(&mut holder, "a", ByteCount::gib(5)).unwrap());
    assert_eq!(again, handle);
    holder.release(&again, Evidence::Gone).unwrap();
    granted(acquire(&mut holder, "b", ByteCount::gib(4)).unwrap());
}

/// The test starts its own binary a second time, as the coordinator that is killed.
#[test]
fn le_4_after_kill_9_living_workers_stay_counted_and_dead_ones_do_not() {
    const STATE: &str = "LEASE_STORE_TEST_STATE";
    const WORKER: &str = "LEASE_STORE_TEST_WORKER";
    if let Ok(folder) = std::env::var(STATE) {
        let folder = Path::new(&folder);
        let mut holder = open(&folder.join("state"), &folder.join("run")).unwrap();
        declare(&mut holder).unwrap();
        let attached = granted(acquire(&mut holder, "attached", ByteCount::gib(3)).unwrap());
        granted(acquire(&mut holder, "promised", ByteCount::gib(3)).unwrap());
        holder.attach(&attached, std::env::var(WORKER).unwrap().parse().unwrap()).unwrap();
        println!("\nholding");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        panic!("the parent should have killed this process");
    }

    let folder = tempfile::tempdir().unwrap();
    let mut worker = worker().unwrap();
    let name = "le_4_after_kill_9_living_workers_stay_counted_and_dead_ones_do_not";
    let mut coordinator = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(STATE, folder.path())
        .env(WORKER, worker.id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(coordinator.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "holding"));

    let in_use = open(&folder.path().join("state"), &folder.path().join("run")).err().unwrap().to_string();
    assert!(in_use.contains(&format!("process {}", coordinator.id())), "{in_use}");

    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    let mut holder = open(&folder.path().join("state"), &folder.path().join("run")).unwrap();
    declare(&mut holder).unwrap();
    let leftovers = holder.settle().unwrap();
    let pids: Vec<_> = leftovers.iter().flat_map(|left| &left.processes).map(|process| process.pid).collect();
    assert_eq!(pids, vec![worker.id()]);
    assert_eq!(holder.leases().len(), 1, "the promise that no process was attached to went with its owner");
    assert!(matches!(acquire(&mut holder, "new", ByteCount::gib(6)).unwrap(), Acquired::Wait { .. }));

    worker.kill().unwrap();
    worker.wait().unwrap();
    assert!(holder.settle().unwrap().is_empty());
    assert!(holder.leases().is_empty());
    granted(acquire(&mut holder, "newer", ByteCount::gib(6)).unwrap());
}

#[test]
fn a_release_without_evidence_is_settled_once_the_process_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut holder = open(&folder.path().join("state"), &folder.path().join("run")).unwrap();
    declare(&mut holder).unwrap();
    let handle = granted(acquire(&mut holder, "a", ByteCount::gib(5)).unwrap());
    let mut worker = worker().unwrap();
    holder.attach(&handle, worker.id()).unwrap();
    holder.release(&handle, Evidence::None).unwrap();
    holder.settle().unwrap();
    assert_eq!(holder.leases().len(), 1);
    worker.kill().unwrap();
    worker.wait().unwrap();
    holder.settle().unwrap();
    assert!(holder.leases().is_empty());
}

#[test]
fn a_held_lease_is_never_settled() {
    let folder = tempfile::tempdir().unwrap();
    let mut holder = open(&folder.path().join("state"), &folder.path().join("run")).unwrap();
    declare(&mut holder).unwrap();
    granted(acquire(&mut holder, "a", ByteCount::gib(5)).unwrap());
    assert!(holder.settle().unwrap().is_empty());
    assert_eq!(holder.leases().len(), 1);
}

#[test]
fn one_device_is_counted_in_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two, runtime) = (folder.path().join("one"), folder.path().join("two"), folder.path().join("run"));
    let mut first = open(&one, &runtime).unwrap();
    declare(&mut first).unwrap();
    declare(&mut first).unwrap();
    let mut second = open(&two, &runtime).unwrap();
    let error = declare(&mut second).unwrap_err().to_string();
    assert!(error.contains("device cpu is in use"), "{error}");
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    assert!(error.contains(&one.display().to_string()), "{error}");
    drop(first);
    declare(&mut second).unwrap();
}

#[test]
fn a_file_that_is_not_ours_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let good = {
        let (state, runtime) = (folder.path().join("good"), folder.path().join("run"));
        drop(open(&state, &runtime).unwrap());
        fs::read(state.join(EmbeddedStore::FILE)).unwrap()
    };
    let mut cases = vec![b"not a database".to_vec(), vec![0; 4096], vec![0xff; 1 << 20]];
    cases.extend([1, 64, 4096, good.len() / 2, good.len() - 1].map(|length| good[..length].to_vec()));
    for (number, content) in cases.into_iter().enumerate() {
        let state = folder.path().join(number.to_string());
        fs::create_dir(&state).unwrap();
        let file = state.join(EmbeddedStore::FILE);
        fs::write(&file, &content).unwrap();
        let error = open(&state, &folder.path().join("run")).err();
        let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(matches!(error, Some(StoreError::Corrupt { .. })), "case {number}: {error:?}");
        assert!(text.contains(&file.display().to_string()) && text.contains("move the file away"), "{text}");
        assert_eq!(fs::read(&file).unwrap(), content, "case {number}");
    }
}

#[test]
fn a_document_that_is_not_a_ledger_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (state, runtime) = (folder.path().join("state"), folder.path().join("run"));
    {
        let mut store = EmbeddedStore::open(&state).unwrap();
        let loaded = store.load().unwrap();
        store.compare_and_swap(&loaded, Etag::random().unwrap(), "{\"schema\":1}").unwrap();
    }
    let error = open(&state, &runtime).err().unwrap().to_string();
    assert!(error.contains("missing field") && error.contains(EmbeddedStore::FILE), "{error}");
}

#[test]
fn a_damaged_file_is_reported_or_read_right_and_never_half_read() {
    let folder = tempfile::tempdir().unwrap();
    let (state, runtime) = (folder.path().join("state"), folder.path().join("run"));
    {
        let mut holder = open(&state, &runtime).unwrap();
        declare(&mut holder).unwrap();
        for number in 0..20 {
            granted(acquire(&mut holder, &number.to_string(), ByteCount::mib(1)).unwrap());
        }
    }
    let file = state.join(EmbeddedStore::FILE);
    let good = fs::read(&file).unwrap();
    let (mut reported, mut harmless) = (0, 0);
    let mut random = 1_u64;
    for _ in 0..50 {
        // Knuth's MMIX generator: any fixed sequence of places does.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = usize::try_from(random >> 33).unwrap() % if random & 1 == 0 { 8_192 } else { good.len() };
        let mut bad = good.clone();
        bad[place] ^= 0x55;
        fs::write(&file, &bad).unwrap();
        match open(&state, &runtime) {
            Ok(holder) => {
                harmless += 1;
                assert_eq!(holder.leases().len(), 20, "byte {place}");
            }
            Err(StoreError::Corrupt { .. }) => reported += 1,
            Err(other) => panic!("byte {place}: {other:?}"),
        }
    }
    assert!(reported > 0 && harmless > 0, "{reported} reported, {harmless} harmless");
}
