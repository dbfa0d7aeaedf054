//! The coordinator: one door to every model on a GPU machine. And the command line beside it.

mod api;
mod catalog;
mod cli;
mod client;
mod config;
mod driver;
mod error_chain;
mod footprints;
#[allow(dead_code, reason = "the routes that read and write these words come with the server's half")]
mod lease_http;
mod lease_run;
mod leases;
mod log_filter;
mod metrics;
mod probe;
mod runtime_config;
mod serve;
mod settings;
mod startup;
mod supervisor;
mod tasks;
mod upstream;

fn main() -> std::process::ExitCode {
    cli::run()
}
