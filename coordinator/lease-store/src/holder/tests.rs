//! The holder over a store in memory that can be made to fail.

use std::sync::{Arc, Mutex};

use super::*;
use crate::store::{Etag, Snapshot};

/// A register in memory. Counts swaps, loses the next few races, and can be cut off.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Register>>);

#[derive(Default)]
struct Register {
    document: Option<String>,
    etag: u128,
    swaps: u32,
    answers: Vec<Swap>,
    cut_off: bool,
}

impl LedgerStore for Memory {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        let register = self.0.lock().unwrap();
        if register.cut_off {
            return Err(StoreError::Host("a store"));
        }
        let (document, etag) = (register.document.clone(), Etag(register.etag));
        Ok(Snapshot { document, etag, now: host::time_since_boot()? })
    }

    fn compare_and_swap(&mut self, loaded: &Snapshot, document: &str) -> Result<Swap, StoreError> {
        let mut register = self.0.lock().unwrap();
        if let Some(answer) = register.answers.pop() {
            return Ok(answer);
        }
        assert_eq!(loaded.etag, Etag(register.etag));
        register.document = Some(document.to_owned());
        register.etag += 1;
        register.swaps += 1;
        Ok(Swap::Done)
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

struct Bench {
    memory: Memory,
    holder: Holder,
    _folder: tempfile::TempDir,
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::default();
    let owner = Owner::new(host::this_process().unwrap(), "test", OwnerKind::Coordinator);
    let empty = Ledger::new("boot", Token(0), Terms::default());
    let mut holder = Holder::over(Box::new(memory.clone()), empty, (folder.path(), folder.path()), owner).unwrap();
    let (device, key) = (DeviceId::Cpu, DeviceKey::cpu());
    let declaration = DeviceDeclaration { device, key, capacity: ByteCount::gib(10), reserve: ByteCount::gib(1) };
    holder.declare(&declaration).unwrap();
    Bench { memory, holder, _folder: folder }
}

fn observation(used: ByteCount, sampled_at: Instant) -> Observation {
    Observation { device: DeviceId::Cpu, used: Some(used), processes: Vec::new(), sampled_at }
}

fn wish(request_id: &str, bytes: ByteCount) -> AcquireRequest {
    let parts = vec![(DeviceId::Cpu, bytes)];
    AcquireRequest { request_id: request_id.to_owned(), label: "m".to_owned(), priority: Priority::NORMAL, parts }
}

impl Bench {
    fn swaps(&self) -> u32 {
        self.memory.0.lock().unwrap().swaps
    }

    fn granted(&mut self, request_id: &str, bytes: ByteCount) -> LeaseHandle {
        self.holder.observe(&observation(ByteCount::gib(1), Instant::now())).unwrap();
        match self.holder.acquire(wish(request_id, bytes)).unwrap() {
            Acquired::Granted(handle) => handle,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn little_is_written() {
    let mut bench = bench();
    let before = bench.swaps();
    let start = Instant::now();
    let foreign = bench.holder.observe(&observation(ByteCount::gib(1), start)).unwrap();
    assert_eq!(foreign, Some(ByteCount::gib(1)));
    assert_eq!(bench.swaps(), before + 1);
    let nearly = ByteCount::gib(1) + ByteCount::mib(64);
    bench.holder.observe(&observation(nearly, start + Duration::from_millis(2_900))).unwrap();
    assert_eq!(bench.swaps(), before + 1, "small and soon");
    bench.holder.observe(&observation(nearly + ByteCount(1), start + Duration::from_millis(1))).unwrap();
    assert_eq!(bench.swaps(), before + 2, "not small");
    assert!(matches!(bench.holder.acquire(wish("a", ByteCount::gib(20))).unwrap(), Acquired::NeverFits { .. }));
    assert!(bench.holder.renew().unwrap().is_empty());
    assert_eq!(bench.swaps(), before + 2, "nothing changed");
}

#[test]
fn an_observation_after_a_change_is_always_written() {
    let mut bench = bench();
    let handle = bench.granted("a", ByteCount::gib(1));
    bench.holder.attach(&handle, std::process::id()).unwrap();
    assert!(matches!(bench.holder.acquire(wish("b", ByteCount(1))).unwrap(), Acquired::Wait { .. }));
    bench.granted("b", ByteCount(1));
}

#[test]
fn a_lost_race_is_run_again_and_a_hopeless_one_is_reported() {
    let mut bench = bench();
    bench.memory.0.lock().unwrap().answers = vec![Swap::Conflict, Swap::Stale, Swap::Conflict];
    let handle = bench.granted("a", ByteCount::gib(1));
    assert_eq!(bench.holder.leases().len(), 1);
    bench.memory.0.lock().unwrap().answers = vec![Swap::Conflict; 50];
    let error = bench.holder.release(&handle, Evidence::Gone).unwrap_err();
    assert!(matches!(error, StoreError::Contended(_)), "{error}");
    bench.memory.0.lock().unwrap().answers.clear();
    bench.holder.release(&handle, Evidence::Gone).unwrap();
    bench.holder.release(&handle, Evidence::Gone).unwrap();
    assert!(bench.holder.leases().is_empty());
}

#[test]
fn without_the_store_there_are_no_leases() {
    let mut bench = bench();
    bench.granted("a", ByteCount::gib(1));
    bench.memory.0.lock().unwrap().cut_off = true;
    assert!(bench.holder.acquire(wish("b", ByteCount(1))).is_err());
    assert!(bench.holder.renew().is_err());
    bench.memory.0.lock().unwrap().cut_off = false;
    assert!(bench.holder.renew().unwrap().is_empty(), "a cut-off holder loses nothing");
}

#[test]
fn a_lease_that_somebody_ended_is_reported_as_lost() {
    let mut bench = bench();
    let handle = bench.granted("a", ByteCount::gib(1));
    let mut ledger: Ledger = serde_json::from_str(bench.memory.0.lock().unwrap().document.as_ref().unwrap()).unwrap();
    ledger.leases.clear();
    bench.memory.0.lock().unwrap().document = Some(serde_json::to_string(&ledger).unwrap());
    let error = bench.holder.attach(&handle, std::process::id()).unwrap_err();
    assert!(matches!(&error, StoreError::Lost(lease) if *lease == handle.lease), "{error}");
    let handle = bench.granted("b", ByteCount::gib(1));
    bench.memory.0.lock().unwrap().document = Some(serde_json::to_string(&ledger).unwrap());
    assert_eq!(bench.holder.renew().unwrap(), vec![handle]);
}

#[test]
fn a_device_must_be_declared_first() {
    let mut bench = bench();
    let parts = vec![(DeviceId::Cuda(0), ByteCount(1))];
    let error = bench.holder.acquire(AcquireRequest { parts, ..wish("a", ByteCount(1)) }).unwrap_err();
    assert_eq!(error.to_string(), "device cuda:0 was not declared to the lease ledger");
}
