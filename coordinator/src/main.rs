//! The coordinator, which serves every model of a GPU machine on one port, and the command line beside it.

mod adapters;
mod api;
mod audit;
mod driver;
mod footprints;
mod history;
mod jobs;
mod keys;
mod leases;
mod listeners;
mod metrics;
mod model_file;
mod parking;
mod pulls;
mod refusals;
mod responses;
mod scheduling;
mod serve;
mod supervisor;
mod tasks;
mod worker;

use std::process::ExitCode;

use model_boss_host::guard;

fn main() -> ExitCode {
    // Guards and gates run this same program. Their hidden commands are handled before the command line is parsed,
    // because they must start quickly.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == guard::GUARD => guard::run(words),
        Some(word) if word == supervisor::ENGINE_GATE => supervisor::engine_gate(),
        _ => model_boss_cli::run(serve::serve),
    }
}
