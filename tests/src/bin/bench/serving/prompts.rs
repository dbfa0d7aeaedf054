//! Long prompts that begin alike, and the time to the first token behind one.

use std::time::Instant;

use model_boss_tests::{Client, Event};
use serde_json::json;

use crate::table::milliseconds;

/// Words of a prompt, and how many of them two prompts have in common.
pub(crate) const WORDS: usize = 1_200;
pub(crate) const SHARED_WORDS: usize = 1_080;

/// A prompt: the first words are the round's, the others its ending's too. Every fourth word has two syllables, each a
/// token: 1.25 tokens per word, about as in English.
pub(crate) fn words(round: usize, ending: usize) -> String {
    const SYLLABLES: [&str; 8] = ["ba", "ke", "lo", "mi", "nu", "ra", "se", "to"];
    let word = |at: usize| {
        let own = if at < SHARED_WORDS { 0 } else { ending + 1 };
        let number = (at * 2_654_435 + round * 97_003 + own * 7_919) >> 3;
        let count = if at.is_multiple_of(4) { 2 } else { 1 };
        let syllables: String = (0..count).map(|part| SYLLABLES[number >> (3 * part) & 7]).collect();
        // The first word already tells the rounds apart.
        if at == 0 { format!("{round} {syllables}") } else { syllables }
    };
    (0..WORDS).map(word).collect::<Vec<_>>().join(" ")
}

/// Whether what is known of a prompt's beginning may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownPrompt {
    Used,
    ComputedAgain,
}

/// Milliseconds from a request on a new connection to the first token of its answer.
pub(crate) async fn first_of(door: Client, model: &str, prompt: &str, known: KnownPrompt) -> f64 {
    let cached = known == KnownPrompt::Used;
    let body = json!({
        "model": model, "prompt": prompt, "max_tokens": 1, "stream": true, "ignore_eos": true, "cache_prompt": cached
    });
    let begun = Instant::now();
    let mut answer = door.stream("/v1/completions", &body).await;
    assert!(answer.status.is_success(), "{}", answer.status);
    while !matches!(answer.next().await, Some(Event::Data(_)) | None) {}
    let took = milliseconds(begun.elapsed());
    answer.rest().await;
    took
}
