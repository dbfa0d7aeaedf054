//! Processes as `/proc` shows them (proc_pid_stat(5), proc_pid_status(5)).

use std::{fs, io};

/// The process name of guards. It differs from the program's name, so that a signal to every process named model-boss
/// spares the guards.
pub const GUARD_NAME: &str = "mb-guard";

/// The effective user of a process (proc_pid_status(5)).
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The real and the effective user of a process, by `Uid:` of `/proc/PID/status` (proc_pid_status(5)).
pub(crate) fn users_of(pid: u32) -> Option<[u32; 2]> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace();
    Some([users.next()?.parse().ok()?, users.next()?.parse().ok()?])
}

/// The fields of `/proc/PID/stat` that are used here (proc_pid_stat(5)).
#[derive(Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
    pub(crate) threads: u32,
    pub(crate) start_time: u64,
    /// Whether its environment is readable and in place. The kernel renames a process, and lets its parent go on,
    /// before it gives the new program its environment (execve(2)).
    pub(crate) has_environment: bool,
    /// Whether it has the name of guards.
    pub(crate) named_guard: bool,
}

impl Stat {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let text: io::Result<String> = fs::read_to_string(format!("/proc/{pid}/stat"));
        Self::parse(&text.ok()?)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses and may contain any text, parentheses included.
        let (name, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let small = |index: usize| u32::try_from(number(index)?).ok();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: small(1)?,
            group: small(2)?,
            session: small(3)?,
            threads: small(17)?,
            start_time: number(19)?,
            has_environment: number(48).is_some_and(|end| end != 0),
            named_guard: name.split_once('(').is_some_and(|(_, name)| name == GUARD_NAME),
        })
    }

    /// Whether the process has ended. A process whose first thread ended looks like a zombie while its other threads
    /// run.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }

    /// Whether the process was stopped by a signal.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state == b'T'
    }

    /// Whether the process is `kthreadd` or its child, which have no memory of their own.
    pub(crate) fn is_kernel_thread(&self, pid: u32) -> bool {
        pid == 2 || self.parent == 2
    }
}
