//! The coordinator: one door to every model on a GPU machine. And the command line beside it.

mod api;
mod catalog;
mod cli;
mod client;
mod clocks;
mod cloud;
mod config;
mod descriptors;
mod driver;
mod environment;
mod error_chain;
mod footprints;
mod guard;
mod hangup;
mod json;
mod lease_http;
mod lease_run;
mod leases;
mod log_filter;
mod memory;
mod metrics;
mod model_folders;
mod offload;
mod origins;
mod owner;
mod plain_file;
mod probe;
mod process;
mod runtime_config;
mod scheduling;
mod secrets;
mod serve;
mod settings;
mod startup;
mod state_folder;
mod supervisor;
mod tasks;
mod tcp_table;
mod terminal;
mod upstream;
mod worker;

fn main() -> std::process::ExitCode {
    // Guards and gates are this program too. They are nobody's commands, and must start quickly.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == guard::GUARD => guard::run(words),
        Some(word) if word == supervisor::ENGINE_GATE => supervisor::engine_gate(),
        _ => cli::run(),
    }
}
