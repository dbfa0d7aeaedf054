//! The memory of each device as the scheduler accounts for it. It is the observed capacity minus the reserve, foreign
//! use and all slots that are not idle. A slot counts until its bytes are observed to be free again. Rules of
//! eviction and order are in other modules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model_boss_protocol::{ByteCount, DeviceId, Priority, RequestId, SignedBytes, SlotId};

use crate::foreign::ForeignUse;
use crate::{DeviceObservation, Moment};

/// A device, with its memory and its slots.
#[derive(Debug)]
pub(crate) struct ScheduledDevice {
    pub(crate) observation: DeviceObservation,
    foreign: ForeignUse,
    charged: ByteCount,
    /// The bytes that leases of other holders count for on this device.
    leased: ByteCount,
    /// Slots with bytes on this device.
    pub(crate) slots: BTreeSet<SlotId>,
    /// The slot that is loading onto this device: loads happen one after another (MM-7).
    pub(crate) loading: Option<SlotId>,
    /// An operator closed the device to models (RC-30).
    pub(crate) closed: bool,
    /// The slot that last became ready on this device.
    pub(crate) newest: Option<SlotId>,
    /// The moment since which the device's driver does not list it.
    pub(crate) lost: Option<Moment>,
    /// Whether the device was lost for so long that requests bound to it are refused.
    pub(crate) given_up: bool,
}

/// A reservation of memory that evictions free for a model. It covers the next turn on the model's devices, and bytes
/// that are free already.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The request whose right the claim rests on; without it the claim ends.
    pub(crate) asker: RequestId,
    /// The priority of the claim: only a more important request may take the turn. If that request needs a draining
    /// victim, the victim stays loaded.
    pub(crate) standing: Priority,
    /// The site where the model will be loaded.
    pub(crate) site: Vec<DeviceId>,
    /// The bytes the model will take on each device of the site.
    pub(crate) takes: Vec<SignedBytes>,
    /// Slots evicted or waited for, on any device.
    pub(crate) victims: Vec<SlotId>,
}

/// All devices, by name.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    devices: BTreeMap<DeviceId, ScheduledDevice>,
}

impl ScheduledDevice {
    /// Whether models may be placed here, as far as the device itself is concerned.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed && self.lost.is_none()
    }

    /// The memory for all models together; `None` while unknown.
    pub(crate) fn ceiling(&self) -> Option<ByteCount> {
        Some(self.observation.capacity? - self.observation.reserve)
    }

    /// The bytes left after foreign use, leases of others and all charges; negative when others took promised memory.
    /// `None` while any of these is unknown: unknown is never zero (RC-21).
    pub(crate) fn balance(&self) -> Option<SignedBytes> {
        Some(self.room_for_models()? - self.charged.signed())
    }

    /// The balance if no slot held memory.
    pub(crate) fn room_for_models(&self) -> Option<SignedBytes> {
        let others = self.observation.foreign?.signed() + self.leased.signed();
        Some(self.ceiling()?.signed() - others)
    }

    /// The room for models after the least foreign use within the window: intermittent use may end again.
    pub(crate) fn lasting_room(&self, now: Moment, window: Duration) -> Option<SignedBytes> {
        self.room_beside(self.foreign.least(now, window))
    }

    /// The room for models after the most foreign use within the window.
    pub(crate) fn sure_room(&self, now: Moment, window: Duration) -> Option<SignedBytes> {
        self.room_beside(self.foreign.most(now, window))
    }

    fn room_beside(&self, foreign: Option<ByteCount>) -> Option<SignedBytes> {
        // Unknown foreign memory makes the free memory unknown too.
        self.observation.foreign?;
        Some(self.ceiling()?.signed() - foreign?.signed() - self.leased.signed())
    }

    /// [`Self::balance`] for display, with zero in place of a negative value.
    pub(crate) fn free(&self) -> Option<ByteCount> {
        self.balance().map(SignedBytes::clamped)
    }

    pub(crate) fn charged(&self) -> ByteCount {
        self.charged
    }

    pub(crate) fn leased(&self) -> ByteCount {
        self.leased
    }
}

impl Devices {
    /// Stores a probe's observation; returns whether it differs from the last. Foreign use is remembered for the
    /// window.
    pub(crate) fn observe(&mut self, observation: DeviceObservation, now: Moment, window: Duration) -> bool {
        if let Some(device) = self.devices.get_mut(&observation.device) {
            device.foreign.saw(now, observation.foreign, window);
        }
        match self.devices.get_mut(&observation.device) {
            Some(device) if device.observation == observation => false,
            Some(device) => {
                device.observation = observation;
                true
            }
            None => {
                let name = observation.device.clone();
                let mut foreign = ForeignUse::default();
                foreign.saw(now, observation.foreign, window);
                let device = ScheduledDevice {
                    observation,
                    foreign,
                    charged: ByteCount::ZERO,
                    leased: ByteCount::ZERO,
                    slots: BTreeSet::new(),
                    loading: None,
                    closed: false,
                    newest: None,
                    lost: None,
                    given_up: false,
                };
                self.devices.insert(name, device);
                true
            }
        }
    }

    /// Sets the bytes that other holders' leases count for; returns whether they changed.
    pub(crate) fn lease_out(&mut self, held: impl Fn(&DeviceId) -> ByteCount) -> bool {
        let mut changed = false;
        for (name, device) in &mut self.devices {
            let leased = held(name);
            changed |= std::mem::replace(&mut device.leased, leased) != leased;
        }
        changed
    }

    /// Charges a slot's bytes until [`Self::discharge`].
    pub(crate) fn charge(&mut self, slot: SlotId, parts: &[(DeviceId, ByteCount)]) {
        for (name, bytes) in parts {
            if let Some(device) = self.devices.get_mut(name) {
                device.charged = device.charged + *bytes;
                device.slots.insert(slot);
                device.loading = Some(slot);
            }
        }
    }

    /// Charges more bytes for a slot that was seen to hold more than was charged.
    pub(crate) fn raise(&mut self, device: &DeviceId, more: ByteCount) {
        if let Some(device) = self.devices.get_mut(device) {
            device.charged = device.charged + more;
        }
    }

    /// Removes the charge: the bytes are free again.
    pub(crate) fn discharge(&mut self, slot: SlotId, parts: &[(DeviceId, ByteCount)]) {
        self.end_turn(slot, parts);
        for (name, bytes) in parts {
            if let Some(device) = self.devices.get_mut(name)
                && device.slots.remove(&slot)
            {
                device.charged = device.charged - *bytes;
            }
        }
    }

    /// Ends the turn of a slot whose load has ended.
    pub(crate) fn end_turn(&mut self, slot: SlotId, parts: &[(DeviceId, ByteCount)]) {
        for (name, _) in parts {
            if let Some(device) = self.devices.get_mut(name)
                && device.loading == Some(slot)
            {
                device.loading = None;
            }
        }
    }

    pub(crate) fn get(&self, name: &DeviceId) -> Option<&ScheduledDevice> {
        self.devices.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &DeviceId) -> Option<&mut ScheduledDevice> {
        self.devices.get_mut(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&DeviceId, &ScheduledDevice)> {
        self.devices.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }
}
