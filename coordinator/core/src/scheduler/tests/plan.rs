//! Plans (`POST /api/v1/plan`): the predicted step, and that a real request then takes it.

use super::*;
use crate::refusal::RefusalReason;
use crate::{Ladder, PlanQuestion, PlannedStep, Rung, Target};

fn plan(world: &World, model: &str, priority: u8) -> PlannedStep {
    let question = PlanQuestion {
        ladder: model.into(),
        priority: Some(Priority::new(priority).unwrap()),
        ..PlanQuestion::default()
    };
    world.core.plan(world.now, &question).unwrap().step
}

fn gpu(gib: u64) -> Vec<(DeviceId, ByteCount)> {
    vec![(DeviceId::Cuda(0), ByteCount::gib(gib))]
}

#[test]
fn a_ladder_of_embedding_models_is_planned_as_what_it_is() {
    let embeds = |name| ModelDescription { category: Category::Embedding, ..model(name, 4) };
    let world = World::calm(8, vec![embeds("small"), embeds("large")]);
    let rungs = ["small", "large"].into_iter().enumerate();
    let mut rungs = rungs.map(|(position, name)| Rung { target: Target::Local(name.into()), position });
    let first = rungs.next().unwrap();
    let ladder = Ladder { rest: rungs.collect(), ..Ladder { first, ..Ladder::from("") } };
    let planned = world.core.plan(world.now, &PlanQuestion { ladder, ..PlanQuestion::default() }).unwrap();
    assert!(planned.ladder.iter().all(|rung| rung.usable), "{:?}", planned.ladder);
    assert_eq!(planned.step, PlannedStep::Load { parts: gpu(4) });
}

#[test]
fn a_plan_is_what_then_happens() {
    let mut world = World::calm(8, vec![model("a", 4), model("b", 6), pinned(model("c", 4)), model("d", 6)]);
    assert_eq!(plan(&world, "a", 5), PlannedStep::Load { parts: gpu(4) });
    let request = world.submit("a", 5);
    let PlannedStep::Wait { parts, wait: WaitReason::Loading { .. } } = plan(&world, "a", 5) else { panic!("loading") };
    assert_eq!(parts, gpu(4));
    world.run_until(s(4));
    assert!(matches!(plan(&world, "a", 5), PlannedStep::Wait { wait: WaitReason::Busy { .. }, .. }));
    // A request less important than the running one would wait, for the reason that a real one is given.
    let PlannedStep::Wait { wait, .. } = plan(&world, "b", 8) else { panic!("nobody may be sent away for it") };
    let batch = world.submit("b", 8);
    assert_eq!(world.core.why(batch), Some(wait));
    world.cancel(batch);
    // A more important request would evict the victim that a real one evicts, by the same right.
    let PlannedStep::Evict { parts, evictions, .. } = plan(&world, "b", 2) else { panic!("it may send 'a' away") };
    assert_eq!(parts, gpu(6));
    assert_eq!((evictions.len(), evictions[0].drains), (1, true));
    let urgent = world.submit("b", 2);
    let drain = world.core.decisions().rev().find(|decision| decision.what == Verdict::Drain).unwrap();
    assert_eq!(drain.model.as_str(), "a");
    assert!(drain.reasons.contains(&evictions[0].why), "{:?} has not {:?}", drain.reasons, evictions[0].why);
    world.run_until(s(60));
    assert_eq!((world.fate(request), world.fate(urgent)), (&Fate::Answered, &Fate::Answered));
    assert_eq!(plan(&world, "b", 5), PlannedStep::Serve { parts: gpu(6) });
}

#[test]
fn a_plan_names_size_rule_times_and_who_goes_first() {
    let mut world = World::calm(8, vec![model("a", 4)]);
    for _ in 0..5 {
        world.submit("a", 5);
        world.run_for(Duration::from_secs(10));
    }
    world.unload(None);
    world.run_for(SECOND);
    let question = PlanQuestion { ladder: "a".into(), ..PlanQuestion::default() };
    let view = world.core.plan(world.now, &question).unwrap();
    assert_eq!((view.size, view.size_rule), (ByteCount::gib(4), crate::SizeRule::Manifest));
    assert_eq!(view.expected_load.map(|span| span.as_secs()), Some(3));
    assert_eq!(view.expected_answer.map(|span| span.as_secs()), Some(2));
    assert_eq!(view.message, "loaded at once: 4.00 GiB on cuda:0");
    world.submit("a", 8);
    world.submit("a", 5);
    assert_eq!(world.core.plan(world.now, &question).unwrap().before_it, 1);
    let json = serde_json::to_value(world.core.plan(world.now, &question).unwrap()).unwrap();
    assert_eq!((json["step"].as_str(), json["wait"]["reason"].as_str()), (Some("wait"), Some("loading")));
}

#[test]
fn a_plan_that_can_never_be_is_refused_like_the_request() {
    let mut world = World::calm(8, vec![model("huge", 80)]);
    let question = |name: &str| PlanQuestion { ladder: name.into(), ..PlanQuestion::default() };
    let error = world.core.plan(world.now, &question("huge")).unwrap_err();
    let request = world.submit("huge", 5);
    assert_eq!(world.refusal(request), &error);
    assert_eq!(world.core.plan(world.now, &question("hug")).unwrap_err().reason, RefusalReason::UnknownModel);
    let elsewhere = PlanQuestion { device: Some(DeviceId::Cuda(7)), ..question("huge") };
    assert_eq!(world.core.plan(world.now, &elsewhere).unwrap_err().reason, RefusalReason::DeviceUnavailable);
}
