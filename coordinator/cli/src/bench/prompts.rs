//! BenchPrompts of random words. Equal seeds give equal prompts, so that all servers read the same.

/// Usual words, of which most vocabularies have each as one token.
const WORDS: [&str; 64] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car",
    "city",
];

/// The prompts of one measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenchPrompts {
    pub(crate) seed: u64,
    /// The words of each prompt.
    pub(crate) words: usize,
    /// Whether all have one text.
    pub(crate) are_equal: bool,
}

impl BenchPrompts {
    /// The prompt of a stream in a round. Unless all are equal, no two begin alike, so no cache has any of them.
    pub(crate) fn prompt(&self, round: u32, streams: u32, stream: u32) -> String {
        let place =
            if self.are_equal { 0 } else { (u64::from(round) << 32) | (u64::from(streams) << 16) | u64::from(stream) };
        let mut state = mixed(self.seed ^ mixed(place));
        let mut prompt = format!("{:08x}: tell a long story with these words.", state >> 32);
        for _ in 0..self.words {
            state = mixed(state);
            prompt.push(' ');
            prompt.push_str(WORDS[usize::from(state as u8) % WORDS.len()]);
        }
        prompt
    }

    /// The same prompts with about so many tokens, where one with the present number of words had `measured`.
    pub(crate) fn with_tokens(self, wanted: u32, measured: u64) -> Self {
        let words = (self.words as u64).saturating_mul(u64::from(wanted)) / measured.max(1);
        Self { words: usize::try_from(words).unwrap_or(usize::MAX).max(1), ..self }
    }
}

/// One step of the generator splitmix64.
fn mixed(state: u64) -> u64 {
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn op_1_no_two_prompts_begin_alike_unless_that_is_wanted() {
        let prompts = BenchPrompts { seed: 1, words: 20, are_equal: false };
        let mut begins = BTreeSet::new();
        for (round, streams) in [(0, 1), (0, 4), (1, 4), (1, 32)] {
            for stream in 0..streams {
                assert!(begins.insert(prompts.prompt(round, streams, stream)[..8].to_owned()));
                assert_eq!(prompts.prompt(round, streams, stream), prompts.prompt(round, streams, stream));
            }
        }
        let equal = BenchPrompts { are_equal: true, ..prompts };
        assert_eq!(equal.prompt(0, 1, 0), equal.prompt(3, 8, 7));
        assert_ne!(prompts.prompt(0, 1, 0), BenchPrompts { seed: 2, ..prompts }.prompt(0, 1, 0));
    }

    #[test]
    fn op_1_their_length_follows_the_servers_count() {
        let prompts = BenchPrompts { seed: 1, words: 100, are_equal: false };
        assert_eq!(prompts.with_tokens(100, 200).words, 50);
        assert_eq!(prompts.with_tokens(100, 0).words, 10_000);
        assert_eq!(prompts.with_tokens(1, 1_000_000).words, 1);
    }
}
