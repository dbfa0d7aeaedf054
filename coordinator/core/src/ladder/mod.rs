//! Where a request may be served, and which of several places it goes to (TR-2). Pure: what is known of each rung comes
//! in, the choice with its reason goes out. Knows no queue and no slots.
//!
//! Every rung has a price in time: how long until an answer can begin, what the wait costs others who have to leave, and
//! the task's patience for each step down. The cheapest rung is taken, the better one between equals. So a loaded lower
//! rung wins over a cold primary exactly when the primary's load would take longer than the patience.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{Category, ModelId};
use serde::Serialize;

use crate::refusal::{Refusal, RefusalReason};

/// What one rung is: a model of this machine, or one of a provider elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A model of the catalog, by name or alias.
    Local(ModelId),
    /// A model that a provider serves.
    Cloud {
        /// Which provider, by its prefix: `claude`.
        provider: String,
        /// The provider's own name of the model: `opus`.
        model: String,
    },
}

/// A place on a ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    /// What serves it.
    pub target: Target,
    /// Its place in the ladder as it was written, from 0. What was removed since leaves a gap.
    pub position: usize,
}

/// Where a request may be served, the best place first. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// The best.
    pub first: Rung,
    /// The others, in order.
    pub rest: Vec<Rung>,
    /// The first is taken even when it is cold; only its failure leads further (TR-2).
    pub pin_primary: bool,
    /// How much longer a request waits for a rung than for the next one down.
    pub patience: Duration,
}

/// The patience of a ladder that says nothing else.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

impl Ladder {
    /// One place and no other.
    pub fn only(target: Target) -> Self {
        let first = Rung { target, position: 0 };
        Self { first, rest: Vec::new(), pin_primary: false, patience: DEFAULT_PATIENCE }
    }

    /// All rungs, the best first.
    pub fn rungs(&self) -> impl Iterator<Item = &Rung> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The rung at this index.
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

/// The rung that a request goes to, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RungChoice {
    /// Its place in the ladder as it was written, from 0.
    #[serde(rename = "rung")]
    pub position: usize,
    /// Why it and no other.
    #[serde(rename = "rung_reason", serialize_with = "in_words")]
    pub reason: RungReason,
}

impl RungChoice {
    /// A request that names one model has no choice.
    pub(crate) const NONE: Self = Self { position: 0, reason: RungReason::Only };
}

fn in_words<S: serde::Serializer>(reason: &RungReason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// Why a rung was taken. `Display` is short enough for a header.
#[derive(Clone, Debug, PartialEq)]
pub enum RungReason {
    /// There is no other.
    Only,
    /// It is the best, and may be waited for.
    Preferred,
    /// It is the best, and the ladder wants it even when it is cold.
    Pinned,
    /// It answers so much earlier than a better one that the ladder's patience is over.
    Sooner {
        /// The best one that could be waited for.
        than: Target,
        /// What would be waited for there.
        it: Standing,
    },
    /// A better one failed, or cannot serve the request.
    Fallback {
        /// The better one.
        from: Target,
        /// What is wrong with it.
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

/// A request's way along its ladder.
#[derive(Clone, Debug)]
pub(crate) struct Climb {
    pub(crate) ladder: Ladder,
    /// The index of the rung it stands on.
    pub(crate) at: usize,
    /// Why it stands there.
    pub(crate) choice: RungChoice,
    /// What the request's route needs.
    pub(crate) category: Category,
    /// Rungs that failed it, by index, and how.
    pub(crate) failed: Vec<(usize, Refusal)>,
}

impl Climb {
    /// Whether another rung may be better at another time.
    pub(crate) fn has_a_choice(&self) -> bool {
        let stays = self.ladder.pin_primary && self.at == 0;
        !self.ladder.rest.is_empty() && !stays
    }

    /// What it stands on.
    pub(crate) fn target(&self) -> &Target {
        &self.ladder.rung(self.at).unwrap_or(&self.ladder.first).target
    }
}

/// What is known of a rung now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RungState {
    /// It could take the request.
    Usable(Standing),
    /// It failed lately and is tried again: taken when nothing else is usable.
    Resting {
        /// Until an answer could begin.
        wait: Duration,
        /// How it failed.
        why: String,
    },
    /// It cannot take this request.
    Unusable(Refusal),
}

impl RungState {
    /// How long until an answer could begin.
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

/// How a rung stands that could take a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// It is loaded (or somebody else's), and expected to begin after this wait.
    Warm {
        /// For those before it.
        wait: Duration,
    },
    /// It is being loaded.
    Loading {
        /// Until it is, and for those before it.
        wait: Duration,
    },
    /// It has to be loaded, and there is room.
    Cold {
        /// How long that takes.
        load: Duration,
    },
    /// It has to be loaded, and others have to leave first.
    Evicting {
        /// How long the load takes.
        load: Duration,
        /// Idle models that have to leave.
        idle: usize,
        /// Models at work that have to end their requests and leave.
        busy: usize,
    },
    /// It has to be loaded, and there is no room that this request may take.
    NoRoom {
        /// How long the load takes once there is.
        load: Duration,
    },
}

/// What an idle model's leaving costs: it is loaded again when somebody wants it.
const IDLE_LEAVES: Duration = Duration::from_secs(2);
/// What a busy model's leaving costs: its requests end first, and those behind them wait for another load.
const BUSY_LEAVES: Duration = Duration::from_secs(15);
/// Nobody knows when there will be room.
const NO_ROOM: Duration = Duration::from_secs(120);

impl Standing {
    /// How long until an answer can begin, as far as anybody knows.
    pub(crate) fn expected(self) -> Duration {
        match self {
            Self::Warm { wait } | Self::Loading { wait } => wait,
            Self::Cold { load } | Self::Evicting { load, .. } | Self::NoRoom { load } => load,
        }
    }

    /// The same with what it costs others.
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

/// Chooses among `rungs`, given in the ladder's order with what is known of each. `Err`: none can take the request; the
/// error of the first says why, and its message names what is wrong with the others.
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
    // The first of equals is the better one.
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

/// Where nothing is usable, the one that is tried again first.
fn least_rest(rungs: &[(&Rung, RungState)], ladder: &Ladder) -> Result<(usize, RungChoice), Refusal> {
    let resting = rungs.iter().enumerate().filter_map(|(index, (rung, state))| match state {
        RungState::Resting { wait, .. } => Some((wait, index, rung)),
        RungState::Usable(_) | RungState::Unusable(_) => None,
    });
    let (_, index, rung) = resting.min_by_key(|(wait, index, _)| (*wait, *index)).ok_or_else(|| none_left(rungs))?;
    let reason = if ladder.rest.is_empty() { RungReason::Only } else { RungReason::Preferred };
    Ok((index, RungChoice { position: rung.position, reason }))
}

/// The first rung's error, with what is wrong with the others.
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
        // Whoever tries again wants the first that is back.
        error.retry_after = [error.retry_after, other.retry_after].into_iter().flatten().min();
    }
    error
}

#[cfg(test)]
mod tests;
