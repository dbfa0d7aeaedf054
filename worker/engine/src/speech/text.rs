//! The text of one window while it is written: the tokens in front of it, those that came, and how sure they are.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::model::SpeechInfo;
use super::rules::{TokenRules, log_of_sum};

/// The wish about the text of a sound.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscriptWish {
    /// The token of the language; found by the model if there is none and the model knows several.
    pub language: Option<u32>,
    /// Whether the text is to be English.
    pub translate: bool,
    /// Whether times are wanted. Without them a window is one segment.
    pub times: bool,
    /// Whether the times of words are wanted.
    pub words: bool,
    /// Temperatures, one tried after the other while a text is not good enough.
    pub temperatures: Vec<f32>,
    /// Tokens of text that comes before.
    pub prompt: Vec<u32>,
    /// Whether the text of a window is read before the next window's.
    pub keeps_context: bool,
    /// A text that compresses better than this repeats itself.
    pub most_compressed: f32,
    /// A text whose tokens have a lower mean logarithm is unsure.
    pub least_logprob: f32,
    /// An unsure text is none where silence is likelier than this.
    pub most_silence: f32,
    /// The seed of what is drawn at temperatures above 0.
    pub seed: u64,
}

impl Default for TranscriptWish {
    fn default() -> Self {
        Self {
            language: None,
            translate: false,
            times: true,
            words: false,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            prompt: Vec::new(),
            keeps_context: true,
            most_compressed: 2.4,
            least_logprob: -1.0,
            most_silence: 0.6,
            seed: 0,
        }
    }
}

/// The text of one window at one temperature.
pub(super) struct WindowText {
    /// The tokens in front of the text.
    pub(super) before: Vec<u32>,
    /// The places of the token that begins the text and of the last, among them.
    first_wanted: [usize; 2],
    pub(super) tokens: Vec<u32>,
    /// The logarithm of each token's probability; those of the end behind them.
    pub(super) logprobs: Vec<f32>,
    pub(super) temperature: f32,
    /// The probability that there is no speech.
    pub(super) no_speech: f32,
    rng: ChaCha8Rng,
}

impl WindowText {
    pub(super) fn new(info: &SpeechInfo, wish: &TranscriptWish, language: Option<u32>, context: &[u32]) -> Self {
        let tokens = &info.tokens;
        let mut before = Vec::new();
        if let Some(previous) = tokens.previous.filter(|_| !context.is_empty()) {
            before.push(previous);
            let most = (info.most_tokens / 2).saturating_sub(1);
            before.extend(&context[context.len().saturating_sub(most)..]);
        }
        let start = before.len();
        before.extend(start_tokens(info, wish, language));
        if !wish.times {
            before.push(tokens.no_timestamps);
        }
        Self {
            first_wanted: [start, before.len() - 1],
            before,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            temperature: 0.0,
            no_speech: 0.0,
            rng: ChaCha8Rng::seed_from_u64(wish.seed),
        }
    }

    /// The same from its beginning, at another temperature.
    pub(super) fn again(mut self, temperature: f32) -> Self {
        self.tokens.clear();
        self.logprobs.clear();
        Self { temperature, ..self }
    }

    /// The places of the first step whose logits are read: where the text begins, and its last token.
    pub(super) fn first_wanted(&self) -> &[usize] {
        let one_place = self.first_wanted[0] == self.first_wanted[1];
        &self.first_wanted[usize::from(one_place)..]
    }

    /// Reads the logits of the place where the text begins.
    pub(super) fn read_silence(&mut self, info: &SpeechInfo, logits: &[f32]) {
        let silent = info.tokens.no_speech.and_then(|token| logits.get(token as usize));
        self.no_speech = silent.map_or(0.0, |logit| (logit - log_of_sum(logits)).exp());
    }

    /// Takes the next token of these logits. The answer is the token, or none when the text has ended.
    pub(super) fn push(&mut self, info: &SpeechInfo, times: bool, mut logits: Vec<f32>) -> Option<u32> {
        TokenRules { tokens: &info.tokens, times }.apply(&self.tokens, &mut logits);
        let all = log_of_sum(&logits);
        let token = if self.temperature > 0.0 { self.drawn(&logits) } else { likeliest(&logits) };
        self.logprobs.push(logits[token] - all);
        let token = token as u32;
        if token == info.tokens.end {
            return None;
        }
        self.tokens.push(token);
        let most = (info.most_tokens / 2).min(info.most_tokens.saturating_sub(self.before.len()));
        (self.tokens.len() < most).then_some(token)
    }

    /// The mean logarithm of the tokens' probabilities, the end's included.
    pub(super) fn mean_logprob(&self) -> f32 {
        self.logprobs.iter().sum::<f32>() / (self.tokens.len() + 1) as f32
    }

    /// A token by its probability at the text's temperature.
    fn drawn(&mut self, logits: &[f32]) -> usize {
        let scaled: Vec<f32> = logits.iter().map(|logit| logit / self.temperature).collect();
        let all = log_of_sum(&scaled);
        let mut left = f64::from(self.rng.next_u32()) / f64::from(u32::MAX);
        for (at, logit) in scaled.iter().enumerate() {
            left -= f64::from(logit - all).exp();
            if left <= 0.0 && *logit > f32::NEG_INFINITY {
                return at;
            }
        }
        likeliest(logits)
    }
}

/// The tokens that begin a text.
pub(super) fn start_tokens(info: &SpeechInfo, wish: &TranscriptWish, language: Option<u32>) -> Vec<u32> {
    let tokens = &info.tokens;
    let task = if wish.translate { tokens.translate } else { tokens.transcribe };
    let of_language = language.filter(|_| !info.languages.is_empty());
    let task = task.filter(|_| of_language.is_some());
    [Some(tokens.start), of_language, task].into_iter().flatten().collect()
}

/// The first of the largest.
pub(super) fn likeliest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (at, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = at;
        }
    }
    best
}
