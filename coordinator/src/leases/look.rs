//! Looking at the devices: what they show is written into the ledger and told to the scheduler.

use std::time::{Duration, Instant};

use model_boss_core::{DeviceObservation, Event, OtherLease, OtherRequest};
use model_boss_lease_store::{Accounting, DeviceDeclaration, DeviceKey, Observation, PartView, StoreError};
use model_boss_protocol::{ByteCount, DeviceId};

use super::DeviceTable;
use super::keeper::Ledger;
use crate::driver::News;
use crate::error_chain::chain;
use crate::probe::{DeviceSample, Probes};

/// A driver that needs longer for one sample is not waited for.
const SAMPLE_LIMIT: Duration = Duration::from_millis(500);
/// What was seen so lately is as good as new.
const FRESH: Duration = Duration::from_millis(100);

/// Shows the devices while there is no ledger that could tell whose memory is in use.
pub(super) fn show_unknown(probes: &mut Probes, table: &DeviceTable, news: &News) {
    let samples = probes.sample(&[], SAMPLE_LIMIT);
    table.set(samples.clone());
    for sample in samples {
        news.event(Event::DeviceObserved(observed(sample, None)));
    }
}

fn observed(sample: DeviceSample, foreign: Option<ByteCount>) -> DeviceObservation {
    let DeviceSample { device, capacity, reserve, retention, exclusive, .. } = sample;
    DeviceObservation { device, capacity, reserve, foreign, retention, exclusive }
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
        let pids: Vec<u32> = self.held.values().filter_map(|held| held.pid).collect();
        let samples = self.probes.sample(&pids, SAMPLE_LIMIT);
        self.table.set(samples.clone());
        for sample in samples {
            let foreign = self.write_down(&sample)?;
            self.news.event(Event::DeviceObserved(observed(sample, foreign)));
        }
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

    /// How the use of a device is counted. A driver that once did not tell processes apart is not believed again: an empty
    /// list would be taken for memory that nobody uses.
    fn accounting(&mut self, sample: &DeviceSample) -> Accounting {
        if !sample.told_apart && self.blind.insert(sample.device.clone()) {
            tracing::warn!(
                "the driver does not say which process uses how much of {}: loads go there one at a time, and {} is \
                 counted as used by others (leases.foreign)",
                sample.device,
                self.foreign
            );
        }
        if self.blind.contains(&sample.device) {
            Accounting::Degraded { foreign: self.foreign }
        } else {
            Accounting::PerProcess
        }
    }

    fn write_down(&mut self, sample: &DeviceSample) -> Result<Option<ByteCount>, StoreError> {
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
        let accounting = self.accounting(sample);
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
