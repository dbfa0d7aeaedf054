//! Names of guests' requests in the ledger, unique across processes.

use model_boss_lease::Process;

/// The name of a guest's request in the ledger, which includes the process so that requests of two processes never
/// collide.
pub(crate) fn of_guest(owner: &Process, request_id: &str) -> String {
    format!("{request_id}{}", mark(owner))
}

/// The guest's own name for a request in the ledger.
pub(crate) fn own_request_id(owner: &Process, request_id: &str) -> String {
    request_id.strip_suffix(&mark(owner)).unwrap_or(request_id).to_owned()
}

fn mark(Process { pid, start_time, pid_ns }: &Process) -> String {
    let namespace: String = pid_ns.chars().filter(char::is_ascii_digit).collect();
    format!("@{namespace}-{pid}-{start_time}")
}
