//! Samples the devices, writes the figures into the ledger and reports them to the scheduler.

use std::path::Path;
use std::time::{Duration, Instant};

use model_boss_core::{DeviceObservation, Event};
use model_boss_host::probe::{DeviceSample, Probes, Trouble};
use model_boss_lease_store::{
    Accounting, DeviceDeclaration, DeviceKey, Observation, OtherLeases, PartView, Process, ProcessTree, StoreError,
    this_process,
};
use model_boss_protocol::{ByteCount, DeviceId, chain};

use super::held::Doubt;
use super::ledger::{Blindness, LedgerOwner};
use super::status::DeviceTable;
use crate::scheduling::News;

/// The longest wait for a sample.
const SAMPLE_LIMIT: Duration = Duration::from_millis(500);

/// The least growth of memory that counts: less is noise of the driver's own.
const LEAST_GROWTH: ByteCount = ByteCount::mib(64);

/// The age up to which a sample counts as new.
const FRESH: Duration = Duration::from_millis(100);

/// Publishes the devices without a ledger, which would attribute the memory in use to leases.
pub(super) fn show_unknown(probes: &mut Probes, table: &DeviceTable, news: &News) {
    let samples = probes.sample(&[], SAMPLE_LIMIT);
    table.set(samples.clone(), probes.problems());
    for sample in samples {
        news.event(Event::DeviceObserved(observed(sample, None, ByteCount::ZERO)));
    }
}

fn observed(sample: DeviceSample, foreign: Option<ByteCount>, leaking: ByteCount) -> DeviceObservation {
    let DeviceSample { device, capacity, reserve, retention, exclusive, trouble, .. } = sample;
    let lost = trouble == Some(Trouble::Lost);
    // Figures of a failed sample may be outdated.
    let foreign = foreign.filter(|_| trouble.is_none());
    DeviceObservation { device, capacity, reserve, foreign, retention, exclusive, leaking, lost }
}

/// The evidence in a driver's list about this coordinator's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// The driver gives no list.
    Refused,
    /// A worker that holds memory is not in the list.
    Lacking,
    /// A worker is in the list.
    Named,
    /// A worker that may hold memory is not in the list: the next sample decides.
    Doubtful,
    /// The list permits no conclusion.
    Unsure,
}

/// Memory in use on a device that no listed process of this pid namespace explains.
pub(super) fn unexplained(sample: &DeviceSample) -> Option<(DeviceId, ByteCount)> {
    // The host's own memory is not read from a driver.
    sample.uuid.as_ref()?;
    let visible = |pid: &u32| Path::new("/proc").join(pid.to_string()).exists();
    let explained: ByteCount = sample.processes.iter().filter(|(pid, _)| visible(pid)).map(|&(_, bytes)| bytes).sum();
    Some((sample.device.clone(), sample.used?.saturating_sub(explained)))
}

/// The age at which a doubt is dropped. Until then memory stayed in use, and processes that may hold it are alive.
const LONGEST_DOUBT: Duration = Duration::from_secs(2);

/// The conclusion from a list without a worker, and the doubt that remains. Arguments: `grew` says whether unexplained
/// memory grew since the worker passed the gate. `living` are its processes that were alive after the list was made.
///
/// A worker is missing from a list when two conditions hold. Memory had also grown at the sample before, and every
/// process that was alive after that list is alive after this one. A worker that holds no memory yet is rightly not
/// listed. The same is true of one that ended before its list was made, though the memory in use was read a moment
/// earlier.
fn conclude(before: Option<Doubt>, grew: bool, living: Vec<Process>, now: Instant) -> (Listed, Option<Doubt>) {
    if !grew || living.is_empty() {
        return (Listed::Unsure, None);
    }
    let since = before.as_ref().map_or(now, |doubt| doubt.since);
    let lives_on = |doubt: Doubt| doubt.living.iter().all(|known| living.contains(known));
    if before.is_some_and(lives_on) || now.saturating_duration_since(since) >= LONGEST_DOUBT {
        return (Listed::Lacking, None);
    }
    (Listed::Doubtful, Some(Doubt { since, living }))
}

impl LedgerOwner {
    pub(super) fn look_or_log(&mut self) {
        let looked = self.look();
        self.done(&looked);
        match looked {
            // The state of the store was reported already.
            Err(error) if !error.is_outage() => {
                let text = chain(&error);
                if self.complaint != text {
                    tracing::warn!("devices could not be written to the lease ledger: {text}");
                    self.complaint = text;
                }
            }
            Err(_) => {}
            Ok(()) => self.complaint.clear(),
        }
    }

    /// Samples every device, writes the figures into the ledger, and reports them to the scheduler.
    pub(super) fn look(&mut self) -> Result<(), StoreError> {
        self.looked = Instant::now();
        // Processes of other holders and of ended workers are passed along as well: their memory would be counted
        // twice, as promised and as foreign.
        let mut pids = self.holder.leased_processes();
        pids.extend(self.held.values().filter_map(|held| held.pid));
        let mut samples = self.probes.sample(&pids, SAMPLE_LIMIT);
        let accounting: Vec<Option<Accounting>> = samples.iter().map(|sample| self.accounting(sample)).collect();
        self.in_doubt = accounting.iter().any(Option::is_none);
        for sample in &mut samples {
            sample.told_apart = !self.blind.contains_key(&sample.device);
        }
        if let Err(error) = self.leaks.look(&samples) {
            tracing::debug!("ended workers that may hold memory could not be looked at: {}", chain(&error));
        }
        let problems = self.probes.problems().into_iter().chain(self.leaking(&samples)).collect();
        self.table.set(samples.clone(), problems);
        let mut written = Ok(());
        for (sample, accounting) in samples.into_iter().zip(accounting) {
            let leaking = self.leaks.on(&sample);
            let foreign = match (&written, accounting) {
                (Ok(()), Some(accounting)) => self.write_down(&sample, accounting),
                // The store failed before in this sample, or the figure is in doubt: it is not written.
                _ => Ok(None),
            };
            match foreign {
                Ok(foreign) if written.is_ok() => {
                    self.news.event(Event::DeviceObserved(observed(sample, foreign, leaking)))
                }
                // A lost device ends its models, whether or not the store can be reached.
                _ if sample.trouble == Some(Trouble::Lost) => {
                    self.news.event(Event::DeviceObserved(observed(sample, None, leaking)));
                }
                _ => {}
            }
            if let Err(error) = foreign {
                written = Err(error);
            }
        }
        written?;
        self.note_users()?;
        self.state_loads();
        // Other processes may have changed the ledger meanwhile.
        self.holder.refresh()?;
        self.tell_others();
        self.tell_measured();
        Ok(())
    }

    /// Samples the devices unless the last sample is new and no lease has begun or ended since: many requests may come
    /// at once.
    pub(super) fn look_again(&mut self) {
        let unsettled = self.holder.is_unsettled();
        if unsettled || self.looked.elapsed() >= FRESH {
            self.look_or_log();
        }
    }

    /// Reports foreign leases and requests to the scheduler, when they changed.
    pub(super) fn tell_others(&mut self) {
        let others = self.holder.others();
        if self.others == others {
            return;
        }
        let OtherLeases { leases, requests } = others.clone();
        self.news.event(Event::Others { leases, requests });
        self.others = others;
    }

    /// Reports the use of workers to the scheduler, when it is larger than before: the measured one, or what the worker
    /// will hold once all its keys and values are used.
    fn tell_measured(&mut self) {
        if self.held.values().all(|held| held.pid.is_none()) {
            return;
        }
        let leases = self.holder.leases();
        for (&slot, held) in &mut self.held {
            let Some(lease) = leases.iter().find(|lease| lease.lease == held.handle.lease) else { continue };
            let part = |part: &PartView| {
                // A driver that does not tell processes apart shows no memory, which is not zero (RC-21).
                let bytes = part.measured.filter(|bytes| *bytes > ByteCount::ZERO)?;
                let device: DeviceId = part.device.parse().ok()?;
                let may_hold = held.may_hold.iter().filter(|(name, _)| *name == device).map(|(_, bytes)| *bytes).sum();
                Some((device, bytes.max(may_hold)))
            };
            let parts: Vec<(DeviceId, ByteCount)> = lease.parts.iter().filter_map(part).collect();
            let more = |(device, bytes): &(DeviceId, ByteCount)| {
                held.reported.iter().find(|(at, _)| at == device).is_none_or(|(_, before)| bytes > before)
            };
            if parts.iter().any(more) {
                held.reported.clone_from(&parts);
                self.news.event(Event::Measured { slot, parts });
            }
        }
    }

    /// The accounting of a device; `None` while it is in doubt. A driver that refused to tell processes apart is never
    /// trusted again, because an empty list would be mistaken for free memory. A driver whose lists lacked a worker is
    /// trusted again once they contain one.
    fn accounting(&mut self, sample: &DeviceSample) -> Option<Accounting> {
        let seen = if sample.told_apart { self.lists_ours(sample) } else { Listed::Refused };
        let blind = match seen {
            Listed::Refused => Some(Blindness::Refused),
            Listed::Lacking => Some(Blindness::Inferred),
            Listed::Doubtful if !self.blind.contains_key(&sample.device) => return None,
            Listed::Named | Listed::Doubtful | Listed::Unsure => None,
        };
        match (blind, self.blind.get(&sample.device)) {
            (Some(blind), None) => {
                self.blind.insert(sample.device.clone(), blind);
                tracing::warn!(
                    "the driver does not say which process uses how much of {} ({blind}): loads go there one at a time, and \
                     {} is counted as used by others (leases.foreign)",
                    sample.device,
                    self.foreign
                );
            }
            (None, Some(Blindness::Inferred)) if seen == Listed::Named => {
                tracing::info!("the driver tells the processes on {} apart after all", sample.device);
                self.blind.remove(&sample.device);
            }
            _ => {}
        }
        Some(if self.blind.contains_key(&sample.device) {
            Accounting::Degraded { foreign: self.foreign }
        } else {
            Accounting::PerProcess
        })
    }

    /// Whether the driver lists the workers that use this device. In a container its list is empty, or has the pids of
    /// another namespace.
    fn lists_ours(&mut self, sample: &DeviceSample) -> Listed {
        let Some((device, now)) = unexplained(sample) else { return Listed::Unsure };
        let Ok(owner) = this_process() else { return Listed::Unsure };
        let tree = ProcessTree::of_this_host(owner.pid_ns);
        let mut seen = Listed::Unsure;
        for held in self.held.values_mut() {
            let Some(worker) = held.pid else { continue };
            let parts = self.holder.parts(&held.handle);
            let Some((_, promised)) = parts.iter().find(|(part, _)| *part == device) else { continue };
            let is_its = |pid: u32| tree.lineage(pid, &[]).iter().any(|process| process.pid == worker);
            if sample.processes.iter().any(|(pid, _)| is_its(*pid)) {
                return Listed::Named;
            }
            let at_first = held.unexplained.iter().find(|(other, _)| *other == device).map(|(_, bytes)| *bytes);
            let grew = now.saturating_sub(at_first.unwrap_or(now)) >= LEAST_GROWTH.max(ByteCount(promised.0 / 8));
            // The process tree is read after the list: a process in it was alive when the list was made.
            let root = tree.lineage(worker, &[]).into_iter().next();
            let living = || root.map(|root| tree.members(&root)).unwrap_or_default();
            let before = held.doubts.remove(&device);
            let living = if grew { living() } else { Vec::new() };
            let (listed, doubt) = conclude(before, grew, living, Instant::now());
            held.doubts.extend(doubt.map(|doubt| (device.clone(), doubt)));
            if listed == Listed::Lacking || seen == Listed::Unsure {
                seen = listed;
            }
        }
        seen
    }

    fn write_down(&mut self, sample: &DeviceSample, accounting: Accounting) -> Result<Option<ByteCount>, StoreError> {
        let (device, reserve) = (sample.device.clone(), sample.reserve);
        let key = match (&sample.uuid, &device) {
            (Some(uuid), _) => DeviceKey::gpu(uuid.as_str()),
            (None, DeviceId::Cpu) => DeviceKey::cpu(),
            // Declared devices are identified by the operator's name.
            (None, DeviceId::Npu | DeviceId::Custom(_)) => DeviceKey::gpu(format!("declared-{device}")),
            // A GPU without an identity cannot be leased.
            (None, _) => return Ok(None),
        };
        let Some(capacity) = sample.capacity else { return Ok(None) };
        let declaration = DeviceDeclaration { device: device.clone(), key, capacity, reserve, accounting };
        if self.declared.get(&device) != Some(&declaration) {
            self.holder.declare(&declaration)?;
            self.declared.insert(device.clone(), declaration);
        }
        self.holder.observe(&Observation {
            device,
            used: sample.used,
            processes: sample.processes.clone(),
            sampled_at: sample.sampled_at,
        })
    }
}

impl LedgerOwner {
    /// A fault for each device that shows memory of ended workers, human-readable.
    pub(super) fn leaking(&self, samples: &[DeviceSample]) -> Vec<String> {
        let leaking = samples.iter().map(|sample| (&sample.device, self.leaks.on(sample)));
        let leaking = leaking.filter(|(_, bytes)| *bytes > ByteCount::ZERO);
        let text = |(device, bytes)| {
            format!("{device} is leaking: its driver still shows {bytes} of workers that ended, which count as used")
        };
        leaking.map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use model_boss_protocol::Later;

    use super::*;

    fn process(pid: u32, start_time: u64) -> Process {
        Process { pid, start_time, pid_ns: "pid:[1]".to_owned() }
    }

    /// The conclusions of consecutive samples, 50 ms apart. Each sample has whether memory grew, and the processes that
    /// were alive after its list.
    fn looks(seen: &[(bool, &[Process])]) -> Vec<Listed> {
        let (mut before, mut now) = (None, Instant::now());
        let look = |(grew, living): &(bool, &[Process])| {
            let (listed, after) = conclude(before.take(), *grew, living.to_vec(), now);
            before = after;
            now = now.later(Duration::from_millis(50));
            listed
        };
        seen.iter().map(look).collect()
    }

    #[test]
    fn rc_21_a_worker_is_missing_from_a_list_when_it_held_memory_before_and_lived_on_behind_it() {
        use Listed::{Doubtful, Lacking, Unsure};
        let (guard, worker) = (process(10, 1), process(11, 2));
        let both = [guard.clone(), worker.clone()];
        assert_eq!(looks(&[(true, &both), (true, &both)]), [Doubtful, Lacking]);
        // The worker ended between the figure and the list. Its guard is alive a moment longer, but the worker's memory
        // is free.
        let guard_only = std::slice::from_ref(&guard);
        assert_eq!(looks(&[(true, &both), (true, guard_only), (false, &[])]), [Doubtful, Doubtful, Unsure]);
        assert_eq!(looks(&[(true, guard_only), (true, &[])]), [Doubtful, Unsure]);
        assert_eq!(looks(&[(true, &[]), (true, &[])]), [Unsure, Unsure]);
        // The same pid with another start time is another process.
        let later = [guard.clone(), process(11, 9)];
        assert_eq!(looks(&[(true, &both), (true, &later)]), [Doubtful, Doubtful]);
        // The worker held no memory when the earlier list was made.
        assert_eq!(looks(&[(false, &both), (true, &both)]), [Unsure, Doubtful]);
        assert_eq!(looks(&[(true, &both), (false, &both), (true, &both)]), [Doubtful, Unsure, Doubtful]);
        // Processes that are added in between prove nothing about earlier ones.
        let more = [guard, worker, process(12, 3)];
        assert_eq!(looks(&[(true, &both), (true, &more)]), [Doubtful, Lacking]);
    }

    #[test]
    fn a_doubt_ends_also_where_processes_come_all_the_time() {
        let family: Vec<[Process; 2]> = (0..60).map(|n| [process(10, 1), process(100 + n, 2)]).collect();
        let seen: Vec<(bool, &[Process])> = family.iter().map(|living| (true, living.as_slice())).collect();
        let concluded = looks(&seen);
        assert_eq!(concluded.iter().position(|listed| *listed == Listed::Lacking), Some(40), "{concluded:?}");
    }
}
