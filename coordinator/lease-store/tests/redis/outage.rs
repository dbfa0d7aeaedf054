//! A server that is unreachable, slow, restarted or emptied: no bytes are granted twice, and no held lease is lost.

use std::time::{Duration, Instant};

use model_boss_lease_store::{
    Acquired, Etag, Evidence, LedgerStore, RedisStore, RenewOutcome, StoreError, Swap, Unreachable,
};
use model_boss_protocol::ByteCount;

use crate::server::Server;
use crate::{acquire, end, granted, holder, observe, until, worker};

#[test]
fn after_a_restart_old_readings_are_stale_and_holders_live_on() {
    let Some(mut server) = Server::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut holder = holder(&server.url(), folder.path());
    let handle = granted(acquire(&mut holder, "a", ByteCount::gib(5)).unwrap());
    let worker = worker();
    holder.attach(&handle, worker.id()).unwrap();
    let mut store = RedisStore::open(&server.url(), "other").unwrap();
    let before = store.load().unwrap();

    server.kill();
    let away = holder.renew().unwrap_err();
    assert!(matches!(away, StoreError::Unavailable { .. }) && away.is_outage(), "{away}");
    assert!(acquire(&mut holder, "b", ByteCount(1)).unwrap_err().is_outage());
    assert_eq!(holder.leases().len(), 1, "what is held is not forgotten");
    server.start_again();

    assert_eq!(until(|| store.compare_and_swap(&before, Etag::random().unwrap(), "late").ok()), Swap::Stale);
    assert_eq!(until(|| holder.renew().ok()), RenewOutcome::default());
    assert!(holder.recovering().is_some());
    let Acquired::Wait { reason, retry_after, .. } = acquire(&mut holder, "b", ByteCount(1)).unwrap() else { panic!() };
    assert!(reason.contains("may have lost records") && retry_after <= Duration::from_secs(1), "{reason}");
    end(worker);
    holder.release(&handle, Evidence::Gone).unwrap();
}

#[test]
fn after_a_restart_without_its_data_everything_is_stated_again() {
    let Some(mut server) = Server::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut one = holder(&server.url(), folder.path());
    let mut two = holder(&server.url(), folder.path());
    let worker = worker();
    let handle = granted(acquire(&mut one, "a", ByteCount::gib(5)).unwrap());
    one.attach(&handle, worker.id()).unwrap();
    server.kill();
    server.forget();
    server.start_again();
    // The first holder that returns finds no ledger, and has the record of an earlier one.
    until(|| observe(&mut two).ok());
    assert!(two.recovering().is_some());
    assert!(matches!(acquire(&mut two, "b", ByteCount(1)).unwrap(), Acquired::Wait { .. }));
    assert_eq!(until(|| one.renew().ok()), RenewOutcome::default());
    two.refresh().unwrap();
    assert_eq!(two.leases().len(), 1);
    assert_eq!(two.leases()[0].parts[0].bytes, ByteCount::gib(5));
    end(worker);
}

#[test]
fn after_flushall_everything_is_stated_again() {
    let Some(server) = Server::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut holder = holder(&server.url(), folder.path());
    let worker = worker();
    let attached = granted(acquire(&mut holder, "a", ByteCount::gib(5)).unwrap());
    holder.attach(&attached, worker.id()).unwrap();
    let untouched = granted(acquire(&mut holder, "b", ByteCount::gib(1)).unwrap());
    let run_id = RedisStore::open(&server.url(), "x").unwrap().load().unwrap().run_id;
    server.flush();
    assert_eq!(
        RedisStore::open(&server.url(), "x").unwrap().load().unwrap().run_id,
        run_id,
        "the server did not change"
    );
    let kept = holder.renew().unwrap();
    assert_eq!(kept.lost, vec![untouched.clone()], "no process passed its gate");
    assert_eq!(holder.leases().len(), 1);
    assert!(matches!(holder.attach(&untouched, std::process::id()), Err(StoreError::Lost(_))));
    let later = granted_token(&mut holder);
    assert_eq!(later, None, "the window is open");
    end(worker);
}

fn granted_token(holder: &mut model_boss_lease_store::Holder) -> Option<u64> {
    match acquire(holder, "later", ByteCount(1)).unwrap() {
        Acquired::Granted(handle) => Some(handle.token.0),
        _ => None,
    }
}

#[test]
fn a_paused_server_costs_one_operation_timeout_and_then_nothing() {
    let Some(server) = Server::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut holder = holder(&server.url(), folder.path());
    let handle = granted(acquire(&mut holder, "a", ByteCount::gib(1)).unwrap());
    let mut people = server.connection();
    redis::cmd("CLIENT").arg("PAUSE").arg(3_000).arg("ALL").exec(&mut people).unwrap();
    let asked = Instant::now();
    let error = holder.renew().unwrap_err();
    let took = asked.elapsed();
    assert!(matches!(&error, StoreError::Unavailable { source: Unreachable::Answer(_), .. }), "{error:?}");
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(2), "{took:?}");
    let asked = Instant::now();
    let resting = holder.renew().unwrap_err();
    assert!(matches!(&resting, StoreError::Unavailable { source: Unreachable::JustTried(_), .. }), "{resting:?}");
    assert!(asked.elapsed() < Duration::from_millis(100));
    assert_eq!(until(|| holder.renew().ok()), RenewOutcome::default());
    holder.release(&handle, Evidence::Gone).unwrap();
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("redis+unix://{}", folder.path().join("none.sock").display());
    let error = RedisStore::open(&url, "boot").err().unwrap();
    assert!(matches!(&error, StoreError::Unavailable { source: Unreachable::Connect(_), .. }), "{error:?}");
    assert!(error.to_string().contains("none.sock"), "{error}");
}
