//! Leases of other holders, and which of them are released for which models (LE-3).

use model_boss_protocol::{OtherLease, OtherRequest};

use super::*;
use crate::LeaveCause;
use crate::refusal::RefusalReason;

fn blocked_by(world: &World, request: RequestId) -> String {
    world.core.why(request).map(|reason| reason.to_string()).unwrap_or_default()
}

#[test]
fn le_3_a_lease_of_somebody_else_is_planned_around_and_named() {
    let mut world = World::calm(24, vec![model("m", 10)]);
    world.hold("train.py", "cuda:0", 18, 7, false);
    let request = world.submit("m", 0);
    world.run_for(SECOND);
    assert_eq!(world.loads(), 0);
    let reason = blocked_by(&world, request);
    assert!(reason.contains("held by lease-1 (train.py): 18.0 GiB, priority 7"), "{reason}");
    assert_eq!(world.core.devices()[0].leased, ByteCount::gib(18));
    // The model has a place in the ledger's queue, so that later requests do not overtake it.
    assert!(world.places.contains_key("m"));
    world.run_for(600 * SECOND);
    assert_eq!(world.loads(), 0, "a job that did not offer it keeps its memory");
    world.end_training("train.py");
    world.run_for(10 * SECOND);
    assert!(matches!(world.fate(request), Fate::Answered));
    assert!(world.places.is_empty());
}

#[test]
fn le_3_whoever_does_not_wait_any_more_leaves_the_queue() {
    let mut world = World::calm(24, vec![model("m", 10)]);
    world.hold("train.py", "cuda:0", 18, 7, false);
    let request = world.submit("m", 0);
    world.run_for(SECOND);
    world.cancel(request);
    assert!(world.places.is_empty());
    assert!(matches!(world.log.last(), Some((_, Effect::CancelLease { .. }))));
}

#[test]
fn le_3_a_place_is_taken_before_anybody_is_sent_away() {
    let mut world = World::calm(24, vec![model("a", 20), model("b", 20)]);
    world.submit("a", 5);
    world.run_for(10 * SECOND);
    world.submit("b", 5);
    let position = |wanted: fn(&Effect) -> bool| world.log.iter().position(|(_, effect)| wanted(effect)).unwrap();
    let place = position(|effect| matches!(effect, Effect::AwaitLease { model, .. } if model.as_str() == "b"));
    let stop = position(|effect| matches!(effect, Effect::Stop { .. }));
    assert!(place < stop);
}

#[test]
fn le_3_a_preemptible_job_is_asked_only_by_somebody_more_important_and_after_our_own() {
    let mut world = World::calm(24, vec![model("a", 6), model("b", 6), model("c", 12)]);
    world.submit("a", 5);
    world.run_for(10 * SECOND);
    world.hold("train.py", "cuda:0", 18, 7, true);
    let asks = |world: &World| {
        world.log.iter().filter(|(_, effect)| matches!(effect, Effect::AwaitLease { preempt: true, .. })).count()
    };
    // The eviction of the coordinator's own idle model is enough.
    let own = world.submit("b", 5);
    world.run_for(10 * SECOND);
    assert!(matches!(world.fate(own), Fate::Answered));
    assert_eq!(asks(&world), 0);
    // A model as important as the job stays.
    let equal = world.submit("c", 7);
    world.run_for(SECOND);
    assert_eq!(asks(&world), 0);
    world.cancel(equal);
    let urgent = world.submit("c", 2);
    world.run_for(SECOND);
    assert_eq!(asks(&world), 1);
    assert!(world.verdicts().iter().any(|(what, model)| *what == Verdict::Revoke && model == "c"));
    let reason = blocked_by(&world, urgent);
    assert!(reason.contains("asked to make way: lease-1 (train.py)") || reason.contains("making room"), "{reason}");
    world.run_for(60 * SECOND);
    assert!(matches!(world.fate(urgent), Fate::Answered), "{:?}: {}", world.fate(urgent), blocked_by(&world, urgent));
}

#[test]
fn le_3_who_waits_for_a_holder_in_default_is_told() {
    let mut world = World::calm(24, vec![model("m", 10)]);
    world.hold("train.py", "cuda:0", 18, 7, true);
    let request = world.submit("m", 2);
    world.run_for(Duration::from_millis(1));
    let lease = world.outside[0].lease.clone();
    world.makes_way(&lease, false);
    let error = world.refusal(request);
    assert_eq!(error.reason, RefusalReason::NoCapacity);
    assert!(error.message.contains("train.py") && error.retry_after.is_some(), "{error}");
    assert!(world.places.is_empty());
}

#[test]
fn le_3_idle_less_important_models_leave_for_training_and_nobody_in_vain() {
    let mut pinned = model("pinned", 6);
    pinned.pin = true;
    let mut world = World::calm(24, vec![pinned, model("idle", 6), model("busy", 6)]);
    for (name, priority) in [("pinned", 9), ("idle", 9), ("busy", 9)] {
        world.submit(name, priority);
        world.run_for(10 * SECOND);
    }
    world.behaviour.answer = (600 * SECOND, 600 * SECOND);
    world.submit("busy", 9);
    world.run_for(SECOND);
    // 6 GiB are free and 6 more would be: not enough.
    world.train("large.py", "cuda:0", 14, 7);
    world.run_for(30 * SECOND);
    assert!(world.state_of("idle").is_some() && !world.holds("large.py"));
    world.end_training("large.py");
    world.train("small.py", "cuda:0", 12, 7);
    world.run_for(5 * SECOND);
    assert!(world.holds("small.py"));
    assert!(world.state_of("idle").is_none());
    assert!(world.state_of("busy").is_some() && world.state_of("pinned").is_some());
}

#[test]
fn le_3_an_idle_model_leaves_for_training_once_it_has_become_less_important() {
    let mut world = World::calm(24, vec![model("m", 20)]);
    world.submit_with("m", 5, World::keep_for(3_600 * SECOND));
    world.run_for(6 * SECOND);
    world.train("train.py", "cuda:0", 12, 7);
    // The model's rank fades by one in 30 s: 5, 6, 7, and at 8 it is less important.
    world.run_for(80 * SECOND);
    assert!(world.state_of("m").is_some());
    world.run_for(20 * SECOND);
    assert!(world.holds("train.py"), "{:?}", world.state_of("m"));
}

fn revoked(world: &World, priority: u8) -> Event {
    let slot = world.core.slots()[0].clone();
    let (by, priority) = ("train.py".to_owned(), Priority::new(priority).unwrap());
    Event::LeaseRevoked { slot: slot.key(), by, priority, remaining: 60 * SECOND }
}

#[test]
fn le_3_a_slot_whose_lease_is_asked_for_ends_its_requests_and_leaves() {
    let mut world = World::calm(24, vec![model("m", 20)]);
    let request = world.submit("m", 5);
    world.run_for(4 * SECOND);
    let event = revoked(&world, 5);
    world.tell(event);
    assert!(world.core.slots()[0].leaving.is_none(), "as important: it stays");
    let event = revoked(&world, 3);
    world.tell(event);
    let priority = Priority::new(3).unwrap();
    assert_eq!(world.core.slots()[0].leaving, Some(LeaveCause::Revoked { by: "train.py".into(), priority }));
    world.run_for(2 * SECOND);
    assert!(matches!(world.fate(request), Fate::Answered), "what runs is ended");
    assert!(world.state_of("m").is_none());
}

#[test]
fn le_3_a_more_important_request_keeps_what_was_asked_for_and_so_does_a_change_of_mind() {
    for kept_by_request in [true, false] {
        let mut world = World::calm(24, vec![model("m", 20)]);
        world.submit("m", 5);
        world.run_for(4 * SECOND);
        let event = revoked(&world, 3);
        world.tell(event);
        if kept_by_request {
            world.submit("m", 1);
        } else {
            let slot = world.core.slots()[0].clone();
            world.tell(Event::LeaseKept { slot: slot.key() });
        }
        assert_eq!(world.core.slots()[0].leaving, None);
        world.run_for(10 * SECOND);
        assert!(world.state_of("m").is_some());
    }
}

#[test]
fn le_3_a_pinned_model_stays_whoever_asks() {
    let mut pinned = model("m", 20);
    pinned.pin = true;
    let mut world = World::calm(24, vec![pinned]);
    world.submit("m", 5);
    world.run_for(10 * SECOND);
    let acquired = world.log.iter().find_map(|(_, effect)| match effect {
        Effect::AcquireLease { yields, .. } => Some(*yields),
        _ => None,
    });
    assert_eq!(acquired, Some(false));
    let event = revoked(&world, 0);
    world.tell(event);
    world.run_for(10 * SECOND);
    assert!(world.state_of("m").is_some());
}

#[test]
fn le_3_who_comes_first_in_the_ledger_gets_its_memory_first() {
    let mut world = World::calm(24, vec![model("m", 10)]);
    let parts = vec![(DeviceId::Cuda(0), ByteCount::gib(20))];
    let first = |priority| OtherRequest { label: "train.py".into(), priority, parts: parts.clone() };
    let (leases, requests): (Vec<OtherLease>, _) = (Vec::new(), vec![first(Priority::new(3).unwrap())]);
    world.tell(Event::Others { leases, requests });
    let behind = world.submit("m", 5);
    world.run_for(SECOND);
    assert!(blocked_by(&world, behind).contains("train.py comes first: 20.0 GiB, priority 3"));
    let urgent = world.submit("m", 2);
    world.run_for(10 * SECOND);
    assert!(matches!(world.fate(urgent), Fate::Answered));
}
