//! The queue: one total order, full sets, no overtaking, and no places kept for ever.

use model_boss_lease::{DeviceKey, Evidence, LeaseWaitReason, Mode, Op, Outcome, Request, Wait, Want, apply};
use model_boss_protocol::ByteCount;

use crate::story::{
    ask, at, declare, gpu, granted, hold, ledger, look, owner_of, preempt, release, renew, request, wait, waits,
};

fn cpu(bytes: u64) -> [(DeviceKey, u64); 1] {
    [(DeviceKey::cpu(), bytes)]
}

#[test]
fn nobody_of_equal_or_lower_importance_passes_a_waiter() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let first = granted(apply(&mut ledger, at(2), ask("first", &cpu(50))));
    let waiting = waits(apply(&mut ledger, at(3), wait("large", 5, &cpu(60))));
    assert_eq!(waiting.position, 1);
    let behind = waits(apply(&mut ledger, at(4), wait("small", 5, &cpu(10))));
    let text = "10 B are needed on cpu and 0 B are left after those who wait before it: large";
    assert_eq!((behind.position, behind.reason.to_string().as_str()), (2, text));
    assert!(matches!(waits(apply(&mut ledger, at(4), ask("try", &cpu(1)))).reason, LeaseWaitReason::Behind { .. }));
    granted(apply(&mut ledger, at(4), wait("urgent", 4, &cpu(10))));

    apply(&mut ledger, at(5), release(&first, Evidence::Gone));
    granted(apply(&mut ledger, at(5), wait("large", 5, &cpu(60))));
    granted(apply(&mut ledger, at(5), wait("small", 5, &cpu(10))));
}

#[test]
fn growth_passes_no_waiter_either() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let grant = granted(apply(&mut ledger, at(2), ask("first", &cpu(50))));
    waits(apply(&mut ledger, at(3), wait("large", 5, &cpu(60))));
    let parts = vec![(DeviceKey::cpu(), ByteCount(60))];
    let resize = Op::Resize { lease: grant.lease.clone(), token: grant.token, parts };
    assert!(matches!(waits(apply(&mut ledger, at(3), resize)).reason, LeaseWaitReason::Behind { .. }));
}

#[test]
fn two_who_wait_for_each_other_are_served_in_one_order() {
    let mut ledger = ledger();
    declare(&mut ledger, gpu(2), 50, 10, model_boss_lease::Accounting::PerProcess);
    for device in [gpu(1), gpu(2)] {
        look(&mut ledger, at(2), device, 0, &[]);
    }
    let one = granted(apply(&mut ledger, at(2), ask("one", &[(gpu(1), 30)])));
    let two = granted(apply(&mut ledger, at(2), ask("two", &[(gpu(2), 30)])));
    let both = [(gpu(1), 40), (gpu(2), 40)];
    let turned = [(gpu(2), 40), (gpu(1), 40)];
    waits(apply(&mut ledger, at(3), wait("a", 5, &both)));
    waits(apply(&mut ledger, at(3), wait("b", 5, &turned)));
    apply(&mut ledger, at(4), release(&one, Evidence::Gone));
    apply(&mut ledger, at(4), release(&two, Evidence::Gone));
    waits(apply(&mut ledger, at(4), wait("b", 5, &turned)));
    let a = granted(apply(&mut ledger, at(4), wait("a", 5, &both)));
    apply(&mut ledger, at(5), release(&a, Evidence::Gone));
    granted(apply(&mut ledger, at(5), wait("b", 5, &turned)));
}

#[test]
fn a_waiter_that_does_not_ask_again_is_forgotten_with_its_nomination() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let first = hold(&mut ledger, at(2), ask("first", &cpu(50)), 7);
    waits(apply(&mut ledger, at(3), wait("gone", 5, &cpu(60))));
    apply(&mut ledger, at(17), renew(&[&first]));
    look(&mut ledger, at(17), DeviceKey::cpu(), 0, &[]);
    waits(apply(&mut ledger, at(17), ask("try", &cpu(10))));
    granted(apply(&mut ledger, at(18), ask("try", &cpu(10))));
    assert!(ledger.waiters.is_empty());
}

#[test]
fn asking_again_keeps_the_place_and_asking_for_more_does_not() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(2), ask("first", &cpu(80))));
    waits(apply(&mut ledger, at(3), wait("a", 5, &cpu(20))));
    waits(apply(&mut ledger, at(4), wait("b", 5, &cpu(20))));
    assert_eq!(waits(apply(&mut ledger, at(5), wait("a", 5, &cpu(20)))).position, 1);
    assert_eq!(waits(apply(&mut ledger, at(6), wait("a", 5, &cpu(30)))).position, 2);
}

#[test]
fn a_waiter_that_leaves_makes_way_and_only_its_owner_can_take_it_back() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    granted(apply(&mut ledger, at(2), ask("first", &cpu(80))));
    waits(apply(&mut ledger, at(3), wait("a", 5, &cpu(20))));
    let cancel = |owner| Op::Cancel { request_id: "a".to_owned(), owner: owner_of(owner) };
    apply(&mut ledger, at(3), cancel("b"));
    assert!(matches!(waits(apply(&mut ledger, at(3), ask("b", &cpu(5)))).reason, LeaseWaitReason::Behind { .. }));
    apply(&mut ledger, at(3), cancel("a"));
    granted(apply(&mut ledger, at(3), ask("b", &cpu(5))));
}

fn any_of(id: &str, count: usize, bytes: u64, devices: &[DeviceKey], mode: Mode) -> Op {
    let want = Want::AnyOf { count, bytes: ByteCount(bytes), devices: devices.to_vec() };
    Op::Acquire(Request { want, mode, ..request(id, 5, &[]) })
}

#[test]
fn any_of_takes_the_fullest_devices_where_it_fits() {
    let mut ledger = ledger();
    let gpus = [gpu(1), gpu(2), gpu(3)];
    for (device, used) in gpus.iter().zip([0, 15, 30]) {
        declare(&mut ledger, device.clone(), 50, 10, model_boss_lease::Accounting::PerProcess);
        look(&mut ledger, at(2), device.clone(), used, &[]);
    }
    let one = granted(apply(&mut ledger, at(2), any_of("one", 1, 20, &gpus, Mode::Try)));
    assert_eq!(one.parts, vec![(gpu(2), ByteCount(20))]);
    let two = granted(apply(&mut ledger, at(2), any_of("two", 2, 5, &gpus, Mode::Try)));
    assert_eq!(two.parts, vec![(gpu(2), ByteCount(5)), (gpu(3), ByteCount(5))]);
    assert!(matches!(apply(&mut ledger, at(2), any_of("three", 2, 20, &gpus, Mode::Try)), Outcome::Wait(_)));
    assert!(matches!(apply(&mut ledger, at(2), any_of("four", 2, 41, &gpus, Mode::Try)), Outcome::NeverFits(_)));
    for (count, bytes, devices) in [(0, 1, &gpus[..]), (1, 0, &gpus), (4, 1, &gpus), (1, 1, &[gpu(1), gpu(1)])] {
        assert!(matches!(
            apply(&mut ledger, at(2), any_of("bad", count, bytes, devices, Mode::Try)),
            Outcome::Refused(_)
        ));
    }
    // A device without an observation is skipped.
    declare(&mut ledger, gpu(4), 50, 10, model_boss_lease::Accounting::PerProcess);
    let parts = granted(apply(&mut ledger, at(2), any_of("five", 1, 20, &[gpu(4), gpu(1)], Mode::Try))).parts;
    assert_eq!(parts, vec![(gpu(1), ByteCount(20))]);
}

#[test]
fn any_of_that_waits_holds_one_set_and_leaves_the_rest() {
    let mut ledger = ledger();
    let gpus = [gpu(1), gpu(2)];
    for (device, used) in gpus.iter().zip([20, 30]) {
        declare(&mut ledger, device.clone(), 50, 10, model_boss_lease::Accounting::PerProcess);
        look(&mut ledger, at(2), device.clone(), used, &[]);
    }
    waits(apply(&mut ledger, at(2), any_of("large", 1, 30, &gpus, Mode::Wait)));
    let Wait { reason, .. } = waits(apply(&mut ledger, at(2), ask("small", &[(gpu(1), 10)])));
    assert!(matches!(reason, LeaseWaitReason::Behind { .. }), "{reason:?}");
    granted(apply(&mut ledger, at(2), ask("small", &[(gpu(2), 10)])));
}

#[test]
fn any_of_asks_where_somebody_can_yield() {
    let mut ledger = ledger();
    let gpus = [gpu(1), gpu(2)];
    for device in &gpus {
        declare(&mut ledger, device.clone(), 50, 10, model_boss_lease::Accounting::PerProcess);
        look(&mut ledger, at(2), device.clone(), 0, &[]);
    }
    hold(&mut ledger, at(3), ask("fixed", &[(gpu(1), 35)]), 7);
    let soft = hold(&mut ledger, at(3), crate::story::preemptible("soft", 7, &[(gpu(2), 40)]), 8);
    for device in &gpus {
        look(&mut ledger, at(4), device.clone(), 0, &[]);
    }
    let want = Want::AnyOf { count: 1, bytes: ByteCount(30), devices: gpus.to_vec() };
    let op = Op::Acquire(Request { want, mode: Mode::Preempt, ..request("asker", 5, &[]) });
    for _ in 0..3 {
        match apply(&mut ledger, at(4), op.clone()) {
            Outcome::Revoking { victims, .. } => {
                assert_eq!(victims.iter().map(|v| &v.lease).collect::<Vec<_>>(), [&soft.lease]);
            }
            other => panic!("{other:?}"),
        }
    }
    let never = preempt("other", 9, &[(gpu(1), 30)]);
    assert!(matches!(apply(&mut ledger, at(4), never), Outcome::Wait(_)));
}

#[test]
fn a_reserved_place_is_granted_nothing_and_holds_back_those_who_come_later() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let reserve = |bytes| match wait("model", 5, &cpu(bytes)) {
        Op::Acquire(request) => Op::Acquire(Request { mode: Mode::Reserve, ..request }),
        other => other,
    };
    assert_eq!(apply(&mut ledger, at(3), reserve(60)), Outcome::Noted, "it would fit");
    assert!(ledger.leases.is_empty());
    let behind = waits(apply(&mut ledger, at(4), wait("later", 5, &cpu(60))));
    assert!(matches!(behind.reason, LeaseWaitReason::Behind { .. }));
    // The reserved request asks for its lease now, and finds the room.
    granted(apply(&mut ledger, at(5), wait("model", 5, &cpu(60))));
    let full = waits(apply(&mut ledger, at(6), reserve_as("other", &cpu(60))));
    assert!(matches!(full.reason, LeaseWaitReason::Capacity { .. }), "{:?}", full.reason);
}

fn reserve_as(id: &str, parts: &[(DeviceKey, u64)]) -> Op {
    match wait(id, 5, parts) {
        Op::Acquire(request) => Op::Acquire(Request { mode: Mode::Reserve, ..request }),
        other => other,
    }
}

#[test]
fn a_holder_is_not_held_back_by_its_own_requests() {
    let mut ledger = ledger();
    look(&mut ledger, at(2), DeviceKey::cpu(), 0, &[]);
    let owner = |id: &str| match ask(id, &cpu(10)) {
        Op::Acquire(request) => request.owner,
        _ => unreachable!(),
    };
    granted(apply(&mut ledger, at(2), ask("first", &cpu(50))));
    let Op::Acquire(large) = wait("large", 5, &cpu(60)) else { unreachable!() };
    let Op::Acquire(small) = wait("small", 5, &cpu(10)) else { unreachable!() };
    waits(apply(&mut ledger, at(3), Op::Acquire(Request { owner: owner("mine"), ..large })));
    granted(apply(&mut ledger, at(4), Op::Acquire(Request { owner: owner("mine"), ..small })));
    assert!(matches!(waits(apply(&mut ledger, at(4), ask("yours", &cpu(1)))).reason, LeaseWaitReason::Behind { .. }));
}
