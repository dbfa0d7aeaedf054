//! Canned tokens at a set speed, and counts of running and finished answers. HTTP is handled in other modules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use model_boss_fake_worker::behaviour::{Behaviour, Report};
use model_boss_protocol::EngineStats;
use tokio::time::Instant;

use crate::control::Control;
use crate::failure::exit_now;

/// The longest pause before a token, even if the numbers of a behaviour give a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);

/// Counts of the fake engine's work.
#[derive(Default)]
pub(crate) struct FakeCounters {
    requests: AtomicU64,
    steps: AtomicU64,
    active: AtomicU32,
    cancelled: AtomicU64,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
}

impl FakeCounters {
    /// The counts that health shows.
    pub(crate) fn engine(&self) -> EngineStats {
        EngineStats {
            steps: self.steps.load(Ordering::Relaxed),
            active: self.active.load(Ordering::Relaxed),
            waiting: 0,
        }
    }

    /// Counts a request and returns its number, from 1.
    pub(crate) fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// All counts, as JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let engine = self.engine();
        serde_json::json!({
            "requests": self.requests.load(Ordering::Relaxed),
            "cancelled": self.cancelled.load(Ordering::Relaxed),
            "prompt_tokens": self.prompt_tokens.load(Ordering::Relaxed),
            "completion_tokens": self.completion_tokens.load(Ordering::Relaxed),
            "steps": engine.steps, "active": engine.active, "waiting": engine.waiting,
        })
    }
}

/// The reason why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The text is complete.
    Stop,
    /// The limit of tokens was reached.
    Length,
}

/// An answer in progress. If it is dropped before [`Decode::finish`], it counts as cancelled: the client disconnected.
pub(crate) struct Decode {
    number: u64,
    words: Vec<String>,
    limit: u64,
    sent: u64,
    prompt_tokens: u64,
    started: Instant,
    first: Option<Instant>,
    finished: bool,
    behaviour: Arc<Behaviour>,
    counters: Arc<FakeCounters>,
    control: Arc<Control>,
}

/// The tokens and times of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) prompt: Duration,
    pub(crate) predicted: Duration,
}

impl Decode {
    /// Starts an answer of at most `limit` tokens with `text`, or with the canned words.
    pub(crate) fn start(
        number: u64,
        prompt_tokens: u64,
        limit: Option<u64>,
        text: Option<&str>,
        behaviour: Arc<Behaviour>,
        counters: Arc<FakeCounters>,
        control: Arc<Control>,
    ) -> Self {
        let words = match text.or(behaviour.reply.as_deref()) {
            Some(text) => text.split_inclusive(' ').map(str::to_owned).collect(),
            None => canned(behaviour.tokens),
        };
        counters.active.fetch_add(1, Ordering::Relaxed);
        counters.prompt_tokens.fetch_add(prompt_tokens, Ordering::Relaxed);
        Self {
            number,
            limit: limit.unwrap_or(u64::MAX).min(words.len() as u64),
            words,
            sent: 0,
            prompt_tokens,
            started: Instant::now(),
            first: None,
            finished: false,
            behaviour,
            counters,
            control,
        }
    }

    /// The next token when it is due; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<&str> {
        if self.behaviour.crash_after_tokens == Some(self.sent) {
            eprintln!("model-boss-fake-worker: crash after {} tokens, as told", self.sent);
            exit_now(self.behaviour.crash_exit);
        }
        if self.sent == self.limit {
            return None;
        }
        if self.behaviour.hold_after_tokens == Some(self.sent) && !self.control.may_decode() {
            self.control.report(&Report::Held { number: self.number });
            self.control.decode().await;
        }
        if let Some(due) = self.due() {
            tokio::time::sleep_until(due).await;
        }
        self.first.get_or_insert_with(Instant::now);
        self.counters.steps.fetch_add(1, Ordering::Relaxed);
        self.counters.completion_tokens.fetch_add(1, Ordering::Relaxed);
        self.sent += 1;
        self.words.get(usize::try_from(self.sent - 1).unwrap_or(usize::MAX)).map(String::as_str)
    }

    /// Completes the answer; returns the reason of its end, and its cost.
    pub(crate) fn finish(&mut self) -> (Finish, Cost) {
        self.finished = true;
        let finish = if self.sent < self.words.len() as u64 { Finish::Length } else { Finish::Stop };
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        let cost = Cost {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.sent,
            prompt: first.duration_since(self.started),
            predicted: now.duration_since(first),
        };
        (finish, cost)
    }

    /// The time when the next token is due, counted from the start so that errors do not accumulate; `None` is at
    /// once.
    fn due(&self) -> Option<Instant> {
        let first = Duration::from_millis(self.behaviour.first_token_ms);
        let rate = self.behaviour.tokens_per_s;
        let behind = if rate > 0.0 { self.sent as f64 / rate } else { 0.0 };
        let behind = Duration::try_from_secs_f64(behind).unwrap_or(LONGEST_PAUSE);
        let after = first.saturating_add(behind).min(LONGEST_PAUSE);
        (after > Duration::ZERO).then(|| self.started.checked_add(after).unwrap_or(self.started))
    }
}

impl Drop for Decode {
    fn drop(&mut self) {
        self.counters.active.fetch_sub(1, Ordering::Relaxed);
        if self.finished {
            self.control.report(&Report::Answered { number: self.number });
        } else {
            self.counters.cancelled.fetch_add(1, Ordering::Relaxed);
            self.control.report(&Report::Cancelled { number: self.number, tokens: self.sent });
        }
    }
}

/// `count` words, the same every time: `one two three … twelve one two …`.
fn canned(count: u64) -> Vec<String> {
    const WORDS: [&str; 12] =
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    (0..count)
        .zip(WORDS.iter().cycle())
        .map(|(i, word)| if i == 0 { (*word).to_owned() } else { format!(" {word}") })
        .collect()
}
