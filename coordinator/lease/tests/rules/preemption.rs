//! Preemption by revocation: the choice and number of revoked leases, their grace, and leases in default.

use std::time::Duration;

use model_boss_lease::{
    DeviceKey, Evidence, LeaseState, LeaseWaitReason, Ledger, Mode, Op, Outcome, Renewal, Request, RevokedLease,
    Yielding, apply,
};
use model_boss_protocol::{ByteCount, Priority};

use crate::story::{
    ask, at, attach, gpu, granted, hold, ledger, look, preempt, preemptible, release, renew, request, revocations,
    state, wait, waits,
};

fn cpu(bytes: u64) -> [(DeviceKey, u64); 1] {
    [(DeviceKey::cpu(), bytes)]
}

fn victims(outcome: Outcome) -> Vec<String> {
    match outcome {
        Outcome::Revoking { victims, .. } => {
            let mut labels: Vec<_> = victims.into_iter().map(|victim| victim.label).collect();
            labels.sort();
            labels
        }
        other => panic!("no holder was asked to yield: {other:?}"),
    }
}

fn observed() -> Ledger {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    ledger
}

#[test]
fn le_3_only_a_less_important_preemptible_lease_past_its_minimum_hold_is_asked() {
    let mut ledger = observed();
    hold(&mut ledger, at(2), ask("not preemptible", &cpu(20)), 7);
    hold(&mut ledger, at(3), preemptible("as important", 4, &cpu(20)), 8);
    let min_hold = Duration::from_secs(10);
    let Op::Acquire(young) = preemptible("young", 8, &cpu(40)) else { return };
    let yielding = Yielding { min_hold, ..young.yielding.clone() };
    let young = hold(&mut ledger, at(4), Op::Acquire(Request { yielding, ..young }), 9);
    waits(apply(&mut ledger, at(5), preempt("asker", 4, &cpu(30))));
    assert!(ledger.leases.values().all(|lease| lease.state == LeaseState::Active));
    look(&mut ledger, at(14), DeviceKey::cpu(), 0, &[]);
    assert_eq!(victims(apply(&mut ledger, at(14), preempt("asker", 4, &cpu(30)))), ["young"]);
    assert_eq!(state(&ledger, &young), Some(LeaseState::Revoking));
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount(80), "a revoked lease is counted until it is gone");
}

#[test]
fn le_3_a_revoked_holder_hears_it_with_its_renewal_and_gives_way() {
    let mut ledger = observed();
    let soft = hold(&mut ledger, at(2), preemptible("soft", 7, &cpu(80)), 7);
    let outcome = apply(&mut ledger, at(3), preempt("asker", 2, &cpu(60)));
    let remaining = Duration::from_secs(30);
    let victim = RevokedLease { lease: soft.lease.clone(), label: "soft".to_owned(), remaining };
    assert!(matches!(outcome, Outcome::Revoking { victims, .. } if victims == [victim]));
    let heard = revocations(apply(&mut ledger, at(5), renew(&[&soft])));
    assert_eq!(heard.len(), 1);
    assert_eq!((heard[0].remaining, heard[0].wanted_by.as_str()), (Duration::from_secs(28), "asker"));
    assert_eq!(heard[0].wanted, vec![(DeviceKey::cpu(), ByteCount(60))]);
    // No other request takes the released bytes before the asker.
    apply(&mut ledger, at(6), release(&soft, Evidence::Gone));
    look(&mut ledger, at(7), DeviceKey::cpu(), 0, &[]);
    assert!(matches!(waits(apply(&mut ledger, at(7), ask("barger", &cpu(40)))).reason, LeaseWaitReason::Behind { .. }));
    granted(apply(&mut ledger, at(7), preempt("asker", 2, &cpu(60))));
}

#[test]
fn shrinking_may_be_enough_and_ends_the_revocation() {
    let mut ledger = observed();
    let soft = hold(&mut ledger, at(2), preemptible("soft", 7, &cpu(80)), 7);
    victims(apply(&mut ledger, at(3), preempt("asker", 2, &cpu(60))));
    let parts = vec![(DeviceKey::cpu(), ByteCount(30))];
    let resize = Op::Resize { lease: soft.lease.clone(), token: soft.token, parts };
    assert_eq!(apply(&mut ledger, at(4), resize), Outcome::Resized);
    look(&mut ledger, at(5), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(5), preempt("asker", 2, &cpu(60))));
    assert_eq!(state(&ledger, &soft), Some(LeaseState::Active));
    assert!(revocations(apply(&mut ledger, at(5), renew(&[&soft]))).is_empty());
}

#[test]
fn an_asker_that_leaves_or_falls_silent_withdraws_the_revocation() {
    for silent in [true, false] {
        let mut ledger = observed();
        let soft = hold(&mut ledger, at(2), preemptible("soft", 7, &cpu(80)), 7);
        victims(apply(&mut ledger, at(3), preempt("asker", 2, &cpu(60))));
        if silent {
            apply(&mut ledger, at(16), renew(&[&soft]));
            assert!(revocations(apply(&mut ledger, at(18), renew(&[&soft]))).is_empty());
        } else {
            let owner = crate::story::owner_of("asker");
            apply(&mut ledger, at(4), Op::Cancel { request_id: "asker".to_owned(), owner });
        }
        assert_eq!(state(&ledger, &soft), Some(LeaseState::Active));
    }
}

#[test]
fn as_few_as_possible_are_asked() {
    let mut ledger = observed();
    hold(&mut ledger, at(2), preemptible("small", 9, &cpu(10)), 7);
    hold(&mut ledger, at(3), preemptible("other", 8, &cpu(15)), 8);
    hold(&mut ledger, at(4), preemptible("large", 7, &cpu(60)), 9);
    // The least important lease alone is not enough, and beside the large lease it is not needed.
    assert_eq!(victims(apply(&mut ledger, at(5), preempt("asker", 2, &cpu(60)))), ["large"]);
    let asked = ledger.leases.values().filter(|lease| lease.state == LeaseState::Revoking).count();
    assert_eq!(asked, 1);
}

#[test]
fn least_important_first_then_cheapest_to_bring_back_then_least_recently_used() {
    let choice = |variants: [(u8, u64, bool); 2]| {
        let mut ledger = observed();
        let mut renewals = Vec::new();
        for (name, (priority, reload, used)) in ["one", "two"].into_iter().zip(variants) {
            let Op::Acquire(wish) = preemptible(name, priority, &cpu(40)) else { panic!() };
            let yielding = Yielding { reload: Duration::from_secs(reload), ..wish.yielding.clone() };
            let grant = hold(&mut ledger, at(3), Op::Acquire(Request { yielding, ..wish }), 7);
            renewals.push(Renewal { used, ..Renewal::plain(grant.lease, grant.token) });
        }
        apply(&mut ledger, at(8), Op::Renew { leases: renewals });
        look(&mut ledger, at(9), DeviceKey::cpu(), 0, &[]);
        victims(apply(&mut ledger, at(9), preempt("asker", 2, &cpu(40))))
    };
    assert_eq!(choice([(7, 1, false), (8, 9, true)]), ["two"]);
    assert_eq!(choice([(7, 9, false), (7, 1, true)]), ["two"]);
    assert_eq!(choice([(7, 1, true), (7, 1, false)]), ["two"]);
    assert_eq!(choice([(7, 1, false), (7, 1, false)]), ["one"]);
}

#[test]
fn nobody_is_asked_in_vain() {
    let mut ledger = observed();
    hold(&mut ledger, at(2), ask("fixed", &cpu(50)), 7);
    hold(&mut ledger, at(3), preemptible("soft", 7, &cpu(20)), 8);
    waits(apply(&mut ledger, at(4), preempt("too large", 2, &cpu(60))));
    assert!(ledger.leases.values().all(|lease| lease.state == LeaseState::Active));
    // Unknown figures are no reason to revoke either.
    apply(&mut ledger, at(20), renew(&[]));
    let stale = waits(apply(&mut ledger, at(20), preempt("asker", 2, &cpu(30))));
    assert!(matches!(stale.reason, LeaseWaitReason::Stale { .. }));
    assert!(ledger.leases.values().all(|lease| lease.state != LeaseState::Revoking));
}

#[test]
fn what_others_were_asked_for_is_not_asked_for_twice() {
    let mut ledger = observed();
    look(&mut ledger, at(2), gpu(1), 0, &[]);
    hold(&mut ledger, at(2), preemptible("soft", 7, &cpu(45)), 7);
    hold(&mut ledger, at(3), preemptible("softer", 8, &cpu(45)), 8);
    assert_eq!(victims(apply(&mut ledger, at(4), preempt("first", 3, &cpu(30)))), ["softer"]);
    // The more important request takes the bytes being released; the first has to revoke another lease.
    assert!(matches!(apply(&mut ledger, at(4), preempt("second", 2, &cpu(30))), Outcome::Wait(_)));
    assert_eq!(victims(apply(&mut ledger, at(4), preempt("first", 3, &cpu(30)))), ["soft", "softer"]);
}

#[test]
fn who_lets_the_grace_pass_is_in_default_and_others_are_tried() {
    let mut ledger = observed();
    let deaf = hold(&mut ledger, at(2), preemptible("deaf", 8, &cpu(45)), 7);
    let other = hold(&mut ledger, at(3), preemptible("other", 7, &cpu(45)), 8);
    let asker = || preempt("asker", 2, &cpu(30));
    assert_eq!(victims(apply(&mut ledger, at(4), asker())), ["deaf"]);
    for seconds in [12, 20, 28] {
        apply(&mut ledger, at(seconds), renew(&[&deaf, &other]));
        look(&mut ledger, at(seconds), DeviceKey::cpu(), 0, &[]);
        assert_eq!(victims(apply(&mut ledger, at(seconds), asker())), ["deaf"]);
    }
    look(&mut ledger, at(34), DeviceKey::cpu(), 0, &[]);
    assert_eq!(victims(apply(&mut ledger, at(34), asker())), ["other"]);
    assert!(ledger.leases[&deaf.lease].in_default);
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount(90), "its bytes are where they are");
    let heard = revocations(apply(&mut ledger, at(35), renew(&[&deaf, &other])));
    assert_eq!(heard[0].remaining, Duration::ZERO, "its own holder ends it now");

    apply(&mut ledger, at(36), release(&other, Evidence::Gone));
    look(&mut ledger, at(37), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(37), asker()));
    // If no other lease can be revoked, the reason names this one.
    let reason = waits(apply(&mut ledger, at(37), preempt("next", 2, &cpu(60)))).reason;
    assert!(matches!(reason, LeaseWaitReason::Capacity { .. }), "{reason:?}: it was not asked for this one");
}

#[test]
fn when_all_who_could_yield_are_in_default_the_reason_says_so() {
    let mut ledger = observed();
    let deaf = hold(&mut ledger, at(2), preemptible("deaf", 8, &cpu(80)), 7);
    let asker = || preempt("asker", 2, &cpu(30));
    for seconds in [4, 12, 20, 28] {
        look(&mut ledger, at(seconds), DeviceKey::cpu(), 0, &[]);
        apply(&mut ledger, at(seconds), renew(&[&deaf]));
        victims(apply(&mut ledger, at(seconds), asker()));
    }
    apply(&mut ledger, at(34), renew(&[&deaf]));
    look(&mut ledger, at(34), DeviceKey::cpu(), 0, &[]);
    let reason = waits(apply(&mut ledger, at(34), asker())).reason;
    assert_eq!(reason.to_string(), "deaf was asked to give its memory on cpu back and did not do so in time");
}

#[test]
fn the_longest_grace_is_the_ledgers() {
    let mut ledger = observed();
    let Op::Acquire(wish) = preemptible("slow", 8, &cpu(80)) else { return };
    let yielding = Yielding { grace: Duration::from_secs(3_600), ..wish.yielding.clone() };
    hold(&mut ledger, at(2), Op::Acquire(Request { yielding, ..wish }), 7);
    match apply(&mut ledger, at(3), preempt("asker", 2, &cpu(30))) {
        Outcome::Revoking { victims, .. } => assert_eq!(victims[0].remaining, Duration::from_secs(300)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_in_limbo_is_neither_asked_nor_taken_for_free() {
    let mut ledger = observed();
    let gone = hold(&mut ledger, at(2), preemptible("gone", 8, &cpu(80)), 7);
    look(&mut ledger, at(20), DeviceKey::cpu(), 0, &[]);
    assert_eq!(state(&ledger, &gone), Some(LeaseState::Limbo));
    let reason = waits(apply(&mut ledger, at(20), preempt("asker", 2, &cpu(30)))).reason;
    assert!(matches!(reason, LeaseWaitReason::Capacity { free: ByteCount(10), .. }), "{reason:?}");
    assert_eq!(state(&ledger, &gone), Some(LeaseState::Limbo));
}

#[test]
fn waiting_alone_disturbs_nobody() {
    let mut ledger = observed();
    hold(&mut ledger, at(2), preemptible("soft", 8, &cpu(80)), 7);
    waits(apply(&mut ledger, at(3), wait("asker", 2, &cpu(30))));
    let tried = Request { mode: Mode::Try, ..request("other", 2, &cpu(30)) };
    waits(apply(&mut ledger, at(3), Op::Acquire(tried)));
    assert!(ledger.leases.values().all(|lease| lease.state == LeaseState::Active));
}

#[test]
fn another_process_may_join_a_lease_that_is_being_revoked() {
    let mut ledger = observed();
    let soft = hold(&mut ledger, at(2), preemptible("soft", 8, &cpu(80)), 7);
    victims(apply(&mut ledger, at(3), preempt("asker", 2, &cpu(30))));
    assert_eq!(apply(&mut ledger, at(3), attach(&soft, 8)), Outcome::Attached);
    assert_eq!(state(&ledger, &soft), Some(LeaseState::Revoking));
}

#[test]
fn a_holder_is_never_asked_for_its_own_request() {
    let mut ledger = observed();
    let Op::Acquire(soft) = preemptible("soft", 9, &cpu(80)) else { return };
    let owner = soft.owner.clone();
    hold(&mut ledger, at(2), Op::Acquire(soft), 7);
    let Op::Acquire(urgent) = preempt("urgent", 1, &cpu(60)) else { return };
    let mine = Op::Acquire(Request { owner, ..urgent.clone() });
    assert!(matches!(apply(&mut ledger, at(3), mine), Outcome::Wait(_)));
    let yours = Op::Acquire(Request {
        request_id: "yours".to_owned(),
        lease: "lease-yours".into(),
        priority: Priority::HIGHEST,
        ..urgent
    });
    assert_eq!(victims(apply(&mut ledger, at(3), yours)), ["soft"]);
}
