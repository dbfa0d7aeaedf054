//! The most answers that any order could give on a small machine, found by search with all arrivals known.
//!
//! The search goes on second by second. From each state it tries everything that a scheduler may do: begin a load,
//! evict an idle model, let a busy one drain, or wait. Equal states are merged. Where more states remain than
//! [`WIDTH`], those with the fewest answers are dropped, and the result is what was found rather than the optimum.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use super::{Dice, Scenario};

/// The most states that are followed from one second to the next.
const WIDTH: usize = 60_000;
/// States with their answers. Their order is the same in every run.
type States = HashMap<State, usize, BuildHasherDefault<DefaultHasher>>;

/// The most models of a machine, and the most seconds of an answer.
const MODELS: usize = 4;
const SECONDS: usize = 2;

/// The answers found, and whether every state was followed.
pub(super) struct Optimum {
    pub(super) answers: usize,
    pub(super) is_exact: bool,
}

/// A model's place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Absent,
    /// The seconds until the model is loaded.
    Loading(u8),
    Ready,
    /// The model ends its requests and gets no more.
    Draining,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    places: [Place; MODELS],
    waiting: [u8; MODELS],
    /// Running requests of each model, by the seconds until they end.
    running: [[u8; SECONDS]; MODELS],
    /// The number of requests that have arrived.
    arrived: u16,
}

/// Searches the span that begins with the scenario's start.
pub(super) fn search(scenario: &Scenario, span: Duration) -> Optimum {
    assert!(scenario.models <= MODELS && scenario.answer.as_secs() == SECONDS as u64, "the search is for small cases");
    let mut dice = Dice(7);
    let arrivals: Vec<usize> = (0..5_000).map(|_| dice.below(scenario.models)).collect();
    let mut start =
        State { places: [Place::Absent; MODELS], waiting: [0; MODELS], running: [[0; SECONDS]; MODELS], arrived: 0 };
    start.fill(scenario, &arrivals);
    let mut states = States::from_iter([(start, 0)]);
    let mut is_exact = true;
    for _ in 0..span.as_secs() {
        let mut next = States::default();
        for (state, answers) in &states {
            for mut chosen in state.choices(scenario) {
                let answers = answers + chosen.pass_second(scenario, &arrivals);
                let best = next.entry(chosen).or_insert(answers);
                *best = answers.max(*best);
            }
        }
        if next.len() > WIDTH {
            is_exact = false;
            let mut all: Vec<(State, usize)> = next.into_iter().collect();
            all.select_nth_unstable_by_key(WIDTH, |(_, answers)| std::cmp::Reverse(*answers));
            all.truncate(WIDTH);
            next = all.into_iter().collect();
        }
        states = next;
    }
    Optimum { answers: states.into_values().max().unwrap_or(0), is_exact }
}

impl State {
    fn runs(&self, model: usize) -> usize {
        self.running[model].iter().map(|&count| usize::from(count)).sum()
    }

    /// Fills the open requests up.
    fn fill(&mut self, scenario: &Scenario, arrivals: &[usize]) {
        let running: usize = (0..MODELS).map(|model| self.runs(model)).sum();
        let waiting: usize = self.waiting.iter().map(|&count| usize::from(count)).sum();
        for _ in running + waiting..scenario.open {
            self.waiting[arrivals[usize::from(self.arrived)]] += 1;
            self.arrived += 1;
        }
    }

    /// The states after each permitted action.
    fn choices(&self, scenario: &Scenario) -> Vec<Self> {
        let mut before = self.clone();
        for model in 0..MODELS {
            if before.places[model] == Place::Draining && before.runs(model) == 0 {
                before.places[model] = Place::Absent;
            }
        }
        let models = 0..scenario.models;
        let load = Place::Loading(u8::try_from(scenario.load.as_secs()).unwrap_or(u8::MAX));
        let is = |model: usize, place: Place| before.places[model] == place;
        let absent: Vec<usize> = models.clone().filter(|&model| is(model, Place::Absent)).collect();
        let with = |changes: &[(usize, Place)]| {
            let mut after = before.clone();
            changes.iter().for_each(|&(model, place)| after.places[model] = place);
            after
        };
        let mut choices = vec![before.clone()];
        if models.clone().any(|model| matches!(before.places[model], Place::Loading(_))) {
            return choices;
        }
        if scenario.models - absent.len() < scenario.room {
            choices.extend(absent.iter().map(|&model| with(&[(model, load)])));
        } else if !models.clone().any(|model| is(model, Place::Draining)) {
            for victim in models.filter(|&model| is(model, Place::Ready)) {
                if before.runs(victim) > 0 {
                    choices.push(with(&[(victim, Place::Draining)]));
                } else {
                    choices.extend(absent.iter().map(|&model| with(&[(victim, Place::Absent), (model, load)])));
                }
            }
        }
        choices
    }

    /// Begins requests, and lets a second pass. Returns the number of requests that ended.
    fn pass_second(&mut self, scenario: &Scenario, arrivals: &[usize]) -> usize {
        let mut ended = 0;
        for model in 0..MODELS {
            if self.places[model] == Place::Ready {
                let free = u8::try_from(scenario.at_once - self.runs(model)).unwrap_or(0);
                let begun = free.min(self.waiting[model]);
                self.waiting[model] -= begun;
                self.running[model][SECONDS - 1] += begun;
            }
            if let Place::Loading(left) = self.places[model] {
                self.places[model] = if left > 1 { Place::Loading(left - 1) } else { Place::Ready };
            }
            ended += usize::from(self.running[model][0]);
            self.running[model].rotate_left(1);
            self.running[model][SECONDS - 1] = 0;
        }
        self.fill(scenario, arrivals);
        ended
    }
}
