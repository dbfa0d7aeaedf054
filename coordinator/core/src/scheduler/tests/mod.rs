//! Tests of the rules, named by requirement, on the simulated shell. Loads take 3 s, answers 2 s, and there is one
//! GPU unless a test says otherwise.

use std::time::Duration;

use model_boss_protocol::{ByteCount, Category, DeviceId, Generation, KeepAlive, Priority, RequestId, SlotId};

use self::world::{Behaviour, Fate, Rng, World};
use crate::refusal::RefusalReason;
use crate::testing::{device, model, ms, s};
use crate::{
    Effect, Event, LedgerState, ModelDescription, ModelStatus, Moment, Order, RequestOutcome, RungChoice, Settings,
    SlotKey, SlotState, Submission, Verdict, WaitReason,
};

mod cancelling;
mod clients;
mod cores;
mod devices;
mod fairness;
mod forgetting;
mod ladders;
mod moves;
mod plan;
mod pool;
mod recovery;
mod simulation;
mod streaming;
mod world;
mod yielding;

const SECOND: Duration = Duration::from_secs(1);

fn concurrent(mut one: ModelDescription, at_once: u32) -> ModelDescription {
    one.max_concurrent = at_once;
    one
}

fn pinned(mut one: ModelDescription) -> ModelDescription {
    one.pin = true;
    one
}

fn on(mut one: ModelDescription, device: &str) -> ModelDescription {
    one.device = device.parse().unwrap();
    one
}

#[test]
fn rc_1_the_way_of_a_request() {
    let mut world = World::calm(8, vec![model("guide", 4)]);
    let request = world.submit("guide", 5);
    assert_eq!(world.core.why(request).unwrap().to_string(), "reserving memory for guide");
    world.run_until(ms(100));
    assert_eq!(world.core.why(request).unwrap().to_string(), "starting guide");
    world.run_until(ms(2_000));
    assert_eq!(world.core.why(request).unwrap().to_string(), "loading guide 50%");
    world.run_until(s(10));
    assert_eq!(world.fate(request), &Fate::Answered);
    let effects: Vec<&Effect> = world.log.iter().map(|(_, effect)| effect).collect();
    let slot = SlotKey { id: SlotId(0), generation: Generation(1) };
    let [Effect::AcquireLease { parts, .. }, Effect::Spawn { parts: spawned, .. }, dispatch] = effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(parts[..], [(DeviceId::Cuda(0), ByteCount::gib(4))]);
    assert_eq!(spawned, parts);
    let waited = Duration::from_millis(3_001);
    let rung = RungChoice::NONE;
    let priority = Priority::NORMAL;
    assert_eq!(dispatch, &Effect::Dispatch { request, slot, priority, queued: waited, loading: waited, rung });
}

#[test]
fn rc_7_any_number_of_requests_for_a_cold_model_cause_one_load() {
    let mut world = World::calm(8, vec![concurrent(model("m", 4), 4)]);
    let requests: Vec<RequestId> = (0..10).map(|_| world.submit("m", 5)).collect();
    world.run_until(s(60));
    assert_eq!(world.loads(), 1);
    assert!(requests.iter().all(|request| world.fate(*request) == &Fate::Answered));
    assert_eq!(world.dispatched(), requests);
}

#[test]
fn a_busy_model_says_so_and_takes_no_more_than_its_number() {
    let mut world = World::calm(8, vec![concurrent(model("m", 4), 2)]);
    let requests: Vec<RequestId> = (0..3).map(|_| world.submit("m", 5)).collect();
    world.run_until(s(4));
    assert_eq!(world.dispatched().len(), 2);
    assert_eq!(world.core.why(requests[2]).unwrap().to_string(), "m works on 2 of 2 requests");
}

#[test]
fn rc_3_a_more_important_request_goes_first() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    let normal = world.submit("m", 5);
    let batch = world.submit("m", 8);
    let urgent = world.submit("m", 0);
    world.run_until(s(60));
    assert_eq!(world.dispatched(), [urgent, normal, batch]);
}

#[test]
fn rc_6_a_request_without_room_waits_in_the_queue_and_names_who_is_in_the_way() {
    let mut world = World::calm(8, vec![model("a", 6), model("b", 6)]);
    world.submit("a", 2);
    world.run_until(s(4));
    let waiting = world.submit("b", 5);
    match world.core.why(waiting).unwrap() {
        WaitReason::Capacity { device, needs, free, blockers, .. } => {
            assert_eq!((device, needs, free), (DeviceId::Cuda(0), ByteCount::gib(6), ByteCount::gib(2)));
            assert_eq!(blockers[0].to_string(), "a holds 6.00 GiB (more important, rank 2)");
        }
        other => panic!("{other}"),
    }
    let queue = world.core.queue(world.now + SECOND, 0..usize::MAX);
    assert_eq!((queue[0].position, queue[0].waited), (1, SECOND));
    // The idle model's rank fades by one per 30 s until it is no more important than the waiting request.
    world.run_until(s(120));
    assert_eq!(world.fate(waiting), &Fate::Answered);
    // The time is 90 s after the answer at 5 s, without waiting for a re-evaluation.
    let answered = world.answered_at(waiting).unwrap();
    assert!(answered > s(100) && answered < ms(100_300), "{answered:?}");
}

#[test]
fn rc_6_foreign_memory_that_is_given_back_lets_a_load_begin_at_once() {
    let mut world = World::calm(8, vec![model("m", 6)]);
    let mut seen = device("cuda:0", 8);
    seen.foreign = Some(ByteCount::gib(4));
    world.tell(Event::DeviceObserved(seen));
    let request = world.submit("m", 5);
    assert!(matches!(world.core.why(request), Some(WaitReason::Capacity { .. })));
    world.run_until(s(7));
    world.tell(Event::DeviceObserved(device("cuda:0", 8)));
    assert!(matches!(world.core.why(request), Some(WaitReason::Loading { .. })));
}

#[test]
fn rc_21_unknown_memory_is_not_zero_and_not_free() {
    let mut world = World::calm(8, vec![on(model("m", 6), "cuda:0")]);
    let mut seen = device("cuda:0", 8);
    seen.foreign = None;
    world.tell(Event::DeviceObserved(seen));
    let request = world.submit("m", 5);
    assert_eq!(world.core.why(request), Some(WaitReason::DeviceUnknown { device: DeviceId::Cuda(0) }));
    assert_eq!(world.core.devices()[0].free, None);
    world.tell(Event::DeviceObserved(device("cuda:0", 8)));
    assert!(matches!(world.core.why(request), Some(WaitReason::Loading { .. })));
}

#[test]
fn rc_8_an_unneeded_model_leaves_after_its_stay_warm_time() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.submit("m", 5);
    world.run_until(s(6));
    let slot = world.core.slots().remove(0);
    let used = slot.last_used;
    assert_eq!(slot.unload_at, Some(used + Duration::from_secs(300)));
    assert_eq!(world.core.next_wake(), slot.unload_at);
    world.run_until(s(304));
    assert!(world.state_of("m").is_some());
    world.run_until(s(306));
    assert_eq!(world.state_of("m"), None);
    assert_eq!(world.verdicts().last().unwrap(), &(Verdict::Unload, "m".to_owned()));
    assert_eq!(world.core.next_wake(), None);
}

#[test]
fn rc_8_the_last_finished_request_decides_and_zero_unloads_right_after() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.submit_with("m", 5, World::keep_for(Duration::ZERO));
    let second = world.submit_with("m", 5, World::keep_for(20 * SECOND));
    world.run_until(s(6));
    // A keep-alive of zero did not unload the model that the second request waited for.
    assert_eq!(world.loads(), 1);
    world.run_until(s(8));
    let ended = world.answered_at(second).unwrap();
    assert_eq!(world.core.slots()[0].unload_at, Some(ended + 20 * SECOND));
    let third = world.submit_with("m", 5, World::keep_for(Duration::ZERO));
    world.run_until(s(11));
    assert_eq!(world.fate(third), &Fate::Answered);
    assert_eq!(world.state_of("m"), None);
}

#[test]
fn rc_8_for_ever_means_at_most_a_day_for_a_request() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.submit_with("m", 5, |submission| submission.keep_alive = Some(KeepAlive::Forever));
    world.run_until(s(80_000));
    assert!(world.state_of("m").is_some());
    world.run_until(s(86_410));
    assert_eq!(world.state_of("m"), None);
}

#[test]
fn rc_10_a_full_queue_refuses_with_a_time_to_try_again() {
    let settings = Settings { max_queued_per_model: 2, max_queued: 3, ..Settings::default() };
    let mut world = World::new(settings, Behaviour::default(), 1);
    world.tell(Event::DeviceObserved(device("cuda:0", 8)));
    world.catalog(vec![model("a", 4), model("b", 4)]);
    world.submit("a", 5);
    world.submit("a", 5);
    let third = world.submit("a", 5);
    world.submit("b", 5);
    let fifth = world.submit("b", 5);
    for refused in [third, fifth] {
        assert_eq!(world.refusal(refused).reason, RefusalReason::QueueFull);
        assert!(world.refusal(refused).retry_after.is_some());
    }
    assert!(world.refusal(third).message.contains("'a'"));
}

#[test]
fn rc_11_a_client_that_leaves_is_taken_out_of_the_queue() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    let first = world.submit("m", 5);
    let second = world.submit("m", 5);
    world.cancel(second);
    world.run_until(s(10));
    assert_eq!(world.dispatched(), [first]);
    assert_eq!(world.fate(second), &Fate::Gone);
}

#[test]
fn rc_11_a_client_that_leaves_as_its_turn_comes_leaves_its_place_to_the_next() {
    let mut world = World::calm(8, vec![concurrent(model("m", 4), 1)]);
    let requests: Vec<RequestId> = (0..10).map(|_| world.submit("m", 5)).collect();
    world.run_until(s(4));
    // All requests but the last are cancelled at their turn, before their dispatch was reported.
    for request in &requests[..9] {
        assert!(matches!(world.fate(*request), Fate::Running(..)), "{request} has its turn");
        world.cancel(*request);
    }
    assert!(matches!(world.fate(requests[9]), Fate::Running(..)));
    assert_eq!((world.core.running(), world.core.queued()), (1, 0));
    let unload = world.unload(None);
    world.run_until(s(8));
    assert_eq!((world.fate(requests[9]), world.fate(unload)), (&Fate::Answered, &Fate::Done));
    assert_eq!(world.core.clients(world.now)[0].running, 0);
}

#[test]
fn an_end_by_the_shells_own_clock_holds_wherever_the_request_is() {
    let mut world = World::calm(8, vec![concurrent(model("m", 4), 1)]);
    let (first, second, third) = (world.submit("m", 5), world.submit("m", 5), world.submit("m", 5));
    world.run_until(s(4));
    // One request waits, and another one's turn has come.
    world.time_is_over(second);
    world.time_is_over(first);
    assert!(matches!(world.fate(third), Fate::Running(..)));
    world.run_until(s(10));
    assert_eq!(world.fate(third), &Fate::Answered);
    assert_eq!((world.core.running(), world.core.queued()), (0, 0));
}

#[test]
fn rc_11_a_load_for_nobody_goes_on_until_somebody_wants_the_memory() {
    let mut world = World::calm(8, vec![model("a", 6), model("b", 6)]);
    let first = world.submit("a", 2);
    world.run_until(s(1));
    world.cancel(first);
    world.run_until(s(2));
    assert!(matches!(world.state_of("a"), Some(SlotState::Loading(_))));
    let second = world.submit("b", 9);
    world.run_until(s(8));
    assert_eq!(world.fate(second), &Fate::Answered);
    assert_eq!(world.state_of("a"), None);
    // The load with one remaining waiter becomes ready, and the model stays warm.
    let third = world.submit("a", 2);
    world.run_for(SECOND);
    world.cancel(third);
    world.run_for(5 * SECOND);
    assert!(matches!(world.state_of("a"), Some(SlotState::Ready(_))));
}

#[test]
fn rc_11_a_cancelled_waiter_gives_up_its_turn_and_its_victims_stay() {
    let mut world = World::calm(8, vec![concurrent(model("a", 6), 1), model("b", 6)]);
    world.behaviour.answer = (30 * SECOND, 30 * SECOND);
    world.submit("a", 8);
    let next = world.submit("a", 8);
    world.run_until(s(5));
    let urgent = world.submit("b", 2);
    assert_eq!(world.core.why(next).unwrap().to_string(), "a is leaving (room for b) and comes back after that");
    assert_eq!(world.core.why(urgent).unwrap().to_string(), "making room on cuda:0: waiting for a");
    world.cancel(urgent);
    assert!(matches!(world.core.why(next), Some(WaitReason::Busy { .. })));
    world.run_until(s(100));
    assert_eq!(world.loads(), 1);
}

#[test]
fn rc_13_a_deadline_is_kept_in_the_queue() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    let late = world.submit_with("m", 5, |submission| submission.deadline = Some(s(2)));
    let in_time = world.submit_with("m", 5, |submission| submission.deadline = Some(s(4)));
    world.run_until(ms(1_999));
    assert_eq!(world.fate(late), &Fate::Waiting);
    world.run_until(s(10));
    assert_eq!(world.refusal(late).reason, RefusalReason::Deadline);
    assert_eq!(world.dispatched(), [in_time]);
    let past = world.submit_with("m", 5, |submission| submission.deadline = Some(s(10)));
    assert_eq!(world.refusal(past).reason, RefusalReason::Deadline);
}

#[test]
fn an_unknown_model_and_a_wrong_category_are_refused() {
    let mut guide = model("guide", 4);
    guide.aliases = vec!["default".into()];
    let mut world = World::calm(8, vec![guide]);
    let unknown = world.submit("giude", 5);
    assert_eq!(world.refusal(unknown).reason, RefusalReason::UnknownModel);
    assert!(world.refusal(unknown).message.contains("did you mean 'guide'?"));
    let wrong = world.submit_with("guide", 5, |submission| submission.category = Category::Embedding);
    assert_eq!(world.refusal(wrong).reason, RefusalReason::WrongKind);
    let alias = world.submit("default", 5);
    world.run_until(s(10));
    assert_eq!(world.fate(alias), &Fate::Answered);
}

#[test]
fn rc_19_only_pins_in_the_way_is_told_at_once() {
    let mut world = World::calm(8, vec![pinned(model("a", 6)), model("b", 6)]);
    world.submit("a", 9);
    world.run_until(s(10));
    let refused = world.submit("b", 0);
    assert_eq!(world.refusal(refused).reason, RefusalReason::Pinned);
    assert!(world.refusal(refused).message.contains("'a' on cuda:0"), "{}", world.refusal(refused).message);
    assert_eq!(world.core.slots()[0].unload_at, None);
}

#[test]
fn a_model_that_fits_nowhere_and_a_device_that_is_not_there() {
    let mut world = World::calm(8, vec![model("huge", 80), on(model("elsewhere", 1), "cuda:7")]);
    let huge = world.submit("huge", 5);
    assert_eq!(world.refusal(huge).reason, RefusalReason::NeverFits);
    let elsewhere = world.submit("elsewhere", 5);
    assert_eq!(world.refusal(elsewhere).reason, RefusalReason::DeviceUnavailable);
    assert_eq!(world.verdicts(), [(Verdict::Refuse, "huge".into()), (Verdict::Refuse, "elsewhere".into())]);
}

#[test]
fn dm_2_auto_takes_the_device_that_it_fills_best() {
    let mut world = World::calm(24, vec![model("m", 6), model("n", 16)]);
    world.tell(Event::DeviceObserved(device("cuda:1", 8)));
    world.tell(Event::DeviceObserved(device("cpu", 64)));
    world.submit("m", 5);
    world.submit("n", 5);
    world.run_until(s(10));
    let place = |name: &str| {
        world.core.slots().into_iter().find(|slot| slot.model.as_str() == name).unwrap().parts[0].0.clone()
    };
    assert_eq!((place("m"), place("n")), (DeviceId::Cuda(1), DeviceId::Cuda(0)));
}

#[test]
fn mm_6_a_busy_model_is_drained_and_never_killed() {
    let mut world = World::calm(8, vec![model("a", 6), model("b", 6)]);
    world.behaviour.answer = (20 * SECOND, 20 * SECOND);
    let running = world.submit("a", 8);
    let behind = world.submit("a", 8);
    world.run_until(s(5));
    let urgent = world.submit("b", 2);
    world.run_until(s(400));
    assert_eq!(world.dispatched(), [running, urgent, behind]);
    assert!(world.answered_at(running).unwrap() < world.answered_at(urgent).unwrap());
    let drain = world.core.decisions().find(|decision| decision.what == Verdict::Drain).unwrap();
    assert_eq!(drain.model.as_str(), "a");
    assert_eq!(drain.reasons[1], "its rank 8 is less important than priority 2");
}

#[test]
fn rc_18_a_more_important_request_calls_off_a_drain() {
    let mut world = World::calm(8, vec![concurrent(model("a", 6), 1), model("b", 6)]);
    world.behaviour.answer = (20 * SECOND, 20 * SECOND);
    let first = world.submit("a", 8);
    world.run_until(s(5));
    let normal = world.submit("b", 5);
    let urgent = world.submit("a", 0);
    assert!(world.verdicts().contains(&(Verdict::Keep, "a".into())));
    world.run_until(s(400));
    assert_eq!(world.dispatched(), [first, urgent, normal]);
}

#[test]
fn rc_18_a_more_important_one_takes_over_the_turn() {
    let mut world = World::calm(8, vec![model("a", 6), model("b", 6), model("c", 6)]);
    world.behaviour.answer = (20 * SECOND, 20 * SECOND);
    world.submit("a", 8);
    world.run_until(s(5));
    let normal = world.submit("b", 5);
    let urgent = world.submit("c", 2);
    assert!(matches!(world.core.why(urgent), Some(WaitReason::Reclaiming { .. })));
    world.run_until(s(300));
    assert!(world.answered_at(urgent).unwrap() < world.answered_at(normal).unwrap());
}

#[test]
fn rc_18_other_loads_proceed_while_a_victim_drains() {
    let mut world = World::calm(10, vec![model("a", 6), model("big", 7), model("small", 2), model("fat", 4)]);
    world.behaviour.answer = (60 * SECOND, 60 * SECOND);
    world.submit("a", 8);
    world.run_until(s(5));
    // 4 GiB are free; `big` counts on 1 of them.
    world.submit("big", 2);
    let fat = world.submit("fat", 2);
    let small = world.submit("small", 9);
    world.run_until(s(9));
    assert!(matches!(world.core.why(fat), Some(WaitReason::Turn { .. })), "{:?}", world.core.why(fat));
    assert!(matches!(world.fate(small), Fate::Running(..)));
}

#[test]
fn mm_7_loads_on_one_device_happen_one_after_another() {
    let mut world = World::calm(16, vec![model("a", 4), model("b", 4)]);
    world.tell(Event::DeviceObserved(device("cuda:1", 3)));
    world.submit("a", 5);
    let second = world.submit("b", 5);
    assert_eq!(world.core.why(second).unwrap().to_string(), "waiting until a is loaded on cuda:0");
    world.run_until(s(7));
    assert_eq!(world.loads(), 2);
}

#[test]
fn mm_7_a_model_loaded_for_a_request_is_not_evicted_before_it_started() {
    let mut world = World::calm(8, vec![model("a", 6), model("b", 6)]);
    let cause = world.submit("a", 9);
    world.run_until(s(1));
    let ahead = world.submit("a", 8);
    world.run_until(s(4));
    assert!(matches!(world.fate(ahead), Fate::Running(..)));
    let urgent = world.submit("b", 2);
    match world.core.why(urgent).unwrap() {
        WaitReason::Capacity { blockers, .. } => {
            assert_eq!(blockers[0].why.to_string(), "loaded for a request that has not started");
        }
        other => panic!("{other}"),
    }
    let behind = world.submit("a", 9);
    world.run_until(s(7));
    assert_eq!(world.core.why(behind).unwrap().to_string(), "a is leaving (room for b) and comes back after that");
    world.run_until(s(400));
    assert_eq!(world.dispatched(), [ahead, cause, urgent, behind]);
}

#[test]
fn rc_18_a_cause_that_is_cancelled_protects_no_longer() {
    let mut world = World::calm(8, vec![model("a", 6), model("b", 6)]);
    let cause = world.submit("a", 9);
    world.run_until(s(1));
    world.submit("a", 8);
    world.run_until(s(4));
    let urgent = world.submit("b", 2);
    assert!(matches!(world.core.why(urgent), Some(WaitReason::Capacity { .. })));
    world.cancel(cause);
    assert_eq!(world.core.why(urgent).unwrap().to_string(), "making room on cuda:0: waiting for a");
}

#[test]
fn lease_refusals_wait_their_time_or_for_any_lease_change() {
    let mut world = World::calm(16, vec![model("a", 4), model("b", 4)]);
    world.submit("b", 5);
    world.run_until(s(10));
    world.behaviour.refuse_lease = 1_000;
    let waiting = world.submit("a", 5);
    world.run_for(Duration::from_millis(1));
    assert!(matches!(world.core.why(waiting), Some(WaitReason::LeaseRefused { .. })));
    world.run_for(20 * SECOND);
    world.behaviour.refuse_lease = 0;
    world.unload(Some("b"));
    world.run_for(Duration::from_millis(150));
    assert!(matches!(world.core.why(waiting), Some(WaitReason::Loading { .. })));
    // The ledger saw the same requester all the time.
    let asked = world.log.iter().filter_map(|(_, effect)| match effect {
        Effect::AcquireLease { model, slot, .. } if model.as_str() == "a" => Some(slot.generation),
        _ => None,
    });
    assert!(asked.clone().count() > 5);
    assert!(asked.into_iter().all(|generation| generation == Generation(1)));
}

#[test]
fn rc_14_news_of_an_earlier_filling_means_nothing() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.submit("m", 5);
    world.run_until(s(6));
    world.unload(None);
    world.run_until(s(7));
    let again = world.submit("m", 5);
    world.run_until(s(8));
    let slot = SlotKey { id: SlotId(0), generation: Generation(1) };
    world.tell(Event::WorkerReady { slot, context_length: None, cores: None });
    world.tell(Event::LeaseReleased { slot });
    world.tell(Event::WorkerReady { slot: SlotKey { id: SlotId(77), ..slot }, context_length: None, cores: None });
    world.tell(Event::Finished { request: RequestId(4_711), outcome: RequestOutcome::Answered, tokens: None });
    assert!(matches!(world.state_of("m"), Some(SlotState::Loading(_))));
    world.run_until(s(20));
    assert_eq!(world.fate(again), &Fate::Answered);
}

#[test]
fn mm_10_load_and_unload() {
    let mut world = World::calm(8, vec![model("m", 4), model("n", 4)]);
    let not_loaded = world.unload(Some("m"));
    assert_eq!(world.refusal(not_loaded).reason, RefusalReason::NotLoaded);
    let unknown = world.unload(Some("x"));
    assert_eq!(world.refusal(unknown).reason, RefusalReason::UnknownModel);
    let nothing = world.unload(None);
    assert_eq!(world.fate(nothing), &Fate::Done);
    let load = world.load("m");
    world.run_until(s(2));
    assert_eq!(world.fate(load), &Fate::Waiting);
    world.run_until(s(4));
    assert_eq!(world.fate(load), &Fate::Done);
    let again = world.load("m");
    assert_eq!(world.fate(again), &Fate::Done);
    let running = world.submit("m", 5);
    let unload = world.unload(Some("m"));
    world.run_until(s(5));
    assert_eq!(world.fate(unload), &Fate::Waiting);
    world.run_until(s(7));
    assert_eq!((world.fate(running), world.fate(unload)), (&Fate::Answered, &Fate::Done));
    assert!(world.core.slots().is_empty());
}

#[test]
fn tr_5_a_changed_model_is_replaced_when_idle_and_a_removed_one_ends_what_runs() {
    let mut world = World::calm(16, vec![model("m", 4), model("n", 4)]);
    let (m, n) = (world.submit("m", 5), world.submit("n", 5));
    world.run_until(s(7));
    let waiting = world.submit("n", 5);
    let mut changed = model("m", 5);
    changed.revision = 2;
    world.catalog(vec![changed]);
    assert_eq!(world.refusal(waiting).reason, RefusalReason::UnknownModel);
    world.run_until(s(9));
    assert_eq!((world.fate(m), world.fate(n)), (&Fate::Answered, &Fate::Answered));
    assert!(world.core.slots().is_empty());
    world.submit("m", 5);
    world.run_until(s(14));
    assert_eq!(world.core.slots()[0].parts[0].1, ByteCount::gib(5));
    let gone = world.submit("n", 5);
    assert_eq!(world.refusal(gone).reason, RefusalReason::UnknownModel);
}

#[test]
fn at_the_end_what_runs_and_what_its_model_is_ready_for_is_finished_and_the_rest_is_told() {
    let mut world = World::calm(16, vec![model("ready", 4), model("loading", 4), model("cold", 4)]);
    let running = world.submit("ready", 5);
    let accepted = world.submit("ready", 5);
    world.run_until(s(4));
    let loading = world.submit("loading", 5);
    let cold = world.submit("cold", 5);
    let load = world.load("cold");
    world.tell(Event::Drain);
    let late = world.submit("ready", 0);
    world.run_to_the_end();
    assert_eq!((world.fate(running), world.fate(accepted)), (&Fate::Answered, &Fate::Answered));
    for refused in [loading, cold, load, late] {
        assert_eq!(world.refusal(refused).reason, RefusalReason::Draining);
    }
}

#[test]
fn an_idle_process_ends_at_once() {
    let mut world = World::calm(16, vec![model("m", 4)]);
    world.tell(Event::Drain);
    assert!(world.drained);
}

#[test]
fn the_views_show_what_is() {
    let mut world = World::calm(8, vec![model("m", 6), model("n", 6)]);
    world.submit("m", 2);
    world.run_until(ms(2_000));
    let view = world.core.model("m").unwrap();
    assert_eq!((view.status, view.progress, view.queued), (ModelStatus::Loading, Some(0.5), 1));
    world.run_until(ms(3_500));
    world.submit("n", 5);
    assert_eq!(world.core.model("m").unwrap().status, ModelStatus::Loaded);
    assert_eq!(world.core.model("n").unwrap().status, ModelStatus::Unloaded);
    let device = world.core.devices().remove(0);
    assert_eq!((device.charged, device.free), (ByteCount::gib(6), Some(ByteCount::gib(2))));
    let json =
        serde_json::to_value((world.core.slots(), world.core.queue(world.now, 0..usize::MAX), world.core.devices()))
            .unwrap();
    assert_eq!(json[0][0]["state"], "ready");
    assert_eq!(json[0][0]["phase"], "serving");
    assert_eq!(json[1][0]["wait"]["reason"], "capacity");
    assert_eq!(json[2][0]["models"][0], "m");
    let decisions = serde_json::to_value(world.core.decisions().collect::<Vec<_>>()).unwrap();
    assert_eq!(decisions[0]["what"], "load");
}
