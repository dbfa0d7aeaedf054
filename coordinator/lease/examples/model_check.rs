//! Explores the states of a small instance of the lease protocol, breadth first, as many as it is given.
//!
//! `cargo run -p model-boss-lease --example model_check -- STATES`

// The world and its instances are those of the tests, which use more of them.
#![allow(dead_code, reason = "shared with the tests")]

#[path = "../tests/protocol/model.rs"]
mod model;
#[path = "../tests/protocol/world/mod.rs"]
mod world;

use std::process::ExitCode;
use std::time::Instant;

use stateright::{Checker, Model};

use model::Instance;
use world::{Budget, Bug};

fn main() -> ExitCode {
    let states = match std::env::args().nth(1).map(|text| text.parse::<usize>()) {
        None => 1_000_000,
        Some(Ok(states)) => states,
        Some(Err(_)) => {
            eprintln!("how many states? write model_check 1000000");
            return ExitCode::from(2);
        }
    };
    // Three clients that ask for overlapping parts of two devices; pauses, a crash, a loss, a jump of the clock.
    let budget = Budget { ticks: 4, asks: 3, pauses: 2, crashes: 1, losses: 1, jumps: 1, oddities: 1 };
    let instance = Instance { clients: 3, budget, bug: Bug::None };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let begun = Instant::now();
    let checker = instance.checker().threads(threads).target_state_count(states).spawn_bfs().join();
    println!(
        "{} states, {} of them different, {} steps deep, in {} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs(),
    );
    for (property, path) in checker.discoveries() {
        println!("{property}: {} steps", path.into_actions().len());
    }
    match checker.discovery("the invariants hold") {
        None => {
            println!("the invariants hold in all of them");
            ExitCode::SUCCESS
        }
        Some(path) => {
            let world = path.last_state().clone();
            println!("VIOLATION: {:?}\n{:?}", world.violation(), path.into_actions());
            ExitCode::FAILURE
        }
    }
}
