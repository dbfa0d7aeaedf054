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
mod metrics;
mod probe;
mod serve;
mod startup;
mod supervisor;
mod upstream;

fn main() -> std::process::ExitCode {
    cli::run()
}
