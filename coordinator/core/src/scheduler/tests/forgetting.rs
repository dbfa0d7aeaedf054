//! Forgetting of models: no state by model grows with the number of names that were ever used.

use super::*;

fn named(name: &str, times: u64) -> ModelDescription {
    ModelDescription { named: Some(times), ..model(name, 4) }
}

/// The numbers of model entries, in the catalog and the queue, and of slots.
fn places(world: &World) -> (usize, usize) {
    (world.core.catalog.places(), world.core.pool.len())
}

/// Loads a model for one answer, so that all state by model is created.
fn use_once(world: &mut World, name: &str) {
    let request = world.submit(name, 5);
    world.run_for(s(20).since_start());
    assert_eq!(*world.fate(request), Fate::Answered, "{name}");
}

#[test]
fn op_10_a_thousand_models_that_came_and_left_leave_a_bounded_number_of_places() {
    let mut world = World::calm(24, vec![model("stays", 4)]);
    let kept = world.core.settings.left_models_kept;
    for n in 0..1_000 {
        let name = format!("m{n}");
        world.catalog(vec![model("stays", 4), model(&name, 4)]);
        use_once(&mut world, &name);
        world.catalog(vec![model("stays", 4)]);
        world.run_for(s(1).since_start());
    }
    let (models, slots) = places(&world);
    assert!(models <= kept + 3 && slots <= kept + 3, "{models} places, {slots} slots");
    let clients = world.core.clients(world.now);
    assert!(clients.iter().all(|client| client.models.len() <= 64), "{}", clients[0].models.len());
    // Its first entry was reused for another model long ago.
    world.catalog(vec![model("stays", 4), model("m0", 4)]);
    use_once(&mut world, "m0");
    use_once(&mut world, "stays");
}

#[test]
fn a_model_that_is_back_soon_is_remembered() {
    let mut world = World::calm(24, vec![model("a", 4)]);
    use_once(&mut world, "a");
    let a = world.core.catalog.resolve("a").unwrap();
    world.catalog(Vec::new());
    world.run_for(s(1).since_start());
    world.catalog(vec![model("a", 4)]);
    assert_eq!(world.core.catalog.resolve("a"), Some(a));
    assert!(world.core.catalog[a].history.mean_answer() > std::time::Duration::ZERO);
}

#[test]
fn models_by_path_are_forgotten_beyond_a_count_the_one_unused_longest_first() {
    let mut world = World::calm(24, vec![model("own", 4)]);
    let mut models = vec![model("own", 4)];
    let kept = world.core.settings.path_models_kept;
    for n in 0..3 * kept {
        let name = format!("file:{n}");
        models = world.models().to_vec();
        models.push(named(&name, 1));
        world.catalog(models.clone());
        use_once(&mut world, &name);
        // The model `stays` is used again and again, and is not forgotten.
        if n % 50 == 0 {
            use_once(&mut world, "file:0");
        }
    }
    assert!(world.models().len() <= kept + 2, "{} of {}", world.models().len(), models.len());
    let known = |name: &str| world.core.model(name).is_some();
    assert!(known("own") && known("file:0") && known(&format!("file:{}", 3 * kept - 1)));
    assert!(!known("file:1"));
}

#[test]
fn a_model_by_path_is_forgotten_when_nobody_used_it_for_long_and_never_while_it_is_loaded() {
    let mut pinned = named("file:pinned", 1);
    pinned.pin = true;
    let mut world = World::calm(24, vec![named("file:a", 1), pinned, model("own", 4)]);
    for name in ["file:a", "file:pinned", "own"] {
        use_once(&mut world, name);
    }
    let idle = world.core.settings.path_model_idle;
    world.run_for(idle / 2);
    assert!(world.core.model("file:a").is_some());
    world.run_for(idle);
    assert!(world.core.model("file:a").is_none());
    assert!(world.models().iter().all(|model| model.id.as_str() != "file:a"), "the shell was told");
    assert!(world.core.model("file:pinned").is_some(), "it is loaded");
    assert!(world.core.model("own").is_some(), "it has a manifest");
}

#[test]
fn a_model_that_is_named_again_while_it_is_being_forgotten_stays() {
    let mut world = World::calm(24, vec![named("file:a", 1)]);
    world.core.settings.path_models_kept = 0;
    world.run_for(s(1).since_start());
    world.catalog(vec![named("file:a", 1), named("file:b", 1)]);
    assert!(world.core.model("file:a").is_none());
    let mut settings = world.core.settings.clone();
    settings.path_models_kept = 2;
    world.tell(Event::Settings(Box::new(settings)));
    // A client names the model again before the shell learns that it was forgotten.
    world.catalog(vec![named("file:a", 2), named("file:b", 2)]);
    use_once(&mut world, "file:a");
    world.run_for(s(5).since_start());
    use_once(&mut world, "file:a");
}
