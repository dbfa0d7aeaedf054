//! Models on the host share its cores by the priorities of their requests in flight (FA-5).

use std::num::NonZero;

use model_boss_protocol::{CpuShare, WorkerCores};

use super::*;

fn cores(number: u32) -> WorkerCores {
    let number = NonZero::new(number).unwrap();
    WorkerCores { threads: number, cores: number }
}

/// A world whose host has 8 cores and these loaded models, with answers that take 10 s.
fn host(models: &[&str]) -> World {
    let mut world = World::calm(8, Vec::new());
    world.behaviour.cores = cores(8);
    world.tell(Event::DeviceObserved(device("cpu", 64)));
    world.catalog(models.iter().map(|name| concurrent(on(model(name, 4), "cpu"), 4)).collect());
    for name in models {
        world.load(name);
    }
    world.run_until(s(60));
    world.behaviour.answer = (10 * SECOND, 10 * SECOND);
    world
}

/// The shares of all models as `threads` or `threads/nice`, and `-` for a model without requests.
fn shares(world: &World) -> String {
    let text = |share: Option<CpuShare>| match share {
        None => "-".to_owned(),
        Some(CpuShare { threads, nice: 0, .. }) => threads.to_string(),
        Some(CpuShare { threads, nice, .. }) => format!("{threads}/{nice}"),
    };
    let mut slots = world.core.slots();
    slots.sort_by(|a, b| a.model.cmp(&b.model));
    slots.into_iter().map(|slot| text(slot.cpu_share)).collect::<Vec<_>>().join(" ")
}

/// The workers that were told a share so far.
fn told(world: &World) -> usize {
    world.log.iter().filter(|(_, effect)| matches!(effect, Effect::ShareCores { .. })).count()
}

#[test]
fn fa_5_a_model_alone_has_all_cores_and_is_told_nothing() {
    let mut world = host(&["a", "b"]);
    assert_eq!(shares(&world), "- -");
    world.submit("a", 9);
    world.submit("a", 9);
    assert_eq!((shares(&world).as_str(), told(&world)), ("8 -", 0));
}

#[test]
fn fa_5_models_share_by_the_most_important_request_of_each_and_get_the_cores_back() {
    let mut world = host(&["a", "b"]);
    world.submit("a", 5);
    world.submit("b", 5);
    assert_eq!((shares(&world).as_str(), told(&world)), ("4 4", 2));
    world.run_for(SECOND);
    world.submit("b", 8);
    assert_eq!((shares(&world).as_str(), told(&world)), ("4 4", 2), "a less important request changes nothing");
    world.submit("b", 4);
    assert_eq!(shares(&world), "3 5");
    world.run_for(SECOND);
    let urgent = world.submit("a", 2);
    assert_eq!(shares(&world), "6 2");
    world.cancel(urgent);
    assert_eq!(shares(&world), "3 5");
    world.run_for(8 * SECOND);
    assert_eq!(shares(&world), "- 8", "the answer of a is over");
    world.run_for(60 * SECOND);
    assert_eq!(shares(&world), "- -");
    let before = told(&world);
    world.submit("b", 5);
    assert_eq!((shares(&world).as_str(), told(&world)), ("- 8", before), "it was told so when it was alone last");
}

#[test]
fn fa_5_a_share_ends_with_the_slot() {
    let mut world = host(&["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        world.submit(name, 5);
    }
    assert_eq!(shares(&world), "3 3 2");
    world.kill("b");
    world.run_for(Duration::from_millis(50));
    assert!(shares(&world).starts_with("4 "), "{}", shares(&world));
    world.run_for(Duration::from_millis(500));
    let of_b = world.core.slots().into_iter().find(|slot| slot.model.as_str() == "b");
    assert!(of_b.is_none_or(|slot| slot.cpu_share.is_none()), "a killed worker has no share");
    world.run_for(60 * SECOND);
    assert!(shares(&world).split(' ').all(|share| share == "-"));
}

#[test]
fn fa_5_more_models_than_cores_have_a_thread_each() {
    let names: Vec<String> = (0..10).map(|n| format!("m{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = host(&names);
    for name in &names {
        world.submit(name, 5);
    }
    assert_eq!(shares(&world), "1 1 1 1 1 1 1 1 1 1");
    world.submit("m9", 0);
    assert_eq!(shares(&world), "1/7 1/7 1/7 1/7 1/7 1/7 1/7 1/7 1/7 6");
}

#[test]
fn fa_5_models_on_gpus_neither_have_a_share_nor_take_one() {
    let mut world = host(&["a"]);
    world.catalog(vec![concurrent(on(model("a", 4), "cpu"), 4), on(model("g", 4), "cuda:0")]);
    world.submit("g", 0);
    world.run_for(5 * SECOND);
    world.submit("a", 9);
    assert_eq!((shares(&world).as_str(), told(&world)), ("8 -", 0));
}

#[test]
fn fa_5_sharing_can_be_switched_off_and_on_while_models_compute() {
    let mut world = host(&["a", "b"]);
    world.submit("a", 2);
    world.submit("b", 5);
    assert_eq!(shares(&world), "7 1");
    let mut settings = Settings { share_cores: false, ..Settings::default() };
    world.tell(Event::Settings(Box::new(settings.clone())));
    assert_eq!(shares(&world), "8 8");
    settings.share_cores = true;
    world.tell(Event::Settings(Box::new(settings)));
    assert_eq!(shares(&world), "7 1");
}
