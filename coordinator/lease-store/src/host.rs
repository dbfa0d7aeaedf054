//! What the kernel tells about this boot and its processes. Knows no leases.

use std::fs;
use std::io;

use model_boss_lease::{Process, StoreTime};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::StoreError;

/// The id of this boot.
pub fn boot_id() -> Result<String, StoreError> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|_| StoreError::Host("the boot id"))?;
    Ok(text.trim().to_owned())
}

/// Time since boot, suspended time included: it never jumps within a boot, and a ledger never outlives one.
pub(crate) fn time_since_boot() -> Result<StoreTime, StoreError> {
    let clock = if cfg!(target_os = "linux") { BOOT_CLOCK } else { ClockId::CLOCK_MONOTONIC };
    let time = clock_gettime(clock).map_err(|_| StoreError::Host("the time since boot"))?;
    let micros = i128::from(time.tv_sec()) * 1_000_000 + i128::from(time.tv_nsec()) / 1_000;
    Ok(StoreTime(u64::try_from(micros).unwrap_or_default()))
}

#[cfg(target_os = "linux")]
const BOOT_CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(target_os = "linux"))]
const BOOT_CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// This process.
pub fn this_process() -> Result<Process, StoreError> {
    process(std::process::id())
}

/// The process that has this number now.
pub fn process(pid: u32) -> Result<Process, StoreError> {
    let stat = Stat::of(pid).ok_or(StoreError::NoSuchProcess(pid))?;
    Ok(Process { pid, start_time: stat.start_time, pid_ns: pid_namespace()? })
}

/// The pid namespace in which this process sees numbers.
pub(crate) fn pid_namespace() -> Result<String, StoreError> {
    let link = fs::read_link("/proc/self/ns/pid").map_err(|_| StoreError::Host("the pid namespace"))?;
    Ok(link.to_string_lossy().into_owned())
}

/// Whether the process is gone, and with it every process that it left in its process group or session. A zombie has
/// given its memory back and counts as gone. When in doubt the answer is no.
pub fn is_gone(process: &Process) -> bool {
    match Stat::of(process.pid) {
        Some(stat) if stat.start_time == process.start_time && !stat.is_zombie() => return false,
        // The kernel gives a number to a new process only when no group or session bears it any more.
        Some(stat) if stat.start_time != process.start_time => return true,
        Some(_) => {}
        // /proc may hide other people's processes.
        None if i32::try_from(process.pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)) => {
            return false;
        }
        None => {}
    }
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let left_behind = |stat: &Stat| !stat.is_zombie() && (stat.group == process.pid || stat.session == process.pid);
    !pids.filter_map(Stat::of).any(|stat| left_behind(&stat))
}

/// The process and its ancestors, as long as they can be followed.
pub(crate) fn lineage(pid: u32, pid_ns: &str) -> Vec<Process> {
    let mut line = Vec::new();
    let mut next = Some(pid);
    while let Some((pid, stat)) = next.and_then(|pid| Some((pid, Stat::of(pid)?))) {
        line.push(Process { pid, start_time: stat.start_time, pid_ns: pid_ns.to_owned() });
        next = (stat.parent > 1 && line.len() < 64).then_some(stat.parent);
    }
    line
}

/// The fields of `/proc/PID/stat` that matter here (proc_pid_stat(5)).
struct Stat {
    state: u8,
    parent: u32,
    group: u32,
    session: u32,
    start_time: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text: io::Result<String> = fs::read_to_string(format!("/proc/{pid}/stat"));
        Self::parse(&text.ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses and may hold anything, parentheses included.
        let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let small = |index: usize| u32::try_from(number(index)?).ok();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: small(1)?,
            group: small(2)?,
            session: small(3)?,
            start_time: number(19)?,
        })
    }

    fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_skipped() {
        let line = "42 (a) b (c) S 7 8 9 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 110763 313 413";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.group, stat.session, stat.start_time), (b'S', 7, 8, 9, 110_763));
        assert!(Stat::parse("42 (x").is_none());
    }

    #[test]
    fn this_process_lives_and_has_a_line() {
        let me = this_process().unwrap();
        assert!(!is_gone(&me));
        let line = lineage(me.pid, &me.pid_ns);
        assert_eq!(line.first(), Some(&me));
    }

    #[test]
    fn a_reaped_child_is_gone_and_a_reused_number_is_somebody_else() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = process(child.id()).unwrap();
        assert!(!is_gone(&process));
        let earlier = Process { start_time: process.start_time - 1, ..process.clone() };
        assert!(is_gone(&earlier));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(&process));
    }

    #[test]
    fn a_group_outlives_its_leader() {
        use std::io::{BufRead, BufReader};
        use std::os::unix::process::CommandExt;
        use std::process::Stdio;
        let mut leader = Command::new("sh")
            .args(["-c", "tail -f /dev/null >/dev/null & echo $!; read -r line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let group = process(leader.id()).unwrap();
        let mut line = String::new();
        BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let member = Pid::from_raw(line.trim().parse().unwrap());
        drop(leader.stdin.take());
        leader.wait().unwrap();
        assert!(!is_gone(&group), "the leader is reaped, its child lives");
        kill(member, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
}
