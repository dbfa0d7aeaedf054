//! Reads the ledger: leases and queued requests.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use model_boss_host::terminal;
use model_boss_lease_store::{Holder, LeaseDurations, LeaseId, Owner, OwnerKind, StoreError, this_process};
use model_boss_protocol::{ErrorCode, printable};
use serde::Serialize;

use super::error::LeaseError;
use super::http_desk::{BlockingClient, is};
use super::whereabouts::Whereabouts;
use crate::lease_http::{ForcedBody, LeaseBody, LeaseList, OneLease, ReleaseBody, ReleasedBody, WaiterBody};

/// The interval at which `watch` reads the ledger.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const ROUTE: &str = "/api/v1/leases";

/// The source of the list.
enum Window {
    Redis(Box<Holder>),
    Coordinator(Box<BlockingClient>),
}

/// The printed list: the API's, and its source.
#[derive(Serialize)]
struct PrintedList<'a> {
    source: &'a str,
    #[serde(flatten)]
    list: &'a LeaseList,
}

pub(super) fn list(whereabouts: &Whereabouts, json: bool) -> Result<ExitCode, LeaseError> {
    let mut window = Window::open(whereabouts)?;
    print(&window.describe(), &window.list()?, json)
}

pub(super) fn show(lease: &str, whereabouts: &Whereabouts, json: bool) -> Result<ExitCode, LeaseError> {
    let mut window = Window::open(whereabouts)?;
    let found = window.list()?.leases.into_iter().find(|found| found.id.to_string() == lease);
    let found = found.ok_or_else(|| LeaseError::NoLease(lease.to_owned()))?;
    print(&window.describe(), &LeaseList { leases: vec![found], ..LeaseList::default() }, json)
}

/// Ends abandoned leases whose processes are gone. The error has the reason why this lease is not among them.
pub(super) fn release(lease: &str, whereabouts: &Whereabouts) -> Result<ExitCode, LeaseError> {
    match Window::open(whereabouts)? {
        Window::Redis(mut holder) => {
            if !holder.leases().iter().any(|found| found.lease.to_string() == lease) {
                return Err(LeaseError::NoLease(lease.to_owned()));
            }
            holder.settle()?;
            match holder.leases().into_iter().find(|found| found.lease.to_string() == lease) {
                None => Ok(ExitCode::SUCCESS),
                Some(held) => Err(still_held(&held.into())),
            }
        }
        Window::Coordinator(line) => {
            let path = format!("{ROUTE}/{}", crate::http::in_path(lease));
            match line.ask(Method::DELETE, &path, &ReleaseBody::default()) {
                Ok(_) => Ok(ExitCode::SUCCESS),
                Err(error) if is(&error, ErrorCode::LeaseNotFound) => Err(LeaseError::NoLease(lease.to_owned())),
                Err(error) if is(&error, ErrorCode::LeaseInUse) => {
                    Err(still_held(&line.get::<OneLease>(&path).map_err(|_| error)?.lease))
                }
                Err(error) => Err(error),
            }
        }
    }
}

/// Ends a lease even if its processes are alive, and prints the consequences.
pub(super) fn force(lease: &str, whereabouts: &Whereabouts) -> Result<ExitCode, LeaseError> {
    let warning = match Window::open(whereabouts)? {
        Window::Redis(mut holder) => {
            let by = format!("user {} with the ledger's own address", nix::unistd::getuid());
            match holder.force(&LeaseId::from(lease), &by) {
                Err(StoreError::Lost(_)) => return Err(LeaseError::NoLease(lease.to_owned())),
                forced => forced?.as_ref().map(crate::lease_http::warning),
            }
        }
        Window::Coordinator(line) => {
            let path = format!("{ROUTE}/{}", crate::http::in_path(lease));
            match line.ask(Method::DELETE, &path, &ReleaseBody { force: true, ..ReleaseBody::default() }) {
                Err(error) if is(&error, ErrorCode::LeaseNotFound) => {
                    return Err(LeaseError::NoLease(lease.to_owned()));
                }
                answer => super::http_desk::read::<ReleasedBody>(answer?.1)?.warning,
            }
        }
    };
    if let Some(warning) = warning {
        terminal::say(&format!("model-boss lease: warning: {warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn watch(whereabouts: &Whereabouts, json: bool) -> Result<ExitCode, LeaseError> {
    let mut window = Window::open(whereabouts)?;
    let mut shown = None;
    let mut away = false;
    loop {
        match window.list() {
            Ok(list) => {
                away = false;
                let now = lasting(list.clone());
                if shown.as_ref() != Some(&now) {
                    print(&window.describe(), &list, json)?;
                    shown = Some(now);
                }
            }
            Err(error) if error.is_outage() => {
                if !std::mem::replace(&mut away, true) {
                    terminal::say(&format!("model-boss lease: {}", model_boss_protocol::chain(&error)));
                }
            }
            Err(error) => return Err(error),
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

impl Window {
    fn open(whereabouts: &Whereabouts) -> Result<Self, LeaseError> {
        Ok(match whereabouts {
            Whereabouts::Redis { url, runtime_dir } => {
                let owner = Owner::new(this_process()?, "lease", OwnerKind::Job);
                Self::Redis(Box::new(Holder::redis(url, runtime_dir.as_deref(), owner, LeaseDurations::default())?))
            }
            Whereabouts::Coordinator(client) => Self::Coordinator(Box::new(BlockingClient::new(client.clone())?)),
        })
    }

    fn describe(&self) -> String {
        match self {
            Self::Redis(holder) => holder.describe(),
            Self::Coordinator(line) => line.describe(),
        }
    }

    fn list(&mut self) -> Result<LeaseList, LeaseError> {
        match self {
            Self::Redis(holder) => {
                holder.refresh()?;
                let leases = holder.leases().into_iter().map(LeaseBody::from).collect();
                let waiters = holder.waiters().into_iter().map(WaiterBody::from).collect();
                let forced = holder.forced().into_iter().map(ForcedBody::from).collect();
                Ok(LeaseList { leases, waiters, forced })
            }
            Self::Coordinator(line) => line.get(ROUTE),
        }
    }
}

fn still_held(lease: &LeaseBody) -> LeaseError {
    let processes: Vec<String> = lease.pids.iter().map(ToString::to_string).collect();
    let who = format!("holder {}, processes {}", lease.owner.process.pid, processes.join(" "));
    LeaseError::StillHeld(lease.id.to_string(), who)
}

/// The list without fields that change by themselves.
fn lasting(mut list: LeaseList) -> LeaseList {
    list.forced.iter_mut().for_each(|forced| forced.ago_ms = 0);
    for lease in &mut list.leases {
        lease.expires_in_ms = None;
        lease.parts.iter_mut().for_each(|part| part.measured = None);
        if let Some(revoke) = &mut lease.revoke {
            revoke.grace_left_ms = 0;
        }
    }
    list
}

fn print(source: &str, list: &LeaseList, json: bool) -> Result<ExitCode, LeaseError> {
    let text = if json {
        let shown = PrintedList { source, list };
        serde_json::to_string(&shown).map_err(LeaseError::Json)? + "\n"
    } else {
        table(list)
    };
    match terminal::out().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(LeaseError::System("write to standard output", error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn table(list: &LeaseList) -> String {
    if list.leases.is_empty() && list.waiters.is_empty() && list.forced.is_empty() {
        return "nothing is leased and nobody waits\n".to_owned();
    }
    let mut rows = vec![["LEASE", "WHAT", "STATE", "PRIORITY", "MEMORY", "HOLDER"].map(str::to_owned)];
    for lease in &list.leases {
        let memory: Vec<String> = lease.parts.iter().map(|part| format!("{} on {}", part.bytes, part.device)).collect();
        let state = serde_json::to_value(lease).ok().and_then(|lease| Some(lease["state"].as_str()?.to_owned()));
        let state = match &lease.revoke {
            Some(revoke) => format!("asked back, {} s left", revoke.grace_left_ms / 1_000),
            None => state.unwrap_or_default(),
        };
        let priority =
            if lease.preemptible { format!("{} preemptible", lease.priority) } else { lease.priority.to_string() };
        rows.push([
            lease.id.to_string(),
            lease.label.clone(),
            state,
            priority,
            memory.join(", "),
            format!("process {}", lease.owner.process.pid),
        ]);
    }
    for waiter in &list.waiters {
        let place = format!("waits, {}.", waiter.position);
        let cells = ["-".to_owned(), waiter.label.clone(), place, waiter.priority.to_string(), wish(waiter)];
        rows.push([&cells[..], &[String::new()]].concat().try_into().unwrap_or_default());
    }
    for forced in &list.forced {
        let memory: Vec<String> = forced.parts.iter().map(|p| format!("{} on {}", p.bytes, p.device)).collect();
        let state = format!("forced {} min ago", forced.ago_ms / 60_000);
        let (label, by) = (forced.label.clone(), format!("by {}", forced.by));
        rows.push([forced.id.to_string(), label, state, "-".to_owned(), memory.join(", "), by]);
    }
    // A cell stays within its line, even with control characters in its text.
    let rows: Vec<_> = rows.into_iter().map(|row| row.map(|cell| printable(&cell).into_owned())).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// The memory that a queued request needs, human-readable.
fn wish(waiter: &WaiterBody) -> String {
    if let Some(parts) = &waiter.parts {
        let parts: Vec<String> = parts.iter().map(|part| format!("{} on {}", part.memory, part.device)).collect();
        return parts.join(", ");
    }
    let Some(any) = &waiter.any else { return String::new() };
    let among: Vec<String> = any.among.iter().flatten().map(ToString::to_string).collect();
    format!("{} on each of {} of {}", any.memory, any.count, among.join(", "))
}
