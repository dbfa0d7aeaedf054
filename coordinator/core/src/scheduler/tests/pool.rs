//! Splits, limits, exclusive devices, second tries, learned sizes and budgets.

use model_boss_protocol::{KvCacheType, WorkerExit};

use super::*;
use crate::refusal::RefusalReason;
use crate::{Footprint, LedgerState, MaxLoaded, ModelStatus as Status, Order, SizeRule};

const CPU: DeviceId = DeviceId::Cpu;

fn of(mut one: ModelDescription, category: Category) -> ModelDescription {
    one.category = category;
    one
}

fn estimated(mut one: ModelDescription) -> ModelDescription {
    one.size.rule = SizeRule::Headers;
    one
}

fn splittable(mut one: ModelDescription) -> ModelDescription {
    one.splittable = true;
    one
}

fn alone_on(mut one: ModelDescription, device: &str) -> ModelDescription {
    one.exclusive_devices = vec![device.parse().unwrap()];
    one
}

fn limited(limits: &[(Category, usize)], models: Vec<ModelDescription>) -> World {
    let mut settings = Settings { max_loaded: MaxLoaded::Per(limits.iter().copied().collect()), ..Settings::default() };
    settings.clients.default.max_priority = model_boss_protocol::Priority::HIGHEST;
    let mut world = World::new(settings, Behaviour::default(), 1);
    world.tell(Event::DeviceObserved(device("cuda:0", 80)));
    world.catalog(models);
    world
}

fn loaded(world: &World) -> Vec<String> {
    let mut names: Vec<String> = world.core.slots().iter().map(|slot| slot.model.to_string()).collect();
    names.sort();
    names
}

fn parts(world: &World, model: &str) -> Vec<(DeviceId, ByteCount)> {
    world.core.slots().into_iter().find(|slot| slot.model.as_str() == model).map(|slot| slot.parts).unwrap_or_default()
}

#[test]
fn rc_22_a_model_larger_than_one_gpu_is_split_in_proportion_to_what_each_has_free() {
    let mut world = World::calm(24, vec![splittable(model("big", 30)), on(model("small", 8), "cuda:1")]);
    world.tell(Event::DeviceObserved(device("cuda:1", 24)));
    world.submit("small", 5);
    world.run_until(s(10));
    world.submit("big", 5);
    world.run_until(s(20));
    // 23.5 GiB and 15.5 GiB are available beside the margins.
    let split = parts(&world, "big");
    assert_eq!(split.iter().map(|&(_, bytes)| bytes).sum::<ByteCount>(), ByteCount::gib(30));
    let share = split[0].1.0 as f64 / ByteCount::gib(30).0 as f64;
    assert!((share - 23.5 / 39.0).abs() < 1e-6, "{split:?}");
    let spawned = world.log.iter().rev().find_map(|(_, effect)| match effect {
        Effect::Spawn { parts, .. } => Some(parts.clone()),
        _ => None,
    });
    assert_eq!(spawned, Some(split));
}

#[test]
fn rc_22_a_split_takes_its_turn_on_every_device_and_evicts_on_several() {
    let models = vec![splittable(model("big", 40)), on(model("a", 20), "cuda:0"), on(model("b", 20), "cuda:1")];
    let mut world = World::calm(24, models);
    world.tell(Event::DeviceObserved(device("cuda:1", 24)));
    world.submit("a", 9);
    world.submit("b", 9);
    world.run_until(s(10));
    let big = world.submit("big", 2);
    assert_eq!(world.core.why(big).unwrap().to_string(), "making room on cuda:0: waiting for a, b");
    world.run_until(s(11));
    let other = world.submit("a", 0);
    assert_eq!(world.core.why(other).unwrap().to_string(), "waiting until big is loaded on cuda:0");
    world.run_until(s(60));
    assert_eq!(world.fate(big), &Fate::Answered);
}

#[test]
fn mm_1_the_limit_of_a_category_holds_where_memory_would_allow_more() {
    let models = vec![model("a", 1), model("b", 1), of(model("e", 1), Category::Embedding)];
    let mut world = limited(&[(Category::Llm, 1)], models);
    world.submit("a", 5);
    world.submit("e", 5);
    world.run_until(s(10));
    assert_eq!(loaded(&world), ["a", "e"]);
    world.submit("b", 5);
    world.run_until(s(20));
    assert_eq!(loaded(&world), ["b", "e"]);
    let evicted = world.core.decisions().find(|decision| decision.what == Verdict::Evict).unwrap();
    assert_eq!(evicted.model.as_str(), "a");
}

#[test]
fn mm_1_a_full_category_is_named_as_what_a_request_waits_for() {
    let mut world = limited(&[], vec![model("a", 1), model("b", 1)]);
    world.submit("a", 2);
    world.run_until(s(4));
    let waiting = world.submit("b", 5);
    let why = world.core.why(waiting).unwrap();
    assert!(matches!(why, WaitReason::Limit { category: Category::Llm, limit: 1, .. }), "{why:?}");
    assert_eq!(why.to_string(), "at most 1 llm models may be loaded; a holds 1.00 GiB (more important, rank 2)");
}

#[test]
fn mm_3_the_least_recently_used_of_the_type_leaves() {
    let mut world = limited(&[(Category::Llm, 2)], vec![model("a", 1), model("b", 1), model("c", 1)]);
    world.submit("a", 5);
    world.run_until(s(10));
    world.submit("b", 5);
    world.run_until(s(20));
    world.submit("a", 5);
    world.run_until(s(29));
    world.submit("c", 5);
    world.run_until(s(40));
    assert_eq!(loaded(&world), ["a", "c"]);
}

#[test]
fn mm_3_a_busy_model_of_a_full_type_is_drained_and_pins_alone_are_told() {
    let mut world = limited(&[], vec![model("a", 1), model("b", 1), model("c", 1)]);
    world.behaviour.answer = (20 * SECOND, 20 * SECOND);
    let running = world.submit("a", 8);
    world.run_until(s(5));
    let urgent = world.submit("b", 2);
    world.run_until(s(60));
    assert_eq!(world.dispatched(), [running, urgent]);
    world.operate(|request| Order::Pin { request, model: "b".into(), pinned: Some(true) });
    let refused = world.submit("c", 0);
    assert_eq!(world.refusal(refused).reason, RefusalReason::Pinned);
    world.operate(|request| Order::Pin { request, model: "b".into(), pinned: None });
    let served = world.submit("c", 0);
    world.run_until(s(120));
    assert_eq!(world.fate(served), &Fate::Answered);
}

#[test]
fn mm_1_a_place_that_was_made_is_not_given_to_somebody_else() {
    let models = vec![on(model("a", 60), "cuda:0"), on(model("b", 60), "cuda:0"), on(model("c", 1), "cuda:1")];
    let mut world = limited(&[(Category::Llm, 2)], [models, vec![on(model("d", 1), "cuda:1")]].concat());
    world.tell(Event::DeviceObserved(device("cuda:1", 80)));
    world.submit("a", 8);
    world.submit("d", 1);
    world.run_until(s(10));
    world.behaviour.answer = (20 * SECOND, 20 * SECOND);
    world.submit("d", 1);
    let first = world.submit("b", 5);
    let second = world.submit("c", 5);
    // The worker of `a` has exited before its memory is free. `b` gets its place, although `c` could use it at once.
    world.run_for(5 * SECOND);
    assert!(matches!(world.fate(first), Fate::Running(..)), "{:?}", world.core.why(first));
    assert!(matches!(world.core.why(second), Some(WaitReason::Limit { .. })), "{:?}", world.core.why(second));
}

#[test]
fn mm_5_an_exclusive_device_has_one_user_whatever_the_memory() {
    let models = vec![alone_on(on(model("hybrid", 2), "cuda:0"), "npu"), on(model("flm", 2), "npu"), model("free", 2)];
    let mut world = World::calm(24, models);
    let mut npu = device("npu", 16);
    npu.exclusive = true;
    world.tell(Event::DeviceObserved(npu));
    world.submit("flm", 5);
    world.submit("free", 5);
    world.run_until(s(10));
    world.submit("hybrid", 5);
    world.run_until(s(20));
    assert_eq!(loaded(&world), ["free", "hybrid"]);
    world.behaviour.answer = (60 * SECOND, 60 * SECOND);
    world.submit("hybrid", 2);
    let waiting = world.submit("flm", 5);
    let why = world.core.why(waiting).unwrap();
    assert!(matches!(why, WaitReason::Exclusive { device: DeviceId::Npu, .. }), "{why:?}");
}

/// A world in which `m` fails to load while `idle`, `busy` and `pinned` are loaded.
fn failing_load(reason: Option<WorkerExit>) -> (World, RequestId, RequestId) {
    let models = vec![model("m", 2), model("idle", 2), model("busy", 2), pinned(model("pinned", 2))];
    let mut world = World::calm(24, models);
    for name in ["idle", "busy", "pinned"] {
        world.load(name);
    }
    world.run_until(s(20));
    world.behaviour.answer = (30 * SECOND, 30 * SECOND);
    let running = world.submit("busy", 5);
    let request = world.submit("m", 5);
    world.run_for(2 * SECOND);
    world.exit("m", reason);
    world.run_for(SECOND);
    (world, running, request)
}

#[test]
fn mm_4_a_failed_load_is_tried_once_more_with_nothing_unpinned_beside_it() {
    let (mut world, running, request) = failing_load(Some(WorkerExit::OutOfMemory));
    assert_eq!(loaded(&world), ["busy", "pinned"]);
    let why = world.core.why(request).unwrap().to_string();
    assert_eq!(why, "m failed to load and is tried once more with nothing else loaded; waiting for busy");
    let waiting = world.submit("idle", 0);
    assert!(matches!(world.core.why(waiting), Some(WaitReason::SecondTry { .. })));
    world.run_for(33 * SECOND);
    assert_eq!(world.fate(running), &Fate::Answered);
    assert_eq!(world.core.model("m").unwrap().status, Status::Loaded);
    world.run_for(60 * SECOND);
    assert_eq!((world.fate(request), world.fate(waiting)), (&Fate::Answered, &Fate::Answered));
}

#[test]
fn mm_4_a_model_that_loads_meanwhile_answers_whom_it_loads_for_and_then_makes_way() {
    let mut world = World::calm(24, vec![on(model("m", 2), "cuda:0"), on(model("slow", 2), "cuda:1")]);
    world.tell(Event::DeviceObserved(device("cuda:1", 24)));
    world.behaviour.load = (20 * SECOND, 20 * SECOND);
    let caused = world.submit("slow", 5);
    let request = world.submit("m", 5);
    world.run_for(12 * SECOND);
    world.exit("m", Some(WorkerExit::OutOfMemory));
    world.run_for(3 * SECOND);
    let why = world.core.why(request).unwrap().to_string();
    assert_eq!(why, "m failed to load and is tried once more with nothing else loaded; waiting for slow");
    assert_eq!(world.loads(), 2, "it is not tried while the other loads");
    world.run_for(60 * SECOND);
    assert_eq!((world.fate(caused), world.fate(request)), (&Fate::Answered, &Fate::Answered));
    assert_eq!(loaded(&world), ["m"]);
}

#[test]
fn mm_4_a_model_that_loads_meanwhile_for_nobody_any_more_makes_way_when_it_is_ready() {
    let mut world = World::calm(24, vec![on(model("m", 2), "cuda:0"), on(model("slow", 2), "cuda:1")]);
    world.tell(Event::DeviceObserved(device("cuda:1", 24)));
    world.behaviour.load = (20 * SECOND, 20 * SECOND);
    world.load("slow");
    let request = world.submit("m", 5);
    world.run_for(12 * SECOND);
    world.exit("m", None);
    world.run_for(80 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(loaded(&world), ["m"]);
}

#[test]
fn mm_4_a_second_failure_is_told_and_the_next_ten_minutes_nobody_is_sent_away() {
    let (mut world, _, request) = failing_load(None);
    world.run_for(28 * SECOND);
    world.exit("m", None);
    world.run_for(SECOND);
    assert_eq!(world.refusal(request).reason, RefusalReason::LoadFailed);
    world.submit("idle", 5);
    world.run_for(40 * SECOND);
    world.submit("m", 5);
    world.run_for(2 * SECOND);
    world.exit("m", None);
    world.run_for(SECOND);
    assert!(loaded(&world).contains(&"idle".to_owned()));
}

fn away() -> Event {
    Event::Ledger(LedgerState::Away { detail: "no connection".into() })
}

#[test]
fn mm_4_le_1_a_load_that_fails_while_the_ledger_is_away_sends_nobody_away() {
    let mut world = World::calm(24, vec![model("m", 2), model("idle", 2)]);
    world.load("idle");
    world.run_until(s(10));
    let request = world.submit("m", 5);
    world.run_for(2 * SECOND);
    world.tell(away());
    world.exit("m", None);
    world.run_for(5 * SECOND);
    assert_eq!(loaded(&world), ["idle"]);
    assert!(matches!(world.core.why(request), Some(WaitReason::LedgerAway { .. })), "{:?}", world.core.why(request));
    world.tell(Event::Ledger(LedgerState::Open));
    world.run_for(60 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(loaded(&world), ["idle", "m"]);
}

#[test]
fn mm_4_le_1_a_second_try_is_called_off_when_the_ledger_shuts() {
    let (mut world, running, request) = failing_load(Some(WorkerExit::OutOfMemory));
    assert_eq!(loaded(&world), ["busy", "pinned"]);
    let more = world.submit("busy", 5);
    world.tell(away());
    assert!(matches!(world.core.why(request), Some(WaitReason::LedgerAway { .. })), "{:?}", world.core.why(request));
    // A model that drained for the load serves on, because it could not be loaded again.
    world.run_for(29 * SECOND);
    assert_eq!((world.fate(running), loaded(&world)), (&Fate::Answered, vec!["busy".to_owned(), "pinned".to_owned()]));
    assert!(matches!(world.fate(more), Fate::Answered | Fate::Running(..)), "{:?}", world.core.why(more));
    world.tell(Event::Ledger(LedgerState::Open));
    let again = world.submit("m", 5);
    world.run_for(120 * SECOND);
    assert_eq!((world.fate(more), world.fate(again)), (&Fate::Answered, &Fate::Answered));
}

#[test]
fn mm_4_le_1_who_finished_loading_is_not_sent_away_for_a_second_try_while_the_ledger_is_shut() {
    let mut world = World::calm(24, vec![on(model("m", 2), "cuda:0"), on(model("slow", 2), "cuda:1")]);
    world.tell(Event::DeviceObserved(device("cuda:1", 24)));
    world.behaviour.load = (20 * SECOND, 20 * SECOND);
    let caused = world.submit("slow", 5);
    world.submit("m", 5);
    world.run_for(12 * SECOND);
    world.exit("m", Some(WorkerExit::OutOfMemory));
    world.run_for(3 * SECOND);
    world.tell(away());
    world.run_for(60 * SECOND);
    assert_eq!((world.fate(caused), loaded(&world)), (&Fate::Answered, vec!["slow".to_owned()]));
}

#[test]
fn mm_4_a_bad_file_or_setting_sends_nobody_away() {
    for reason in [WorkerExit::BadModel, WorkerExit::BadSpec] {
        let (world, _, request) = failing_load(Some(reason));
        assert_eq!(world.refusal(request).reason, RefusalReason::LoadFailed);
        assert_eq!(loaded(&world), ["busy", "idle", "pinned"]);
    }
}

#[test]
fn mm_4_the_policy_may_be_to_send_nobody_away() {
    let settings = Settings { load_failure_policy: crate::LoadFailurePolicy::Fail, ..Settings::default() };
    let mut world = World::new(settings, Behaviour::default(), 1);
    world.tell(Event::DeviceObserved(device("cuda:0", 24)));
    world.catalog(vec![model("m", 2), model("idle", 2)]);
    world.load("idle");
    world.run_until(s(5));
    world.submit("m", 5);
    world.run_for(2 * SECOND);
    world.exit("m", None);
    world.run_for(SECOND / 2);
    assert!(loaded(&world).contains(&"idle".to_owned()));
}

#[test]
fn a_port_clash_is_tried_again_at_once_and_is_not_the_models_failure() {
    let mut world = World::calm(24, vec![model("m", 2)]);
    let request = world.submit("m", 5);
    for _ in 0..5 {
        world.run_for(SECOND);
        world.exit("m", Some(WorkerExit::PortInUse));
    }
    world.run_for(10 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(world.core.model("m").unwrap().failure, None);
    // An unload of a model that never becomes idle is answered too.
    world.unload(None);
    world.behaviour.port_clash = 1_000;
    let request = world.submit("m", 5);
    world.run_for(60 * SECOND);
    assert_eq!(world.refusal(request).reason, RefusalReason::LoadFailed);
}

#[test]
fn rc_20_what_was_measured_is_charged_learned_and_used_at_the_next_load() {
    let mut world = World::calm(24, vec![estimated(model("m", 4))]);
    world.behaviour.footprint = Some((1_250, 1_250));
    world.submit("m", 5);
    world.run_until(s(10));
    // The measured memory is a quarter more than the estimate with the GPU's context.
    let measured = ByteCount::mib((4_096 + 536) * 5 / 4).0 / 1_000_000;
    assert_eq!(parts(&world, "m")[0].1.0 / 1_000_000, measured);
    assert_eq!(world.core.devices()[0].charged.0 / 1_000_000, measured);
    let [learned] = &world.learned.clone()[..] else { panic!("{:?}", world.learned) };
    assert_eq!((learned.model.as_str(), &learned.device, learned.context), ("m", &DeviceId::Cuda(0), None));
    world.unload(None);
    world.run_for(SECOND);
    let view = world.core.model("m").unwrap();
    assert_eq!((view.size_rule, view.size), (SizeRule::Learned, learned.bytes));
    world.submit("m", 5);
    assert_eq!(parts(&world, "m")[0].1, learned.bytes);
    let load = world.core.decisions().rfind(|decision| decision.what == Verdict::Load).unwrap();
    assert!(load.reasons[1].contains("(size by rule 'learned')"), "{:?}", load.reasons);
}

#[test]
fn rc_20_footprints_of_an_earlier_life_are_used_and_a_manifests_word_is_not_overruled() {
    let mut world = World::calm(24, vec![estimated(model("m", 4)), model("said", 4)]);
    let footprint = |name: &str| Footprint {
        model: name.into(),
        revision: 1,
        context: None,
        max_concurrent: 1,
        kv_cache_type: KvCacheType::Auto,
        device: DeviceId::Cuda(0),
        bytes: ByteCount::gib(7),
    };
    world.tell(Event::Footprints(vec![footprint("m"), footprint("said")]));
    world.submit("m", 5);
    world.run_until(s(10));
    world.submit("said", 5);
    assert_eq!(parts(&world, "m")[0].1, ByteCount::gib(7));
    assert_eq!(parts(&world, "said")[0].1, ByteCount::gib(4));
}

#[test]
fn rc_20_out_of_memory_raises_the_footprint_and_never_beyond_the_device() {
    let mut world = World::calm(12, vec![estimated(model("m", 8))]);
    world.submit("m", 5);
    for mib in [(8_192 + 536) * 5 / 4 + 2, 12_288, 12_288] {
        while !world.exit_if_loading("m", Some(WorkerExit::OutOfMemory)) {
            world.run_for(SECOND / 10);
        }
        assert_eq!(world.core.model("m").unwrap().size, ByteCount::mib(mib));
    }
}

#[test]
fn rc_20_a_learned_size_that_was_too_small_is_followed_by_what_the_files_say() {
    let mut world = World::calm(24, vec![estimated(model("m", 8))]);
    world.tell(Event::Footprints(vec![Footprint {
        model: "m".into(),
        revision: 1,
        context: None,
        max_concurrent: 1,
        kv_cache_type: KvCacheType::Auto,
        device: DeviceId::Cuda(0),
        bytes: ByteCount::mib(16),
    }]));
    let request = world.submit("m", 5);
    assert_eq!(parts(&world, "m")[0].1, ByteCount::mib(16));
    while !world.exit_if_loading("m", Some(WorkerExit::OutOfMemory)) {
        world.run_for(SECOND / 10);
    }
    assert_eq!(world.core.model("m").unwrap().size, ByteCount::gib(8));
    world.run_for(60 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
}

#[test]
fn rc_20_a_load_that_would_be_given_no_more_is_not_tried_again_and_again() {
    let mut world = World::calm(12, vec![model("stated", 4), estimated(model("grows", 8))]);
    let request = world.submit("stated", 5);
    world.run_for(2 * SECOND);
    world.exit("stated", Some(WorkerExit::OutOfMemory));
    world.run_for(60 * SECOND);
    assert_eq!(world.refusal(request).reason, RefusalReason::LoadFailed);
    assert_eq!(world.loads(), 1, "the manifest states the same for each try");
    let request = world.submit("grows", 5);
    for _ in 0..3 {
        while !world.exit_if_loading("grows", Some(WorkerExit::OutOfMemory)) {
            assert_eq!(world.fate(request), &Fate::Waiting);
            world.run_for(SECOND / 10);
        }
    }
    assert_eq!(world.refusal(request).reason, RefusalReason::LoadFailed);
    assert_eq!(world.loads(), 4, "with all of the device there is no more to give");
}

#[test]
fn rc_21_foreign_growth_makes_idle_models_leave_the_less_important_first() {
    let mut world = World::calm(24, vec![model("a", 8), model("b", 8), pinned(model("p", 4))]);
    world.submit("a", 2);
    world.submit("b", 5);
    world.submit("p", 9);
    world.run_until(s(30));
    let mut seen = device("cuda:0", 24);
    seen.foreign = Some(ByteCount::gib(5));
    world.tell(Event::DeviceObserved(seen.clone()));
    world.run_for(SECOND);
    assert_eq!(loaded(&world), ["a", "p"]);
    let reason = world.core.decisions().next_back().unwrap().reasons.join("; ");
    assert!(reason.starts_with("idle, and other programs need the memory; other programs use 5.00 GiB"), "{reason}");
    // A busy and a pinned model stay in all cases.
    world.behaviour.answer = (60 * SECOND, 60 * SECOND);
    let running = world.submit("a", 5);
    seen.foreign = Some(ByteCount::gib(20));
    world.tell(Event::DeviceObserved(seen));
    assert_eq!(loaded(&world), ["a", "p"]);
    world.run_for(61 * SECOND);
    assert_eq!(world.fate(running), &Fate::Answered);
    assert_eq!(loaded(&world), ["p"]);
}

fn on_host(retention: ByteCount, models: Vec<ModelDescription>) -> World {
    let mut world = World::calm(24, models);
    let mut host = device("cpu", 32);
    host.retention = Some(retention);
    world.tell(Event::DeviceObserved(host));
    world
}

#[test]
fn bc_2_over_the_budget_the_least_recently_used_leaves_and_never_the_one_just_loaded() {
    let host = |name, gib| on(model(name, gib), "cpu");
    let mut world = on_host(ByteCount::gib(10), vec![host("a", 4), host("b", 4), host("large", 14), host("c", 4)]);
    for name in ["a", "b", "c"] {
        world.submit(name, 5);
        world.run_for(10 * SECOND);
    }
    assert_eq!(loaded(&world), ["b", "c"]);
    let large = world.submit("large", 5);
    world.run_for(10 * SECOND);
    assert_eq!(world.fate(large), &Fate::Answered);
    assert_eq!(loaded(&world), ["large"]);
    assert_eq!(world.core.devices().iter().find(|d| d.id == CPU).unwrap().retention, Some(ByteCount::gib(10)));
}

#[test]
fn bc_1_nothing_retained_means_every_request_loads_and_unloads() {
    let mut world = on_host(ByteCount::ZERO, vec![on(model("m", 4), "cpu")]);
    for loads in 1..=2 {
        let request = world.submit("m", 5);
        world.run_for(10 * SECOND);
        assert_eq!(world.fate(request), &Fate::Answered);
        assert_eq!(world.loads(), loads);
        assert!(world.core.slots().is_empty());
    }
}

#[test]
fn bc_3_the_sweep_counts_what_it_unloads() {
    let mut world = World::calm(24, vec![model("a", 4), model("b", 4)]);
    world.submit("a", 5);
    world.submit("b", 5);
    world.run_until(s(400));
    let reasons: Vec<&str> = world.core.decisions().rev().take(2).map(|d| d.reasons[1].as_str()).collect();
    assert_eq!(reasons, ["2 models left for idleness so far", "1 models left for idleness so far"]);
}

#[test]
fn bc_5_a_stale_copy_serves_what_runs_and_the_next_load_is_new() {
    let mut world = World::calm(24, vec![model("m", 4)]);
    let running = world.submit("m", 5);
    world.run_until(s(4));
    let done = world.operate(|request| Order::Invalidate { request, model: "m".into() });
    assert_eq!(world.fate(done), &Fate::Done);
    assert!(world.core.slots()[0].stale);
    world.run_until(s(6));
    assert_eq!(world.fate(running), &Fate::Answered);
    assert!(world.core.slots().is_empty());
    world.submit("m", 5);
    world.run_until(s(20));
    assert_eq!((world.loads(), world.core.slots()[0].stale), (2, false));
    let unknown = world.operate(|request| Order::Invalidate { request, model: "x".into() });
    assert_eq!(world.refusal(unknown).reason, RefusalReason::UnknownModel);
}

#[test]
fn rc_30_a_freed_device_empties_stays_closed_and_comes_back() {
    let mut world = World::calm(24, vec![on(model("m", 4), "cuda:0"), pinned(model("p", 4))]);
    world.submit("p", 5);
    let running = world.submit("m", 5);
    world.run_until(s(7));
    let free = world.operate(|request| Order::FreeDevice { request, device: DeviceId::Cuda(0) });
    assert_eq!(world.fate(free), &Fate::Waiting);
    let waiting = world.submit("m", 0);
    world.run_until(s(12));
    assert_eq!((world.fate(running), world.fate(free)), (&Fate::Answered, &Fate::Done));
    assert!(world.core.slots().is_empty() && world.core.devices()[0].closed);
    assert_eq!(world.core.why(waiting), Some(WaitReason::DeviceClosed { device: DeviceId::Cuda(0) }));
    world.operate(|request| Order::OpenDevice { request, device: DeviceId::Cuda(0) });
    world.run_until(s(20));
    assert_eq!(world.fate(waiting), &Fate::Answered);
    let unknown = world.operate(|request| Order::FreeDevice { request, device: DeviceId::Cuda(7) });
    assert_eq!(world.refusal(unknown).reason, RefusalReason::DeviceUnavailable);
    assert!(world.refusal(unknown).message.contains("known devices: cuda:0"));
}

/// A world of two GPUs: on one, the model is more important than all that wait for it; on the other, the model serves
/// `busy`.
fn one_gpu_held(more: Vec<ModelDescription>) -> World {
    let mut models: Vec<_> = (0..20).map(|n| on(model(&format!("blocked-{n}"), 8), "cuda:0")).collect();
    models.push(on(model("hog", 8), "cuda:0"));
    models.extend(more);
    let mut world = World::calm(8, models);
    world.tell(Event::DeviceObserved(device("cuda:1", 8)));
    let mut settings = Settings { reevaluate_every: 3_600 * SECOND, ..Settings::default() };
    settings.clients.default.max_priority = Priority::HIGHEST;
    world.tell(Event::Settings(Box::new(settings)));
    world.behaviour.answer = (7_200 * SECOND, 7_200 * SECOND);
    world.submit("hog", 0);
    world.run_for(4 * SECOND);
    world.behaviour.answer = (2 * SECOND, 2 * SECOND);
    world
}

#[test]
fn rc_6_a_completion_is_followed_by_a_look_at_those_that_it_concerns_however_many_wait() {
    let mut world = one_gpu_held(vec![on(model("busy", 8), "cuda:1"), on(model("late", 8), "cuda:1")]);
    let running = world.submit("busy", 5);
    world.run_for(4 * SECOND);
    assert!(matches!(world.fate(running), Fate::Running(..)));
    for n in 0..20 {
        world.submit(&format!("blocked-{n}"), 5);
    }
    let late = world.submit("late", 6);
    let more = world.submit("late", 5);
    world.run_for(SECOND);
    assert_eq!(world.state_of("late"), None, "{:?}", world.core.why(late));
    // When the answer ends, the slot is idle with an empty queue, and is evicted in the same moment.
    while matches!(world.fate(running), Fate::Running(..)) {
        world.run_for(Duration::from_millis(10));
    }
    world.run_for(Duration::from_millis(5));
    assert!(!matches!(world.state_of("busy"), Some(SlotState::Ready(_))), "{:?}", world.core.why(more));
    world.run_for(20 * SECOND);
    assert_eq!((world.fate(late), world.fate(more)), (&Fate::Answered, &Fate::Answered));
}

#[test]
fn rc_13_a_load_ahead_begins_beside_those_who_wait_and_takes_no_room_that_they_need() {
    let far = || on(model("far", 4), "cuda:1");
    let mut world = one_gpu_held(vec![far(), on(model("first", 6), "cuda:1"), on(model("small", 2), "cuda:1")]);
    world.submit("far", 5);
    world.run_for(10 * SECOND);
    world.unload(Some("far"));
    world.run_for(SECOND);
    // Other models wait at sites that this one does not use.
    world.submit("blocked-0", 5);
    let hasty = |world: &mut World| {
        let deadline = world.now + SECOND;
        let refused = world.submit_with("far", 5, |submission| submission.deadline = Some(deadline));
        assert_eq!(world.refusal(refused).reason, RefusalReason::ColdStart);
        world.run_for(Duration::from_millis(1));
    };
    hasty(&mut world);
    assert!(world.state_of("far").is_some(), "nobody needs that room");
    world.run_for(10 * SECOND);
    world.unload(Some("far"));
    world.run_for(SECOND);
    // A model that waits for its lease needs the whole room, so none of it is given away; a small model leaves
    // enough.
    for (name, begins) in [("first", false), ("small", true)] {
        world.behaviour.refuse_lease = 1_000;
        let waiting = world.submit(name, 5);
        world.run_for(Duration::from_millis(20));
        assert_eq!(world.state_of(name), None);
        hasty(&mut world);
        assert_eq!(world.core.decisions().last().is_some_and(|d| d.model.as_str() == "far"), begins, "{name}");
        world.behaviour.refuse_lease = 0;
        world.cancel(waiting);
        world.run_for(10 * SECOND);
    }
}

#[test]
fn rc_26_bulk_work_takes_no_place_of_what_is_more_important_where_its_worker_has_it_wait() {
    for bulk_waits in [false, true] {
        let mut world = World::calm(8, vec![ModelDescription { bulk_waits, ..concurrent(model("m", 4), 2) }]);
        let bulk: Vec<RequestId> = (0..4).map(|_| world.submit("m", 9)).collect();
        world.run_until(ms(3_500));
        let runs = |world: &World, request: &RequestId| matches!(world.fate(*request), Fate::Running(_));
        let running = |world: &World, all: &[RequestId]| all.iter().filter(|request| runs(world, request)).count();
        assert_eq!(running(&world, &bulk), 2);
        let urgent: Vec<RequestId> = (0..4).map(|_| world.submit("m", 2)).collect();
        world.run_until(ms(3_600));
        assert_eq!(running(&world, &urgent), if bulk_waits { 2 } else { 0 }, "{bulk_waits}");
        assert_eq!(running(&world, &bulk), 2, "no further bulk work is let in");
        world.run_until(s(60));
        assert!(bulk.iter().chain(&urgent).all(|request| world.fate(*request) == &Fate::Answered));
    }
}
