//! Model check of the lease protocol: every state of a small instance within a number of steps, or random steps in a
//! large one.
//!
//! `cargo run --release -p model-boss-lease --example model_check -- [--depth N] [--states N] [--small]`
//! `cargo run --release -p model-boss-lease --example model_check -- --random STEPS [--seed N]`
//!
//! The search goes depth first, to the given depth. It keeps the fingerprints of all states seen, some 40 bytes each,
//! but whole states only on its path. The breadth-first search in the tests keeps every state still to be visited,
//! tens of kilobytes each. A state found again with more steps left is searched again. The search uses one thread.

// The tests share this module and use more of it.
#![allow(dead_code, reason = "shared with the tests")]

#[path = "../tests/protocol/model.rs"]
mod model;
#[path = "../tests/protocol/world/mod.rs"]
mod world;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;
use std::time::Instant;

use stateright::Model;

use model::Instance;
use world::{Action, Budget, Bug, Reached, World};

/// Three clients that request overlapping parts of two devices; pauses, a crash, a loss, a jump of the clock.
const LARGE: Instance = Instance {
    clients: 3,
    budget: Budget { ticks: 4, asks: 3, pauses: 2, crashes: 1, losses: 1, jumps: 1, oddities: 1 },
    bug: Bug::None,
};
/// Two clients and one fault of each important kind: small enough to be explored completely.
const SMALL: Instance = Instance {
    clients: 2,
    budget: Budget { ticks: 2, asks: 2, pauses: 1, crashes: 1, losses: 1, jumps: 0, oddities: 0 },
    bug: Bug::None,
};
/// The limits of random histories, for up to five clients.
const GENEROUS: Budget = Budget { ticks: 60, asks: 30, pauses: 15, crashes: 4, losses: 3, jumps: 1, oddities: 15 };

struct Arguments {
    states: usize,
    depth: u8,
    instance: Instance,
    random: Option<u64>,
    seed: u64,
}

fn main() -> ExitCode {
    match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => match arguments.random {
            Some(steps) => random(steps, arguments.seed),
            None => explore(&arguments),
        },
        Err(problem) => {
            eprintln!("model_check: {problem}");
            ExitCode::from(2)
        }
    }
}

impl Arguments {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut read = Self { states: usize::MAX, depth: 5, instance: LARGE, random: None, seed: 1 };
        while let Some(word) = words.next() {
            if word == "--small" {
                read.instance = SMALL;
                continue;
            }
            let number = words.next().ok_or_else(|| format!("'{word}' is unknown, or its number is missing"))?;
            let number: u64 = number.replace('_', "").parse().map_err(|_| format!("'{number}' is no number"))?;
            match word.as_str() {
                "--depth" => read.depth = u8::try_from(number).map_err(|_| "too deep".to_owned())?,
                "--states" => read.states = usize::try_from(number).unwrap_or(usize::MAX),
                "--random" => read.random = Some(number),
                "--seed" => read.seed = number,
                _ => return Err(format!("'{word}' is unknown")),
            }
        }
        Ok(read)
    }
}

/// Explores every state within the given depth, until the given number of states was seen.
fn explore(arguments: &Arguments) -> ExitCode {
    const REPORT: usize = 1_000_000;
    let Arguments { states, depth, instance, .. } = arguments;
    let begun = Instant::now();
    // The number of steps that were left when a state was searched.
    let mut seen: HashMap<u64, u8> = HashMap::new();
    let mut steps = 0_u64;
    // The path: each state with the actions still to be tried in it.
    let mut way: Vec<(World, Vec<Action>)> = Vec::new();
    let mut taken: Vec<Action> = Vec::new();
    for world in instance.init_states() {
        way.push((world.clone(), actions(instance, &world)));
    }
    while let Some((world, untried)) = way.last_mut() {
        let Some(action) = untried.pop() else {
            way.pop();
            taken.pop();
            continue;
        };
        let Some(next) = instance.next_state(world, action) else { continue };
        steps += 1;
        if let Some(violation) = next.violation() {
            taken.push(action);
            println!("VIOLATION: {violation:?}\n{taken:?}");
            return ExitCode::FAILURE;
        }
        let left = depth - u8::try_from(way.len()).unwrap_or(*depth);
        let known = seen.entry(fingerprint(&next)).or_default();
        // The stored number is one more than the steps left, so that zero means a state that was never seen.
        if *known > left {
            continue;
        }
        *known = left + 1;
        if seen.len().is_multiple_of(REPORT) {
            println!("{} different states, {} s", seen.len(), begun.elapsed().as_secs());
        }
        if seen.len() >= *states {
            break;
        }
        if left > 0 {
            let untried = actions(instance, &next);
            way.push((next, untried));
            taken.push(action);
        }
    }
    println!(
        "{} different states by {steps} steps, {} {depth} steps deep, in {} s; the invariants hold in all of them",
        seen.len(),
        if way.is_empty() { "all that are within" } else { "not all that are" },
        begun.elapsed().as_secs(),
    );
    ExitCode::SUCCESS
}

/// A 64-bit hash of a state. Two states with equal hashes are taken for one: with ten million states that happens in
/// one of 370,000 runs.
fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

fn actions(instance: &Instance, world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    instance.actions(world, &mut actions);
    actions
}

/// Runs random histories of 20 to 200 steps with two to five clients, until the given number of steps is reached.
/// Each history must come to rest. The same seed gives the same histories.
fn random(steps: u64, seed: u64) -> ExitCode {
    const REPORT: u64 = 10_000_000;
    let begun = Instant::now();
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut taken, mut histories, mut next_report) = (0, 0_u64, REPORT);
    let mut reached = [0_u64; 13];
    while taken < steps {
        let mut world = World::new(2 + dice.below(4), GENEROUS, Bug::None);
        let mut actions = Vec::new();
        for _ in 0..20 + dice.below(181) {
            let possible = world.actions();
            let action = possible[dice.below(possible.len())];
            actions.push(action);
            world.step(action);
            taken += 1;
            if world.violation().is_some() {
                break;
            }
        }
        if world.violation().is_none() {
            world.quiesce();
        }
        histories += 1;
        if let Some(violation) = world.violation() {
            println!("VIOLATION in history {histories} of seed {seed}: {violation:?}\n{actions:?}");
            return ExitCode::FAILURE;
        }
        for (count, (_, mark)) in reached.iter_mut().zip(world.reached().marks()) {
            *count += u64::from(mark);
        }
        if taken >= next_report {
            println!("{taken} steps in {histories} histories, {} s", begun.elapsed().as_secs());
            next_report += REPORT;
        }
    }
    println!(
        "{taken} steps in {histories} histories, in {} s; the invariants hold in all of them",
        begun.elapsed().as_secs()
    );
    let names = Reached::default().marks().map(|(name, _)| name);
    let reached: Vec<String> = names.iter().zip(reached).map(|(name, count)| format!("{name} {count}")).collect();
    println!("histories in which it happened: {}", reached.join(", "));
    ExitCode::SUCCESS
}

/// Marsaglia's xorshift64*.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from((high * limit as u64) >> 32).unwrap_or(0)
    }
}
