//! Streamed layers: the conditions under which a model streams them, the memory and devices for them, and the end of
//! streaming (RS-11, RC-22).

use super::*;
use crate::{LayerOptions, LoadOptions, Order, PlanQuestion, PlannedStep, SizeEstimate, SizeRule, SlotView, Streaming};
use model_boss_protocol::{Residency, ResidencyMode};

const CPU: DeviceId = DeviceId::Cpu;
const fn gib(n: u64) -> ByteCount {
    ByteCount::gib(n)
}

/// A model of size `whole` that may stream its layers with no less than `least`, in GiB.
fn streams(name: &str, whole: u64, least: u64) -> ModelDescription {
    let mut one = model(name, whole);
    let streaming = Streaming { whole: gib(whole), least: gib(least), layers: gib(whole - 1), ring: gib(1) };
    one.size = SizeEstimate { bytes: gib(whole), rule: SizeRule::Headers, streamed: Some(streaming) };
    one
}

fn splittable(mut one: ModelDescription) -> ModelDescription {
    one.splittable = true;
    one
}

/// A world with these devices and models.
fn machine(devices: &[(&str, u64)], models: Vec<ModelDescription>) -> World {
    let mut world = World::new(Settings::default(), Behaviour::default(), 1);
    for (name, gib) in devices {
        world.tell(Event::DeviceObserved(device(name, *gib)));
    }
    world.catalog(models);
    world
}

fn host(gib: u64, models: Vec<ModelDescription>) -> World {
    machine(&[("cpu", gib)], models)
}

/// Sets the memory that other programs use, on a device of size `of`.
fn foreign(world: &mut World, name: &str, of: u64, used: u64) {
    world.tell(Event::DeviceObserved(crate::DeviceObservation { foreign: Some(gib(used)), ..device(name, of) }));
}

/// The parts and the residency of the last worker spawned.
fn spawned(world: &World) -> Option<(Vec<(DeviceId, ByteCount)>, Residency)> {
    world.log.iter().rev().find_map(|(_, effect)| match effect {
        Effect::Spawn { parts, residency, .. } => Some((parts.clone(), *residency)),
        _ => None,
    })
}

fn mode(world: &World) -> Option<ResidencyMode> {
    spawned(world).map(|(_, residency)| residency.mode)
}

fn slot(world: &World, name: &str) -> SlotView {
    world.core.slots().into_iter().find(|slot| slot.model.as_str() == name && slot.leaving.is_none()).unwrap()
}

#[test]
fn rs_11_what_does_not_fit_the_host_is_streamed_through_most_of_it_and_teaches_nothing() {
    let run = |one| {
        let mut world = host(16, vec![one]);
        world.submit("big", 5);
        world.run_until(s(10));
        assert!(mode(&world) != Some(ResidencyMode::Stream) || world.learned.is_empty(), "{:?}", world.learned);
        spawned(&world).map(|(parts, residency)| (parts, residency.mode))
    };
    assert_eq!(run(streams("big", 30, 4)), Some((vec![(CPU, gib(14))], ResidencyMode::Stream)));
    assert_eq!(run(streams("big", 10, 4)), Some((vec![(CPU, gib(10))], ResidencyMode::Auto)), "what fits stays");
    assert_eq!(run(streams("big", 30, 17)), None, "not even a window fits");
    let mut stays = streams("big", 30, 4);
    stays.size.streamed = None;
    assert_eq!(run(stays), None, "it has to stay");
    let mut resident = streams("big", 30, 4);
    resident.residency.mode = ResidencyMode::Resident;
    assert_eq!(run(resident), None, "somebody wants it to stay");
}

#[test]
fn what_never_fits_says_what_it_would_take_streamed() {
    let mut world = host(3, vec![streams("big", 30, 4)]);
    let refused = world.submit("big", 5);
    let message = &world.refusal(refused).message;
    assert!(message.contains("needs 30.0 GiB (4.00 GiB if its layers come and go), and cpu can give"), "{message}");
}

#[test]
fn rc_21_a_short_peak_of_other_programs_is_waited_for_and_what_lasts_is_streamed_beside() {
    let mut world = host(16, vec![streams("m", 10, 2)]);
    world.run_until(s(100));
    foreign(&mut world, "cpu", 16, 9);
    let request = world.submit("m", 5);
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.fate(request), &Fate::Waiting);
    assert!(matches!(world.core.why(request), Some(WaitReason::Capacity { .. })), "{:?}", world.core.why(request));
    foreign(&mut world, "cpu", 16, 2);
    world.run_for(Duration::from_secs(6));
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(mode(&world), Some(ResidencyMode::Auto), "the peak is over and everything stays");

    let mut world = host(16, vec![streams("m", 10, 2)]);
    world.run_until(s(100));
    foreign(&mut world, "cpu", 16, 8);
    let request = world.submit("m", 5);
    world.run_until(s(145));
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(
        spawned(&world).map(|(parts, residency)| (parts, residency.mode)),
        Some((vec![(CPU, gib(7))], ResidencyMode::Stream))
    );
}

#[test]
fn what_pinned_models_hold_is_no_room() {
    let mut world = host(16, vec![pinned(model("pinned", 8)), streams("m", 10, 2)]);
    world.load("pinned");
    world.run_until(s(10));
    let request = world.submit("m", 5);
    world.run_until(s(20));
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(
        spawned(&world),
        Some((vec![(CPU, gib(7))], Residency { mode: ResidencyMode::Stream, ..Residency::default() }))
    );
}

#[test]
fn rs_11_a_model_streamed_for_want_of_room_stays_again_when_it_is_idle_and_the_room_lasted() {
    let mut world = host(16, vec![streams("m", 10, 2), model("other", 2)]);
    foreign(&mut world, "cpu", 16, 9);
    world.submit("m", 5);
    world.run_until(s(10));
    assert!(slot(&world, "m").streamed);
    foreign(&mut world, "cpu", 16, 1);
    // The room has to last for as long as its lack had to last before.
    world.run_until(s(39));
    assert!(slot(&world, "m").streamed);
    let question = PlanQuestion { ladder: "m".into(), ..PlanQuestion::default() };
    let layers = world.core.plan(world.now, &question).unwrap().layers.unwrap();
    assert!(layers.streamed && layers.why.unwrap().contains("loaded again with all of them"));
    world.run_until(s(75));
    let stays = slot(&world, "m");
    assert!(!stays.streamed && stays.ready_at.is_some(), "{stays:?}");
    assert_eq!(stays.parts, [(CPU, gib(10))]);
    assert!(world.verdicts().contains(&(Verdict::Unload, "m".into())));
    assert_eq!(stays.rank.number(), 5, "it is as important as it was");
    let request = world.submit("m", 5);
    world.run_for(3 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
}

#[test]
fn a_streamed_model_in_use_or_without_room_or_by_order_is_left_alone() {
    // A model that is in use all the time.
    let mut world = host(16, vec![streams("m", 10, 2)]);
    foreign(&mut world, "cpu", 16, 9);
    world.submit("m", 5);
    world.run_until(s(6));
    foreign(&mut world, "cpu", 16, 1);
    for _ in 0..30 {
        world.submit("m", 5);
        world.run_for(4 * SECOND);
    }
    assert_eq!((world.loads(), slot(&world, "m").streamed), (1, true));
    // Other models hold the memory that it would take.
    let mut world = host(16, vec![streams("m", 12, 2), pinned(model("other", 6))]);
    world.load("other");
    world.run_until(s(6));
    world.submit("m", 5);
    world.run_until(s(200));
    assert_eq!((world.loads(), slot(&world, "m").streamed), (2, true));
    // An operator's load requires streaming.
    let mut small = streams("m", 12, 2);
    small.residency.mode = ResidencyMode::Stream;
    small.size.bytes = gib(2);
    let mut world = host(16, vec![small]);
    world.submit("m", 5);
    world.run_until(s(200));
    assert_eq!((world.loads(), slot(&world, "m").streamed), (1, true));
    assert_eq!(slot(&world, "m").parts, [(CPU, gib(2))]);
}

#[test]
fn an_unload_is_for_one_that_is_on_its_way_back_too() {
    for all in [false, true] {
        let mut world = host(16, vec![streams("m", 10, 2)]);
        foreign(&mut world, "cpu", 16, 9);
        world.submit("m", 5);
        world.run_until(s(10));
        foreign(&mut world, "cpu", 16, 1);
        let is_leaving = |world: &World| world.core.slots().iter().any(|slot| slot.leaving.is_some());
        while !is_leaving(&world) {
            assert!(world.now < s(100), "it was to be loaded again");
            world.run_for(Duration::from_millis(1));
        }
        let unloaded = world.unload((!all).then_some("m"));
        assert_eq!(world.fate(unloaded), &Fate::Waiting);
        world.run_for(60 * SECOND);
        assert_eq!((world.fate(unloaded), world.loads(), world.core.slots().len()), (&Fate::Done, 1, 0));
    }
}

#[test]
fn rc_19_a_pinned_model_that_streams_never_leaves_to_come_back() {
    let mut world = host(16, vec![pinned(streams("m", 10, 2))]);
    foreign(&mut world, "cpu", 16, 9);
    world.submit("m", 5);
    world.run_until(s(10));
    foreign(&mut world, "cpu", 16, 1);
    world.run_until(s(200));
    assert_eq!((world.loads(), slot(&world, "m").streamed), (1, true));
}

#[test]
fn rs_11_to_a_gpu_layers_come_from_the_host_and_one_lease_covers_both() {
    let context = ByteCount::mib(536);
    let mut world = machine(&[("cpu", 64), ("cuda:0", 16)], vec![on(streams("m", 30, 4), "cuda:0")]);
    let request = world.submit("m", 5);
    world.run_until(s(10));
    assert_eq!(world.fate(request), &Fate::Answered);
    let (parts, residency) = spawned(&world).unwrap();
    // The model takes most of the GPU; on the host it takes the buffers and all layers that the GPU does not keep.
    assert_eq!(parts, [(DeviceId::Cuda(0), gib(14)), (CPU, gib(1) + (gib(30) + context - gib(14)))]);
    assert_eq!(residency.mode, ResidencyMode::Stream);
    let asked = world.log.iter().filter_map(|(_, effect)| match effect {
        Effect::AcquireLease { parts, .. } => Some(parts.clone()),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), [parts], "one lease, in one step");
    let there = world.move_to("m", "cuda:0", false, 2);
    assert_eq!(world.fate(there), &Fate::Done, "it computes there already");
    // A small host holds the buffers and as many layers as it can.
    let mut world = machine(&[("cpu", 8), ("cuda:0", 16)], vec![on(streams("m", 30, 4), "cuda:0")]);
    world.submit("m", 5);
    world.run_until(s(10));
    assert_eq!(spawned(&world).unwrap().0, [(DeviceId::Cuda(0), gib(14)), (CPU, gib(7))]);
}

#[test]
fn rs_11_what_the_host_can_hold_alone_runs_there_unless_a_gpu_was_asked_for() {
    let devices = [("cpu", 64), ("cuda:0", 16)];
    let mut world = machine(&devices, vec![streams("m", 30, 4)]);
    world.submit("m", 5);
    world.run_until(s(10));
    assert_eq!(spawned(&world).unwrap(), (vec![(CPU, gib(30))], Residency::default()));
    let mut world = machine(&[("cpu", 24), ("cuda:0", 16)], vec![streams("m", 30, 4)]);
    world.submit("m", 5);
    world.run_until(s(10));
    assert_eq!(spawned(&world).unwrap().0[0], (DeviceId::Cuda(0), gib(14)), "no memory holds it alone");
}

#[test]
fn rs_11_the_hosts_part_sends_idle_models_of_the_host_away_and_waits_for_busy_ones() {
    let models = vec![on(model("a", 20), "cpu"), on(model("b", 20), "cpu"), on(streams("m", 30, 4), "cuda:0")];
    let mut world = machine(&[("cpu", 44), ("cuda:0", 16)], models);
    world.submit("a", 5);
    world.run_until(s(8));
    world.behaviour.answer = (60 * SECOND, 60 * SECOND);
    let busy = world.submit("b", 5);
    world.run_until(s(14));
    assert!(matches!(world.fate(busy), Fate::Running(..)));
    world.behaviour.answer = (2 * SECOND, 2 * SECOND);
    let request = world.submit("m", 4);
    world.run_until(s(30));
    assert!(world.verdicts().contains(&(Verdict::Evict, "a".into())), "{:?}", world.verdicts());
    assert!(matches!(world.fate(busy), Fate::Running(..)), "nobody is cut");
    assert_eq!(world.fate(request), &Fate::Answered);
}

#[test]
fn rc_22_what_is_too_large_for_the_gpus_together_is_streamed_over_all_of_them() {
    let context = ByteCount::mib(536);
    let devices = [("cpu", 32), ("cuda:0", 16), ("cuda:1", 8)];
    // 20 GiB fit into both GPUs together.
    let mut world = machine(&devices, vec![splittable(streams("m", 20, 4))]);
    world.submit("m", 5);
    world.run_until(s(10));
    let (parts, residency) = spawned(&world).unwrap();
    assert_eq!(residency.mode, ResidencyMode::Auto);
    assert_eq!(parts.iter().map(|part| part.1).sum::<ByteCount>(), gib(20) + context + context);
    // A model of 60 GiB fits nowhere: it takes most of both GPUs, in proportion to their free memory, and the host.
    let mut world = machine(&devices, vec![splittable(streams("m", 60, 4))]);
    let request = world.submit("m", 5);
    world.run_until(s(10));
    assert_eq!(world.fate(request), &Fate::Answered);
    let (parts, residency) = spawned(&world).unwrap();
    assert_eq!(residency.mode, ResidencyMode::Stream);
    let [(DeviceId::Cuda(0), first), (DeviceId::Cuda(1), second), (CPU, host)] = parts[..] else { panic!("{parts:?}") };
    let spare = |gib_of: u64| gib(gib_of) - ByteCount::mib(512);
    assert_eq!((first + second).0, (spare(16) + spare(8)).0 / 8 * 7);
    let ratio = first.0 as f64 / second.0 as f64;
    assert!((ratio - spare(16).0 as f64 / spare(8).0 as f64).abs() < 1e-6, "{ratio}");
    assert_eq!(host, gib(28), "most of the host, and the rest comes from the disk");
    // A host that holds the buffers of one GPU but not of two.
    let small = [("cpu", 1), ("cuda:0", 16), ("cuda:1", 8)];
    let mut world = machine(&small, vec![splittable(streams("m", 60, 4))]);
    world.submit("m", 5);
    world.run_until(s(10));
    assert_eq!(spawned(&world).unwrap().0, [(DeviceId::Cuda(0), gib(14)), (CPU, gib(1))]);
    // GPUs that hold the minimum only if their contexts are not counted.
    let mut world = machine(&[("cpu", 32), ("cuda:0", 4)], vec![on(streams("m", 60, 4), "cuda:0")]);
    let request = world.submit("m", 5);
    world.run_until(s(10));
    assert!(matches!(world.fate(request), Fate::Refused(_)), "{:?}", world.fate(request));
}

fn forced(whole: u64, least: u64, mode: ResidencyMode) -> LoadOptions {
    let mut size = streams("m", whole, least).size;
    if mode == ResidencyMode::Stream {
        size.bytes = gib(least);
    }
    let layers = LayerOptions { mode: Some(mode), ..LayerOptions::default() };
    LoadOptions { layers, size: Some(size), ..LoadOptions::default() }
}

#[test]
fn rs_11_a_load_forces_how_layers_live_and_only_a_difference_loads_again() {
    let mut world = host(32, vec![streams("m", 10, 2)]);
    let load = |world: &mut World, options: LoadOptions| {
        let before = world.loads();
        let done = world.load_with("m", options);
        world.run_for(10 * SECOND);
        assert_eq!(world.fate(done), &Fate::Done);
        (world.loads() - before, slot(world, "m").parts[0].1, slot(world, "m").streamed)
    };
    let [auto, resident, stream] = [ResidencyMode::Auto, ResidencyMode::Resident, ResidencyMode::Stream];
    assert_eq!(load(&mut world, forced(10, 2, stream)), (1, gib(2), true), "at once as asked");
    let windows = |window| {
        let mut options = forced(10, 2, stream);
        options.layers.window = window;
        options
    };
    assert_eq!(load(&mut world, windows(Some(2))).0, 1, "another window");
    assert_eq!(spawned(&world).unwrap().1, Residency { mode: stream, window: Some(2), ..Residency::default() });
    assert_eq!(load(&mut world, windows(Some(2))).0, 0, "as it is");
    assert_eq!(load(&mut world, windows(None)).0, 0, "nothing said");
    assert_eq!(load(&mut world, LoadOptions::default()), (0, gib(2), true), "nothing asked");
    assert_eq!(load(&mut world, forced(10, 2, auto)), (1, gib(10), false), "back to what the coordinator thinks");
    assert_eq!(load(&mut world, forced(10, 2, resident)).0, 0, "they stay already");
    let window = LayerOptions { window: Some(3), ..LayerOptions::default() };
    let only_window = LoadOptions { layers: window, size: forced(10, 2, auto).size, ..LoadOptions::default() };
    assert_eq!(load(&mut world, only_window).0, 0, "a window means nothing to layers that stay");
    let mut much = forced(10, 2, auto);
    much.layers = LayerOptions { memory: Some(gib(20)), ..LayerOptions::default() };
    assert_eq!(load(&mut world, much).0, 0, "what stays needs no more memory");
    assert_eq!(load(&mut world, forced(10, 2, stream)), (1, gib(2), true), "the memory is wanted back");
    let with = |memory, mode| {
        let mut options = forced(10, memory, stream);
        options.layers = LayerOptions { memory: Some(gib(memory)), mode, ..LayerOptions::default() };
        options
    };
    assert_eq!(load(&mut world, with(6, None)), (1, gib(6), true), "more layers stay");
    assert_eq!(load(&mut world, with(4, None)).0, 0, "never for less");
    assert_eq!(load(&mut world, with(4, Some(stream))), (1, gib(4), true), "unless it is said");
    assert_eq!(load(&mut world, with(4, Some(stream))).0, 0);
}

#[test]
fn rs_11_a_plan_says_how_layers_would_live_and_why() {
    let world = host(16, vec![streams("m", 30, 4)]);
    let question = PlanQuestion { ladder: "m".into(), ..PlanQuestion::default() };
    let plan = world.core.plan(world.now, &question).unwrap();
    let layers = plan.layers.unwrap();
    assert_eq!((layers.streamed, layers.whole, plan.size), (true, Some(gib(30)), gib(14)));
    let why = layers.why.unwrap();
    assert_eq!(why, "all layers take 30.0 GiB, and models can have 16.0 GiB of cpu");
    let options = forced(30, 4, ResidencyMode::Stream);
    let question = PlanQuestion { layers: options.layers, size: options.size, ..question };
    let plan = world.core.plan(world.now, &question).unwrap();
    assert_eq!(plan.step, PlannedStep::Load { parts: vec![(CPU, gib(4))] });
    assert_eq!(plan.layers.unwrap().residency, ResidencyMode::Stream);
}

#[test]
fn rc_30_a_freed_host_ends_what_streams_from_it_and_nothing_begins_to() {
    let mut small = on(streams("m", 30, 4), "cuda:0");
    small.residency.mode = ResidencyMode::Stream;
    small.size.bytes = gib(4);
    let mut world = machine(&[("cpu", 64), ("cuda:0", 16)], vec![small]);
    world.submit("m", 5);
    world.run_until(s(10));
    let freed = world.operate(|request| Order::FreeDevice { request, device: CPU });
    world.run_for(SECOND);
    assert_eq!(world.fate(freed), &Fate::Done);
    let waiting = world.submit("m", 5);
    world.run_for(10 * SECOND);
    assert_eq!(world.core.why(waiting), Some(WaitReason::DeviceClosed { device: CPU }));
}

#[test]
fn dm_5_a_streamed_model_moves_to_where_it_can_stay_and_back_to_where_it_cannot() {
    let devices = [("cpu", 64), ("cuda:0", 16), ("cuda:1", 48)];
    let mut world = machine(&devices, vec![on(streams("m", 30, 4), "cuda:0")]);
    let request = world.submit("m", 5);
    world.run_until(s(4));
    assert!(matches!(world.fate(request), Fate::Running(..)));
    let moved = world.move_to("m", "cuda:1", false, 2);
    world.run_for(10 * SECOND);
    assert_eq!((world.fate(moved), world.fate(request)), (&Fate::Done, &Fate::Answered));
    let there = slot(&world, "m");
    assert_eq!((there.streamed, &there.parts[0].0, there.parts.len()), (false, &DeviceId::Cuda(1), 1));
    assert_eq!(world.core.devices().iter().find(|device| device.id == CPU).unwrap().charged, ByteCount::ZERO);

    let back = world.move_to("m", "cuda:0", false, 2);
    let during = world.submit("m", 5);
    world.run_for(10 * SECOND);
    assert_eq!((world.fate(back), world.fate(during)), (&Fate::Done, &Fate::Answered));
    let here = slot(&world, "m");
    assert!(here.streamed, "{here:?}");
    assert_eq!(here.parts.iter().map(|part| part.0.clone()).collect::<Vec<_>>(), [DeviceId::Cuda(0), CPU]);
}

#[test]
fn what_was_forced_holds_until_the_model_is_unloaded() {
    let mut world = host(32, vec![streams("m", 10, 2)]);
    world.load_with("m", forced(10, 2, ResidencyMode::Stream));
    world.run_until(s(5));
    assert!(slot(&world, "m").streamed);
    world.kill("m");
    let request = world.submit("m", 5);
    world.run_for(20 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
    assert!(slot(&world, "m").streamed, "after a crash it comes back as it was asked for");
    world.unload(Some("m"));
    world.run_for(SECOND);
    world.submit("m", 5);
    world.run_for(10 * SECOND);
    assert!(!slot(&world, "m").streamed);
}
