//! Looking at the devices: what they show is written into the ledger and told to the scheduler.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use model_boss_core::{DeviceObservation, Event, OtherLease, OtherRequest};
use model_boss_lease_store::{
    Accounting, DeviceDeclaration, DeviceKey, Observation, PartView, ProcessTree, StoreError, this_process,
};
use model_boss_protocol::{ByteCount, DeviceId};

use super::DeviceTable;
use super::keeper::Ledger;
use crate::driver::News;
use crate::error_chain::chain;
use crate::probe::{DeviceSample, Probes, Trouble};

/// A driver that needs longer for one sample is not waited for.
const SAMPLE_LIMIT: Duration = Duration::from_millis(500);
/// Less growth than this is noise of the driver's own.
const LEAST_GROWTH: ByteCount = ByteCount::mib(64);
/// What was seen so lately is as good as new.
const FRESH: Duration = Duration::from_millis(100);

/// Shows the devices while there is no ledger that could tell whose memory is in use.
pub(super) fn show_unknown(probes: &mut Probes, table: &DeviceTable, news: &News) {
    let samples = probes.sample(&[], SAMPLE_LIMIT);
    table.set(samples.clone(), probes.problems());
    for sample in samples {
        news.event(Event::DeviceObserved(observed(sample, None)));
    }
}

fn observed(sample: DeviceSample, foreign: Option<ByteCount>) -> DeviceObservation {
    let DeviceSample { device, capacity, reserve, retention, exclusive, trouble, .. } = sample;
    let lost = trouble == Some(Trouble::Lost);
    // What other programs use now is not what they used when it was last seen.
    let foreign = foreign.filter(|_| trouble.is_none());
    DeviceObservation { device, capacity, reserve, foreign, retention, exclusive, lost }
}

/// How it is known that a driver does not tell processes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blindness {
    /// It refuses the question, or names processes without their memory.
    Refused,
    /// It lists processes, and ours are not among them.
    Inferred,
}

impl fmt::Display for Blindness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "it refuses to",
            Self::Inferred => "its list lacks our worker, as it does in a container",
        })
    }
}

/// What a driver's list says of our workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// The driver gives no list.
    Refused,
    /// One that holds memory is not in it.
    Lacking,
    /// One is in it.
    Named,
    /// Nothing can be concluded.
    Unsure,
}

/// Memory in use on a device that no listed process of this pid namespace accounts for.
pub(super) fn unexplained(sample: &DeviceSample) -> Option<(DeviceId, ByteCount)> {
    // The host's own memory is not read from a driver.
    sample.uuid.as_ref()?;
    let visible = |pid: &u32| Path::new("/proc").join(pid.to_string()).exists();
    let explained: ByteCount = sample.processes.iter().filter(|(pid, _)| visible(pid)).map(|&(_, bytes)| bytes).sum();
    Some((sample.device.clone(), sample.used?.saturating_sub(explained)))
}

impl Ledger {
    pub(super) fn look_or_log(&mut self) {
        let looked = self.look();
        self.done(&looked);
        match looked {
            // The state of the store has been told.
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

    /// Looks at every device, writes it down, and tells the scheduler.
    pub(super) fn look(&mut self) -> Result<(), StoreError> {
        self.looked = Instant::now();
        // Also what other people hold, and what an ended worker left behind: it would be counted twice, as a promise and as
        // foreign use.
        let mut pids = self.holder.leased_processes();
        pids.extend(self.held.values().filter_map(|held| held.pid));
        let mut samples = self.probes.sample(&pids, SAMPLE_LIMIT);
        let accounting: Vec<Accounting> = samples.iter().map(|sample| self.accounting(sample)).collect();
        for sample in &mut samples {
            sample.told_apart = !self.blind.contains_key(&sample.device);
        }
        self.table.set(samples.clone(), self.probes.problems());
        let mut written = Ok(());
        for (sample, accounting) in samples.into_iter().zip(accounting) {
            let foreign = match &written {
                Ok(()) => self.write_down(&sample, accounting),
                // The store is not asked again at this look.
                Err(_) => Ok(None),
            };
            match foreign {
                Ok(foreign) if written.is_ok() => self.news.event(Event::DeviceObserved(observed(sample, foreign))),
                // A device that is gone takes its models along, whatever the store can be told.
                _ if sample.trouble == Some(Trouble::Lost) => {
                    self.news.event(Event::DeviceObserved(observed(sample, None)));
                }
                _ => {}
            }
            if let Err(error) = foreign {
                written = Err(error);
            }
        }
        written?;
        self.state_loads();
        // What others did meanwhile.
        self.holder.refresh()?;
        self.tell_others();
        self.tell_measured();
        Ok(())
    }

    /// Looks unless that was done a moment ago and nothing has begun or ended since: many may ask at once.
    pub(super) fn look_again(&mut self) {
        let unsettled = self.holder.is_unsettled();
        if unsettled || self.looked.elapsed() >= FRESH {
            self.look_or_log();
        }
    }

    /// Tells the scheduler what others hold and want, when that changed.
    pub(super) fn tell_others(&mut self) {
        let others = self.holder.others();
        if self.others == others {
            return;
        }
        let leases = others.leases.iter().map(|lease| OtherLease {
            lease: lease.lease.to_string(),
            label: lease.label.clone(),
            priority: lease.priority,
            parts: lease.parts.clone(),
            may_be_asked: lease.may_be_asked,
            revoking: lease.revoking,
            in_default: lease.in_default,
        });
        let requests = others.waiters.iter().map(|waiter| OtherRequest {
            label: waiter.label.clone(),
            priority: waiter.priority,
            parts: waiter.parts.clone(),
        });
        self.news.event(Event::Others { leases: leases.collect(), requests: requests.collect() });
        self.others = others;
    }

    /// Tells the scheduler what the workers were seen to use, when that is more than it was told.
    fn tell_measured(&mut self) {
        if self.held.values().all(|held| held.pid.is_none()) {
            return;
        }
        let leases = self.holder.leases();
        for (&(slot, generation), held) in &mut self.held {
            let Some(lease) = leases.iter().find(|lease| lease.lease == held.handle.lease) else { continue };
            let part = |part: &PartView| {
                // A driver that does not tell processes apart shows nothing, which is not zero (RC-21).
                let bytes = part.measured.filter(|bytes| *bytes > ByteCount::ZERO)?;
                Some((part.device.parse().ok()?, bytes))
            };
            let parts: Vec<(DeviceId, ByteCount)> = lease.parts.iter().filter_map(part).collect();
            let more = |(device, bytes): &(DeviceId, ByteCount)| {
                held.told.iter().find(|(told, _)| told == device).is_none_or(|(_, told)| bytes > told)
            };
            if parts.iter().any(more) {
                held.told.clone_from(&parts);
                self.news.event(Event::Measured { slot, generation, parts });
            }
        }
    }

    /// How the use of a device is counted. A driver that refused to tell processes apart is not believed again: an empty
    /// list would be taken for memory that nobody uses. One whose lists lacked a worker of ours is believed again once they
    /// name one.
    fn accounting(&mut self, sample: &DeviceSample) -> Accounting {
        let seen = if sample.told_apart { self.lists_ours(sample) } else { Listed::Refused };
        let blind = match seen {
            Listed::Refused => Some(Blindness::Refused),
            Listed::Lacking => Some(Blindness::Inferred),
            Listed::Named | Listed::Unsure => None,
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
        if self.blind.contains_key(&sample.device) {
            Accounting::Degraded { foreign: self.foreign }
        } else {
            Accounting::PerProcess
        }
    }

    /// Whether the driver lists the workers that use this device. In a container its list is empty, or has the numbers of
    /// another pid namespace. A worker is taken to be lacking when memory that nobody listed accounts for grew since it was
    /// let through: one that holds nothing yet is rightly not listed.
    fn lists_ours(&self, sample: &DeviceSample) -> Listed {
        let Some((device, now)) = unexplained(sample) else { return Listed::Unsure };
        let Ok(owner) = this_process() else { return Listed::Unsure };
        let tree = ProcessTree::of_this_host(owner.pid_ns);
        let mut seen = Listed::Unsure;
        for held in self.held.values() {
            let Some(worker) = held.pid else { continue };
            let parts = self.holder.parts(&held.handle);
            let Some((_, promised)) = parts.iter().find(|(part, _)| *part == device) else { continue };
            let is_its = |pid: u32| tree.lineage(pid, &[]).iter().any(|process| process.pid == worker);
            if sample.processes.iter().any(|(pid, _)| is_its(*pid)) {
                return Listed::Named;
            }
            let before = held.unexplained.iter().find(|(other, _)| *other == device).map(|(_, bytes)| *bytes);
            let grew = now.saturating_sub(before.unwrap_or(now));
            if grew >= LEAST_GROWTH.max(ByteCount(promised.0 / 8)) {
                seen = Listed::Lacking;
            }
        }
        seen
    }

    fn write_down(&mut self, sample: &DeviceSample, accounting: Accounting) -> Result<Option<ByteCount>, StoreError> {
        let (device, reserve) = (sample.device.clone(), sample.reserve);
        let key = match (&sample.uuid, &device) {
            (Some(uuid), _) => DeviceKey::gpu(uuid.as_str()),
            (None, DeviceId::Cpu) => DeviceKey::cpu(),
            // Declared ones are known by the name the operator gave.
            (None, DeviceId::Npu | DeviceId::Custom(_)) => DeviceKey::gpu(format!("declared-{device}")),
            // A GPU that cannot be told from another cannot be leased.
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
