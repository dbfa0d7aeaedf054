//! Arguments of the `lease` commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model_boss_lease_store::Yielding;
use model_boss_protocol::{ByteCount, DeviceId, Priority};
use nix::sys::signal::Signal;

use super::desk::LeaseRequest;
use super::whereabouts::LedgerArgs;

/// The output format and the ledger of a command that only reads.
#[derive(Clone, Debug, Args)]
pub struct LookArgs {
    #[command(flatten)]
    pub(super) place: LedgerArgs,
    /// JSON, for programs.
    #[arg(long)]
    pub(super) json: bool,
}

/// The program, and the lease that it needs.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub(super) place: LedgerArgs,
    /// The memory to lease on each device.
    #[arg(long, value_name = "SIZE")]
    pub(super) vram: ByteCount,
    /// The number of GPUs; those with enough free memory are chosen.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "device")]
    pub(super) gpus: usize,
    /// Lease on this device; repeat for more devices.
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Vec<DeviceId>,
    /// The priority: 0 (highest) to 9, or interactive, normal, batch.
    #[arg(long, default_value = "7")]
    pub(super) priority: Priority,
    /// A label for people; the program's name by default.
    #[arg(long)]
    pub(super) label: Option<String>,
    /// How long to wait for the memory; forever by default.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(super) wait: Option<Duration>,
    /// Revoke leases of lower priority that are preemptible.
    #[arg(long)]
    pub(super) preempt: bool,
    /// Let requests of higher priority revoke this lease.
    #[arg(long)]
    pub(super) preemptible: bool,
    /// The signal to the program when its lease is revoked; implies --preemptible.
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub(super) on_revoke: Option<Signal>,
    /// How long the program needs to release the memory before it is ended.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "60s")]
    pub(super) grace: Duration,
    /// How long after the grant the lease is not revoked.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10m")]
    pub(super) min_hold: Duration,
    /// Also report where leases are kept, and which process passed the gate.
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

impl RunArgs {
    pub(super) fn label(&self) -> String {
        let name = || self.program.first().map(|program| PathBuf::from(program).display().to_string());
        self.label.clone().or_else(name).unwrap_or_default()
    }

    pub(super) fn wanted(&self) -> LeaseRequest {
        LeaseRequest {
            label: self.label(),
            memory: self.vram,
            devices: self.device.clone(),
            count: self.gpus,
            priority: self.priority,
            preempt: self.preempt,
            yielding: Yielding {
                preemptible: self.preemptible || self.on_revoke.is_some(),
                grace: self.grace,
                min_hold: self.min_hold,
                reload: Duration::ZERO,
            },
        }
    }

    /// The signal that requests the release of the program's memory.
    pub(super) fn revoke_signal(&self) -> Signal {
        self.on_revoke.unwrap_or(Signal::SIGTERM)
    }
}

pub(super) fn span(text: &str) -> Result<Duration, String> {
    model_boss_protocol::parse_span(text).map_err(|error| error.to_string())
}

/// Parses `SIGUSR1` or `USR1`.
pub(super) fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    name.parse().map_err(|_| format!("'{text}' is no signal; write SIGUSR1, SIGTERM or the like"))
}
