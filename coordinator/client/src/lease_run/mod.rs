//! `model-boss lease`: runs programs with leased memory, serves leases to programs in other languages, and lists leases
//! and queued requests. The commands use the ledger in Redis directly where one is named, so that no coordinator has to
//! run. Otherwise they use a coordinator. The rules of leases are decided in `model-boss-lease`.

mod args;
mod desk;
mod error;
mod gate;
mod hold;
mod http_desk;
mod job;
mod keeper;
mod look;
mod opening;
mod redis_desk;
mod whereabouts;

use std::process::ExitCode;

use clap::Subcommand;

use self::args::{LookArgs, RunArgs};
use self::whereabouts::LedgerArgs;

pub use error::LeaseError;

/// Leases of GPU memory that training jobs and models share.
#[derive(Debug, Subcommand)]
pub enum LeaseCli {
    /// Run a program once the memory it needs is leased, and release the memory when it ends.
    Run(Box<RunArgs>),
    /// List the leases.
    List(LookArgs),
    /// Show one lease.
    Show {
        /// Its id, as `lease list` shows it.
        lease: String,
        /// The output format and the ledger.
        #[command(flatten)]
        look: LookArgs,
    },
    /// End a lease whose holder and processes are gone. Never ends a process.
    Release {
        /// Its id, as `lease list` shows it.
        lease: String,
        /// As an operator, end it whatever its processes do: their memory counts as foreign from then on.
        #[arg(long)]
        force: bool,
        /// The ledger.
        #[command(flatten)]
        place: LedgerArgs,
    },
    /// Serve leases to a program in another language: JSON lines in and out, see docs/leases.md. Ends with its input.
    Hold(LedgerArgs),
    /// List leases and queued requests, again whenever they change, until Ctrl-C.
    Watch(LookArgs),
    /// The gate, which `run` starts behind its guards: waits, then becomes the program.
    #[command(hide = true)]
    Gate(gate::GateArgs),
}

/// Runs the command; `run` returns the exit code of its program. The coordinator's address is `url`.
pub fn run(command: LeaseCli, url: &str) -> Result<ExitCode, LeaseError> {
    match command {
        LeaseCli::Run(args) => job::run(&args, &args.place.whereabouts(url)?),
        LeaseCli::List(look) => look::list(&look.place.whereabouts(url)?, look.json),
        LeaseCli::Show { lease, look } => look::show(&lease, &look.place.whereabouts(url)?, look.json),
        LeaseCli::Release { lease, force: false, place } => look::release(&lease, &place.whereabouts(url)?),
        LeaseCli::Release { lease, force: true, place } => look::force(&lease, &place.whereabouts(url)?),
        LeaseCli::Watch(look) => look::watch(&look.place.whereabouts(url)?, look.json),
        LeaseCli::Hold(place) => hold::run(&place.whereabouts(url)?),
        LeaseCli::Gate(args) => gate::gate(&args),
    }
}
