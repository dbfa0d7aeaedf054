//! Looking at the ledger: who holds and who waits.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use model_boss_lease_store::{Holder, LeaseView, Owner, OwnerKind, Terms, WaiterView, this_process};
use serde::Serialize;

use super::{LeaseError, LookArgs, Place};

/// `watch` looks this often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Everything there is to see.
#[derive(Debug, PartialEq, Serialize)]
struct View {
    leases: Vec<LeaseView>,
    waiters: Vec<WaiterView>,
}

pub(super) fn list(look: &LookArgs) -> Result<ExitCode, LeaseError> {
    print(&view(&open(&look.place)?), look.json)
}

pub(super) fn show(lease: &str, look: &LookArgs) -> Result<ExitCode, LeaseError> {
    let leases: Vec<LeaseView> = open(&look.place)?.leases();
    let found = leases.into_iter().find(|found| found.lease.to_string() == lease);
    let found = found.ok_or_else(|| LeaseError::NoLease(lease.to_owned()))?;
    print(&View { leases: vec![found], waiters: Vec::new() }, look.json)
}

/// Ends what nobody holds any more and whose processes are gone, and says why if this lease is not among it.
pub(super) fn release(lease: &str, place: &Place) -> Result<ExitCode, LeaseError> {
    let mut holder = open(place)?;
    if !holder.leases().iter().any(|found| found.lease.to_string() == lease) {
        return Err(LeaseError::NoLease(lease.to_owned()));
    }
    holder.settle()?;
    match holder.leases().into_iter().find(|found| found.lease.to_string() == lease) {
        None => Ok(ExitCode::SUCCESS),
        Some(held) => {
            let owner = held.owner.process.pid;
            let processes: Vec<String> = held.pids.iter().map(ToString::to_string).collect();
            let who = format!("holder {owner}, processes {}", processes.join(" "));
            Err(LeaseError::StillHeld(lease.to_owned(), who))
        }
    }
}

pub(super) fn watch(look: &LookArgs) -> Result<ExitCode, LeaseError> {
    let mut holder = open(&look.place)?;
    let mut shown = None;
    loop {
        let now = view(&holder);
        if shown.as_ref() != Some(&now) {
            print(&now, look.json)?;
            shown = Some(now);
        }
        std::thread::park_timeout(LOOK_AGAIN);
        match holder.refresh() {
            Err(error) if !error.is_outage() => return Err(error.into()),
            _ => {}
        }
    }
}

fn open(place: &Place) -> Result<Holder, LeaseError> {
    let owner = Owner::new(this_process()?, "lease", OwnerKind::Job);
    Ok(Holder::redis(&place.redis, &place.runtime_dir(), owner, Terms::default())?)
}

fn view(holder: &Holder) -> View {
    View { leases: holder.leases(), waiters: holder.waiters() }
}

fn print(view: &View, json: bool) -> Result<ExitCode, LeaseError> {
    let text = if json { serde_json::to_string(view).map_err(LeaseError::Json)? + "\n" } else { table(view) };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(LeaseError::System("write to standard output", error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn table(view: &View) -> String {
    if view.leases.is_empty() && view.waiters.is_empty() {
        return "nothing is leased and nobody waits\n".to_owned();
    }
    let mut rows = vec![["LEASE", "WHAT", "STATE", "PRIORITY", "MEMORY", "HOLDER"].map(str::to_owned)];
    for lease in &view.leases {
        let memory: Vec<String> = lease.parts.iter().map(|part| format!("{} on {}", part.bytes, part.device)).collect();
        let state = serde_json::to_value(&lease.state).ok().and_then(|state| Some(state.as_str()?.to_lowercase()));
        let priority =
            if lease.preemptible { format!("{} preemptible", lease.priority) } else { lease.priority.to_string() };
        rows.push([
            lease.lease.to_string(),
            lease.label.clone(),
            state.unwrap_or_default(),
            priority,
            memory.join(", "),
            format!("process {}", lease.owner.process.pid),
        ]);
    }
    for waiter in &view.waiters {
        let place = format!("waits, {}.", waiter.position);
        let priority = waiter.priority.to_string();
        rows.push(["-".to_owned(), waiter.label.clone(), place, priority, String::new(), String::new()]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
