//! A draft: tokens that probably come next. A decoder evaluates them in the same step as the last token, and those that
//! the model would have chosen too are kept (speculative decoding: Leviathan et al., 2023, arXiv 2211.17192).

/// The most tokens of a draft.
pub(crate) const MOST_DRAFTED: usize = 15;
/// Sightings that a first chance counts for.
const FIRST_COUNTS: f64 = 2.0;
/// The weight of what was seen before, with each new sighting.
const REMEMBERED: f64 = 0.9;

/// Tokens that probably come next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    pub(crate) tokens: Vec<u32>,
    /// The chance that each of them comes, with all before it.
    pub(crate) chances: Vec<f64>,
}

impl Draft {
    /// A draft each of whose tokens has this chance behind those before it.
    pub(crate) fn of_chance(tokens: Vec<u32>, chance: f64) -> Self {
        let chances = (1..=tokens.len()).map(|at| chance.powi(at as i32)).collect();
        Self { tokens, chances }
    }
}

/// How often drafts of one kind began with the token that came. Later ones count more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftSightings {
    hits: f64,
    all: f64,
}

impl DraftSightings {
    /// Counts a draft.
    pub(crate) fn count(&mut self, is_right: bool) {
        self.hits = self.hits * REMEMBERED + f64::from(u8::from(is_right));
        self.all = self.all * REMEMBERED + 1.0;
    }

    /// Counts what was seen for less.
    pub(crate) fn fade(&mut self) {
        (self.hits, self.all) = (self.hits * REMEMBERED, self.all * REMEMBERED);
    }

    /// The chance that the next one is right, where it was `first` before any was seen.
    pub(crate) fn chance(self, first: f64) -> f64 {
        (first * FIRST_COUNTS + self.hits) / (FIRST_COUNTS + self.all)
    }
}
