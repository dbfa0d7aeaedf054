//! Texts to embed, the same in every run.

use model_boss_tests::Dice;

/// Texts in bulk.
pub(super) const TEXTS: usize = 512;

const WORDS: [&str; 40] = [
    "the",
    "model",
    "of",
    "a",
    "search",
    "sentence",
    "and",
    "vector",
    "for",
    "memory",
    "in",
    "lighthouse",
    "paper",
    "with",
    "harbour",
    "question",
    "to",
    "answer",
    "long",
    "training",
    "river",
    "batch",
    "winter",
    "is",
    "data",
    "semantic",
    "on",
    "bread",
    "similar",
    "window",
    "by",
    "pairs",
    "evening",
    "from",
    "letters",
    "that",
    "garden",
    "quiet",
    "machine",
    "at",
];

/// Texts of 50 to 66 words.
pub(super) fn sentences(count: usize) -> Vec<String> {
    let mut dice = Dice::new(1);
    (0..count).map(|_| words(&mut dice, 50, 17)).collect()
}

/// Texts of eight words.
pub(super) fn queries(count: usize) -> Vec<String> {
    let mut dice = Dice::new(2);
    (0..count).map(|_| words(&mut dice, 8, 1)).collect()
}

fn words(dice: &mut Dice, least: usize, ways: u64) -> String {
    let count = least + dice.below(ways) as usize;
    let words: Vec<&str> = (0..count).map(|_| *dice.one_of(&WORDS)).collect();
    words.join(" ")
}
