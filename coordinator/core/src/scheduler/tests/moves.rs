//! Moves under load, and loads with other options (DM-5, RC-29).

use model_boss_protocol::{LlamaArgs, WorkerExit};

use super::*;
use crate::refusal::RefusalReason;
use crate::{EngineOptions, LoadOptions, ModelDescription, SizeEstimate, SizeRule, SlotView};

/// A world of two GPUs in which `m` is ready on the first.
fn two_gpus(models: Vec<ModelDescription>) -> World {
    let mut world = World::calm(12, models);
    world.load("m");
    world.run_until(s(4));
    world.tell(Event::DeviceObserved(device("cuda:1", 12)));
    world
}

fn serving(world: &World, model: &str) -> SlotView {
    let serves = |slot: &SlotView| slot.model.as_str() == model && slot.leaving.is_none() && !slot.moving;
    world.core.slots().into_iter().rfind(serves).unwrap()
}

fn place(world: &World, model: &str) -> DeviceId {
    serving(world, model).parts[0].0.clone()
}

#[test]
fn dm_5_requests_before_during_and_after_a_move_are_served_and_the_old_copy_leaves() {
    let mut world = two_gpus(vec![concurrent(model("m", 4), 2)]);
    world.behaviour.answer = (5 * SECOND, 5 * SECOND);
    let before = world.submit("m", 5);
    let moved = world.move_to("m", "cuda:1", false, 2);
    let during = world.submit("m", 5);
    world.run_for(SECOND);
    assert!(matches!(world.fate(during), Fate::Running(..)));
    assert_eq!(world.core.slots().len(), 2);
    assert_eq!(world.core.model("m").unwrap().status, ModelStatus::Loaded);
    world.run_for(3 * SECOND);
    assert_eq!(world.fate(moved), &Fate::Done);
    assert!(matches!(world.fate(before), Fate::Running(..)));
    let after = world.submit("m", 5);
    let Fate::Running(slot) = *world.fate(after) else { panic!("{:?}", world.fate(after)) };
    assert_eq!(serving(&world, "m").id, slot.id);
    world.run_for(10 * SECOND);
    for request in [before, during, after] {
        assert_eq!(world.fate(request), &Fate::Answered);
    }
    assert_eq!(world.core.slots().len(), 1);
    assert_eq!(place(&world, "m"), DeviceId::Cuda(1));
    assert_eq!(world.verdicts().iter().filter(|(what, _)| *what == Verdict::Move).count(), 1);
}

#[test]
fn dm_5_a_move_to_where_it_is_is_done_at_once_and_what_cannot_be_is_told() {
    let mut world = two_gpus(vec![model("m", 4), model("cold", 4)]);
    let there = world.move_to("m", "cuda:0", false, 2);
    assert_eq!(world.fate(there), &Fate::Done);
    for (name, device, code) in [
        ("x", "cuda:1", RefusalReason::UnknownModel),
        ("cold", "cuda:1", RefusalReason::NotLoaded),
        ("m", "cuda:9", RefusalReason::DeviceUnavailable),
        ("m", "auto", RefusalReason::NoDevice),
    ] {
        let refused = world.move_to(name, device, false, 2);
        assert_eq!(world.refusal(refused).reason, code, "{name} to {device}");
    }
    assert_eq!(world.core.slots().len(), 1);
}

#[test]
fn dm_5_without_room_nothing_changes_and_evict_makes_room_by_rc_18() {
    let mut world = two_gpus(vec![model("m", 6), on(model("other", 10), "cuda:1")]);
    world.submit("other", 5);
    world.run_for(10 * SECOND);
    let refused = world.move_to("m", "cuda:1", false, 2);
    let error = world.refusal(refused);
    assert_eq!(error.reason, RefusalReason::MoveFailed { by_worker: false });
    assert!(error.message.contains("needs 6.00 GiB, 2.00 GiB free"), "{}", error.message);
    assert!(error.message.ends_with("it is still on cuda:0"), "{}", error.message);
    let too_unimportant = world.move_to("m", "cuda:1", true, 9);
    assert_eq!(world.refusal(too_unimportant).reason, RefusalReason::MoveFailed { by_worker: false });
    assert_eq!(world.core.slots().len(), 2);
    let moved = world.move_to("m", "cuda:1", true, 2);
    world.run_for(5 * SECOND);
    assert_eq!(world.fate(moved), &Fate::Done);
    assert_eq!(place(&world, "m"), DeviceId::Cuda(1));
    assert!(world.verdicts().contains(&(Verdict::Evict, "other".into())));
}

#[test]
fn dm_5_a_failed_second_copy_leaves_the_first_serving() {
    let mut world = two_gpus(vec![model("m", 4)]);
    let moved = world.move_to("m", "cuda:1", false, 2);
    world.run_for(SECOND);
    world.exit_if_loading("m", Some(WorkerExit::OutOfMemory));
    world.run_for(SECOND);
    assert_eq!(world.refusal(moved).reason, RefusalReason::MoveFailed { by_worker: true });
    assert!(world.refusal(moved).message.contains("exit code 71"), "{}", world.refusal(moved).message);
    assert_eq!((world.core.slots().len(), place(&world, "m")), (1, DeviceId::Cuda(0)));
    let request = world.submit("m", 5);
    world.run_for(3 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(world.core.model("m").unwrap().failure, None);
}

#[test]
fn dm_5_a_caller_that_leaves_does_not_cancel_the_move() {
    let mut world = two_gpus(vec![model("m", 4)]);
    let moved = world.move_to("m", "cuda:1", false, 2);
    world.run_for(SECOND);
    world.cancel(moved);
    world.run_for(5 * SECOND);
    assert_eq!(place(&world, "m"), DeviceId::Cuda(1));
}

#[test]
fn dm_5_when_the_first_copy_dies_the_second_is_the_models_load() {
    let mut world = two_gpus(vec![model("m", 4)]);
    let moved = world.move_to("m", "cuda:1", false, 2);
    world.run_for(SECOND);
    world.kill("m");
    world.run_for(SECOND / 10);
    let request = world.submit("m", 5);
    assert!(matches!(world.core.why(request), Some(WaitReason::Loading { .. })), "{:?}", world.core.why(request));
    world.run_for(10 * SECOND);
    assert_eq!((world.fate(moved), world.fate(request)), (&Fate::Done, &Fate::Answered));
    assert_eq!(world.loads(), 2);
}

#[test]
fn dm_5_an_unload_ends_a_move_and_two_moves_of_one_model_do_not_mix() {
    let mut world = two_gpus(vec![model("m", 4)]);
    world.tell(Event::DeviceObserved(device("cuda:2", 12)));
    let first = world.move_to("m", "cuda:1", false, 2);
    let joined = world.move_to("m", "cuda:1", false, 2);
    let elsewhere = world.move_to("m", "cuda:2", false, 2);
    assert_eq!(world.refusal(elsewhere).reason, RefusalReason::MoveFailed { by_worker: false });
    world.run_for(SECOND);
    let unload = world.unload(Some("m"));
    world.run_for(SECOND);
    for refused in [first, joined] {
        assert!(world.refusal(refused).message.contains("it was unloaded"), "{}", world.refusal(refused).message);
    }
    assert_eq!(world.fate(unload), &Fate::Done);
    assert!(world.core.slots().is_empty());
}

fn context(tokens: u64, gib: u64) -> LoadOptions {
    let size = SizeEstimate { bytes: ByteCount::gib(gib), rule: SizeRule::Manifest, streamed: None };
    LoadOptions { context: Some(tokens), size: Some(size), ..LoadOptions::default() }
}

#[test]
fn rc_29_a_smaller_or_unset_context_never_reloads() {
    let mut world = World::calm(12, vec![model("m", 4)]);
    world.load_with("m", context(512, 4));
    world.run_until(s(4));
    for options in [context(256, 3), context(512, 4), LoadOptions::default()] {
        let load = world.load_with("m", options);
        assert_eq!(world.fate(load), &Fate::Done);
    }
    assert_eq!(world.loads(), 1);
}

#[test]
fn mm_11_other_engine_options_load_again_and_the_same_do_not() {
    let mut world = World::calm(12, vec![model("m", 4)]);
    let with = |args: Option<&str>, build: Option<&str>| LoadOptions {
        engine: EngineOptions { args: args.map(LlamaArgs::from_line), build: build.map(str::to_owned) },
        ..LoadOptions::default()
    };
    let options = |world: &World| {
        world.log.iter().rev().find_map(|(_, effect)| match effect {
            Effect::Spawn { engine, .. } => Some(engine.clone()),
            _ => None,
        })
    };
    world.load("m");
    world.run_until(s(4));
    for (args, build, loads) in [
        (None, None, 1),
        (Some(""), None, 1),
        (Some("--threads 2"), None, 2),
        (Some("--threads 2"), None, 2),
        (None, None, 2),
        (None, Some("vulkan"), 3),
        (Some("--threads 3"), Some("vulkan"), 4),
    ] {
        let load = world.load_with("m", with(args, build));
        world.run_for(20 * SECOND);
        assert_eq!((world.fate(load), world.loads()), (&Fate::Done, loads), "{args:?} {build:?}");
    }
    assert_eq!(options(&world), Some(with(Some("--threads 3"), Some("vulkan")).engine));
}

#[test]
fn rc_29_options_that_come_to_what_runs_anyway_never_reload() {
    let options = |args: Option<&str>, build: Option<&str>| EngineOptions {
        args: args.map(LlamaArgs::from_line),
        build: build.map(str::to_owned),
    };
    let usual = options(Some("--threads 1 --threads 2 --mmap"), Some("cuda"));
    let mut world = World::calm(12, vec![ModelDescription { engine: usual, ..model("m", 4) }]);
    world.load("m");
    world.run_until(s(4));
    for (args, build, loads) in [
        (None, Some("cuda"), 1),
        (Some("-t 2"), None, 1),
        (Some("--mmap --threads=2"), Some("cuda"), 1),
        (Some("--no-mmap"), Some("cuda"), 2),
        (Some("-t 2 --no-mmap"), None, 2),
        (None, Some("vulkan"), 3),
        (None, Some("cuda"), 4),
    ] {
        let load = world.load_with("m", LoadOptions { engine: options(args, build), ..LoadOptions::default() });
        world.run_for(20 * SECOND);
        assert_eq!((world.fate(load), world.loads()), (&Fate::Done, loads), "{args:?} {build:?}");
    }
}

#[test]
fn rc_29_a_larger_context_is_loaded_beside_the_old_one_where_both_fit() {
    let mut world = World::calm(12, vec![model("m", 4)]);
    world.load("m");
    world.run_until(s(4));
    world.behaviour.answer = (10 * SECOND, 10 * SECOND);
    let running = world.submit("m", 5);
    let load = world.load_with("m", context(4_096, 6));
    world.run_for(SECOND);
    assert_eq!((world.fate(load), world.core.slots().len()), (&Fate::Waiting, 2));
    world.run_for(3 * SECOND);
    assert_eq!(world.fate(load), &Fate::Done);
    let spawned = world.log.iter().rev().find_map(|(_, effect)| match effect {
        Effect::Spawn { context, parts, .. } => Some((*context, parts[0].1)),
        _ => None,
    });
    assert_eq!(spawned, Some((Some(4_096), ByteCount::gib(6))));
    world.run_for(20 * SECOND);
    assert_eq!(world.fate(running), &Fate::Answered);
    assert_eq!(world.core.slots().len(), 1);
    let again = world.load_with("m", context(4_096, 6));
    assert_eq!(world.fate(again), &Fate::Done);
}

#[test]
fn rc_29_without_room_for_both_the_old_copy_ends_what_it_has_first() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.load("m");
    world.run_until(s(4));
    let running = world.submit("m", 5);
    let load = world.load_with("m", context(4_096, 6));
    let waiting = world.submit("m", 5);
    world.run_for(20 * SECOND);
    assert_eq!((world.fate(running), world.fate(waiting)), (&Fate::Answered, &Fate::Answered));
    assert_eq!(world.fate(load), &Fate::Done);
    assert_eq!((world.loads(), serving(&world, "m").parts[0].1), (2, ByteCount::gib(6)));
}

#[test]
fn mm_11_a_load_may_name_a_device_a_priority_and_how_long_to_stay() {
    let mut world = two_gpus(vec![model("m", 4), model("n", 4)]);
    let keep_alive = Some(KeepAlive::For(20 * SECOND));
    let options = LoadOptions { device: Some(DeviceId::Cuda(1)), keep_alive, ..LoadOptions::default() };
    let load = world.load_with("n", options);
    world.run_for(5 * SECOND);
    assert_eq!((world.fate(load), place(&world, "n")), (&Fate::Done, DeviceId::Cuda(1)));
    let slot = serving(&world, "n");
    assert_eq!(slot.unload_at, slot.ready_at.map(|ready| ready + 20 * SECOND));
    let never = world.load_with("n", LoadOptions { size: None, ..context(9_999, 1) });
    world.run_for(5 * SECOND);
    assert_eq!(world.fate(never), &Fate::Done);
    let too_large = world.load_with("n", context(99_999, 40));
    assert_eq!(world.refusal(too_large).reason, RefusalReason::NeverFits);
    assert!(matches!(world.state_of("n"), Some(SlotState::Ready(_))));
}
