//! Leaked memory of ended workers (RC-18): memory that a device still shows for their processes after drivers should
//! have released it. The ledger counts the memory already; this module names it.

use std::path::Path;

use model_boss_host::probe::DeviceSample;
use model_boss_lease_store::{Process, ProcessTree, StoreError, this_process};
use model_boss_protocol::ByteCount;

/// The processes of ended workers that some device still shows.
#[derive(Default)]
pub(super) struct Leaks(Vec<Process>);

impl Leaks {
    /// Adds processes whose memory was not released in time.
    pub(super) fn add(&mut self, processes: Vec<Process>) {
        self.0.extend(processes);
    }

    /// Removes the processes whose memory was released.
    pub(super) fn look(&mut self, samples: &[DeviceSample]) -> Result<(), StoreError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let tree = ProcessTree::of_this_host(this_process()?.pid_ns);
        let showing: Vec<u32> =
            samples.iter().flat_map(|sample| sample.processes.iter().map(|(pid, _)| *pid)).collect();
        self.0.retain(|process| tree.shows(process) || still_holds(process, &showing));
        Ok(())
    }

    /// The memory that a device shows for these processes.
    pub(super) fn on(&self, sample: &DeviceSample) -> ByteCount {
        self.0.iter().map(|process| on(sample, process)).sum()
    }
}

/// Whether a device still shows a process that is gone. A later process may have the same pid.
pub(super) fn still_holds(process: &Process, showing: &[u32]) -> bool {
    showing.contains(&process.pid) && !Path::new("/proc").join(process.pid.to_string()).exists()
}

fn on(sample: &DeviceSample, process: &Process) -> ByteCount {
    sample.processes.iter().filter(|(pid, _)| *pid == process.pid).map(|&(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use model_boss_protocol::DeviceId;

    use super::*;

    fn shows(pid: u32, mib: u64) -> DeviceSample {
        DeviceSample {
            device: DeviceId::Cuda(0),
            name: "fake".into(),
            uuid: Some("GPU-fake".into()),
            capacity: Some(ByteCount::gib(8)),
            reserve: ByteCount::ZERO,
            used: Some(ByteCount::gib(1)),
            told_apart: true,
            processes: vec![(pid, ByteCount::mib(mib))],
            retention: None,
            trouble: None,
            exclusive: false,
            sampled_at: Instant::now(),
        }
    }

    #[test]
    fn rc_18_a_leak_lasts_until_no_device_shows_its_process() {
        let me = this_process().unwrap();
        // The pid is above every number that the kernel gives.
        let ended = Process { pid: (1 << 22) + 7, start_time: 1, pid_ns: me.pid_ns.clone() };
        let mut leaks = Leaks::default();
        leaks.add(vec![ended.clone()]);
        leaks.look(&[shows(ended.pid, 64)]).unwrap();
        assert_eq!(leaks.on(&shows(ended.pid, 64)), ByteCount::mib(64));
        assert_eq!(leaks.on(&shows(1, 64)), ByteCount::ZERO);
        leaks.look(&[shows(1, 64)]).unwrap();
        assert!(leaks.0.is_empty());
    }

    #[test]
    fn a_later_process_with_the_number_of_an_ended_one_leaks_nothing() {
        let me = this_process().unwrap();
        let earlier = Process { start_time: me.start_time - 1, ..me.clone() };
        let mut leaks = Leaks::default();
        leaks.add(vec![earlier]);
        leaks.look(&[shows(me.pid, 64)]).unwrap();
        assert!(leaks.0.is_empty());
        // A process that cannot end keeps its memory.
        leaks.add(vec![me.clone()]);
        leaks.look(&[shows(me.pid, 64)]).unwrap();
        assert_eq!(leaks.on(&shows(me.pid, 64)), ByteCount::mib(64));
    }
}
