//! Reads token counts and times from a worker's answer as it passes. The bytes stay unchanged; an answer without counts
//! is not counted.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::Deserialize;

use crate::metrics::RequestUsage;

/// The number of frames at an answer's end that are kept: they contain the counts.
const TAIL_FRAMES: usize = 4;
const TAIL_BYTES: usize = 16 * 1024;

// Made once: the preparation of a search costs more than the search of a short answer.
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\":"));
static TIMINGS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"timings\":"));

/// The last frames of an answer that is passed on.
#[derive(Default)]
pub(crate) struct Tail {
    frames: [Bytes; TAIL_FRAMES],
    next: usize,
}

impl Tail {
    /// Keeps a frame; costs a reference count, not a copy.
    pub(crate) fn push(&mut self, frame: Bytes) {
        self.frames[self.next % TAIL_FRAMES] = frame;
        self.next = self.next.wrapping_add(1);
    }

    /// The usage, if the end of the answer has it.
    pub(crate) fn usage(&self) -> Option<RequestUsage> {
        let mut text = Vec::new();
        for offset in 0..TAIL_FRAMES {
            text.extend_from_slice(&self.frames[self.next.wrapping_add(offset) % TAIL_FRAMES]);
        }
        usage_in(&text)
    }
}

/// One of several answers in llama-server's own shape.
#[derive(Deserialize)]
struct NativeTimes {
    timings: Timings,
}

/// The usage of answers in a list, which come side by side: their tokens together, and the longest times.
fn usage_of_several(answers: &[u8]) -> Option<RequestUsage> {
    let answers: Vec<NativeTimes> = serde_json::from_slice(answers).ok()?;
    let longest = |times: fn(&Timings) -> Option<f64>| {
        let all = answers.iter().filter_map(|answer| times(&answer.timings));
        milliseconds(all.reduce(f64::max))
    };
    let sum = |count: fn(&Timings) -> u64| answers.iter().map(|answer| count(&answer.timings)).sum::<u64>();
    let prompt = longest(|times| times.prompt_ms);
    Some(RequestUsage {
        prompt_tokens: sum(|times| times.prompt_n + times.cache_n),
        completion_tokens: sum(|times| times.predicted_n),
        cached_tokens: Some(sum(|times| times.cache_n)),
        drafted_tokens: sum(|times| times.draft_n),
        accepted_tokens: sum(|times| times.draft_n_accepted),
        first_token: prompt,
        per_token: longest(|times| times.predicted_per_token_ms),
        worked: prompt.zip(longest(|times| times.predicted_ms)),
    })
}

/// The usage in a whole answer.
pub(crate) fn usage_in(answer: &[u8]) -> Option<RequestUsage> {
    if answer.first() == Some(&b'[') {
        return usage_of_several(answer);
    }
    let tail = &answer[answer.len().saturating_sub(TAIL_BYTES)..];
    let counted: Option<OpenAiCounts> = last_object(tail, &USAGE);
    let timed: Option<Timings> = last_object(tail, &TIMINGS);
    let (prompt_tokens, completion_tokens) = match (&counted, &timed) {
        (Some(usage), _) => (usage.whole_prompt(), usage.completion_tokens),
        (None, Some(timings)) => (timings.prompt_n.saturating_add(timings.cache_n), timings.predicted_n),
        (None, None) => return None,
    };
    let cached_tokens =
        timed.as_ref().map(|timings| timings.cache_n).or_else(|| counted.as_ref().and_then(OpenAiCounts::cached));
    let timed = timed.unwrap_or_default();
    Some(RequestUsage {
        cached_tokens,
        worked: milliseconds(timed.prompt_ms).zip(milliseconds(timed.predicted_ms)),
        drafted_tokens: timed.draft_n,
        accepted_tokens: timed.draft_n_accepted,
        prompt_tokens,
        completion_tokens,
        first_token: milliseconds(timed.prompt_ms),
        per_token: milliseconds(timed.predicted_per_token_ms.or_else(|| {
            let count = timed.predicted_n as f64;
            timed.predicted_ms.filter(|_| count > 0.0).map(|total| total / count)
        })),
    })
}

/// Counts in OpenAI's form, of chats or of speech, or in Anthropic's.
#[derive(Deserialize)]
struct OpenAiCounts {
    #[serde(alias = "input_tokens")]
    prompt_tokens: u64,
    #[serde(default, alias = "output_tokens")]
    completion_tokens: u64,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
    /// Tokens that Anthropic counts beside those of the prompt.
    #[serde(default)]
    cache_read_input_tokens: Option<u64>,
    #[serde(default)]
    cache_creation_input_tokens: Option<u64>,
}

impl OpenAiCounts {
    fn whole_prompt(&self) -> u64 {
        let beside = [self.cache_read_input_tokens, self.cache_creation_input_tokens];
        beside.into_iter().flatten().fold(self.prompt_tokens, u64::saturating_add)
    }

    fn cached(&self) -> Option<u64> {
        self.prompt_tokens_details.as_ref().map_or(self.cache_read_input_tokens, |details| details.cached_tokens)
    }
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

/// Times in llama.cpp's form.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Timings {
    prompt_n: u64,
    cache_n: u64,
    predicted_n: u64,
    draft_n: u64,
    draft_n_accepted: u64,
    prompt_ms: Option<f64>,
    predicted_ms: Option<f64>,
    predicted_per_token_ms: Option<f64>,
}

fn milliseconds(value: Option<f64>) -> Option<Duration> {
    value.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok())
}

/// The last value of this key that parses as a `T`. Inside a text its quotes would be escaped, so a match is a key.
fn last_object<'a, T: Deserialize<'a>>(tail: &'a [u8], key: &Finder<'_>) -> Option<T> {
    let keys: Vec<usize> = key.find_iter(tail).collect();
    keys.into_iter().rev().find_map(|at| {
        let value = &tail[at + key.needle().len()..];
        serde_json::Deserializer::from_slice(value).into_iter().next()?.ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_whole_answer() {
        let answer = br#"{"choices":[{"message":{"content":"say \"usage\": {\"prompt_tokens\":9}"}}],
            "usage":{"prompt_tokens":11,"completion_tokens":4,"total_tokens":15},
            "timings":{"prompt_n":3,"cache_n":8,"prompt_ms":20,"predicted_n":4,"predicted_ms":8.0}}"#;
        let usage = usage_in(answer).unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (11, 4));
        assert_eq!(usage.first_token, Some(Duration::from_millis(20)));
        assert_eq!(usage.per_token, Some(Duration::from_millis(2)));
        assert_eq!(usage.worked, Some((Duration::from_millis(20), Duration::from_millis(8))));
        assert_eq!(usage.cached_tokens, Some(8));
    }

    #[test]
    fn counts_of_a_stream_cut_anywhere() {
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n\
            data: {\"choices\":[],\"timings\":{\"prompt_n\":5,\"cache_n\":2,\"predicted_n\":6}}\n\ndata: [DONE]\n\n";
        for cut in 60..stream.len() {
            let mut tail = Tail::default();
            tail.push(Bytes::copy_from_slice(&stream.as_bytes()[..cut]));
            tail.push(Bytes::copy_from_slice(&stream.as_bytes()[cut..]));
            let usage = tail.usage().unwrap();
            assert_eq!((usage.prompt_tokens, usage.completion_tokens), (7, 6), "cut at {cut}");
        }
    }

    #[test]
    fn old_frames_make_room_for_new_ones() {
        let mut tail = Tail::default();
        for n in 0..100_u32 {
            tail.push(Bytes::from(format!("data: {n}\n\n")));
        }
        tail.push(Bytes::from_static(b"data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n"));
        assert_eq!(tail.usage().unwrap().completion_tokens, 2);
    }

    #[test]
    fn en_7_answers_in_a_list_are_counted_together() {
        let answer =
            br#"[{"content":"a","timings":{"prompt_n":3,"cache_n":1,"predicted_n":2,"prompt_ms":4,"predicted_ms":6}},
            {"content":"b","timings":{"prompt_n":5,"predicted_n":7,"prompt_ms":9,"predicted_ms":5}}]"#;
        let usage = usage_in(answer).unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens), (9, 9, Some(1)));
        assert_eq!(usage.worked, Some((Duration::from_millis(9), Duration::from_millis(6))));
    }

    #[test]
    fn nothing_to_count_is_not_zero() {
        assert_eq!(usage_in(b""), None);
        assert_eq!(usage_in(b"{\"usage\":null}"), None);
        assert_eq!(usage_in(b"{\"usage\":{\"prompt_tokens\":\"many\"}}"), None);
    }
}
