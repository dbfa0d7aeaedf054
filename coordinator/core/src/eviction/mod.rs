//! Rights of eviction: the slots that a request may evict, and which of them it evicts (RC-18, RC-19). The module is
//! pure: from numbers it computes victims with their reasons, or the slots that prevent the eviction.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use model_boss_protocol::{Priority, SignedBytes, SlotId};

use crate::need::Need;
use crate::queue::{Head, OrderKey};
use crate::reason::Protection;
use crate::{Moment, Settings, split};

/// The room that evictions have to make.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    /// The memory needed.
    pub(crate) need: Need,
    /// The bytes left on each device of the site without evictions; negative where others took promised memory.
    pub(crate) rooms: Vec<SignedBytes>,
    /// The number of models of the limited category that have to be evicted (MM-1).
    pub(crate) places: usize,
    /// The moment from which the model may take the place of another that is wanted, after it was evicted itself.
    pub(crate) away_until: Moment,
}

/// A slot that may be evicted, with the properties that decide it.
#[derive(Clone, Debug)]
pub(crate) struct EvictionCandidate {
    pub(crate) slot: SlotId,
    /// The bytes the slot holds on the goal's first device.
    pub(crate) bytes: SignedBytes,
    /// The bytes the slot holds on each further device of the site.
    pub(crate) further: Vec<SignedBytes>,
    /// Whether the slot uses a device that the new model needs for itself alone (MM-5), so that it has to be evicted.
    pub(crate) excluded: bool,
    /// Whether the slot's model is of the limited category, so that its eviction frees a place (MM-1).
    pub(crate) frees_place: bool,
    /// The standing of the claim that the slot is already being evicted for.
    pub(crate) claimed: Option<Priority>,
    pub(crate) hold: Hold,
    pub(crate) rank: Priority,
    pub(crate) usage: SlotUse,
    /// The number of requests that are in flight, or wait for the slot's model.
    pub(crate) work: usize,
    pub(crate) last_used: Moment,
    pub(crate) last_priority: Priority,
    /// The best position in the queue among the requests for the slot's model, and their most important base priority.
    pub(crate) queued: Option<(OrderKey, Priority)>,
}

/// Whether requests are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlotUse {
    Idle,
    Busy,
}

/// A protection from eviction other than importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The slot is protected without limit of time.
    Always(Protection),
    /// The slot is protected from equally important requests until this moment.
    Until(Moment),
    /// The slot has no protection: it is loading and no request waits for it.
    Unwanted,
}

/// A slot to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) slot: SlotId,
    pub(crate) usage: SlotUse,
    pub(crate) right: Right,
}

/// The rule of RC-18 by which a slot may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Rule (a): the slot is less important than the request.
    LessImportant { rank: Priority, than: Priority },
    /// Rule (b): the slot is as important, and idle with an empty queue.
    IdleEqual { rank: Priority },
    /// Rule (b): the slot is as important, and its minimum hold is over.
    HeldLongEnough { rank: Priority },
    /// Rule (c): the request waited for the longest time.
    Overdue { rank: Priority, waited: Duration },
    /// RC-11: the slot is loading without a waiting request.
    Unwanted,
}

/// The resource that evictions cannot provide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// Memory on a device.
    #[default]
    Memory,
    /// A place among the models of its category (MM-1).
    Place,
    /// A device for itself alone (MM-5).
    Device,
}

/// The result when even the eviction of all permitted slots would not make room, so that none is evicted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Blocked {
    pub(crate) lacking: Lacking,
    pub(crate) blockers: Vec<(SlotId, Protection)>,
    /// The earliest moment at which time alone may grant a right.
    pub(crate) look_again: Option<Moment>,
}

/// The part of the goal that the victims so far reach.
struct GoalTally<'g> {
    goal: &'g Goal,
    free: Vec<SignedBytes>,
    places: usize,
}

impl<'g> GoalTally<'g> {
    fn new(goal: &'g Goal) -> Self {
        Self { goal, free: goal.rooms.clone(), places: 0 }
    }

    fn leaves(&mut self, candidate: &EvictionCandidate) {
        for (free, bytes) in self.free.iter_mut().zip(candidate.held()) {
            *free += bytes;
        }
        self.places += usize::from(candidate.frees_place);
    }

    fn stays(&mut self, candidate: &EvictionCandidate) {
        for (free, bytes) in self.free.iter_mut().zip(candidate.held()) {
            *free -= bytes;
        }
        self.places -= usize::from(candidate.frees_place);
    }

    fn has_places(&self) -> bool {
        self.places >= self.goal.places
    }

    fn has_memory(&self) -> bool {
        split::holds(&self.goal.need, &self.free)
    }
}

impl EvictionCandidate {
    fn held(&self) -> impl Iterator<Item = SignedBytes> {
        std::iter::once(self.bytes).chain(self.further.iter().copied())
    }

    fn holds_memory(&self) -> bool {
        self.held().any(SignedBytes::is_positive)
    }
}

/// Chooses victims that reach the goal for `asker`: idle ones first, then the least important, then those with the
/// least work, then the least recently used, and no more than needed. Whether all of them together suffice is checked
/// before any is chosen.
pub(crate) fn plan(
    asker: &Head,
    goal: &Goal,
    candidates: &[EvictionCandidate],
    now: Moment,
    settings: &Settings,
) -> Result<Vec<Victim>, Blocked> {
    let mut allowed = Vec::new();
    let mut protected = Vec::with_capacity(candidates.len());
    let mut look_again: Option<Moment> = None;
    for candidate in candidates {
        match may_take(asker, goal.away_until, candidate, now, settings) {
            Ok(right) => allowed.push((candidate, right)),
            Err((why, again)) => {
                protected.push((candidate, why));
                look_again = [look_again, again].into_iter().flatten().min();
            }
        }
    }
    let mut all = GoalTally::new(goal);
    for (candidate, _) in &allowed {
        all.leaves(candidate);
    }
    let lacking = if protected.iter().any(|(c, _)| c.excluded) {
        Some(Lacking::Device)
    } else if !all.has_places() {
        Some(Lacking::Place)
    } else if !all.has_memory() {
        Some(Lacking::Memory)
    } else {
        None
    };
    if let Some(lacking) = lacking {
        protected.retain(|(c, _)| match lacking {
            Lacking::Device => c.excluded,
            Lacking::Place => c.frees_place,
            Lacking::Memory => c.holds_memory(),
        });
        let blockers = protected.into_iter().map(|(c, why)| (c.slot, why)).collect();
        return Err(Blocked { lacking, blockers, look_again });
    }
    allowed.sort_by_key(|(c, _)| (c.usage, Reverse(c.rank), c.work, c.last_used, c.slot));
    Ok(fewest(goal, &allowed))
}

/// The first permitted candidates that reach the goal together, without those that others make superfluous.
fn fewest(goal: &Goal, allowed: &[(&EvictionCandidate, Right)]) -> Vec<Victim> {
    let mut tally = GoalTally::new(goal);
    let mut chosen = vec![false; allowed.len()];
    let mut choose = |tally: &mut GoalTally<'_>, wanted: &dyn Fn(&EvictionCandidate, &GoalTally<'_>) -> bool| {
        for ((candidate, _), chosen) in allowed.iter().zip(&mut chosen) {
            if !*chosen && wanted(candidate, tally) {
                *chosen = true;
                tally.leaves(candidate);
            }
        }
    };
    choose(&mut tally, &|candidate, _| candidate.excluded);
    choose(&mut tally, &|candidate, tally| candidate.frees_place && !tally.has_places());
    choose(&mut tally, &|candidate, tally| candidate.holds_memory() && !tally.has_memory());
    // The last ones rank worst as victims but were needed; an earlier, smaller one may have become superfluous.
    for ((candidate, _), chosen) in allowed.iter().zip(&mut chosen).rev().filter(|((c, _), _)| !c.excluded) {
        if *chosen {
            tally.stays(candidate);
            *chosen = !(tally.has_places() && tally.has_memory());
            if *chosen {
                tally.leaves(candidate);
            }
        }
    }
    let victims = allowed.iter().zip(chosen).filter(|(_, is_chosen)| *is_chosen);
    victims.map(|((c, right), _)| Victim { slot: c.slot, usage: c.usage, right: *right }).collect()
}

/// The priority with which a claim by this right holds its turn. Aging gives no right to evict (RC-5), but a request
/// that waited for `max_wait` has the priority that its age gave it.
pub(crate) fn standing(asker: &Head, victims: &[Victim]) -> Priority {
    let overdue = victims.iter().any(|victim| matches!(victim.right, Right::Overdue { .. }));
    if overdue { asker.key.effective.min(asker.base) } else { asker.base }
}

/// Whether this request may evict this slot now, for a model that is away until then ([`Goal::away_until`]).
pub(crate) fn has_right(
    asker: &Head,
    away_until: Moment,
    slot: &EvictionCandidate,
    now: Moment,
    settings: &Settings,
) -> bool {
    may_take(asker, away_until, slot, now, settings).is_ok()
}

/// Applies RC-18 to one slot. Returns the right, or the slot's protection and the moment when that may end by time
/// alone.
fn may_take(
    asker: &Head,
    away_until: Moment,
    slot: &EvictionCandidate,
    now: Moment,
    settings: &Settings,
) -> Result<Right, (Protection, Option<Moment>)> {
    let hold_ends = match slot.hold {
        Hold::Always(protection) => return Err((protection, None)),
        Hold::Unwanted => return Ok(Right::Unwanted),
        Hold::Until(moment) => moment,
    };
    if slot.claimed.is_some_and(|standing| standing <= asker.base) {
        return Err((Protection::Claimed, None));
    }
    let rank = slot.rank;
    let overdue_at = (!settings.max_wait.is_zero()).then(|| asker.key.arrival.at + settings.max_wait);
    let overdue = overdue_at.is_some_and(|at| at <= now);
    let standing = if overdue { asker.key.effective.min(asker.base) } else { asker.base };
    // A more important request for the slot's own model would cancel the drain at once.
    if slot.queued.is_some_and(|(_, base)| base < standing) {
        return Err((Protection::QueuedBefore, None));
    }
    if rank > asker.base {
        return Ok(Right::LessImportant { rank, than: asker.base });
    }
    if rank < asker.base && !overdue {
        let fades_at = match slot.usage {
            SlotUse::Busy => None,
            SlotUse::Idle => fades_to(slot, asker.base, settings.aging_step),
        };
        let again = [fades_at, overdue_at].into_iter().flatten().min();
        return Err((Protection::MoreImportant { rank }, again));
    }
    let waited = now.since(asker.key.arrival.at);
    let right = |held| match (rank == asker.base, held) {
        (true, false) => Right::IdleEqual { rank },
        (true, true) => Right::HeldLongEnough { rank },
        (false, _) => Right::Overdue { rank, waited },
    };
    if slot.usage == SlotUse::Idle && slot.queued.is_none() {
        return Ok(right(false));
    }
    if slot.queued.is_some_and(|(first, _)| first <= asker.key) {
        return Err((Protection::QueuedBefore, None));
    }
    if now < hold_ends {
        return Err((Protection::Hold, Some(hold_ends)));
    }
    // Models that took turns without a pause would load more than they answer (docs/adr/0070).
    if now < away_until && !overdue {
        return Err((Protection::JustEvicted, Some(away_until)));
    }
    Ok(right(true))
}

/// The moment when an idle slot's rank will have faded to `rank`.
fn fades_to(slot: &EvictionCandidate, rank: Priority, aging_step: Duration) -> Option<Moment> {
    let steps = rank.number().saturating_sub(slot.last_priority.number());
    (!aging_step.is_zero()).then(|| slot.last_used + aging_step.saturating_mul(u32::from(steps)))
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LessImportant { rank, than } => write!(f, "its rank {rank} is less important than priority {than}"),
            Self::IdleEqual { rank } => write!(f, "it is as important (rank {rank}), idle, and nobody waits for it"),
            Self::HeldLongEnough { rank } => {
                write!(f, "it is as important (rank {rank}), its hold is over, and the request came before its queue")
            }
            Self::Overdue { rank, waited } => {
                write!(f, "the request waited {:.0} s, past max_wait (rank {rank})", waited.as_secs_f64())
            }
            Self::Unwanted => f.write_str("nobody waits for its load any more"),
        }
    }
}

#[cfg(test)]
mod tests;
