//! The coordinator: one door to every model on a GPU machine. And the command line beside it.

mod api;
mod catalog;
mod cli;
mod client;
mod cloud;
mod config;
mod driver;
mod error_chain;
mod footprints;
mod json;
mod lease_http;
mod lease_run;
mod leases;
mod log_filter;
mod memory;
mod metrics;
mod model_folders;
mod offload;
mod owner;
mod plain_file;
mod probe;
mod runtime_config;
mod serve;
mod settings;
mod startup;
mod state_file;
mod supervisor;
mod tasks;
mod tcp_table;
mod upstream;

fn main() -> std::process::ExitCode {
    // The guard of an engine of others is this program too. It is nobody's command, and must start quickly.
    if std::env::args_os().nth(1).is_some_and(|word| word == supervisor::GUARD) {
        return supervisor::guard();
    }
    cli::run()
}
