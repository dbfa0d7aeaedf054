//! The memory of each device as the scheduler accounts for it: observed, minus reserve and foreign use, minus every slot
//! that is not idle (counted until its bytes are shown back). Knows no rights and no order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model_boss_protocol::{ByteCount, DeviceId, Priority, RequestId, SlotId};

use crate::foreign::ForeignUse;
use crate::{DeviceObservation, Moment};

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) observation: DeviceObservation,
    foreign: ForeignUse,
    charged: ByteCount,
    /// What leases of other holders count for here.
    leased: ByteCount,
    /// Slots with bytes here.
    pub(crate) slots: BTreeSet<SlotId>,
    /// The slot that is loading here: loads happen one after another (MM-7).
    pub(crate) loading: Option<SlotId>,
    /// An operator wants it for something else (RC-30).
    pub(crate) closed: bool,
    /// The slot that became ready here last.
    pub(crate) newest: Option<SlotId>,
    /// Since when its driver does not list it.
    pub(crate) lost: Option<Moment>,
    /// It was gone for so long that nobody waits for it any more.
    pub(crate) given_up: bool,
}

/// Room being made for a model: it has the next turn on its devices, and what is free now is not given away beneath it.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The request whose right it is; without it the claim ends.
    pub(crate) asker: RequestId,
    /// A request more important than this may take the turn, and one for a draining victim keeps the victim.
    pub(crate) standing: Priority,
    /// Where it will be loaded.
    pub(crate) site: Vec<DeviceId>,
    /// What it will take on each device of the site.
    pub(crate) takes: Vec<i128>,
    /// Those that leave for it or are waited for, wherever they are.
    pub(crate) victims: Vec<SlotId>,
}

/// All devices, by name.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    devices: BTreeMap<DeviceId, Device>,
}

impl Device {
    /// Whether models may be placed here, as far as the device itself goes.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed && self.lost.is_none()
    }

    /// What models may use in all; `None` while unknown.
    pub(crate) fn ceiling(&self) -> Option<ByteCount> {
        Some(self.observation.capacity? - self.observation.reserve)
    }

    /// What is left after foreign use, leases of others and everything charged; negative when others took what was promised. `None` while
    /// anything about it is unknown: unknown is never zero (RC-21).
    pub(crate) fn balance(&self) -> Option<i128> {
        Some(self.room_for_models()? - i128::from(self.charged.0))
    }

    /// What would be left if no slot held anything.
    pub(crate) fn room_for_models(&self) -> Option<i128> {
        let others = i128::from(self.observation.foreign?.0) + i128::from(self.leased.0);
        Some(i128::from(self.ceiling()?.0) - others)
    }

    /// The same after the least that other programs used at any moment of the window: what comes and goes may leave again.
    pub(crate) fn lasting_room(&self, now: Moment, window: Duration) -> Option<i128> {
        self.room_beside(self.foreign.least(now, window))
    }

    /// The same after the most that they used.
    pub(crate) fn sure_room(&self, now: Moment, window: Duration) -> Option<i128> {
        self.room_beside(self.foreign.most(now, window))
    }

    fn room_beside(&self, foreign: Option<ByteCount>) -> Option<i128> {
        // Unknown now is unknown.
        self.observation.foreign?;
        Some(i128::from(self.ceiling()?.0) - i128::from(foreign?.0) - i128::from(self.leased.0))
    }

    /// [`Self::balance`] as people see it.
    pub(crate) fn free(&self) -> Option<ByteCount> {
        self.balance().map(|bytes| ByteCount(u64::try_from(bytes).unwrap_or(0)))
    }

    pub(crate) fn charged(&self) -> ByteCount {
        self.charged
    }

    pub(crate) fn leased(&self) -> ByteCount {
        self.leased
    }
}

impl Devices {
    /// Takes what a probe saw; says whether it differs from before. What other programs used is remembered for the window.
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
                let device = Device {
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

    /// Counts what other holders have; says whether it differs from before.
    pub(crate) fn lease_out(&mut self, held: impl Fn(&DeviceId) -> ByteCount) -> bool {
        let mut changed = false;
        for (name, device) in &mut self.devices {
            let leased = held(name);
            changed |= std::mem::replace(&mut device.leased, leased) != leased;
        }
        changed
    }

    /// Counts a filling's bytes until [`Self::discharge`].
    pub(crate) fn charge(&mut self, slot: SlotId, parts: &[(DeviceId, ByteCount)]) {
        for (name, bytes) in parts {
            if let Some(device) = self.devices.get_mut(name) {
                device.charged = device.charged + *bytes;
                device.slots.insert(slot);
                device.loading = Some(slot);
            }
        }
    }

    /// A slot was seen to hold more than was counted; counts that from now on.
    pub(crate) fn raise(&mut self, device: &DeviceId, more: ByteCount) {
        if let Some(device) = self.devices.get_mut(device) {
            device.charged = device.charged + more;
        }
    }

    /// The bytes are back.
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

    /// The slot is not loading any more.
    pub(crate) fn end_turn(&mut self, slot: SlotId, parts: &[(DeviceId, ByteCount)]) {
        for (name, _) in parts {
            if let Some(device) = self.devices.get_mut(name)
                && device.loading == Some(slot)
            {
                device.loading = None;
            }
        }
    }

    pub(crate) fn get(&self, name: &DeviceId) -> Option<&Device> {
        self.devices.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&DeviceId, &Device)> {
        self.devices.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }
}
