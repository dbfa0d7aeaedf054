//! The coordinator: one door to every model on a GPU machine. And the command line beside it.

mod api;
mod catalog;
mod cli;
mod config;
mod driver;
mod error_chain;
mod footprints;
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
