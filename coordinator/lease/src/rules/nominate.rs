//! Nominations: the devices and bytes reserved for waiting requests, recomputed at each operation in one total order
//! (priority, arrival). The first waiter takes its full set, the next what remains. With one order for all devices
//! there are no cycles, and no request is passed.

use model_boss_protocol::{ByteCount, Priority};

use super::fit;
use super::preempt::{self, Importance};
use crate::rules::nominated::Nominated;
use crate::{DeviceKey, Ledger, Process, StoreTime, Want};

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuePosition<'a> {
    pub(super) priority: Priority,
    pub(super) arrived: StoreTime,
    pub(super) request_id: &'a str,
}

/// The arrival of a request that is made now: after all waiting ones, even if the clock did not advance or was set
/// back.
pub(super) fn arrival(ledger: &Ledger, now: StoreTime) -> StoreTime {
    let last = ledger.waiters.values().map(|waiter| waiter.arrived.0).max();
    StoreTime(now.0.max(last.map_or(0, |last| last + 1)))
}

/// The nominations of all requests before this place. The holder's own requests are left out, since the holder decides
/// their order itself.
pub(super) fn before(ledger: &Ledger, now: StoreTime, place: QueuePosition<'_>, holder: &Process) -> Nominated {
    let mut queue: Vec<_> = ledger
        .waiters
        .iter()
        .map(|(id, waiter)| {
            (QueuePosition { priority: waiter.priority, arrived: waiter.arrived, request_id: id.as_str() }, waiter)
        })
        .filter(|(earlier, waiter)| {
            *earlier < place && earlier.request_id != place.request_id && waiter.owner.process != *holder
        })
        .collect();
    queue.sort_by_key(|(earlier, _)| *earlier);
    let mut nominated = Nominated::default();
    for (earlier, waiter) in queue {
        let asker = Importance { priority: earlier.priority, mode: &waiter.mode, owner: &waiter.owner.process };
        let parts = choose(ledger, now, &waiter.want, &asker, &nominated);
        nominated.take(parts);
        nominated.count += 1;
        nominated.label.get_or_insert_with(|| waiter.owner.label.to_string());
    }
    nominated
}

/// The devices chosen for a wish. For "any k of", devices where it fits now are first, the fullest of them first, so
/// that large gaps remain. Next are devices where it will fit after releases in progress, then those where it would
/// after further revocations, then those with the most room.
pub(super) fn choose(
    ledger: &Ledger,
    now: StoreTime,
    want: &Want,
    asker: &Importance<'_>,
    first: &Nominated,
) -> Vec<(DeviceKey, ByteCount)> {
    let (count, bytes, devices) = match want {
        Want::Parts(parts) => return parts.clone(),
        Want::AnyOf { count, bytes, devices } => (*count, *bytes, devices),
        Want::Other(_) => return Vec::new(),
    };
    let mut ranked: Vec<_> = devices
        .iter()
        .filter(|device| fit::can_ever_fit(ledger, device, bytes).is_ok())
        .map(|device| {
            let taken = first.on(device);
            let free = fit::free(ledger, now, device).map(|free| free.saturating_sub(taken));
            let room = preempt::headroom(ledger, device, taken);
            let reach = room + preempt::could_yield(ledger, now, device, asker);
            let needs = bytes.signed();
            let rank = match free {
                Ok(free) if free >= bytes => (0, free.signed()),
                _ if room + preempt::coming(ledger, device) >= needs => (1, room),
                _ if asker.mode.preempts() && reach >= needs => (2, -reach),
                _ => (3, -room),
            };
            (rank, device)
        })
        .collect();
    ranked.sort();
    ranked.into_iter().take(count).map(|(_, device)| (device.clone(), bytes)).collect()
}

/// The nominations of all waiting requests in their order: the parts that they get in their turn.
pub fn nominations(ledger: &Ledger, now: StoreTime) -> Vec<(String, Vec<(DeviceKey, ByteCount)>)> {
    let mut queue: Vec<_> = ledger
        .waiters
        .iter()
        .map(|(id, waiter)| {
            (QueuePosition { priority: waiter.priority, arrived: waiter.arrived, request_id: id }, waiter)
        })
        .collect();
    queue.sort_by_key(|(place, _)| *place);
    let mut nominated = Nominated::default();
    let choose = |(place, waiter): (QueuePosition<'_>, &crate::Waiter)| {
        let asker = Importance { priority: place.priority, mode: &waiter.mode, owner: &waiter.owner.process };
        let parts = choose(ledger, now, &waiter.want, &asker, &nominated);
        nominated.take(parts.clone());
        (place.request_id.to_owned(), parts)
    };
    queue.into_iter().map(choose).collect()
}
