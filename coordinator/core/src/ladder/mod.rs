//! Ladders: the rungs that may serve a request, and the choice among them (TR-2). The module is pure: from the states
//! of all rungs it computes the choice and its reason.
//!
//! Every rung has a price in time. It adds the wait until an answer can begin, the cost of evictions for other models,
//! and the task's patience for each step down. The cheapest rung is taken, the better one among equals. Thus a loaded
//! lower rung wins over a cold primary exactly when the primary's load would take longer than the patience.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{Category, ModelId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::refusal::{Refusal, RefusalReason};

/// The target of a rung: a model of this machine, or one of a cloud provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A model of the catalog, by name or alias.
    Local(ModelId),
    /// A model that a cloud provider serves.
    Cloud {
        /// The provider's prefix, such as `claude`.
        provider: String,
        /// The provider's own name of the model, such as `opus`.
        model: String,
    },
}

/// One rung of a ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The model that serves it.
    pub target: Target,
    /// The rung's position in the ladder as written, from 0. Rungs removed since then leave gaps.
    pub position: usize,
}

/// The rungs that may serve a request, the best first. The list is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// The best rung.
    pub first: Rung,
    /// The other rungs, in order.
    pub rest: Vec<Rung>,
    /// Whether the first rung is taken even when it is cold, so that only its failure leads to others (TR-2).
    pub pin_primary: bool,
    /// The additional time that a request waits for a rung rather than use the next one down.
    pub patience: Duration,
}

/// The patience of a ladder that does not set one.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

impl Ladder {
    /// A ladder with one rung.
    pub fn only(target: Target) -> Self {
        let first = Rung { target, position: 0 };
        Self { first, rest: Vec::new(), pin_primary: false, patience: DEFAULT_PATIENCE }
    }

    /// All rungs, the best first.
    pub fn rungs(&self) -> impl Iterator<Item = &Rung> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(crate) fn rung(&self, index: usize) -> Option<&Rung> {
        self.rungs().nth(index)
    }
}

impl From<&str> for Ladder {
    fn from(model: &str) -> Self {
        Self::only(Target::Local(ModelId::from(model)))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(model) => write!(f, "{model}"),
            Self::Cloud { provider, model } => write!(f, "{provider}:{model}"),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The chosen rung, with the reason.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RungChoice {
    /// The rung's position in the ladder as written, from 0.
    #[serde(rename = "rung")]
    pub position: usize,
    /// The reason for the choice.
    #[serde(rename = "rung_reason", serialize_with = "in_words")]
    #[schemars(with = "String")]
    pub reason: RungReason,
}

impl RungChoice {
    /// A request that names one model has no choice.
    pub(crate) const NONE: Self = Self { position: 0, reason: RungReason::Only };
}

fn in_words<S: serde::Serializer>(reason: &RungReason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// The reason why a rung was chosen. `Display` is short enough for a header.
#[derive(Clone, Debug, PartialEq)]
pub enum RungReason {
    /// The ladder has no other rung.
    Only,
    /// The rung is the best, and worth its wait.
    Preferred,
    /// The rung is the best, and the ladder prefers it even when cold.
    Pinned,
    /// The rung answers earlier than a better one by more than the ladder's patience.
    Sooner {
        /// The best rung among those with a longer wait.
        than: Target,
        /// The state of that rung.
        it: Standing,
    },
    /// A better rung failed, or cannot serve the request.
    Fallback {
        /// The better rung.
        from: Target,
        /// The fault of that rung.
        why: String,
    },
}

impl fmt::Display for RungReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("only"),
            Self::Preferred => f.write_str("preferred"),
            Self::Pinned => f.write_str("preferred; pin_primary"),
            Self::Sooner { than, it } => write!(f, "sooner; {than} {it}"),
            Self::Fallback { from, why } => write!(f, "fallback; {from}: {why}"),
        }
    }
}

/// The progress of a request along its ladder.
#[derive(Clone, Debug)]
pub(crate) struct Climb {
    pub(crate) ladder: Ladder,
    /// The index of the request's present rung.
    pub(crate) at: usize,
    /// The reason for that rung.
    pub(crate) choice: RungChoice,
    /// The category that the request's route needs.
    pub(crate) category: Category,
    /// Rungs that failed for this request, by index, with their errors.
    pub(crate) failed: Vec<(usize, Refusal)>,
}

impl Climb {
    /// Whether another rung may be the better choice later.
    pub(crate) fn has_a_choice(&self) -> bool {
        let stays = self.ladder.pin_primary && self.at == 0;
        !self.ladder.rest.is_empty() && !stays
    }

    /// The target of the request's present rung.
    pub(crate) fn target(&self) -> &Target {
        &self.ladder.rung(self.at).unwrap_or(&self.ladder.first).target
    }
}

/// The present state of a rung.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RungState {
    /// The rung could take the request.
    Usable(Standing),
    /// The rung failed lately and is in backoff: chosen when no other rung is usable.
    Resting {
        /// The time until an answer could begin.
        wait: Duration,
        /// The message of the failure.
        why: String,
    },
    /// The rung cannot take this request.
    Unusable(Refusal),
}

impl RungState {
    /// The time until an answer could begin.
    pub(crate) fn expected(&self) -> Option<Duration> {
        match self {
            Self::Usable(standing) => Some(standing.expected()),
            Self::Resting { wait, .. } => Some(*wait),
            Self::Unusable(_) => None,
        }
    }
}

impl fmt::Display for RungState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable(Standing::Warm { wait }) if wait.is_zero() => f.write_str("is ready"),
            Self::Usable(standing) => write!(f, "{standing}"),
            Self::Resting { why, .. } => f.write_str(why),
            Self::Unusable(error) => f.write_str(&error.message),
        }
    }
}

/// The state of a rung that could take a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// The model is loaded, or served by a provider, and an answer is expected to begin after this wait.
    Warm {
        /// The time for the requests that wait before this one.
        wait: Duration,
    },
    /// The model is being loaded.
    Loading {
        /// The rest of the load, and the time for the requests before it.
        wait: Duration,
    },
    /// The model has to be loaded, and has enough free memory.
    Cold {
        /// The time of the load.
        load: Duration,
    },
    /// The model has to be loaded after evictions.
    Evicting {
        /// The time of the load.
        load: Duration,
        /// The number of idle models that have to be evicted.
        idle: usize,
        /// The number of busy models that have to finish their requests and be evicted.
        busy: usize,
    },
    /// The model has to be loaded, and this request may not free enough memory.
    NoRoom {
        /// The time of the load once enough memory is free.
        load: Duration,
    },
}

/// The price of evicting an idle model, which is loaded again at its next request.
const IDLE_LEAVES: Duration = Duration::from_secs(2);
/// The price of evicting a busy model. Its running requests delay the load, and its waiting ones need another load.
const BUSY_LEAVES: Duration = Duration::from_secs(15);
/// The assumed wait when it is unknown when there will be room.
const NO_ROOM: Duration = Duration::from_secs(120);

impl Standing {
    /// The estimated time until an answer can begin.
    pub(crate) fn expected(self) -> Duration {
        match self {
            Self::Warm { wait } | Self::Loading { wait } => wait,
            Self::Cold { load } | Self::Evicting { load, .. } | Self::NoRoom { load } => load,
        }
    }

    /// The estimated time, with the costs for other models.
    fn price(self) -> Duration {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let extra = match self {
            Self::Warm { .. } | Self::Loading { .. } | Self::Cold { .. } => Duration::ZERO,
            Self::Evicting { idle, busy, .. } => {
                IDLE_LEAVES.saturating_mul(count(idle)).saturating_add(BUSY_LEAVES.saturating_mul(count(busy)))
            }
            Self::NoRoom { .. } => NO_ROOM,
        };
        self.expected().saturating_add(extra)
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |span: &Duration| span.as_secs_f64();
        match self {
            Self::Warm { wait } => write!(f, "is loaded and has others before it ({:.1} s)", seconds(wait)),
            Self::Loading { wait } => write!(f, "is being loaded ({:.1} s more)", seconds(wait)),
            Self::Cold { load } => write!(f, "is not loaded ({:.1} s)", seconds(load)),
            Self::Evicting { load, .. } => write!(f, "is not loaded ({:.1} s) and others would leave", seconds(load)),
            Self::NoRoom { .. } => f.write_str("is not loaded and has no room"),
        }
    }
}

/// Chooses among `rungs`, given with their states in the ladder's order. `Err`: no rung can take the request. The
/// error is that of the first rung, and its message names the faults of the others.
pub(crate) fn choose(rungs: &[(&Rung, RungState)], ladder: &Ladder) -> Result<(usize, RungChoice), Refusal> {
    let usable = rungs.iter().enumerate().filter_map(|(index, (_, state))| match state {
        RungState::Usable(standing) => Some((index, *standing)),
        RungState::Resting { .. } | RungState::Unusable(_) => None,
    });
    let Some((better, its_standing)) = usable.clone().next() else { return least_rest(rungs, ladder) };
    let pinned = ladder.pin_primary && rungs[better].0.position == ladder.first.position;
    let price = |(index, standing): (usize, Standing)| {
        let steps = u32::try_from(index - better).unwrap_or(u32::MAX);
        standing.price().saturating_add(ladder.patience.saturating_mul(steps))
    };
    // The first of equal prices is the better rung.
    let cheapest = usable.min_by_key(|rung| price(*rung)).map_or(better, |(index, _)| index);
    let index = if pinned { better } else { cheapest };
    let position = rungs[index].0.position;
    let wrong = rungs[..index].iter().find_map(|(rung, state)| match state {
        RungState::Usable(_) => None,
        RungState::Resting { why, .. } => Some((rung, why)),
        RungState::Unusable(error) => Some((rung, &error.message)),
    });
    let reason = match wrong {
        _ if index > better => RungReason::Sooner { than: rungs[better].0.target.clone(), it: its_standing },
        Some((rung, why)) => RungReason::Fallback { from: rung.target.clone(), why: why.clone() },
        None if ladder.rest.is_empty() => RungReason::Only,
        None if pinned => RungReason::Pinned,
        None => RungReason::Preferred,
    };
    Ok((index, RungChoice { position, reason }))
}

/// The rung whose backoff ends first, when no rung is usable.
fn least_rest(rungs: &[(&Rung, RungState)], ladder: &Ladder) -> Result<(usize, RungChoice), Refusal> {
    let resting = rungs.iter().enumerate().filter_map(|(index, (rung, state))| match state {
        RungState::Resting { wait, .. } => Some((wait, index, rung)),
        RungState::Usable(_) | RungState::Unusable(_) => None,
    });
    let (_, index, rung) = resting.min_by_key(|(wait, index, _)| (*wait, *index)).ok_or_else(|| none_left(rungs))?;
    let reason = if ladder.rest.is_empty() { RungReason::Only } else { RungReason::Preferred };
    Ok((index, RungChoice { position: rung.position, reason }))
}

/// The first rung's error, with the faults of the others.
fn none_left(rungs: &[(&Rung, RungState)]) -> Refusal {
    let mut errors = rungs.iter().filter_map(|(rung, state)| match state {
        RungState::Unusable(error) => Some((rung, error)),
        RungState::Usable(_) | RungState::Resting { .. } => None,
    });
    let Some((_, first)) = errors.next() else {
        return Refusal::new(RefusalReason::Internal, "the ladder of this request has no rungs");
    };
    let mut error = first.clone();
    for (rung, other) in errors {
        error.message = format!("{}; nor can '{}': {}", error.message, rung.target, other.message);
        // A retry succeeds as soon as the first of the rungs is back.
        error.retry_after = [error.retry_after, other.retry_after].into_iter().flatten().min();
    }
    error
}

#[cfg(test)]
mod tests;
