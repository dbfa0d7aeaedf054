//! Regular sets of texts: patterns with looks ahead and behind, with others of them and without, as one plain pattern.
//!
//! Patterns are ECMA-262's. A set is worked out exactly, by derivatives and an automaton, or within bounds of steps,
//! states and bytes not at all. Of a pattern that refers back to a group, the texts with a few texts of the group are
//! worked out. Knows nothing of schemas.

mod automaton;
mod expression;
mod syntax;
#[cfg(test)]
mod tests;
mod written;

use std::cell::Cell;

use fancy_regex::RegexBuilder;

use self::automaton::{Automaton, texts};
use self::expression::{Beyond, Expressions, NodeId};
use self::syntax::{Pattern, first_reference, has_looks, read, with_fixed_groups, without_references};

/// Steps for one set.
const MOST_STEPS: u64 = 400_000;

/// Steps for all sets of a schema.
const MOST_STEPS_IN_ALL: u64 = 4_000_000;

/// Steps that a look at a set by other means counts as.
const COST_OF_CHECK: u64 = 4_000;

/// Texts of a group that is referred back to, and their characters.
const MOST_GROUPS: usize = 6;
const LONGEST_GROUP: usize = 12;

/// Texts that are searched, where a pattern refers back, and steps back of each search.
const MOST_TRIED: usize = 60;
const MOST_BACKTRACKS: usize = 20_000;

/// A pattern, and whether it is to be found in a text.
pub(crate) type PatternDemand<'a> = (&'a str, bool);

/// A set of texts that meet demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Regular {
    /// Those of a plain pattern.
    Pattern(String),
    /// There is none.
    Nothing,
    /// It is not known, or has no short pattern.
    Unknown,
}

/// Works sets out, within bounds for all of them.
pub(crate) struct RegularSets {
    left: Cell<u64>,
}

impl Default for RegularSets {
    fn default() -> Self {
        Self { left: Cell::new(MOST_STEPS_IN_ALL) }
    }
}

impl RegularSets {
    /// The texts that meet all demands.
    pub(crate) fn meeting(&self, demands: &[PatternDemand<'_>]) -> Regular {
        let patterns: Option<Vec<_>> =
            demands.iter().map(|(pattern, holds)| Some((self.referring(read(pattern)?, *holds)?, *holds))).collect();
        let Some(patterns) = patterns else { return Regular::Unknown };
        let made = self.within(&patterns, Automaton::new);
        match made {
            Ok(automaton) if !automaton.living().first().is_some_and(|is| *is) => Regular::Nothing,
            Ok(automaton) => written::written(&automaton).map_or(Regular::Unknown, Regular::Pattern),
            Err(Beyond) => Regular::Unknown,
        }
    }

    /// Some texts that meet all demands, of lengths within bounds.
    pub(crate) fn texts(&self, demands: &[PatternDemand<'_>], lengths: (usize, usize), most: usize) -> Vec<String> {
        let patterns: Option<Vec<_>> =
            demands.iter().map(|(pattern, holds)| read(pattern).map(|read| (read, *holds))).collect();
        let Some(mut patterns) = patterns else { return Vec::new() };
        let refers: Vec<bool> = patterns.iter().map(|(pattern, _)| first_reference(pattern).is_some()).collect();
        // Patterns that refer back are searched for in each text.
        let searched = demands.iter().zip(&refers).filter(|(_, refers)| **refers).map(|((pattern, holds), _)| {
            let regex = RegexBuilder::new(pattern).backtrack_limit(MOST_BACKTRACKS).build();
            regex.ok().map(|regex| (regex, *holds))
        });
        let Some(searched) = searched.collect::<Option<Vec<_>>>() else { return Vec::new() };
        for ((pattern, holds), refers) in patterns.iter_mut().zip(refers) {
            if refers {
                // The search is exact, so this may have texts too many.
                *pattern = if *holds { without_references(pattern) } else { Pattern::Any(Vec::new()) };
            }
        }
        let tried = if searched.is_empty() { most } else { MOST_TRIED };
        let found = self.within(&patterns, |of, root| Ok(texts(of, root, lengths, tried)));
        let mut found = found.unwrap_or_default();
        found.retain(|text| searched.iter().all(|(regex, holds)| regex.is_match(text).ok() == Some(*holds)));
        found.truncate(most);
        found
    }

    /// All texts in which a pattern is found, where there are at most so many.
    pub(crate) fn all_texts(&self, pattern: &str, most: usize) -> Option<Vec<String>> {
        let read = read(pattern).filter(|pattern| first_reference(pattern).is_none())?;
        self.within(&[(read, true)], Automaton::new).ok()?.all_texts(most)
    }

    /// Whether a pattern refers back to a group.
    pub(crate) fn refers_back(&self, pattern: &str) -> bool {
        read(pattern).is_none_or(|pattern| first_reference(&pattern).is_some())
    }

    /// Whether a set may be looked at by other means; it counts from then on.
    pub(crate) fn afford_check(&self) -> bool {
        let left = self.left.get().checked_sub(COST_OF_CHECK);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The pattern, or with a few texts for the groups that it refers back to.
    fn referring(&self, pattern: Pattern, holds: bool) -> Option<Pattern> {
        if first_reference(&pattern).is_none() {
            return Some(pattern);
        }
        let texts_of = |group: &Pattern| {
            let whole = Pattern::Chain(vec![Pattern::Start, group.clone(), Pattern::End]);
            let found = self.within(&[(whole, true)], |of, root| Ok(texts(of, root, (0, LONGEST_GROUP), MOST_GROUPS)));
            found.unwrap_or_default()
        };
        let fixed = (0..MOST_GROUPS).map(|at| {
            with_fixed_groups(&pattern, &|group| {
                // A place within a group is not the same outside of it.
                let texts = if has_looks(group) { Vec::new() } else { texts_of(group) };
                texts.get(at % texts.len().max(1)).cloned()
            })
        });
        let fixed = fixed.collect::<Option<Vec<_>>>().filter(|_| holds)?;
        Some(Pattern::Any(fixed))
    }

    fn within<T>(
        &self,
        patterns: &[(Pattern, bool)],
        made: impl FnOnce(&mut Expressions, NodeId) -> Result<T, Beyond>,
    ) -> Result<T, Beyond> {
        let allowed = self.left.get().min(MOST_STEPS);
        let mut of = Expressions::new(allowed);
        let found: Result<Vec<_>, _> = patterns.iter().map(|(pattern, holds)| of.found(pattern, *holds)).collect();
        let result = found.and_then(|found| of.all_of(found)).and_then(|root| {
            of.tell_kinds()?;
            made(&mut of, root)
        });
        self.left.set(self.left.get() - (allowed - of.left()));
        result
    }
}
