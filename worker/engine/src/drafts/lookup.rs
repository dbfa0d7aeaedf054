//! Drafts that are looked up: tokens that came behind the same tokens before (prompt lookup decoding: Saxena, 2023).
//! Pure; knows tokens only.

use std::collections::HashMap;

use super::draft::{Draft, DraftSightings};

/// The lengths of beginnings that are looked for, the surest first.
const LENGTHS: [usize; 2] = [4, 2];
/// The chance of a draft's first token at first, by the length of the beginning that it was found behind.
const FIRST_CHANCE: [f64; 2] = [0.8, 0.4];

/// Finds drafts in the tokens of one sequence.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// The places behind the last occurrence of each beginning. There is an entry for each token of the sequence.
    places: [HashMap<u64, u32>; 2],
    /// Tokens whose beginnings are in the tables.
    known: usize,
    seen: [DraftSightings; 2],
    /// The first token of the last draft, and the length that it was found by.
    expected: Option<(u32, usize)>,
}

impl Lookup {
    /// A draft behind all these tokens, of at most so many. The tokens are those of the last call and new ones.
    pub(crate) fn draft(&mut self, tokens: &[u32], most: usize) -> Draft {
        if self.known > tokens.len() {
            // Some were forgotten.
            (self.places, self.known, self.expected) = (Default::default(), 0, None);
        }
        self.compare(tokens);
        for end in self.known.max(1)..tokens.len() {
            for (places, length) in self.places.iter_mut().zip(LENGTHS) {
                if let Some(start) = end.checked_sub(length) {
                    places.insert(key(&tokens[start..end]), u32::try_from(end).unwrap_or(u32::MAX));
                }
            }
        }
        self.known = tokens.len();
        let found = LENGTHS.iter().enumerate().find_map(|(kind, length)| {
            let beginning = &tokens[tokens.len().checked_sub(*length)?..];
            self.places[kind].get(&key(beginning)).map(|place| (kind, *place))
        });
        let Some((kind, place)) = found else { return Draft::default() };
        let place = place as usize;
        let Some(expected) = tokens.get(place) else { return Draft::default() };
        self.expected = Some((*expected, kind));
        let chance = self.seen[kind].chance(FIRST_CHANCE[kind]);
        // A text that repeats itself goes on in the draft.
        let mut drafted: Vec<u32> = Vec::with_capacity(most);
        for at in place..place + most {
            let next = tokens.get(at).or_else(|| drafted.get(at - tokens.len())).copied();
            drafted.extend(next);
        }
        Draft::of_chance(drafted, chance)
    }

    /// Counts whether the last draft began with the token that came, also if it was not evaluated.
    fn compare(&mut self, tokens: &[u32]) {
        if let Some((expected, kind)) = self.expected.take()
            && let Some(came) = tokens.get(self.known)
        {
            self.seen[kind].count(*came == expected);
        }
    }
}

/// A number for some tokens. Two of the same number make a bad draft and nothing worse.
fn key(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(0, |key: u64, token| (key.rotate_left(29) ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_8_what_came_behind_the_same_tokens_is_expected_again() {
        let mut lookup = Lookup::default();
        let tokens = [1, 2, 3, 4, 50, 51, 52, 9, 1, 2, 3, 4];
        let draft = lookup.draft(&tokens, 3);
        assert_eq!((draft.tokens, draft.chances[0]), (vec![50, 51, 52], FIRST_CHANCE[0]));
        assert!((draft.chances[2] - FIRST_CHANCE[0].powi(3)).abs() < 1e-12, "{:?}", draft.chances);
        assert_eq!(lookup.draft(&[1, 2, 3], 3), Draft::default(), "fewer tokens: all before is forgotten");
        let mut lookup = Lookup::default();
        let short = lookup.draft(&[7, 8, 30, 5, 7, 8], 2);
        assert_eq!((short.tokens, short.chances[0]), (vec![30, 5], FIRST_CHANCE[1]), "behind two tokens");
        assert_eq!(Lookup::default().draft(&[1, 2, 3, 4, 5, 6], 4), Draft::default());
        assert_eq!(Lookup::default().draft(&[], 4), Draft::default());
        assert_eq!(Lookup::default().draft(&[4, 4, 4], 5).tokens, [4, 4, 4, 4, 4], "what repeats itself goes on");
    }

    #[test]
    fn en_8_the_chance_follows_what_came() {
        for (comes, expected) in [(true, 0.9..1.0), (false, 0.0..0.2)] {
            let mut lookup = Lookup::default();
            let mut tokens = Vec::new();
            let mut chance = 0.0;
            for turn in 0..30 {
                tokens.extend([1, 2, 3, 4]);
                chance = lookup.draft(&tokens, 1).chances.first().copied().unwrap_or_default();
                tokens.push(if comes { 5 } else { 100 + turn });
                lookup.draft(&tokens, 1);
            }
            assert!(expected.contains(&chance), "{comes}: {chance}");
        }
    }
}
