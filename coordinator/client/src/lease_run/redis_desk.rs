//! Leases at the ledger in Redis. The module samples the devices itself, so that no coordinator has to run.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use model_boss_host::guard::end_leftovers_at_once;
use model_boss_host::probe::{DeviceSample, HostProbe, NvidiaProbe, Probe, Probes};
use model_boss_lease_store::{
    Accounting, AcquireRequest, Acquired, DeviceDeclaration, DeviceKey, Evidence, Holder, LeaseDurations, LeaseHandle,
    LeaseWish, Mode, Observation, Owner, Process, ProcessTree, StoreError, is_gone, process,
};
use model_boss_protocol::{ByteCount, DeviceId};

use super::desk::{Desk, Granted, GrantedPart, Granting, LeaseRequest, Released, Renewed, RevokeNotice, asked};
use super::error::LeaseError;

/// The longest wait for a sample of the devices.
const SAMPLE_LIMIT: Duration = Duration::from_millis(500);
/// The smallest possible lease.
const LEAST: ByteCount = ByteCount(1);

pub(super) struct RedisDesk {
    holder: Holder,
    probes: Probes,
    request_id: String,
    wanted: LeaseRequest,
    handle: Option<LeaseHandle>,
    attached: Vec<Process>,
    /// Processes of the lease that were seen on a device.
    own: BTreeSet<u32>,
    samples: Vec<DeviceSample>,
}

impl RedisDesk {
    pub(super) fn open(
        url: &str,
        runtime_dir: Option<&Path>,
        owner: Owner,
        wanted: LeaseRequest,
        request_id: String,
    ) -> Result<Self, LeaseError> {
        let holder = Holder::redis(url, runtime_dir, owner, LeaseDurations::default())?;
        let probes = Probes::start(probes()).map_err(|error| LeaseError::System("look at the devices", error))?;
        let (attached, own, samples) = (Vec::new(), BTreeSet::new(), Vec::new());
        Ok(Self { holder, probes, request_id, wanted, handle: None, attached, own, samples })
    }

    fn handle(&self) -> Result<LeaseHandle, LeaseError> {
        self.handle.clone().ok_or(LeaseError::NotGranted)
    }

    fn request(&self) -> Result<AcquireRequest, LeaseError> {
        let LeaseRequest { label, memory, devices, count, priority, preempt, yielding } = self.wanted.clone();
        let wish = if devices.is_empty() {
            let gpus: Vec<_> =
                self.samples.iter().filter(|sample| sample.uuid.is_some()).map(|s| s.device.clone()).collect();
            if gpus.is_empty() {
                return Err(LeaseError::NoGpu);
            }
            LeaseWish::AnyOf { count, bytes: memory, devices: gpus }
        } else {
            if let Some(unknown) = devices.iter().find(|d| !self.samples.iter().any(|s| s.device == **d)) {
                let known: Vec<_> = self.samples.iter().map(|sample| sample.device.to_string()).collect();
                return Err(LeaseError::NoDevice(unknown.clone(), known.join(", ")));
            }
            LeaseWish::Parts(devices.into_iter().map(|device| (device, memory)).collect())
        };
        let mode = if preempt { Mode::Preempt } else { Mode::Wait };
        let request = AcquireRequest::new(self.request_id.clone(), label, priority, Vec::new());
        Ok(AcquireRequest { wish, mode, yielding, ..request })
    }

    /// Ends the leases whose processes are gone. Returns whether a lease was ended.
    fn settle(&mut self) -> Result<bool, StoreError> {
        let before = self.holder.leases().len();
        // Only processes of this user can be ended.
        end_leftovers_at_once(&self.holder.settle()?);
        Ok(self.holder.leases().len() < before)
    }

    /// Samples every device and writes the figures to the ledger.
    fn look(&mut self) -> Result<(), StoreError> {
        // Processes of other holders are passed along as well: their memory would be counted twice, as promised and as
        // foreign.
        let mut pids = self.holder.leased_processes();
        pids.extend(self.attached.iter().map(|process| process.pid));
        self.samples = self.probes.sample(&pids, SAMPLE_LIMIT);
        for sample in self.samples.clone() {
            let key = match (&sample.uuid, &sample.device) {
                (Some(uuid), _) => DeviceKey::gpu(uuid.as_str()),
                (None, DeviceId::Cpu) => DeviceKey::cpu(),
                (None, _) => continue,
            };
            let Some(capacity) = sample.capacity else { continue };
            let (device, reserve) = (sample.device.clone(), sample.reserve);
            // A running coordinator reports foreign memory; without one, the driver's free memory alone decides.
            let accounting = if sample.told_apart {
                Accounting::PerProcess
            } else {
                Accounting::Degraded { foreign: ByteCount::ZERO }
            };
            let declaration = DeviceDeclaration { device: device.clone(), key, capacity, reserve, accounting };
            if !self.holder.has_declared(&declaration) {
                self.holder.declare(&declaration)?;
            }
            let (used, sampled_at) = (sample.used, sample.sampled_at);
            self.holder.observe(&Observation { device, used, processes: sample.processes.clone(), sampled_at })?;
            for attached in &self.attached {
                let tree = ProcessTree::of_this_host(attached.pid_ns.clone());
                let known = std::slice::from_ref(attached);
                let own = sample.processes.iter().map(|(pid, _)| *pid);
                self.own.extend(own.filter(|pid| tree.lineage(*pid, known).contains(attached)));
            }
        }
        Ok(())
    }
}

impl Desk for RedisDesk {
    fn describe(&self) -> String {
        self.holder.describe()
    }

    fn heartbeat(&self) -> Duration {
        self.holder.heartbeat()
    }

    fn acquire(&mut self) -> Result<Granting, LeaseError> {
        self.look()?;
        let mut acquired = self.holder.acquire(self.request()?)?;
        // Without a coordinator, no other process notices that a holder died: the queued requests must check it.
        if matches!(acquired, Acquired::Wait { .. }) && self.settle()? {
            self.look()?;
            acquired = self.holder.acquire(self.request()?)?;
        }
        match acquired {
            Acquired::Granted(handle) => {
                let uuid = |device: &DeviceId| self.samples.iter().find(|s| s.device == *device)?.uuid.clone();
                let part = |(device, bytes): (DeviceId, ByteCount)| {
                    let uuid = uuid(&device);
                    GrantedPart { device, bytes, uuid }
                };
                let parts = self.holder.parts(&handle).into_iter().map(part).collect();
                let lease = handle.lease.to_string();
                self.handle = Some(handle);
                Ok(Granting::Granted(Granted { lease, parts }))
            }
            Acquired::Wait { position, reason, asked: victims, .. } => {
                let asked = asked(victims.iter().map(|victim| (victim.label.as_str(), victim.remaining)));
                Ok(Granting::Waits(format!("{position} in the queue: {reason}{asked}")))
            }
            Acquired::NeverFits { reason } => Err(LeaseError::NeverFits(reason)),
        }
    }

    fn attach(&mut self, pid: u32) -> Result<(), LeaseError> {
        let attached = process(pid)?;
        let answer = self.holder.attach(&self.handle()?, pid);
        // If the answer was lost, the ledger may have recorded the process.
        if answer.as_ref().err().is_none_or(StoreError::is_outage) {
            self.attached.retain(|known| *known != attached);
            self.attached.push(attached);
        }
        Ok(answer?)
    }

    fn renew(&mut self) -> Result<Renewed, LeaseError> {
        let renewed = self.holder.renew();
        // The sample is useful even without the store: it shows the memory of this lease's processes.
        if let Err(error) = self.look() {
            tracing::debug!("the devices could not be written to the ledger: {error}");
        }
        let kept = renewed?;
        let revoked = kept.revoked.into_iter().next();
        let revoked = revoked.map(|r| RevokeNotice { remaining: r.remaining, wanted_by: r.wanted_by });
        Ok(Renewed { revoked, lost: !kept.lost.is_empty() })
    }

    fn shrink(&mut self) -> Result<(), LeaseError> {
        let handle = self.handle()?;
        let parts: Vec<_> = self.holder.parts(&handle).into_iter().map(|(device, _)| (device, LEAST)).collect();
        // Reducing a lease is always possible.
        self.holder.resize(&handle, &parts)?;
        Ok(())
    }

    fn release(&mut self, for_good: bool) -> Result<Released, LeaseError> {
        let handle = self.handle()?;
        // The sample is taken even if the store cannot be written.
        let _ = self.look();
        let alive = self.attached.iter().filter(|process| !is_gone(process)).count();
        let shown = self.samples.iter().flat_map(|s| &s.processes).any(|(pid, _)| self.own.contains(pid));
        let gone = alive == 0 && !shown;
        if gone || for_good {
            self.holder.release(&handle, if gone { Evidence::Gone } else { Evidence::None })?;
        }
        Ok(if gone {
            Released::Free
        } else if alive > 0 {
            Released::Counted("its processes live".to_owned())
        } else {
            Released::Counted("a device still shows its processes".to_owned())
        })
    }

    fn cancel(&mut self) -> Result<(), LeaseError> {
        Ok(self.holder.cancel(&self.request_id)?)
    }
}

/// The probes of the host's memory and, if there is a driver, of its GPUs.
fn probes() -> Vec<Box<dyn Probe>> {
    let mut probes: Vec<Box<dyn Probe>> = vec![Box::new(HostProbe::new(None, None))];
    probes.extend(NvidiaProbe::start().0.map(|nvidia| Box::new(nvidia) as Box<dyn Probe>));
    probes
}
