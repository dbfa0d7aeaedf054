//! The cancelling of requests by orders (OP-2).

use super::*;
use crate::Principal;

fn of(world: &mut World, model: &str, client: &'static str) -> RequestId {
    world.submit_with(model, 5, |submission| submission.client = client.into())
}

fn reason(world: &World, request: RequestId) -> RefusalReason {
    match world.fate(request) {
        Fate::Refused(error) => error.reason.clone(),
        other => panic!("{request} is not refused: {other:?}"),
    }
}

#[test]
fn op_2_a_waiting_request_that_is_cancelled_gets_an_error_and_causes_no_load() {
    let mut world = World::calm(4, vec![model("m", 4), model("n", 4)]);
    world.submit("m", 5);
    world.run_until(s(1));
    let waits = world.submit("n", 5);
    let order = world.cancel_by(Principal::Operator, waits);
    assert_eq!(world.fate(order), &Fate::Done);
    assert_eq!(reason(&world, waits), RefusalReason::Cancelled);
    world.run_until(s(60));
    assert!(world.core.decisions().all(|decision| decision.model.as_str() != "n"));
    assert_eq!(world.core.queued(), 0);
}

#[test]
fn op_2_a_running_request_is_recalled_and_its_place_is_free() {
    let mut world = World::calm(4, vec![model("m", 4)]);
    world.behaviour.answer = (60 * SECOND, 60 * SECOND);
    let (runs, waits) = (of(&mut world, "m", "a"), of(&mut world, "m", "b"));
    world.run_until(s(10));
    let shown = world.core.running_requests(world.now);
    assert_eq!((shown.len(), shown[0].id, shown[0].client.name(), shown[0].model.as_str()), (1, runs, "a", "m"));
    assert!(shown[0].ran > Duration::ZERO && shown[0].slot.is_some());
    let order = world.cancel_by(Principal::Operator, runs);
    assert_eq!((world.fate(order), reason(&world, runs)), (&Fate::Done, RefusalReason::Cancelled));
    assert!(matches!(world.fate(waits), Fate::Running(..)), "{:?}", world.fate(waits));
    let clients = world.core.clients(world.now);
    let ended = clients.iter().find(|client| client.id.name() == "a").unwrap().recent.last().unwrap().outcome;
    assert_eq!(ended, RequestOutcome::Cancelled);
}

#[test]
fn op_2_a_load_that_waits_can_be_cancelled() {
    let mut world = World::calm(4, vec![model("m", 4)]);
    world.behaviour.load = (60 * SECOND, 60 * SECOND);
    let load = world.load("m");
    world.run_until(s(1));
    world.cancel_by(Principal::Operator, load);
    assert_eq!(reason(&world, load), RefusalReason::Cancelled);
}

#[test]
fn op_2_a_client_cancels_only_requests_of_its_own() {
    let mut world = World::calm(4, vec![model("m", 4)]);
    let mine = of(&mut world, "m", "a");
    let by = |name: &str| Principal::Client(name.into());
    let order = world.cancel_by(by("b"), mine);
    assert_eq!(reason(&world, order), RefusalReason::NotYours);
    assert!(world.fate(mine).is_open());
    let order = world.cancel_by(by("a"), mine);
    assert_eq!((world.fate(order), reason(&world, mine)), (&Fate::Done, RefusalReason::Cancelled));
    let order = world.cancel_by(Principal::Operator, mine);
    assert_eq!(reason(&world, order), RefusalReason::UnknownRequest);
}
