//! Recovery after a loss: the window, leases that holders report again, and clocks that jump.

use model_boss_lease::{
    DeviceKey, Evidence, LeaseDurations, LeaseState, Ledger, Op, OpRefusal, Outcome, Record, Request, StoreTime, Token,
    after_loss, apply, read_from,
};
use model_boss_protocol::ByteCount;

use crate::story::{
    ask, at, attach, declare, granted, hold, ledger, look, record, release, renew, request, state, wait, waits,
};

fn cpu(bytes: u64) -> [(DeviceKey, u64); 1] {
    [(DeviceKey::cpu(), bytes)]
}

/// A ledger in a store that can lose acknowledged writes.
fn fragile() -> Ledger {
    let mut ledger = ledger();
    read_from(&mut ledger, at(2), "run-1");
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    assert_eq!(ledger.recovering(), None, "a first start loses nothing");
    ledger
}

/// The ledger after `FLUSHALL`.
fn flushed(when: u64) -> Ledger {
    let mut ledger = Ledger::new("boot", Token(0), LeaseDurations::default());
    after_loss(&mut ledger, at(when));
    read_from(&mut ledger, at(when), "run-1");
    declare(&mut ledger, DeviceKey::cpu(), 100, 10, model_boss_lease::Accounting::PerProcess);
    ledger
}

#[test]
fn another_run_of_the_store_opens_the_window_and_nothing_is_granted_in_it() {
    let mut ledger = fragile();
    let attached = hold(&mut ledger, at(3), ask("a", &cpu(30)), 7);
    let untouched = granted(apply(&mut ledger, at(4), ask("b", &cpu(10))));
    read_from(&mut ledger, at(5), "run-2");
    assert!(matches!(apply(&mut ledger, at(5), ask("c", &cpu(1))), Outcome::Recovering { .. }));
    assert!(matches!(apply(&mut ledger, at(5), wait("w", 5, &cpu(1))), Outcome::Recovering { .. }));
    assert_eq!(apply(&mut ledger, at(5), attach(&untouched, 8)), Outcome::Lost, "nothing was touched");
    assert!(matches!(apply(&mut ledger, at(5), attach(&attached, 8)), Outcome::Recovering { .. }));
    assert_eq!(apply(&mut ledger, at(5), attach(&attached, 7)), Outcome::Attached);
    let grow = |bytes| Op::Resize {
        lease: attached.lease.clone(),
        token: attached.token,
        parts: vec![(DeviceKey::cpu(), ByteCount(bytes))],
    };
    assert!(matches!(apply(&mut ledger, at(5), grow(40)), Outcome::Recovering { .. }));
    assert_eq!(apply(&mut ledger, at(5), grow(20)), Outcome::Resized);
    assert_eq!(apply(&mut ledger, at(18), renew(&[&attached])), Outcome::Renewed { lost: vec![], revoked: vec![] });
    // The lease time and two heartbeats have passed.
    look(&mut ledger, at(25), DeviceKey::cpu(), 0, &[]);
    assert!(matches!(apply(&mut ledger, at(25), ask("c", &cpu(1))), Outcome::Recovering { .. }));
    look(&mut ledger, at(26), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(26), ask("c", &cpu(1))));
}

#[test]
fn the_window_gives_everybody_the_full_lease_time() {
    let mut ledger = fragile();
    let grant = hold(&mut ledger, at(3), ask("a", &cpu(30)), 7);
    // The store was unreachable for longer than the lease time.
    read_from(&mut ledger, at(40), "run-2");
    apply(&mut ledger, at(40), renew(&[]));
    assert_eq!(state(&ledger, &grant), Some(LeaseState::Active));
    apply(&mut ledger, at(55), renew(&[]));
    assert_eq!(state(&ledger, &grant), Some(LeaseState::Limbo));
}

#[test]
fn what_a_holder_states_in_the_window_is_taken_as_stated() {
    let mut before = fragile();
    let grant = hold(&mut before, at(3), ask("a", &cpu(30)), 7);
    let mut after = flushed(10);
    assert_eq!(
        apply(&mut after, at(10), renew(&[&grant])),
        Outcome::Renewed { lost: vec![grant.lease.clone()], revoked: vec![] }
    );
    let outcome = apply(&mut after, at(10), Op::Reassert(record(&grant, "a", &[7])));
    assert_eq!(outcome, Outcome::Reasserted { parts: grant.parts.clone() });
    assert_eq!(after.charged(&DeviceKey::cpu()), ByteCount(30));
    assert!(after.fence >= grant.token, "later tokens are larger than those from before");
    assert_eq!(apply(&mut after, at(11), Op::Reassert(record(&grant, "a", &[7]))), outcome, "twice is once");
    assert_eq!(after.charged(&DeviceKey::cpu()), ByteCount(30));
    look(&mut after, at(31), DeviceKey::cpu(), 30, &[(7, 30)]);
    apply(&mut after, at(31), renew(&[&grant]));
    assert!(matches!(apply(&mut after, at(31), ask("b", &cpu(61))), Outcome::Wait(_)));
    granted(apply(&mut after, at(31), ask("b", &cpu(60))));
}

#[test]
fn what_never_passed_the_gate_has_nothing_to_state() {
    let mut before = fragile();
    let grant = granted(apply(&mut before, at(3), ask("a", &cpu(30))));
    let mut after = flushed(10);
    assert_eq!(apply(&mut after, at(10), Op::Reassert(record(&grant, "a", &[]))), Outcome::Lost);
    let elsewhere = Record { boot_id: "other".to_owned(), ..record(&grant, "a", &[7]) };
    assert_eq!(apply(&mut after, at(10), Op::Reassert(elsewhere)), Outcome::Lost);
}

#[test]
fn after_the_window_memory_that_the_device_shows_is_believed_and_the_rest_needs_room() {
    let mut before = fragile();
    let grant = hold(&mut before, at(3), ask("a", &cpu(30)), 7);
    let mut after = flushed(10);
    look(&mut after, at(40), DeviceKey::cpu(), 25, &[(7, 20), (99, 5)]);
    let other = hold(&mut after, at(40), ask("b", &cpu(60)), 8);
    look(&mut after, at(41), DeviceKey::cpu(), 25, &[(7, 20), (99, 5)]);
    // 20 bytes are the record's own, 5 are foreign, and 60 are promised. 10 more do not fit, 5 do.
    let outcome = apply(&mut after, at(41), Op::Reassert(record(&grant, "a", &[7])));
    assert_eq!(outcome, Outcome::Reasserted { parts: vec![(DeviceKey::cpu(), ByteCount(20))] });
    assert_eq!(after.devices[&DeviceKey::cpu()].foreign, Some(ByteCount(5)));
    assert_eq!(after.charged(&DeviceKey::cpu()), ByteCount(80));
    apply(&mut after, at(42), release(&other, Evidence::Gone));
    look(&mut after, at(43), DeviceKey::cpu(), 25, &[(7, 20), (99, 5)]);
    let outcome = apply(&mut after, at(43), Op::Reassert(record(&grant, "a", &[7])));
    assert_eq!(outcome, Outcome::Reasserted { parts: grant.parts.clone() });
}

#[test]
fn after_the_window_a_holder_that_holds_nothing_is_lost_when_its_bytes_are_promised() {
    let mut before = fragile();
    let grant = hold(&mut before, at(3), ask("a", &cpu(40)), 7);
    let mut after = flushed(10);
    look(&mut after, at(40), DeviceKey::cpu(), 0, &[]);
    // While the figures are unknown, no lease is lost.
    let other = granted(apply(&mut after, at(40), ask("b", &cpu(60))));
    apply(&mut after, at(40), attach(&other, 8));
    waits(apply(&mut after, at(40), Op::Reassert(record(&grant, "a", &[7]))));
    look(&mut after, at(41), DeviceKey::cpu(), 60, &[(8, 60)]);
    assert_eq!(apply(&mut after, at(41), Op::Reassert(record(&grant, "a", &[7]))), Outcome::Lost);
}

#[test]
fn what_was_released_or_shown_dead_does_not_come_back() {
    let mut ledger = fragile();
    let grant = hold(&mut ledger, at(3), ask("a", &cpu(30)), 7);
    apply(&mut ledger, at(4), release(&grant, Evidence::Gone));
    assert_eq!(apply(&mut ledger, at(5), Op::Reassert(record(&grant, "a", &[7]))), Outcome::Lost);
}

#[test]
fn a_request_that_was_repeated_after_a_loss_gives_way_to_the_lease_that_lives() {
    let mut before = fragile();
    let grant = hold(&mut before, at(3), ask("a", &cpu(30)), 7);
    let mut after = flushed(10);
    look(&mut after, at(40), DeviceKey::cpu(), 30, &[(7, 30)]);
    let again = Op::Acquire(Request { lease: "lease-again".into(), ..request("a", 5, &cpu(30)) });
    let again = granted(apply(&mut after, at(40), again));
    assert!(again.token > grant.token);
    let outcome = apply(&mut after, at(40), Op::Reassert(record(&grant, "a", &[7])));
    assert!(matches!(outcome, Outcome::Reasserted { .. }));
    assert_eq!(after.leases.len(), 1);
    assert_eq!(apply(&mut after, at(40), attach(&again, 8)), Outcome::Lost);
}

#[test]
fn a_record_without_a_token_keeps_what_the_ledger_knows_or_gets_the_next_one() {
    let mut before = fragile();
    let grant = hold(&mut before, at(3), ask("a", &cpu(30)), 7);
    let stated = |grant| Op::Reassert(Record { token: None, ..record(grant, "a", &[7]) });
    assert!(matches!(apply(&mut before, at(4), stated(&grant)), Outcome::Reasserted { .. }));
    assert_eq!(before.leases[&grant.lease].token, grant.token);
    let mut after = flushed(10);
    let fence = after.fence;
    assert!(matches!(apply(&mut after, at(11), stated(&grant)), Outcome::Reasserted { .. }));
    let token = after.leases[&grant.lease].token;
    assert!(token > fence && token == after.fence, "tokens only grow, whichever holder states a lease");
}

#[test]
fn a_name_that_is_taken_is_given_to_nobody_else() {
    let mut ledger = fragile();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &cpu(30))));
    let other = Op::Acquire(Request { lease: grant.lease.clone(), ..request("b", 5, &cpu(30)) });
    assert_eq!(apply(&mut ledger, at(2), other), Outcome::Refused(OpRefusal::NameTaken(grant.lease)));
}

#[test]
fn tokens_grow_over_a_loss() {
    let mut before = fragile();
    let last = granted(apply(&mut before, at(3), ask("a", &cpu(30))));
    let mut after = flushed(3);
    assert!(after.fence >= last.token);
    look(&mut after, at(30), DeviceKey::cpu(), 0, &[]);
    assert!(granted(apply(&mut after, at(30), ask("b", &cpu(30)))).token > last.token);
}

#[test]
fn a_clock_that_is_set_back_opens_the_window_and_freezes_nothing() {
    let mut ledger = fragile();
    look(&mut ledger, at(5_000), DeviceKey::cpu(), 0, &[]);
    let grant = hold(&mut ledger, at(5_000), ask("a", &cpu(30)), 7);
    apply(&mut ledger, at(1_000), renew(&[]));
    assert!(ledger.recovering().is_some());
    assert_eq!(ledger.devices[&DeviceKey::cpu()].used, None, "a look from the future says nothing");
    apply(&mut ledger, at(1_016), renew(&[]));
    assert_eq!(state(&ledger, &grant), Some(LeaseState::Limbo), "expiry goes on");
    look(&mut ledger, at(1_022), DeviceKey::cpu(), 0, &[]);
    let next = granted(apply(&mut ledger, at(1_022), ask("b", &cpu(30))));
    assert!(next.token > grant.token, "tokens grow whatever the clock does");
}

#[test]
fn a_clock_that_leaps_forward_expires_nobody() {
    let mut ledger = fragile();
    let grant = hold(&mut ledger, at(3), ask("a", &cpu(30)), 7);
    apply(&mut ledger, at(64), renew(&[]));
    assert_eq!(state(&ledger, &grant), Some(LeaseState::Active));
    assert!(ledger.recovering().is_some());
    // A ledger without leases has nothing to recover.
    let mut idle = fragile();
    look(&mut idle, at(4_000), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut idle, at(4_000), ask("a", &cpu(30))));
}

#[test]
fn a_clock_that_is_a_little_behind_is_waited_for() {
    let mut ledger = fragile();
    let grant = hold(&mut ledger, at(10), ask("a", &cpu(30)), 7);
    apply(&mut ledger, StoreTime(9_500_000), renew(&[&grant]));
    assert_eq!(ledger.recovering(), None);
    assert!(ledger.last_time >= at(10));
}

#[test]
fn a_store_that_loses_nothing_needs_no_window() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = hold(&mut ledger, at(3), ask("a", &cpu(30)), 7);
    look(&mut ledger, at(500), DeviceKey::cpu(), 0, &[]);
    assert_eq!(state(&ledger, &grant), Some(LeaseState::Limbo));
    assert_eq!(ledger.recovering(), None);
}
