//! Failures of workers, files and devices, and the scheduler's recovery from them.

use super::*;
use crate::refusal::RefusalReason;

#[test]
fn a_request_whose_worker_died_before_its_answer_is_answered_by_the_next_one() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.submit("m", 5);
    world.run_until(s(6));
    // A simulated death happens before the first byte of some answers and within others. The loop searches for a death
    // of the first kind.
    for _ in 0..20 {
        let request = world.submit("m", 5);
        world.run_for(SECOND);
        world.kill("m");
        world.run_for(20 * SECOND);
        match world.fate(request) {
            Fate::Answered => return,
            Fate::Cut => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no request was lost before its answer");
}

#[test]
fn where_there_is_room_a_crashed_model_is_loaded_again_before_the_old_bytes_are_back() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.submit("m", 5);
    world.run_until(s(6));
    world.kill("m");
    let request = world.submit("m", 5);
    world.run_for(20 * SECOND);
    assert!(matches!(world.fate(request), Fate::Answered));
    let moment = |wanted: fn(&Effect) -> bool| {
        let mut moments = world.log.iter().filter(|(_, effect)| wanted(effect)).map(|(at, _)| *at);
        moments.next_back().unwrap()
    };
    let released = moment(|effect| matches!(effect, Effect::ReleaseLease { slot: SlotKey { id: SlotId(0), .. } }));
    let acquired = moment(|effect| matches!(effect, Effect::AcquireLease { slot: SlotKey { id: SlotId(1), .. }, .. }));
    assert_eq!(released, acquired);
}

/// Reports a worker's exit and its lost request in one of the two orders, without the simulated world.
fn lost_in_order(exit_first: bool) {
    let mut core = crate::Scheduler::new(Settings::default(), s(0));
    core.handle(s(0), Event::DeviceObserved(device("cuda:0", 8)));
    core.handle(s(0), Event::Catalog(vec![model("m", 4)]));
    let (slot, request) = (SlotKey { id: SlotId(0), generation: Generation(1) }, RequestId(1));
    let submission = crate::Submission {
        id: request,
        ladder: "m".into(),
        category: Category::Llm,
        client: "c".into(),
        priority: None,
        deadline: None,
        keep_alive: None,
        work: None,
    };
    core.handle(s(0), Order::Submit(submission));
    core.handle(s(0), Event::LeaseGranted { slot });
    core.handle(s(1), Event::WorkerStarted { slot, pid: 1, port: 1 });
    let effects = core.handle(s(2), Event::WorkerReady { slot, context_length: None, cores: None });
    assert!(matches!(effects[..], [Effect::Dispatch { .. }]));
    let exit = crate::ExitReport { reason: None, description: "killed by signal 9".into(), last_lines: Vec::new() };
    let exited = Event::WorkerExited { slot, exit };
    let lost = Event::Finished { request, outcome: RequestOutcome::LostBeforeAnswer, tokens: None };
    let release = Effect::ReleaseLease { slot };
    if exit_first {
        assert_eq!(core.handle(s(3), exited), [release]);
        assert_eq!(core.handle(s(3), lost), []);
    } else {
        // The worker's exit is not reported yet, and still no request is dispatched to it.
        assert_eq!(core.handle(s(3), lost), []);
        assert!(matches!(core.why(request), Some(WaitReason::WorkerLost { .. })));
        assert_eq!(core.handle(s(3), exited), [release]);
    }
    assert!(matches!(core.why(request), Some(WaitReason::BackingOff { .. })));
    assert_eq!(core.handle(s(3), Event::LeaseReleased { slot }), []);
    let effects = core.handle(s(4), Event::Tick);
    assert!(
        matches!(effects[..], [Effect::AcquireLease { slot: SlotKey { generation: Generation(2), .. }, .. }]),
        "{effects:?}"
    );
}

#[test]
fn the_news_of_a_death_may_come_in_either_order() {
    lost_in_order(true);
    lost_in_order(false);
}

#[test]
fn a_request_that_kills_its_worker_is_tried_three_times_again_and_then_told() {
    // Two requests at once: the quick one keeps the other from counting as one that never answers.
    let settings = Settings { max_load_attempts: 100, ..Settings::default() };
    let mut world = World::new(settings, Behaviour::default(), 3);
    world.tell(Event::DeviceObserved(device("cuda:0", 8)));
    world.catalog(vec![model("m", 4)]);
    world.behaviour.crash = 1_000;
    let mut told = 0;
    for _ in 0..20 {
        let request = world.submit("m", 5);
        world.run_for(2_000 * SECOND);
        let tries = world.dispatched().iter().filter(|dispatched| **dispatched == request).count();
        match world.fate(request) {
            Fate::Cut => assert!(tries <= 4),
            Fate::Refused(error) => {
                assert_eq!(error.reason, RefusalReason::WorkerCrashed);
                assert!(error.message.contains("killed by signal 9: the worker's last words"), "{}", error.message);
                assert_eq!(tries, 4);
                told += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(told > 0);
}

#[test]
fn a_bad_file_is_told_at_once_with_the_workers_last_words_until_it_changes() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.behaviour.bad.insert("m".into());
    let first = world.submit("m", 5);
    let second = world.submit("m", 2);
    world.run_until(s(10));
    for refused in [first, second] {
        assert_eq!(world.refusal(refused).reason, RefusalReason::LoadFailed);
        assert!(world.refusal(refused).message.contains("exit code 65: the worker's last words"));
    }
    assert_eq!(world.core.model("m").unwrap().status, ModelStatus::Failed);
    let third = world.submit("m", 5);
    assert_eq!(world.refusal(third).reason, RefusalReason::LoadFailed);
    world.run_until(s(1_000));
    assert_eq!(world.loads(), 1);
    world.behaviour.bad.clear();
    let mut changed = model("m", 4);
    changed.revision = 2;
    world.catalog(vec![changed]);
    let fourth = world.submit("m", 5);
    world.run_for(10 * SECOND);
    assert_eq!(world.fate(fourth), &Fate::Answered);
    assert_eq!(world.core.model("m").unwrap().status, ModelStatus::Loaded);
}

#[test]
fn an_operator_may_try_a_bad_file_again() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.behaviour.bad.insert("m".into());
    world.submit("m", 5);
    world.run_until(s(10));
    world.behaviour.bad.clear();
    let load = world.load("m");
    world.run_until(s(20));
    assert_eq!(world.fate(load), &Fate::Done);
}

#[test]
fn a_model_that_keeps_failing_backs_off() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.behaviour.fail_load = 1_000;
    let waiting = world.submit("m", 5);
    world.run_until(s(60));
    assert_eq!(world.loads(), 3);
    assert_eq!(world.refusal(waiting).reason, RefusalReason::LoadFailed);
    // The backoff after the third failure is over; the next request is the probe.
    let probe = world.submit("m", 5);
    assert_eq!(world.fate(probe), &Fate::Waiting);
    world.run_for(3 * SECOND);
    assert_eq!(world.refusal(probe).reason, RefusalReason::LoadFailed);
    let newcomer = world.submit("m", 5);
    let error = world.refusal(newcomer);
    assert_eq!(error.reason, RefusalReason::BackingOff);
    assert!(error.retry_after.is_some_and(|wait| wait <= 8 * SECOND), "{error:?}");
    world.behaviour.fail_load = 0;
    world.run_for(10 * SECOND);
    let request = world.submit("m", 5);
    world.run_for(10 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
}

#[test]
fn waiting_for_a_back_off_is_said_in_words() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.behaviour.fail_load = 1_000;
    let waiting = world.submit("m", 5);
    while !matches!(world.core.why(waiting), Some(WaitReason::BackingOff { .. })) {
        world.run_for(Duration::from_millis(10));
    }
    let text = world.core.why(waiting).unwrap().to_string();
    assert!(text.starts_with("m failed 1 times in a row, next try in 1 s: "), "{text}");
}

#[test]
fn a_lost_connection_to_a_worker_that_lives_pauses_its_slot_and_no_more() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    let request = world.submit("m", 5);
    world.run_until(s(4));
    let Fate::Running(slot) = *world.fate(request) else { panic!() };
    world.fates.insert(request, Fate::Waiting);
    world.tell(Event::Finished { request, outcome: RequestOutcome::LostBeforeAnswer, tokens: None });
    assert_eq!(world.dispatched().len(), 1);
    world.run_until(s(6));
    assert_eq!(world.dispatched(), [request, request]);
    assert_eq!(world.core.slots()[0].id, slot.id);
    assert_eq!(world.loads(), 1);
}

fn away() -> Event {
    Event::Ledger(LedgerState::Away { detail: "no connection".into() })
}

#[test]
fn le_1_without_its_ledger_what_is_loaded_serves_on_and_nothing_is_loaded_or_evicted() {
    let mut world = World::calm(8, vec![model("warm", 4), model("cold", 6)]);
    world.submit("warm", 5);
    world.run_until(s(6));
    world.tell(away());
    // An idle model that is far less important, and whose memory is needed, is not evicted, even after its stay-warm
    // time.
    let waits = world.submit("cold", 0);
    world.run_for(SECOND);
    let reason = world.core.why(waits).unwrap();
    assert!(matches!(&reason, WaitReason::LedgerAway { detail } if detail == "no connection"), "{reason}");
    for _ in 0..20 {
        let request = world.submit("warm", 9);
        world.run_for(20 * SECOND);
        assert!(matches!(world.fate(request), Fate::Answered));
    }
    world.run_for(3_600 * SECOND);
    assert_eq!(world.loads(), 1);
    assert!(world.state_of("warm").is_some(), "it could not come back");
    let error = world.refusal(waits);
    assert_eq!(error.reason, RefusalReason::LedgerAway);
    assert!(error.retry_after.is_some() && error.message.contains("no connection"), "{error}");
    world.tell(Event::Ledger(LedgerState::Open));
    let served = world.submit("cold", 0);
    world.run_for(20 * SECOND);
    assert!(matches!(world.fate(served), Fate::Answered));
}

#[test]
fn le_1_whoever_waits_for_the_ledger_is_served_when_it_is_back_in_time() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.tell(away());
    let request = world.submit("m", 5);
    world.run_for(20 * SECOND);
    world.tell(Event::Ledger(LedgerState::Recovering { left: 21 * SECOND }));
    world.run_for(SECOND);
    world.tell(Event::Tick);
    let reason = world.core.why(request).unwrap().to_string();
    assert!(reason.contains("20 s more"), "{reason}");
    world.run_for(19 * SECOND);
    world.tell(Event::Ledger(LedgerState::Open));
    world.run_for(10 * SECOND);
    assert!(matches!(world.fate(request), Fate::Answered));
}

#[test]
fn le_1_a_ledger_that_is_back_for_moments_only_does_not_begin_the_patience_anew() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.behaviour.refuse_lease = 1_000;
    let begun = world.now;
    world.tell(away());
    let request = world.submit("m", 5);
    // The ledger is open for one second in four.
    while world.now < begun + 41 * SECOND && matches!(world.fate(request), Fate::Waiting) {
        world.run_for(3 * SECOND);
        world.tell(Event::Ledger(LedgerState::Open));
        world.run_for(SECOND);
        world.tell(away());
    }
    assert_eq!(world.refusal(request).reason, RefusalReason::LedgerAway);
    // A request that arrives long after the ledger was reachable again has its full patience.
    world.tell(Event::Ledger(LedgerState::Open));
    let request = world.submit("m", 5);
    world.run_for(60 * SECOND);
    world.tell(away());
    world.run_for(29 * SECOND);
    assert!(matches!(world.fate(request), Fate::Waiting));
    world.run_for(2 * SECOND);
    assert_eq!(world.refusal(request).reason, RefusalReason::LedgerAway);
}

#[test]
fn le_1_a_process_that_ends_does_not_wait_for_a_ledger_that_is_away() {
    let mut core = crate::Scheduler::new(Settings::default(), s(0));
    core.handle(s(0), Event::DeviceObserved(device("cuda:0", 8)));
    core.handle(s(0), Event::Catalog(vec![model("m", 4)]));
    let (slot, request) = (SlotKey { id: SlotId(0), generation: Generation(1) }, RequestId(1));
    core.handle(
        s(0),
        Order::Load { request, by: crate::Principal::Operator, model: "m".into(), options: Box::default() },
    );
    core.handle(s(0), Event::LeaseGranted { slot });
    core.handle(s(1), Event::WorkerStarted { slot, pid: 1, port: 1 });
    core.handle(s(2), Event::WorkerReady { slot, context_length: None, cores: None });
    core.handle(s(3), away());
    assert_eq!(core.handle(s(4), Event::Drain), [Effect::Stop { slot, parks: true, successor: None }]);
    let exit = crate::ExitReport { reason: None, description: "exit code 0".into(), last_lines: Vec::new() };
    // The slot's process has exited, and its lease cannot be released.
    let ended = core.handle(s(5), Event::WorkerExited { slot, exit });
    assert_eq!(ended, [Effect::ReleaseLease { slot }, Effect::Drained]);
}
