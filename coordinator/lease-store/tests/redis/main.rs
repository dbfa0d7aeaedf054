//! The Redis store and its holders against a real server, which the tests start, kill, pause and empty.
//!
//! Without `redis-server` or `valkey-server` on the PATH each test prints that and passes; `scripts/test` reports it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

mod hammer;
mod outage;
mod same;
mod server;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model_boss_lease_store::{
    Accounting, AcquireRequest, Acquired, DeviceDeclaration, DeviceKey, Etag, Holder, LeaseDurations, LeaseHandle,
    LedgerStore, Observation, Owner, OwnerKind, RedisStore, StoreError, StoredDocuments, Swap, this_process,
};
use model_boss_protocol::{ByteCount, DeviceId, Later, Priority};

use server::Server;

/// A coordinator's holder of the ledger in this server.
pub(crate) fn holder(url: &str, runtime_dir: &Path) -> Holder {
    let owner = Owner::new(this_process().unwrap(), "test", OwnerKind::Coordinator);
    let mut holder = Holder::redis(url, Some(runtime_dir), owner, LeaseDurations::default()).unwrap();
    declare(&mut holder).unwrap();
    holder
}

pub(crate) fn declare(holder: &mut Holder) -> Result<(), StoreError> {
    let (device, key, accounting) = (DeviceId::Cpu, DeviceKey::cpu(), Accounting::PerProcess);
    let (capacity, reserve) = (ByteCount::gib(8), ByteCount::ZERO);
    holder.declare(&DeviceDeclaration { device, key, capacity, reserve, accounting })
}

pub(crate) fn observe(holder: &mut Holder) -> Result<(), StoreError> {
    let (used, sampled_at) = (Some(ByteCount::ZERO), Instant::now());
    let observation = Observation { device: DeviceId::Cpu, used, processes: Vec::new(), sampled_at };
    holder.observe(&observation).map(drop)
}

pub(crate) fn acquire(holder: &mut Holder, request_id: &str, bytes: ByteCount) -> Result<Acquired, StoreError> {
    observe(holder)?;
    holder.acquire(AcquireRequest::new(request_id, "job", Priority::NORMAL, vec![(DeviceId::Cpu, bytes)]))
}

pub(crate) fn granted(acquired: Acquired) -> LeaseHandle {
    match acquired {
        Acquired::Granted(handle) => handle,
        other => panic!("{other:?}"),
    }
}

/// A process that ends when its standard input does.
pub(crate) fn worker() -> Child {
    Command::new("cat").stdin(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn end(mut worker: Child) {
    worker.kill().unwrap();
    worker.wait().unwrap();
}

/// Repeats a query until the answer fits, for at most ten seconds.
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now().later(Duration::from_secs(10));
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "it never came");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_register_swaps_only_what_was_read_and_only_soon() {
    let Some(server) = Server::start() else { return };
    let mut store = RedisStore::open(&server.url(), "boot").unwrap();
    let empty = store.load().unwrap();
    assert_eq!(empty.document, None);
    assert!(empty.run_id.as_ref().is_some_and(|id| id.len() == 40));
    assert_eq!(store.compare_and_swap(&empty, Etag::random().unwrap(), "{\"one\":1}").unwrap(), Swap::Done);
    assert_eq!(store.compare_and_swap(&empty, Etag::random().unwrap(), "two").unwrap(), Swap::Conflict);
    let mut loaded = store.load().unwrap();
    assert_eq!(loaded.document.as_deref(), Some("{\"one\":1}"));
    loaded.now.0 -= 1_100_000;
    assert_eq!(store.compare_and_swap(&loaded, Etag::random().unwrap(), "two").unwrap(), Swap::Stale);
    loaded.now.0 += 3_000_000;
    assert_eq!(
        store.compare_and_swap(&loaded, Etag::random().unwrap(), "two").unwrap(),
        Swap::Stale,
        "read in the future"
    );
    loaded.now.0 -= 1_900_000;
    loaded.run_id = Some("0".repeat(40));
    assert_eq!(store.compare_and_swap(&loaded, Etag::random().unwrap(), "two").unwrap(), Swap::Stale, "another server");
    let loaded = store.load().unwrap();
    assert_eq!(store.compare_and_swap(&loaded, Etag::random().unwrap(), "two").unwrap(), Swap::Done);
    // Redis has one readable document, and no key that expires.
    let mut people = server.connection();
    let document: String = redis::cmd("HGET").arg("mb:{boot}:ledger").arg("document").query(&mut people).unwrap();
    assert_eq!(document, "two");
    let left: i64 = redis::cmd("PTTL").arg("mb:{boot}:ledger").query(&mut people).unwrap();
    assert_eq!(left, -1);
    assert!(store.describe().starts_with("Redis ") && !store.describe().contains("unknown"), "{}", store.describe());
}

#[test]
fn le_1_hosts_share_a_server_and_not_a_ledger() {
    let Some(server) = Server::start() else { return };
    let mut one = RedisStore::open(&server.url(), "one").unwrap();
    let empty = one.load().unwrap();
    one.compare_and_swap(&empty, Etag::random().unwrap(), "mine").unwrap();
    assert_eq!(RedisStore::open(&server.url(), "two").unwrap().load().unwrap().document, None);
}

#[test]
fn small_documents_are_shared() {
    let Some(server) = Server::start() else { return };
    let mut one = RedisStore::open(&server.url(), "one").unwrap();
    let mut two = RedisStore::open(&server.url(), "two").unwrap();
    let empty = one.load_document("settings").unwrap();
    assert_eq!(empty.content, None);
    assert_eq!(one.swap_document("settings", &empty, "first").unwrap(), Swap::Done);
    assert_eq!(two.swap_document("settings", &empty, "second").unwrap(), Swap::Conflict);
    let loaded = two.load_document("settings").unwrap();
    assert_eq!(loaded.content.as_deref(), Some("first"));
    assert_eq!(two.swap_document("settings", &loaded, "second").unwrap(), Swap::Done);
    assert_eq!(one.load_document("settings").unwrap().content.as_deref(), Some("second"));
}

#[test]
fn a_server_that_may_evict_keys_is_refused() {
    let Some(server) = Server::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut holder = holder(&server.url(), folder.path());
    server.config("maxmemory-policy", "allkeys-lru");
    let error = acquire(&mut holder, "a", ByteCount::gib(1)).unwrap_err();
    assert!(matches!(&error, StoreError::Evicts { policy, .. } if policy == "allkeys-lru"), "{error}");
    assert!(error.to_string().contains("set maxmemory-policy to noeviction") && error.is_outage(), "{error}");
    server.config("maxmemory-policy", "noeviction");
    granted(acquire(&mut holder, "a", ByteCount::gib(1)).unwrap());
}

#[test]
fn what_somebody_else_wrote_is_named_and_left_alone() {
    let Some(server) = Server::start() else { return };
    let mut people = server.connection();
    let key = "mb:{boot}:ledger";
    redis::cmd("HSET").arg(key).arg("etag").arg("not hexadecimal").exec(&mut people).unwrap();
    let error = RedisStore::open(&server.url(), "boot").err().unwrap();
    assert!(error.to_string().contains("somebody else wrote to mb:{boot}:ledger"), "{error}");
    redis::cmd("DEL").arg(key).exec(&mut people).unwrap();
    redis::cmd("SET").arg(key).arg("a string").exec(&mut people).unwrap();
    assert!(RedisStore::open(&server.url(), "boot").is_err());
}

#[test]
fn one_device_is_not_counted_in_two_servers() {
    let (Some(one), Some(two)) = (Server::start(), Server::start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let first = holder(&one.url(), folder.path());
    let beside = holder(&one.url(), folder.path());
    let owner = Owner::new(this_process().unwrap(), "test", OwnerKind::Coordinator);
    let mut other = Holder::redis(&two.url(), Some(folder.path()), owner.clone(), LeaseDurations::default()).unwrap();
    let error = declare(&mut other).unwrap_err().to_string();
    assert!(error.contains("device cpu is in use by the ledger"), "{error}");
    let state = folder.path().join("state");
    let mut embedded = Holder::embedded(&state, Some(folder.path()), owner, LeaseDurations::default()).unwrap();
    assert!(matches!(declare(&mut embedded), Err(StoreError::InUse { .. })));
    drop((first, beside));
    declare(&mut other).unwrap();
}
