//! Grants, the gate, expiry, release, and the counted bytes.

use std::time::Duration;

use model_boss_lease::{
    Accounting, DeviceKey, Evidence, LeaseDurations, LeaseId, LeaseState, LeaseWaitReason, Ledger, Mode, NeverFits, Op,
    OpRefusal, Outcome, Owner, OwnerKind, Process, ProcessUse, Renewal, Request, SCHEMA, Token, Wait, apply,
};
use model_boss_protocol::ByteCount;

use crate::story::{
    ask, at, attach, declare, gpu, granted, hold, ledger, look, process, release, renew, request, state, waits,
};

#[test]
fn what_is_unknown_outdated_or_unsettled_is_never_free() {
    let mut ledger = ledger();
    let cpu = DeviceKey::cpu;
    let reason = |outcome| waits(outcome).reason;
    let unobserved = LeaseWaitReason::Unobserved { device: "cpu".to_owned() };
    assert_eq!(reason(apply(&mut ledger, at(2), ask("a", &[(cpu(), 1)]))), unobserved);
    let unknown = Op::Observe { device: cpu(), used: None, processes: Vec::new(), sampled_at: at(2) };
    apply(&mut ledger, at(2), unknown);
    assert_eq!(reason(apply(&mut ledger, at(2), ask("a", &[(cpu(), 1)]))), unobserved);

    look(&mut ledger, at(3), cpu(), 20, &[]);
    let age = Duration::from_secs(11);
    let stale = LeaseWaitReason::Stale { device: "cpu".to_owned(), age };
    assert_eq!(reason(apply(&mut ledger, at(14), ask("a", &[(cpu(), 1)]))), stale);

    look(&mut ledger, at(14), cpu(), 20, &[]);
    let grant = granted(apply(&mut ledger, at(14), ask("a", &[(cpu(), 30)])));
    apply(&mut ledger, at(15), attach(&grant, 7));
    let unsettled = LeaseWaitReason::Unsettled { device: "cpu".to_owned() };
    assert_eq!(reason(apply(&mut ledger, at(15), ask("b", &[(cpu(), 1)]))), unsettled);
    look(&mut ledger, at(15), cpu(), 20, &[]);
    assert_eq!(reason(apply(&mut ledger, at(15), ask("b", &[(cpu(), 1)]))), unsettled, "sampled before, not after");
    look(&mut ledger, at(16), cpu(), 50, &[(7, 30)]);
    granted(apply(&mut ledger, at(16), ask("b", &[(cpu(), 40)])));
    let full = reason(apply(&mut ledger, at(16), ask("c", &[(cpu(), 1)])));
    let text =
        "cpu has 0 B free and 1 B are needed; held by b 40 B (priority 5), a 30 B (priority 5), other programs 20 B";
    assert_eq!(full.to_string(), text);
}

#[test]
fn a_lease_that_uses_more_than_promised_is_charged_what_it_uses() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 30)])));
    apply(&mut ledger, at(2), attach(&grant, 7));
    look(&mut ledger, at(3), DeviceKey::cpu(), 70, &[(7, 60)]);
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount(60));
    assert_eq!(ledger.devices[&DeviceKey::cpu()].foreign, Some(ByteCount(10)));
    assert!(matches!(apply(&mut ledger, at(3), ask("b", &[(DeviceKey::cpu(), 21)])), Outcome::Wait(_)));
    granted(apply(&mut ledger, at(3), ask("b", &[(DeviceKey::cpu(), 20)])));
}

#[test]
fn descendants_belong_to_the_lease() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 30)])));
    apply(&mut ledger, at(2), attach(&grant, 7));
    let rank = ProcessUse { lineage: vec![process(9), process(8), process(7)], bytes: ByteCount(25) };
    let used = Some(ByteCount(30));
    let sample = Op::Observe { device: DeviceKey::cpu(), used, processes: vec![rank], sampled_at: at(3) };
    apply(&mut ledger, at(3), sample);
    assert_eq!(ledger.devices[&DeviceKey::cpu()].foreign, Some(ByteCount(5)));
}

#[test]
fn le_4_all_parts_or_none() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    look(&mut ledger, at(2), gpu(1), 35, &[]);
    let both = [(DeviceKey::cpu(), 50), (gpu(1), 10)];
    assert!(matches!(
        apply(&mut ledger, at(2), ask("a", &both)),
        Outcome::Wait(Wait { reason: LeaseWaitReason::Capacity { .. }, .. })
    ));
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount::ZERO);
}

#[test]
fn what_can_never_fit_is_said_before_anything_else() {
    let mut ledger = ledger();
    let outcome = apply(&mut ledger, at(2), ask("a", &[(gpu(1), 41)]));
    let never = NeverFits { device: "GPU-1".to_owned(), needs: ByteCount(41), leasable: ByteCount(40) };
    assert_eq!(outcome, Outcome::NeverFits(never));
}

#[test]
fn the_same_request_has_one_lease_and_a_late_duplicate_gets_none() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let wish = || ask("a", &[(DeviceKey::cpu(), 30)]);
    let grant = granted(apply(&mut ledger, at(2), wish()));
    assert_eq!(granted(apply(&mut ledger, at(2), wish())), grant);
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount(30));
    assert_eq!(apply(&mut ledger, at(3), release(&grant, Evidence::Gone)), Outcome::Released);
    let refused = Outcome::Refused(OpRefusal::AlreadyEnded("a".to_owned()));
    assert_eq!(apply(&mut ledger, at(3), wish()), refused);
    look(&mut ledger, at(700), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(700), wish()));
}

/// A request of this user's job.
fn job(id: &str, user: u32, wait: bool) -> Op {
    let owner = Owner::new(process(2), "job", OwnerKind::Job).of_user(Some(user));
    let mode = if wait { Mode::Wait } else { Mode::Try };
    Op::Acquire(Request { owner, mode, ..request(id, 5, &[(gpu(1), 1)]) })
}

#[test]
fn no_user_swells_the_ledger_and_all_together_do_not() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), gpu(1), 0, &[]);
    let refused = |outcome: Outcome| match outcome {
        Outcome::Refused(refusal @ OpRefusal::TooMany { .. }) => Some(refusal.to_string()),
        _ => None,
    };
    // Forty are granted and the others wait: both count.
    let mut said = None;
    for number in 0..300 {
        said = refused(apply(&mut ledger, at(2), job(&format!("a{number}"), 7, true)));
    }
    assert!(said.unwrap().contains("user 7 may have 256 leases"));
    assert_eq!(ledger.leases.len() + ledger.waiters.len(), 256);
    // Requests that are granted or waiting already are answered as before, and other users are not affected.
    assert_eq!(refused(apply(&mut ledger, at(2), job("a0", 7, true))), None);
    assert_eq!(refused(apply(&mut ledger, at(2), job("a200", 7, true))), None);
    assert_eq!(refused(apply(&mut ledger, at(2), job("b0", 8, true))), None);
    for number in 0..4_000 {
        apply(&mut ledger, at(2), job(&format!("c{number}"), 10 + number % 20, true));
    }
    assert_eq!(ledger.leases.len() + ledger.waiters.len(), 2_048);
    let said = refused(apply(&mut ledger, at(2), job("late", 99, true))).unwrap();
    assert!(said.contains("all users together may have 2048"), "{said}");
    // A coordinator's leases are limited by its models.
    assert_eq!(refused(apply(&mut ledger, at(2), ask("model", &[(gpu(1), 1)]))), None);
}

#[test]
fn requests_that_ended_are_remembered_for_a_while_and_not_without_bound() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), gpu(1), 0, &[]);
    for number in 0..5_000 {
        let grant = granted(apply(&mut ledger, at(2), job(&format!("a{number}"), 7, false)));
        assert_eq!(apply(&mut ledger, at(2), release(&grant, Evidence::Gone)), Outcome::Released);
    }
    assert_eq!(ledger.done.len(), 4_096);
}

#[test]
fn a_request_id_is_not_shared_between_holders() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 30)])));
    let owner = Owner::new(process(2), "somebody else", OwnerKind::Job);
    let other = Request { owner, ..request("a", 5, &[(DeviceKey::cpu(), 30)]) };
    let outcome = apply(&mut ledger, at(2), Op::Acquire(other));
    assert_eq!(outcome, Outcome::Refused(OpRefusal::NotYours("a".to_owned())));
}

#[test]
fn expiry_drops_only_what_no_process_was_attached_to() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let never_attached = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 10)])));
    let attached = granted(apply(&mut ledger, at(2), ask("b", &[(DeviceKey::cpu(), 10)])));
    apply(&mut ledger, at(2), attach(&attached, 7));
    apply(&mut ledger, at(60), Op::Renew { leases: Vec::new() });
    assert_eq!(state(&ledger, &never_attached), None);
    assert_eq!(state(&ledger, &attached), Some(LeaseState::Limbo));
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount(10));
    assert_eq!(apply(&mut ledger, at(60), attach(&never_attached, 8)), Outcome::Lost);
    let lost = Outcome::Renewed { lost: vec![never_attached.lease.clone()], revoked: Vec::new() };
    assert_eq!(apply(&mut ledger, at(61), renew(&[&attached, &never_attached])), lost);
    assert_eq!(state(&ledger, &attached), Some(LeaseState::Active));
}

#[test]
fn a_release_without_evidence_frees_nothing() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 10)])));
    apply(&mut ledger, at(2), attach(&grant, 7));
    assert_eq!(apply(&mut ledger, at(3), release(&grant, Evidence::None)), Outcome::InLimbo);
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount(10));
    let dead = |gone, seen_from: &str| Op::ConfirmDead {
        lease: grant.lease.clone(),
        gone,
        seen_from: vec![seen_from.to_owned()],
    };
    let reused = Process { start_time: 6, ..process(7) };
    assert_eq!(apply(&mut ledger, at(3), dead(vec![reused], "pid:[1]")), Outcome::NotShown);
    assert_eq!(apply(&mut ledger, at(3), dead(vec![process(7)], "pid:[2]")), Outcome::NotShown);
    assert_eq!(apply(&mut ledger, at(3), dead(vec![process(7)], "pid:[1]")), Outcome::Released);
    assert_eq!(ledger.charged(&DeviceKey::cpu()), ByteCount::ZERO);
}

#[test]
fn a_promise_ends_with_its_owner_when_nobody_is_attached() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 10)])));
    let dead = |gone| Op::ConfirmDead { lease: grant.lease.clone(), gone, seen_from: vec!["pid:[1]".to_owned()] };
    assert_eq!(apply(&mut ledger, at(3), dead(Vec::new())), Outcome::NotShown);
    assert_eq!(apply(&mut ledger, at(3), dead(vec![crate::story::owner_of("a")])), Outcome::Released);
}

#[test]
fn another_boot_may_not_attach() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 10)])));
    let (lease, token) = (grant.lease.clone(), grant.token);
    let elsewhere = Op::Attach { lease, token, process: process(7), boot_id: "other".to_owned() };
    assert_eq!(apply(&mut ledger, at(2), elsewhere), Outcome::Lost);
}

#[test]
fn a_shrunk_lease_gives_room_after_the_next_look() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 80)])));
    let resize = |bytes| Op::Resize {
        lease: grant.lease.clone(),
        token: grant.token,
        parts: vec![(DeviceKey::cpu(), ByteCount(bytes))],
    };
    assert_eq!(apply(&mut ledger, at(3), resize(30)), Outcome::Resized);
    assert!(matches!(
        apply(&mut ledger, at(3), resize(40)),
        Outcome::Wait(Wait { reason: LeaseWaitReason::Unsettled { .. }, .. })
    ));
    look(&mut ledger, at(4), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(4), ask("b", &[(DeviceKey::cpu(), 50)])));
    assert!(matches!(
        apply(&mut ledger, at(4), resize(50)),
        Outcome::Wait(Wait { reason: LeaseWaitReason::Capacity { .. }, .. })
    ));
    assert_eq!(apply(&mut ledger, at(4), resize(40)), Outcome::Resized);
    assert_eq!(
        apply(&mut ledger, at(4), resize(91)),
        Outcome::NeverFits(NeverFits { device: "cpu".to_owned(), needs: ByteCount(91), leasable: ByteCount(90) })
    );
}

#[test]
fn who_uses_more_than_promised_is_promised_that_only_where_nobody_else_was_promised_it() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = hold(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 40)]), 7);
    let other = hold(&mut ledger, at(3), ask("b", &[(DeviceKey::cpu(), 40)]), 8);
    let parts = vec![(DeviceKey::cpu(), ByteCount(55))];
    let grow = Op::Resize { lease: grant.lease.clone(), token: grant.token, parts };
    look(&mut ledger, at(4), DeviceKey::cpu(), 55, &[(7, 55)]);
    let wait = waits(apply(&mut ledger, at(4), grow.clone()));
    let LeaseWaitReason::Capacity { needs, .. } = &wait.reason else { panic!("{wait:?}") };
    assert_eq!(*needs, ByteCount(5), "90 can be leased, 55 are used and 40 promised to another");
    assert_eq!(apply(&mut ledger, at(5), release(&other, Evidence::Gone)), Outcome::Released);
    look(&mut ledger, at(6), DeviceKey::cpu(), 55, &[(7, 55)]);
    assert_eq!(apply(&mut ledger, at(6), grow), Outcome::Resized);
}

#[test]
fn tokens_grow_past_a_clock_that_stands_still_or_starts_again() {
    let mut ledger = Ledger::new("boot", Token(at(500).0), LeaseDurations::default());
    declare(&mut ledger, DeviceKey::cpu(), 100, 0, Accounting::PerProcess);
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let first = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 1)])));
    let second = granted(apply(&mut ledger, at(1), ask("b", &[(DeviceKey::cpu(), 1)])));
    assert_eq!((first.token, second.token), (Token(at(500).0 + 1), Token(at(500).0 + 2)));
}

#[test]
fn tokens_grow_past_a_ledger_that_was_lost() {
    let mut lost = ledger();
    look(&mut lost, at(2), DeviceKey::cpu(), 0, &[]);
    let before = granted(apply(&mut lost, at(2), ask("a", &[(DeviceKey::cpu(), 1)])));
    let mut empty = ledger();
    look(&mut empty, at(3), DeviceKey::cpu(), 0, &[]);
    let after = granted(apply(&mut empty, at(3), ask("a", &[(DeviceKey::cpu(), 1)])));
    assert!(after.token > before.token);
}

#[test]
fn what_a_newer_program_wrote_survives_and_is_respected() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 10)])));
    let mut document = serde_json::to_value(&ledger).unwrap();
    document["queues"] = serde_json::json!([{ "request_id": "w" }]);
    document["terms"]["patience"] = serde_json::json!(60);
    document["devices"]["cpu"]["exclusive"] = serde_json::json!(true);
    let lease = grant.lease.to_string();
    document["leases"][&lease]["state"] = serde_json::json!("SUSPENDED");
    document["leases"][&lease]["by"] = serde_json::json!("x");
    document["leases"][&lease]["parts"][0]["numa"] = serde_json::json!(1);
    document["leases"][&lease]["owner"]["cgroup"] = serde_json::json!("/a");
    document["leases"][&lease]["owner"]["kind"] = serde_json::json!("notebook");
    let mut newer: Ledger = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(serde_json::to_value(&newer).unwrap(), document);
    assert_eq!(newer.charged(&DeviceKey::cpu()), ByteCount(10), "a lease in an unknown state is counted");

    newer.schema = SCHEMA + 1;
    let before = newer.clone();
    model_boss_lease::read_from(&mut newer, at(3), "another run");
    assert_eq!(newer, before);
    let refused = Outcome::Refused(OpRefusal::NewerSchema(SCHEMA + 1));
    assert_eq!(apply(&mut newer, at(3), ask("b", &[(DeviceKey::cpu(), 1)])), refused);
    let renewed = Outcome::Renewed { lost: Vec::new(), revoked: Vec::new() };
    assert_eq!(apply(&mut newer, at(3), renew(&[&grant])), renewed);
    assert_eq!(apply(&mut newer, at(3), release(&grant, Evidence::Gone)), Outcome::Released);
}

#[test]
fn a_stranger_lease_is_lost() {
    let mut ledger = ledger();
    let lease = LeaseId::from("lease-9");
    let release = Op::Release { lease: lease.clone(), token: Token(9), evidence: Evidence::Gone };
    assert_eq!(apply(&mut ledger, at(2), release), Outcome::Lost);
    assert_eq!(
        apply(&mut ledger, at(2), Op::Renew { leases: vec![Renewal::plain(lease.clone(), Token(9))] }),
        Outcome::Renewed { lost: vec![lease], revoked: Vec::new() }
    );
}

#[test]
fn parts_that_make_no_sense_are_refused() {
    let mut ledger = ledger();
    let cpu = DeviceKey::cpu;
    for parts in [vec![], vec![(cpu(), 0)], vec![(cpu(), 1), (cpu(), 2)]] {
        assert_eq!(apply(&mut ledger, at(2), ask("a", &parts)), Outcome::Refused(OpRefusal::BadParts));
    }
    let unknown = gpu(9);
    let outcome = apply(&mut ledger, at(2), ask("a", &[(unknown.clone(), 1)]));
    assert_eq!(outcome, Outcome::Refused(OpRefusal::UnknownDevice(unknown)));
}

#[test]
fn what_a_lease_uses_on_a_device_it_was_not_promised_is_counted() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 30)])));
    apply(&mut ledger, at(2), attach(&grant, 7));
    look(&mut ledger, at(3), gpu(1), 30, &[(7, 25)]);
    assert_eq!(ledger.charged(&gpu(1)), ByteCount(25));
    let wait = waits(apply(&mut ledger, at(3), ask("b", &[(gpu(1), 11)])));
    assert!(matches!(wait.reason, LeaseWaitReason::Capacity { free: ByteCount(10), .. }), "{wait:?}");
    look(&mut ledger, at(4), DeviceKey::cpu(), 0, &[]);
    let resize =
        Op::Resize { lease: grant.lease.clone(), token: grant.token, parts: vec![(DeviceKey::cpu(), ByteCount(40))] };
    assert_eq!(apply(&mut ledger, at(4), resize), Outcome::Resized, "a resize names what was promised");
}

#[test]
fn a_descendant_that_outlives_its_parents_keeps_the_bytes_counted() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 30)])));
    apply(&mut ledger, at(2), attach(&grant, 7));
    let rank = |lineage| ProcessUse { lineage, bytes: ByteCount(25) };
    let sample = |rank, when| Op::Observe {
        device: DeviceKey::cpu(),
        used: Some(ByteCount(25)),
        processes: vec![rank],
        sampled_at: when,
    };
    apply(&mut ledger, at(3), sample(rank(vec![process(9), process(8), process(7)]), at(3)));
    // The process's parents have ended, and init is its parent now. It was seen as a descendant before.
    apply(&mut ledger, at(4), sample(rank(vec![process(9)]), at(4)));
    assert_eq!(ledger.devices[&DeviceKey::cpu()].foreign, Some(ByteCount::ZERO));
    let dead = |gone: &[u32]| Op::ConfirmDead {
        lease: grant.lease.clone(),
        gone: gone.iter().map(|pid| process(*pid)).collect(),
        seen_from: vec!["pid:[1]".to_owned()],
    };
    assert_eq!(apply(&mut ledger, at(5), dead(&[7])), Outcome::NotShown);
    assert_eq!(apply(&mut ledger, at(5), dead(&[7, 9])), Outcome::Released);
}

#[test]
fn only_a_coordinator_changes_what_a_device_has() {
    let mut ledger = ledger();
    let declare = |by| Op::Declare {
        device: DeviceKey::cpu(),
        name: "cpu".to_owned(),
        capacity: ByteCount(1_000),
        reserve: ByteCount::ZERO,
        accounting: Accounting::PerProcess,
        by,
    };
    apply(&mut ledger, at(2), declare(OwnerKind::Job));
    assert_eq!(ledger.devices[&DeviceKey::cpu()].capacity, ByteCount(100));
    apply(&mut ledger, at(2), declare(OwnerKind::Coordinator));
    assert_eq!(ledger.devices[&DeviceKey::cpu()].capacity, ByteCount(1_000));
}

#[test]
fn a_request_that_is_taken_back_gives_back_what_was_not_touched() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let promised = granted(apply(&mut ledger, at(2), ask("a", &[(DeviceKey::cpu(), 30)])));
    let cancel = |id: &str, owner: &str| Op::Cancel { request_id: id.to_owned(), owner: crate::story::owner_of(owner) };
    apply(&mut ledger, at(2), cancel("a", "b"));
    assert!(ledger.leases.contains_key(&promised.lease), "the statement of another holder has no effect");
    apply(&mut ledger, at(2), cancel("a", "a"));
    assert!(ledger.leases.is_empty());
    let attached = granted(apply(&mut ledger, at(2), ask("b", &[(DeviceKey::cpu(), 30)])));
    apply(&mut ledger, at(2), attach(&attached, 7));
    apply(&mut ledger, at(2), cancel("b", "b"));
    assert!(ledger.leases.contains_key(&attached.lease), "what was touched takes a release");
}
