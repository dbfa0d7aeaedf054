//! Other holders in the simulated ledger: training jobs that wait for leases, hold them, and release them in time or
//! too late.

use std::time::Duration;

use model_boss_protocol::{ByteCount, DeviceId, ModelId, OtherLease, OtherRequest, Priority};

use super::{Coming, LedgerPlace, World};
use crate::Event;

/// The pause before a waiting holder repeats its request.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The time in which a revoked holder has to release.
const GRACE: Duration = Duration::from_secs(10);

impl World {
    /// Adds a job of another holder. It waits until its memory is granted, and then holds it.
    pub(in crate::scheduler) fn train(&mut self, label: &str, device: &str, gib: u64, priority: u8) {
        let request = request(label, device, gib, priority);
        self.waiting_outside.push(request);
        self.waiting_outside.sort_by_key(|request| request.priority);
        self.tell_others();
        self.asks_again(label);
    }

    /// Adds a lease that another holder already has.
    pub(in crate::scheduler) fn hold(&mut self, label: &str, device: &str, gib: u64, priority: u8, preemptible: bool) {
        self.grant_outside(request(label, device, gib, priority), preemptible);
        self.tell_others();
    }

    /// Ends the job, whether it holds or waits.
    pub(in crate::scheduler) fn end_training(&mut self, label: &str) {
        self.outside.retain(|lease| lease.label != label);
        self.waiting_outside.retain(|request| request.label != label);
        self.tell_others();
    }

    /// The labels of all other holders and waiting requests.
    pub(in crate::scheduler) fn outsiders(&self) -> Vec<String> {
        let waiting = self.waiting_outside.iter().map(|request| request.label.clone());
        self.outside.iter().map(|lease| lease.label.clone()).chain(waiting).collect()
    }

    pub(in crate::scheduler) fn holds(&self, label: &str) -> bool {
        self.outside.iter().any(|lease| lease.label == label)
    }

    pub(in crate::scheduler) fn tell_others(&mut self) {
        let (leases, requests) = (self.outside.clone(), self.waiting_outside.clone());
        self.tell(Event::Others { leases, requests });
    }

    /// Whether the ledger has room for this beside all that is promised.
    pub(super) fn fits_ledger(&self, parts: &[(DeviceId, ByteCount)]) -> bool {
        let devices = self.core.devices();
        parts.iter().all(|(name, bytes)| {
            let Some(device) = devices.iter().find(|device| device.id == *name) else { return false };
            let ours: ByteCount =
                self.leases.values().flat_map(|(parts, _)| parts).filter(|(d, _)| d == name).map(|p| p.1).sum();
            let others: ByteCount = self.outside.iter().map(|lease| lease.on(name)).sum();
            let (Some(capacity), Some(foreign)) = (device.capacity, device.foreign) else { return false };
            ours + others + *bytes <= capacity - device.reserve - foreign
        })
    }

    pub(super) fn asks_again(&mut self, label: &str) {
        let Some(place) = self.waiting_outside.iter().position(|request| request.label == label) else { return };
        let request = self.waiting_outside[place].clone();
        let first = |ours: &&LedgerPlace| ours.priority <= request.priority;
        let ours: Vec<(DeviceId, ByteCount)> =
            self.places.values().filter(first).flat_map(|place| place.parts.clone()).collect();
        let with_ours = |(device, bytes): &(DeviceId, ByteCount)| {
            let taken: ByteCount = ours.iter().filter(|(d, _)| d == device).map(|p| p.1).sum();
            (device.clone(), *bytes + taken)
        };
        let wanted: Vec<_> = request.parts.iter().map(with_ours).collect();
        if self.fits_ledger(&wanted) {
            self.waiting_outside.remove(place);
            let preemptible = self.rng.chance(500);
            self.grant_outside(request, preemptible);
            self.tell_others();
        } else {
            self.after(ASK_AGAIN, Coming::AsksAgain(label.to_owned()));
        }
    }

    fn grant_outside(&mut self, request: OtherRequest, may_be_asked: bool) {
        self.next_lease += 1;
        let OtherRequest { label, priority, parts } = request;
        let lease = format!("lease-{}", self.next_lease);
        let (revoking, in_default) = (None, false);
        self.outside.push(OtherLease { lease, label, priority, parts, may_be_asked, revoking, in_default });
    }

    /// Takes the place, and revokes leases that may be preempted. Which leases exactly is the ledger's decision, and
    /// tested there.
    pub(super) fn await_lease(
        &mut self,
        model: ModelId,
        parts: Vec<(DeviceId, ByteCount)>,
        priority: Priority,
        preempt: bool,
    ) {
        let place = LedgerPlace { parts, priority };
        let there = |lease: &OtherLease| place.parts.iter().any(|(device, _)| lease.on(device) > ByteCount::ZERO);
        let mut asked = Vec::new();
        for lease in self.outside.iter_mut().filter(|lease| preempt && there(lease)) {
            if lease.may_be_asked && lease.priority > priority && lease.revoking.is_none() {
                lease.revoking = Some(GRACE);
                asked.push(lease.lease.clone());
            }
        }
        self.places.insert(model, place);
        for lease in asked {
            let in_time = !self.rng.chance(200);
            let span = if in_time { Duration::from_millis(self.rng.below(10_000)) } else { GRACE };
            self.after(span, Coming::MakesWay(lease, in_time));
        }
    }

    pub(in crate::scheduler) fn makes_way(&mut self, id: &str, in_time: bool) {
        if in_time {
            self.outside.retain(|lease| lease.lease != id);
        } else {
            for lease in self.outside.iter_mut().filter(|lease| lease.lease == id) {
                (lease.revoking, lease.in_default, lease.may_be_asked) = (None, true, false);
            }
        }
        self.tell_others();
    }
}

fn request(label: &str, device: &str, gib: u64, priority: u8) -> OtherRequest {
    let parts = vec![(device.parse().unwrap_or_default(), ByteCount::gib(gib))];
    OtherRequest { label: label.to_owned(), priority: Priority::new(priority).unwrap_or_default(), parts }
}
