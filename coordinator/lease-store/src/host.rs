//! The boot of this host and its processes, as the kernel reports them.

use std::fs;
use std::time::Duration;

use model_boss_lease::{Process, StoreTime};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::StoreError;
use crate::stat::{Stat, user_of};

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

/// The process that calls this function.
pub fn this_process() -> Result<Process, StoreError> {
    process(std::process::id())
}

/// The process that has this number now.
pub fn process(pid: u32) -> Result<Process, StoreError> {
    let stat = Stat::of(pid).ok_or(StoreError::NoSuchProcess(pid))?;
    Ok(Process { pid, start_time: stat.start_time, pid_ns: pid_namespace()? })
}

/// The pid namespace whose numbers this process sees.
pub(crate) fn pid_namespace() -> Result<String, StoreError> {
    let link = fs::read_link("/proc/self/ns/pid").map_err(|_| StoreError::Host("the pid namespace"))?;
    Ok(link.to_string_lossy().into_owned())
}

/// Whether this process may be alive and of this user. A process that cannot be seen counts as such.
pub(crate) fn may_be(process: &Process, uid: u32) -> bool {
    if pid_namespace().is_ok_and(|own| own != process.pid_ns) {
        return true;
    }
    match Stat::of(process.pid) {
        Some(stat) => {
            let same = stat.start_time == process.start_time && !stat.is_zombie();
            same && user_of(process.pid).is_none_or(|user| user == uid)
        }
        // Processes of other users may be hidden.
        None => i32::try_from(process.pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)),
    }
}

/// A random time between half of the pause and all of it, so that many processes do not return at the same moment.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    // Without random numbers the buffer keeps its middle value.
    let _ = getrandom::fill(&mut byte);
    pause.mul_f64(0.5 + f64::from(byte[0]) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessTree;
    use crate::is_gone;
    use std::process::Command;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_skipped() {
        let line = "42 (a) b (c) S 7 8 9 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 110763 313 413";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.group, stat.session, stat.start_time), (b'S', 7, 8, 9, 110_763));
        assert_eq!(stat.threads, 1);
        assert!(Stat::parse("42 (x").is_none());
    }

    #[test]
    fn this_process_lives_and_has_a_line() {
        let me = this_process().unwrap();
        assert!(!is_gone(&me));
        let line = ProcessTree::of_this_host(me.pid_ns.clone()).lineage(me.pid, &[]);
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

        use nix::sys::signal::kill;
        use nix::unistd::Pid;
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
