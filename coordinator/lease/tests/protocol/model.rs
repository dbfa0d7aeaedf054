//! A small instance of the world, explored completely up to a depth by a model checker.

#[cfg(test)]
use stateright::Checker;
use stateright::{Model, Property};

use crate::world::{Action, Budget, Bug, World};

/// The clients, the budget of faults, and the depth of the search.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) clients: usize,
    pub(crate) budget: Budget,
    pub(crate) bug: Bug,
}

impl Model for Instance {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(self.clients, self.budget, self.bug);
        world.step(Action::Observe(0));
        world.step(Action::Observe(1));
        vec![world]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        if state.violation().is_some() {
            return;
        }
        for action in state.actions() {
            if !actions.contains(&action) {
                actions.push(action);
            }
        }
    }

    fn next_state(&self, state: &World, action: Action) -> Option<World> {
        let mut next = state.clone();
        next.step(action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, world: &World| world.violation().is_none()),
            Property::sometimes("a worker goes through the gate", |_, world: &World| world.reached().attached),
            Property::sometimes("the window opens", |_, world: &World| world.reached().recovering),
            Property::sometimes("a lease is lost", |_, world: &World| world.reached().lost),
        ]
    }
}

/// A fixed instance; the larger run is `cargo run --release -p model-boss-lease --example model_check`.
#[test]
fn le_4_every_state_of_a_small_instance_keeps_the_invariants() {
    let budget = Budget { ticks: 2, asks: 2, pauses: 1, crashes: 1, losses: 1, jumps: 0, oddities: 0 };
    let instance = Instance { clients: 2, budget, bug: Bug::None };
    let checker = instance.checker().target_state_count(25_000).spawn_bfs().join();
    checker.assert_no_discovery("the invariants hold");
    checker.assert_any_discovery("the window opens");
    assert!(checker.unique_state_count() >= 5_000, "{}", checker.unique_state_count());
}

/// The search of the model checker finds a seeded bug.
#[test]
fn the_model_checker_finds_a_seeded_bug() {
    let budget = Budget { ticks: 0, asks: 1, pauses: 0, crashes: 0, losses: 0, jumps: 0, oddities: 0 };
    let instance = Instance { clients: 1, budget, bug: Bug::DeadFromElsewhere };
    let checker = instance.checker().target_state_count(40_000).spawn_bfs().join();
    checker.assert_any_discovery("the invariants hold");
}
