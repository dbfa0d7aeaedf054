//! Which slots a request may take, and which of them it takes (RC-18, RC-19). Pure: numbers in, victims with their
//! reasons out, or whoever is in the way.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use model_boss_protocol::{Priority, SlotId};

use crate::queue::{Head, OrderKey};
use crate::reason::Protection;
use crate::{Moment, Settings};

/// A slot with bytes on the device, as eviction sees it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) slot: SlotId,
    pub(crate) bytes: i128,
    pub(crate) hold: Hold,
    pub(crate) rank: Priority,
    pub(crate) usage: Usage,
    pub(crate) last_used: Moment,
    pub(crate) last_priority: Priority,
    /// The best place in the queue of its model, and the most important base priority there.
    pub(crate) queued: Option<(OrderKey, Priority)>,
}

/// Whether requests are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Usage {
    Idle,
    Busy,
}

/// What keeps a slot apart from its importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Never.
    Always(Protection),
    /// Against equals, until then.
    Until(Moment),
    /// Nothing: it is being loaded for nobody.
    Unwanted,
}

/// A slot to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) slot: SlotId,
    pub(crate) usage: Usage,
    pub(crate) right: Right,
}

/// By which rule of RC-18 a slot may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// (a)
    LessImportant { rank: Priority, than: Priority },
    /// (b), idle with nothing queued.
    IdleEqual { rank: Priority },
    /// (b), after its hold.
    HeldLongEnough { rank: Priority },
    /// (c)
    Overdue { rank: Priority, waited: Duration },
    /// RC-11: loaded for nobody.
    Unwanted,
}

/// Nothing is evicted: the whole set would not make room.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Blocked {
    pub(crate) blockers: Vec<(SlotId, Protection)>,
    /// When a right may come about by time alone.
    pub(crate) look_again: Option<Moment>,
}

/// Chooses victims worth at least `missing` bytes for `asker`: idle ones first, then the least important, then the least
/// recently used, and no more than needed. The whole set is checked before the first is named.
pub(crate) fn plan(
    asker: &Head,
    missing: i128,
    candidates: &[Candidate],
    now: Moment,
    settings: &Settings,
) -> Result<Vec<Victim>, Blocked> {
    let mut allowed = Vec::new();
    let mut blocked = Blocked::default();
    for candidate in candidates {
        match may_take(asker, candidate, now, settings) {
            Ok(right) => allowed.push((candidate, right)),
            Err((why, again)) => {
                blocked.blockers.push((candidate.slot, why));
                blocked.look_again = [blocked.look_again, again].into_iter().flatten().min();
            }
        }
    }
    if allowed.iter().map(|(candidate, _)| candidate.bytes).sum::<i128>() < missing {
        return Err(blocked);
    }
    allowed.sort_by_key(|(c, _)| (c.usage, Reverse(c.rank), c.last_used, c.slot));
    let mut sum = 0;
    let enough = allowed.iter().take_while(|(c, _)| {
        let more = sum < missing;
        sum += if more { c.bytes } else { 0 };
        more
    });
    let mut chosen: Vec<_> = enough.cloned().collect();
    // The last ones are worth most and were needed; an earlier, smaller one may have become superfluous.
    for i in (0..chosen.len()).rev() {
        let bytes = chosen[i].0.bytes;
        if sum - bytes >= missing {
            sum -= bytes;
            chosen.remove(i);
        }
    }
    Ok(chosen.into_iter().map(|(c, right)| Victim { slot: c.slot, usage: c.usage, right }).collect())
}

/// The priority that a claim by this right holds its turn with: aging never gives the right to evict (RC-5), but one that
/// waited for `max_wait` stands where its age put it.
pub(crate) fn standing(asker: &Head, victims: &[Victim]) -> Priority {
    let overdue = victims.iter().any(|victim| matches!(victim.right, Right::Overdue { .. }));
    if overdue { asker.key.effective.min(asker.base) } else { asker.base }
}

/// RC-18 for one slot: the right, or what protects the slot and when that may end by time alone.
fn may_take(
    asker: &Head,
    slot: &Candidate,
    now: Moment,
    settings: &Settings,
) -> Result<Right, (Protection, Option<Moment>)> {
    let hold_ends = match slot.hold {
        Hold::Always(protection) => return Err((protection, None)),
        Hold::Unwanted => return Ok(Right::Unwanted),
        Hold::Until(moment) => moment,
    };
    let rank = slot.rank;
    let overdue_at = (!settings.max_wait.is_zero()).then(|| asker.key.arrival.at + settings.max_wait);
    let overdue = overdue_at.is_some_and(|at| at <= now);
    let standing = if overdue { asker.key.effective.min(asker.base) } else { asker.base };
    // It would call the drain off at once.
    if slot.queued.is_some_and(|(_, base)| base < standing) {
        return Err((Protection::QueuedBefore, None));
    }
    if rank > asker.base {
        return Ok(Right::LessImportant { rank, than: asker.base });
    }
    if rank < asker.base && !overdue {
        let fades_at = match slot.usage {
            Usage::Busy => None,
            Usage::Idle => fades_to(slot, asker.base, settings.aging_step),
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
    if slot.usage == Usage::Idle && slot.queued.is_none() {
        return Ok(right(false));
    }
    if slot.queued.is_some_and(|(first, _)| first <= asker.key) {
        return Err((Protection::QueuedBefore, None));
    }
    if now < hold_ends {
        return Err((Protection::Hold, Some(hold_ends)));
    }
    Ok(right(true))
}

/// When an idle slot's rank will have faded to `rank`.
fn fades_to(slot: &Candidate, rank: Priority, aging_step: Duration) -> Option<Moment> {
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
