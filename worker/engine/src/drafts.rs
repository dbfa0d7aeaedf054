//! Drafts: tokens that probably come next, because they came behind the same tokens before. A decoder evaluates them
//! in the same step as the last token, and those that the model would have chosen too are kept (prompt lookup decoding:
//! Saxena, 2023; speculative decoding: Leviathan et al., 2023, arXiv 2211.17192). Pure; knows tokens and seconds only.

use std::collections::HashMap;

/// The lengths of beginnings that are looked for, the surest first.
const LENGTHS: [usize; 2] = [4, 2];
/// The chance of a draft's first token at first, by the length of the beginning that it was found behind.
const FIRST_CHANCE: [f64; 2] = [0.8, 0.4];
/// Sightings that the first chance counts for.
const FIRST_COUNTS: f64 = 2.0;
/// The weight of what was seen before, with each new sighting.
const REMEMBERED: f64 = 0.9;
/// The most tokens of a draft.
pub(crate) const MOST_DRAFTED: usize = 15;

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

/// How often drafts of one kind began with the token that came.
#[derive(Clone, Copy, Debug, Default)]
struct DraftSightings {
    hits: f64,
    all: f64,
}

/// Tokens that probably come next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    pub(crate) tokens: Vec<u32>,
    /// The chance that the first one comes, and each next one behind those before it.
    pub(crate) chance: f64,
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
        Draft { tokens: drafted, chance }
    }

    /// Counts whether the last draft began with the token that came, also if it was not evaluated.
    fn compare(&mut self, tokens: &[u32]) {
        if let Some((expected, kind)) = self.expected.take()
            && let Some(came) = tokens.get(self.known)
        {
            let seen = &mut self.seen[kind];
            seen.hits = seen.hits * REMEMBERED + f64::from(u8::from(*came == expected));
            seen.all = seen.all * REMEMBERED + 1.0;
        }
    }
}

/// A number for some tokens. Two of the same number make a bad draft and nothing worse.
fn key(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(0, |key: u64, token| (key.rotate_left(29) ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl DraftSightings {
    fn chance(self, first: f64) -> f64 {
        (first * FIRST_COUNTS + self.hits) / (FIRST_COUNTS + self.all)
    }
}

/// The part of the last step in [`RowCost`].
const LAST_STEP: f64 = 0.1;
/// The part of a step's time that one row takes, before steps of several sizes were seen: a lone row is bound by the
/// memory, and each further one takes a quarter of its time.
const FIRST_SLOPE: f64 = 0.25;
/// The variance of rows that the first slope counts for.
const FIRST_VARIANCE: f64 = 0.05;

/// The time of a step by its rows, from those before: a part for the step, and a part for each row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowCost {
    means: Option<Means>,
}

#[derive(Clone, Copy, Debug)]
struct Means {
    rows: f64,
    seconds: f64,
    variance: f64,
    covariance: f64,
}

impl RowCost {
    /// Counts a step that evaluated no prompts.
    pub(crate) fn stepped(&mut self, rows: usize, seconds: f64) {
        let rows = rows as f64;
        let Some(means) = &mut self.means else {
            self.means = Some(Means { rows, seconds, variance: 0.0, covariance: 0.0 });
            return;
        };
        let (of_rows, of_seconds) = (rows - means.rows, seconds - means.seconds);
        means.rows += LAST_STEP * of_rows;
        means.seconds += LAST_STEP * of_seconds;
        means.variance = (1.0 - LAST_STEP) * (means.variance + LAST_STEP * of_rows * of_rows);
        means.covariance = (1.0 - LAST_STEP) * (means.covariance + LAST_STEP * of_rows * of_seconds);
    }

    /// The seconds of a step without rows, and of each row; none before the first step.
    fn parts(self) -> Option<(f64, f64)> {
        let means = self.means?;
        let expected = FIRST_SLOPE * means.seconds / (1.0 - FIRST_SLOPE + FIRST_SLOPE * means.rows);
        let slope = (means.covariance + expected * FIRST_VARIANCE) / (means.variance + FIRST_VARIANCE);
        let slope = slope.clamp(1e-3 * means.seconds / means.rows, means.seconds / means.rows);
        Some((means.seconds - slope * means.rows, slope))
    }

    /// How many tokens of each draft are evaluated, so that a second gives the most tokens. Beside them the step has
    /// `rows` rows, those of `sequences` sequences.
    pub(crate) fn shares(self, drafts: &[(usize, f64)], sequences: usize, rows: usize) -> Vec<usize> {
        let mut shares = vec![0; drafts.len()];
        let Some((step, row)) = self.parts() else { return shares };
        let mut next: Vec<(f64, usize)> = drafts
            .iter()
            .enumerate()
            .flat_map(|(index, (most, chance))| (1..=*most).map(move |at| (chance.powi(at as i32), index)))
            .collect();
        // The chance of a later token of the same draft is smaller.
        next.sort_by(|one, other| other.0.total_cmp(&one.0));
        let (mut tokens, mut seconds) = (sequences as f64, step + row * rows as f64);
        for (chance, index) in next {
            if chance * seconds <= row * tokens {
                break;
            }
            (tokens, seconds) = (tokens + chance, seconds + row);
            shares[index] += 1;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_8_what_came_behind_the_same_tokens_is_expected_again() {
        let mut lookup = Lookup::default();
        let tokens = [1, 2, 3, 4, 50, 51, 52, 9, 1, 2, 3, 4];
        let draft = lookup.draft(&tokens, 3);
        assert_eq!((draft.tokens, draft.chance), (vec![50, 51, 52], FIRST_CHANCE[0]));
        assert_eq!(lookup.draft(&[1, 2, 3], 3), Draft::default(), "fewer tokens: all before is forgotten");
        let mut lookup = Lookup::default();
        let short = lookup.draft(&[7, 8, 30, 5, 7, 8], 2);
        assert_eq!((short.tokens, short.chance), (vec![30, 5], FIRST_CHANCE[1]), "behind two tokens");
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
                chance = lookup.draft(&tokens, 1).chance;
                tokens.push(if comes { 5 } else { 100 + turn });
                lookup.draft(&tokens, 1);
            }
            assert!(expected.contains(&chance), "{comes}: {chance}");
        }
    }

    #[test]
    fn en_8_drafts_are_as_long_as_they_pay() {
        let cost = |step: f64, row: f64| {
            let mut cost = RowCost::default();
            for turn in 0..200 {
                let rows = 1 + turn % 5;
                cost.stepped(rows, step + row * rows as f64);
            }
            cost
        };
        assert_eq!(RowCost::default().shares(&[(15, 1.0)], 1, 1), [0], "nothing is known yet");
        // Rows that cost next to nothing: a model that is streamed from a disk.
        assert_eq!(cost(1.0, 0.001).shares(&[(15, 0.8)], 1, 1), [15]);
        // Rows that cost as much as steps: nothing is won by any draft.
        assert_eq!(cost(0.0, 1.0).shares(&[(15, 0.9), (15, 0.9)], 2, 2), [0, 0]);
        let usual = cost(0.003, 0.001);
        let [sure] = usual.shares(&[(15, 0.95)], 1, 1)[..] else { panic!() };
        let [doubtful] = usual.shares(&[(15, 0.4)], 1, 1)[..] else { panic!() };
        assert!(sure > 5 && doubtful < 2, "{sure} {doubtful}");
        assert_eq!(usual.shares(&[(15, 0.2)], 1, 1), [0], "what rarely comes is not tried");
        let of_eight = usual.shares(&[(15, 0.5); 8], 8, 8);
        assert_eq!(of_eight, [0; 8], "a full batch has no rows to spare for doubtful ones");
        assert_eq!(usual.shares(&[(0, 0.9), (2, 0.9)], 2, 2), [0, 2], "no longer than it is");
    }

    #[test]
    fn en_8_a_first_step_gives_an_estimate() {
        let mut cost = RowCost::default();
        cost.stepped(1, 0.004);
        let (step, row) = cost.parts().unwrap();
        assert!((step - 0.003).abs() < 1e-9 && (row - 0.001).abs() < 1e-9, "{step} {row}");
    }
}
