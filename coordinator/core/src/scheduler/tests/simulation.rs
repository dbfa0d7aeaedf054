//! Seeded simulation of random machines with crashing workers, refusing ledgers and impatient clients. The world
//! checks its invariants after every step; a failing run prints its seed.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use model_boss_protocol::{ByteCount, Category, Priority, RequestId, ResidencyMode, WorkerCores};

use super::world::{Behaviour, Fate, Rng, World};
use crate::Verdict::{
    self, Crash, Drain, Evict, Keep, LeaseRefused, Load, Move, MoveFailed, Ready, Refuse, Revoke, Rung as RungChange,
    Unload,
};
use crate::testing::{device, model};
use crate::{
    ClientRule, DeviceObservation, Effect, Event, Ladder, LayerOptions, LedgerState, LoadFailurePolicy, LoadOptions,
    MaxLoaded, ModelDescription, Order, Rung, Settings, SizeEstimate, SizeRule, Streaming, Target,
};

const SEEDS: u64 = 300;
const STEPS: u64 = 150;

/// `MODEL_BOSS_SIM_SEED=n` runs one seed, `MODEL_BOSS_SIM_SEEDS=n` the first n.
#[test]
fn whatever_happens_the_invariants_hold() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("MODEL_BOSS_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MODEL_BOSS_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let many = seeds.end - seeds.start >= SEEDS;
    let mut seen: BTreeMap<Verdict, u64> = BTreeMap::new();
    let (mut forgotten, mut shared) = (0, 0);
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(world) => {
                let forgets = |(_, effect): &&(_, Effect)| matches!(effect, Effect::ForgetModel { .. });
                forgotten += world.log.iter().filter(forgets).count();
                let shares = |(_, effect): &&(_, Effect)| matches!(effect, Effect::ShareCores { .. });
                shared += world.log.iter().filter(shares).count();
                for (verdict, times) in world.verdict_counts {
                    *seen.entry(verdict).or_default() += times;
                }
            }
            Err(panic) => {
                eprintln!("seed {seed} fails; run it alone with MODEL_BOSS_SIM_SEED={seed}");
                resume_unwind(panic);
            }
        }
    }
    eprintln!("decisions: {seen:?}, {forgotten} models forgotten, {shared} shares of cores");
    // An event that never occurs in the simulation is not tested by it.
    let kinds =
        [Load, Ready, Evict, Drain, Keep, Unload, Move, MoveFailed, Crash, LeaseRefused, Refuse, Revoke, RungChange];
    assert!(!many || kinds.iter().all(|kind| seen.contains_key(kind)), "{seen:?}");
    assert!(!many || (forgotten > 0 && shared > 0));
}

#[test]
fn the_same_seed_gives_the_same_effects() {
    for seed in 0..5 {
        assert_eq!(run(seed).log, run(seed).log, "seed {seed}");
    }
}

/// Simulates random events on a random machine.
fn run(seed: u64) -> World {
    let mut rng = Rng(seed.wrapping_mul(0x5851_F42D_4C95_7F2D) ^ 0xA5A5);
    let mut world = World::new(settings(&mut rng), behaviour(&mut rng), seed);
    let devices = machine(&mut rng);
    for machine in &devices {
        world.tell(Event::DeviceObserved(machine.clone()));
    }
    let models = catalog(&mut rng, &devices);
    world.catalog(models);
    let crowd = rng.between(1, 6);
    for _ in 0..STEPS {
        let pause = if rng.chance(600) { rng.below(400) } else { rng.below(20_000) };
        world.run_for(Duration::from_millis(pause));
        for _ in 0..rng.between(1, crowd) {
            act(&mut world, &mut rng, &devices);
        }
    }
    if rng.chance(500) {
        everybody_is_served(&mut world, &devices);
    }
    // A closed ledger would keep leases, and the world checks that none are left.
    world.tell(Event::Ledger(LedgerState::Open));
    world.tell(Event::Drain);
    let late = world.submit("m0", 5);
    assert!(matches!(world.fate(late), Fate::Refused(_)));
    world.run_to_the_end();
    world
}

/// Checks that no request waits for ever once failures stop and no client is held back.
fn everybody_is_served(world: &mut World, devices: &[DeviceObservation]) {
    world.behaviour = Behaviour::default();
    world.tell(Event::Ledger(LedgerState::Open));
    world.outsiders().iter().for_each(|label| world.end_training(label));
    let mut settings = Settings { max_wait: Duration::from_secs(60), ..Settings::default() };
    settings.clients.default.max_priority = Priority::HIGHEST;
    world.tell(Event::Settings(Box::new(settings)));
    for device in devices {
        world.tell(Event::DeviceObserved(device.clone()));
        world.operate(|request| Order::OpenDevice { request, device: device.device.clone() });
    }
    let names: Vec<_> = world.models().iter().map(|model| model.id.clone()).collect();
    for model in names {
        world.operate(|request| Order::Pin { request, model, pinned: Some(false) });
    }
    world.run_for(Duration::from_secs(6 * 3_600));
    for (request, fate) in &world.fates {
        assert!(!fate.is_open(), "request {request} waits for ever: {fate:?}, {:?}", world.core.why(*request));
    }
}

fn any<'a>(rng: &mut Rng, devices: &'a [DeviceObservation]) -> &'a DeviceObservation {
    &devices[usize::try_from(rng.below(devices.len() as u64)).unwrap()]
}

/// Random events of other lease holders and of the ledger.
fn outside(world: &mut World, rng: &mut Rng, devices: &[DeviceObservation]) {
    let others = world.outsiders();
    let slots = world.core.slots();
    match rng.below(100) {
        0..=49 => {
            let device = any(rng, devices).device.to_string();
            let (gib, priority) = (rng.between(1, 20), u8::try_from(rng.below(10)).unwrap());
            world.train(&format!("job {}", rng.next()), &device, gib, priority);
        }
        50..=79 if !others.is_empty() => {
            world.end_training(&others[usize::try_from(rng.below(others.len() as u64)).unwrap()]);
        }
        80..=89 if !slots.is_empty() => {
            let slot = &slots[usize::try_from(rng.below(slots.len() as u64)).unwrap()];
            let slot = slot.key();
            let priority = Priority::new(u8::try_from(rng.below(10)).unwrap()).unwrap();
            let (by, remaining) = ("a job".to_owned(), Duration::from_secs(60));
            world.tell(Event::LeaseRevoked { slot, by, priority, remaining });
            if rng.chance(300) {
                world.tell(Event::LeaseKept { slot });
            }
        }
        90..=93 => world.tell(Event::Ledger(LedgerState::Away { detail: "no connection".to_owned() })),
        94 => world.tell(Event::Ledger(LedgerState::Recovering { left: Duration::from_secs(21) })),
        _ => world.tell(Event::Ledger(LedgerState::Open)),
    }
}

/// A random order of an operator.
fn operate(world: &mut World, rng: &mut Rng, devices: &[DeviceObservation]) {
    let name = format!("m{}", rng.below(world.models().len() as u64 + 1));
    let model = || name.as_str().into();
    match rng.below(100) {
        0..=24 => {
            let mut options = LoadOptions::default();
            if rng.chance(400) {
                options.context = Some(1 << rng.between(9, 13));
                options.size = rng.chance(500).then(|| SizeEstimate {
                    bytes: ByteCount::gib(rng.between(1, 12)),
                    rule: SizeRule::Headers,
                    streamed: None,
                });
                // A model that may stream is always sized with its needs for streaming.
                let known = world.models().iter().find(|model| model.id.as_str() == name);
                if known.is_some_and(|model| model.size.streamed.is_some()) {
                    options.size = known.map(|model| model.size.clone());
                }
            }
            if rng.chance(300) {
                let modes = [ResidencyMode::Auto, ResidencyMode::Resident, ResidencyMode::Stream];
                let mode = Some(modes[usize::try_from(rng.below(3)).unwrap()]);
                options.layers = LayerOptions { mode, window: rng.chance(300).then_some(2), ..LayerOptions::default() };
                let known = world.models().iter().find(|model| model.id.as_str() == name);
                options.size = known.map(|model| {
                    let streams = model.size.streamed.filter(|_| mode != Some(ResidencyMode::Resident));
                    let forced = streams.filter(|_| mode == Some(ResidencyMode::Stream));
                    let whole = model.size.streamed.map_or(model.size.bytes, |streaming| streaming.whole);
                    let bytes = forced.map_or(whole, |streaming| streaming.least);
                    SizeEstimate { bytes, rule: SizeRule::Headers, streamed: streams }
                });
            }
            options.device = rng.chance(200).then(|| any(rng, devices).device.clone());
            world.load_with(&name, options);
        }
        25..=44 => {
            world.unload(rng.chance(800).then_some(name.as_str()));
        }
        45..=74 => {
            let device = any(rng, devices).device.to_string();
            let priority = u8::try_from(rng.below(10)).unwrap();
            let caller = world.move_to(&name, &device, rng.chance(500), priority);
            if rng.chance(200) {
                world.cancel(caller);
            }
        }
        75..=80 => {
            world.operate(|request| Order::Invalidate { request, model: model() });
        }
        81..=86 => {
            let pinned = [None, Some(true), Some(false), Some(false)][usize::try_from(rng.below(4)).unwrap()];
            world.operate(|request| Order::Pin { request, model: model(), pinned });
        }
        87..=91 => {
            let device = any(rng, devices).device.clone();
            world.operate(|request| Order::FreeDevice { request, device });
        }
        _ => {
            let device = any(rng, devices).device.clone();
            world.operate(|request| Order::OpenDevice { request, device });
        }
    }
}

fn act(world: &mut World, rng: &mut Rng, devices: &[DeviceObservation]) {
    match rng.below(100) {
        0..=69 => {
            let name = format!("m{}", rng.below(world.models().len() as u64 + 1));
            let deadline = rng.chance(150).then(|| world.now + Duration::from_millis(rng.below(30_000)));
            let keep = rng.chance(150).then(|| Duration::from_millis(rng.below(5_000)));
            let client = format!("c{}", rng.below(4));
            let priority = u8::try_from(rng.below(10)).unwrap();
            let others: Vec<String> = (0..rng.below(3))
                .map(|_| match rng.below(world.models().len() as u64 + 3) {
                    n if n < world.models().len() as u64 + 2 => format!("m{n}"),
                    n => format!("cloud{}", n % 2),
                })
                .collect();
            let ladder = rng.chance(400).then(|| Ladder {
                first: rung(0, &name),
                rest: others.iter().enumerate().map(|(place, name)| rung(place + 1, name)).collect(),
                pin_primary: rng.chance(300),
                patience: Duration::from_secs(rng.below(30)),
            });
            world.submit_with(&name, priority, |submission| {
                if let Some(ladder) = ladder {
                    submission.ladder = ladder;
                }
                submission.deadline = deadline;
                submission.client = client.into();
                if let Some(span) = keep {
                    World::keep_for(span)(submission);
                }
            });
        }
        70..=76 => outside(world, rng, devices),
        77..=84 => {
            // The request may be in any state: a client may disconnect before it receives its own end.
            let late = rng.chance(100);
            let of_clients: Vec<RequestId> =
                world.fates.iter().filter(|(_, fate)| late || fate.is_open()).map(|(request, _)| *request).collect();
            if !of_clients.is_empty() {
                let request = of_clients[usize::try_from(rng.below(of_clients.len() as u64)).unwrap()];
                if rng.chance(200) { world.time_is_over(request) } else { world.cancel(request) }
            }
        }
        85..=93 => operate(world, rng, devices),
        94..=97 => {
            let mut seen = any(rng, devices).clone();
            let gib = seen.capacity.unwrap_or_default().0 >> 30;
            seen.foreign = (!rng.chance(100)).then(|| ByteCount::gib(rng.below(gib / 2 + 1)));
            if rng.chance(50) {
                (seen.foreign, seen.lost) = (None, true);
            }
            world.tell(Event::DeviceObserved(seen));
        }
        98 if rng.chance(300) => world.tell(Event::Settings(Box::new(settings(rng)))),
        _ => {
            let mut models = world.models().to_vec();
            let place = usize::try_from(rng.below(models.len().max(1) as u64)).unwrap();
            let named = model(&format!("m{}", rng.below(9)), rng.between(1, 8));
            let known = models.iter().position(|known| known.id == named.id);
            if rng.chance(300) {
                // A client names a model by its path, for the first time or again.
                let times = world.core.now.since_start().as_millis() as u64 + 1;
                match known {
                    Some(place) if models[place].named.is_some() => models[place].named = Some(times),
                    Some(_) => {}
                    None => models.push(ModelDescription { named: Some(times), ..named }),
                }
            } else if models.is_empty() {
                models.push(named);
            } else if rng.chance(300) && models.len() > 1 {
                models.remove(place);
            } else {
                models[place].revision += 1;
                models[place].pin = rng.chance(100);
            }
            world.catalog(models);
        }
    }
}

fn settings(rng: &mut Rng) -> Settings {
    let mut settings = Settings::default();
    if rng.chance(300) {
        settings.max_queued_per_model = 5;
        settings.max_queued = 12;
    }
    if rng.chance(300) {
        settings.max_wait = Duration::from_secs(rng.below(60));
    }
    if rng.chance(200) {
        settings.model_idle = Some(Duration::from_secs(rng.below(10)));
    }
    if rng.chance(300) {
        let limit = |rng: &mut Rng| usize::try_from(rng.between(1, 3)).unwrap();
        settings.max_loaded =
            MaxLoaded::Per([(Category::Llm, limit(rng)), (Category::Embedding, limit(rng))].into_iter().collect());
    }
    if rng.chance(200) {
        settings.load_failure_policy = LoadFailurePolicy::Fail;
    }
    settings.aging_step = Duration::from_secs(rng.below(31));
    settings.decisions_kept = 50;
    settings.left_models_kept = usize::try_from(rng.below(3)).unwrap();
    settings.path_models_kept = usize::try_from(rng.below(4)).unwrap();
    settings.path_model_idle = Duration::from_secs(rng.below(600));
    settings.share_cores = !rng.chance(100);
    settings.clients.default.max_priority = Priority::HIGHEST;
    if rng.chance(300) {
        let up_to =
            |rng: &mut Rng, chance, most| rng.chance(chance).then(|| u32::try_from(rng.between(1, most)).unwrap());
        let rule = ClientRule {
            max_concurrent: up_to(rng, 500, 3),
            cooldown: Duration::from_millis(rng.below(3) * rng.below(5_000)),
            max_queued: up_to(rng, 300, 5),
            rate_per_minute: up_to(rng, 300, 60),
            ..ClientRule::default()
        };
        settings.clients.named.insert("c1".into(), rule.clone());
        settings.clients.named.insert("c2".into(), rule);
    }
    settings
}

fn rung(position: usize, name: &str) -> Rung {
    let target = match name.strip_prefix("cloud") {
        Some(provider) => Target::Cloud { provider: provider.into(), model: "any".into() },
        None => Target::Local(name.into()),
    };
    Rung { target, position }
}

fn behaviour(rng: &mut Rng) -> Behaviour {
    let mut up_to = |most: u64| (Duration::from_millis(rng.below(20)), Duration::from_millis(20 + rng.below(most)));
    let (load, answer, exit) = (up_to(30_000), up_to(10_000), up_to(8_000));
    let faults = if rng.chance(300) { 0 } else { 1 };
    Behaviour {
        load,
        answer,
        exit,
        refuse_lease: faults * rng.below(400),
        fail_load: faults * rng.below(400),
        crash: faults * rng.below(300),
        provider_fails: faults * rng.below(500),
        gives_up: if rng.chance(500) { rng.below(300) } else { 0 },
        port_clash: faults * rng.below(100),
        footprint: rng.chance(500).then(|| (500, rng.between(600, 1_300))),
        bad: if rng.chance(300) { ["m0".into()].into() } else { Default::default() },
        cores: {
            let number = |number: u64| NonZero::new(u32::try_from(number).unwrap()).unwrap();
            WorkerCores { threads: number(rng.between(1, 12)), cores: number(rng.between(1, 8)) }
        },
    }
}

fn machine(rng: &mut Rng) -> Vec<DeviceObservation> {
    let mut host = device("cpu", rng.between(4, 32));
    host.retention = rng.chance(300).then(|| ByteCount::gib(rng.below(12)));
    let mut devices = vec![host];
    for gpu in 0..rng.below(4) {
        let mut seen = device(&format!("cuda:{gpu}"), rng.between(4, 48));
        seen.reserve = ByteCount::mib(rng.below(2) * 512);
        devices.push(seen);
    }
    if rng.chance(300) {
        let mut npu = device("npu", rng.between(4, 16));
        npu.exclusive = true;
        devices.push(npu);
    }
    devices
}

fn catalog(rng: &mut Rng, devices: &[DeviceObservation]) -> Vec<ModelDescription> {
    let gib = |device: &DeviceObservation| device.capacity.unwrap_or_default().0 >> 30;
    let most = devices.iter().map(gib).max().unwrap_or(4);
    let splits = rng.chance(300);
    (0..rng.between(1, 7))
        .map(|n| {
            let mut one = model(&format!("m{n}"), rng.between(1, most + 1));
            one.max_concurrent = u32::try_from(rng.between(1, 4)).unwrap();
            one.pin = rng.chance(100);
            if rng.chance(250) {
                one.device = any(rng, devices).device.clone();
            }
            one.category = [Category::Llm, Category::Llm, Category::Embedding][usize::try_from(rng.below(3)).unwrap()];
            if rng.chance(500) {
                one.size.rule = SizeRule::Headers;
            }
            if splits {
                one.splittable = true;
                one.size.bytes = ByteCount::gib(rng.between(1, most * 2));
            }
            if rng.chance(300) {
                let (whole, mib) = (one.size.bytes, ByteCount::mib);
                let least = mib(rng.between(100, 4_000)).min(whole);
                let (layers, ring) = (whole - mib(50), mib(rng.between(16, 600)));
                one.size.streamed = Some(Streaming { whole, least, layers, ring });
                one.size.rule = SizeRule::Headers;
                one.residency.mode = [ResidencyMode::Auto, ResidencyMode::Auto, ResidencyMode::Stream]
                    [usize::try_from(rng.below(3)).unwrap()];
                if one.residency.mode == ResidencyMode::Stream {
                    one.size.bytes = least;
                }
            }
            if rng.chance(100) {
                one.exclusive_devices = vec![any(rng, devices).device.clone()];
            }
            one.context_length = rng.chance(500).then_some(2_048);
            one
        })
        .collect()
}
