//! Devices on which processes cannot be told apart.

use model_boss_lease::{Accounting, Evidence, Grant, LeaseWaitReason, Ledger, Op, Outcome, StoreTime, apply};
use model_boss_protocol::ByteCount;

use crate::story::{ask, at, attach, declare, gpu, granted, ledger, look, renew, waits};

/// `GPU-1` with 100 bytes, of which others use 10 by the operator's statement.
fn blind() -> Ledger {
    let mut ledger = ledger();
    declare(&mut ledger, gpu(1), 100, 0, Accounting::Degraded { foreign: ByteCount(10) });
    look(&mut ledger, at(2), gpu(1), 5, &[]);
    ledger
}

fn settle(grant: &Grant) -> Op {
    Op::Settle { lease: grant.lease.clone(), token: grant.token }
}

#[test]
fn one_load_runs_at_a_time() {
    let mut ledger = blind();
    let one = granted(apply(&mut ledger, at(2), ask("one", &[(gpu(1), 40)])));
    assert!(matches!(
        waits(apply(&mut ledger, at(2), ask("two", &[(gpu(1), 1)]))).reason,
        LeaseWaitReason::Loading { .. }
    ));
    apply(&mut ledger, at(3), attach(&one, 7));
    look(&mut ledger, at(4), gpu(1), 30, &[]);
    let reason = waits(apply(&mut ledger, at(4), ask("two", &[(gpu(1), 1)]))).reason;
    assert_eq!(reason.to_string(), "one is being loaded on GPU-1, where one load runs at a time");
    assert_eq!(apply(&mut ledger, at(5), settle(&one)), Outcome::Noted);
    look(&mut ledger, at(6), gpu(1), 35, &[]);
    assert_eq!(ledger.leases[&one.lease].parts[0].settled, Some(ByteCount(30)));
    // 40 bytes are promised and 10 used by others, so 50 are left.
    assert!(matches!(apply(&mut ledger, at(6), ask("two", &[(gpu(1), 51)])), Outcome::Wait(_)));
    granted(apply(&mut ledger, at(6), ask("two", &[(gpu(1), 50)])));
}

#[test]
fn the_driver_must_show_room_too() {
    let mut ledger = blind();
    let one = granted(apply(&mut ledger, at(2), ask("one", &[(gpu(1), 40)])));
    apply(&mut ledger, at(3), attach(&one, 7));
    apply(&mut ledger, at(3), settle(&one));
    look(&mut ledger, at(4), gpu(1), 35, &[]);
    // Other programs use 30 more than the operator stated: 100 − 65 − (40 − 30) are left.
    look(&mut ledger, at(5), gpu(1), 65, &[]);
    assert!(matches!(apply(&mut ledger, at(5), ask("two", &[(gpu(1), 26)])), Outcome::Wait(_)));
    granted(apply(&mut ledger, at(5), ask("two", &[(gpu(1), 25)])));
}

#[test]
fn a_load_that_says_nothing_counts_as_complete_after_a_while() {
    let mut ledger = blind();
    let one = granted(apply(&mut ledger, at(2), ask("one", &[(gpu(1), 40)])));
    apply(&mut ledger, at(3), attach(&one, 7));
    for seconds in (10..=60).step_by(10) {
        apply(&mut ledger, at(seconds), renew(&[&one]));
        look(&mut ledger, at(seconds), gpu(1), 30, &[]);
        assert!(matches!(apply(&mut ledger, at(seconds), ask("two", &[(gpu(1), 1)])), Outcome::Wait(_)));
    }
    look(&mut ledger, StoreTime(at(63).0), gpu(1), 30, &[]);
    granted(apply(&mut ledger, at(63), ask("two", &[(gpu(1), 1)])));
}

#[test]
fn a_load_is_not_hidden_by_one_that_leaves_meanwhile() {
    for leaves_the_device_first in [false, true] {
        let mut ledger = blind();
        let one = granted(apply(&mut ledger, at(2), ask("one", &[(gpu(1), 40)])));
        apply(&mut ledger, at(3), attach(&one, 7));
        apply(&mut ledger, at(3), settle(&one));
        look(&mut ledger, at(4), gpu(1), 45, &[]);
        let two = granted(apply(&mut ledger, at(5), ask("two", &[(gpu(1), 40)])));
        apply(&mut ledger, at(6), attach(&two, 8));
        apply(&mut ledger, at(7), settle(&two));
        // The first load has left the device, and so the device's use has not grown.
        if leaves_the_device_first {
            look(&mut ledger, at(8), gpu(1), 45, &[]);
        }
        let gone = Op::Release { lease: one.lease.clone(), token: one.token, evidence: Evidence::Gone };
        assert_eq!(apply(&mut ledger, at(9), gone), Outcome::Released);
        look(&mut ledger, at(10), gpu(1), 45, &[]);
        assert_eq!(ledger.leases[&two.lease].parts[0].settled, Some(ByteCount(40)));
        granted(apply(&mut ledger, at(10), ask("three", &[(gpu(1), 50)])));
    }
}

#[test]
fn a_change_of_accounting_forgets_what_was_seen() {
    let mut ledger = blind();
    declare(&mut ledger, gpu(1), 100, 0, Accounting::PerProcess);
    let reason = waits(apply(&mut ledger, at(2), ask("one", &[(gpu(1), 1)]))).reason;
    assert!(matches!(reason, LeaseWaitReason::Unobserved { .. }));
}

#[test]
fn a_load_that_began_before_the_driver_was_known_to_be_blind_is_not_counted_twice() {
    let mut ledger = ledger();
    declare(&mut ledger, gpu(1), 100, 0, Accounting::PerProcess);
    look(&mut ledger, at(2), gpu(1), 5, &[]);
    let one = granted(apply(&mut ledger, at(2), ask("one", &[(gpu(1), 40)])));
    apply(&mut ledger, at(3), attach(&one, 7));
    declare(&mut ledger, gpu(1), 100, 0, Accounting::Degraded { foreign: ByteCount(5) });
    look(&mut ledger, at(4), gpu(1), 45, &[]);
    apply(&mut ledger, at(5), settle(&one));
    look(&mut ledger, at(6), gpu(1), 45, &[]);
    assert_eq!(ledger.leases[&one.lease].parts[0].settled, Some(ByteCount(40)));
    granted(apply(&mut ledger, at(6), ask("two", &[(gpu(1), 55)])));
}
