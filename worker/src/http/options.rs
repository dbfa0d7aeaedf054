//! The fields that chat and text completions share: how to choose tokens, how many, and how to send them.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use model_boss_engine::constraint::CompiledGrammar;
use model_boss_engine::sampling::SamplingParams;
use model_boss_engine::text::{ChannelPlan, ThinkingPlan};
use model_boss_engine::tools::{ToolMarkers, ToolParser};
use model_boss_engine::{CacheSalt, Generate, LoadedAdapter, PromptImage};
use model_boss_protocol::{ApiError, Category, Priority, Remedy, beyond_worker, refuse_unmet};
use serde::Deserialize;

use crate::defaults::RequestDefaults;
use crate::state::Serving;
use crate::text::{AddSpecials, EncodeQuestion};

use super::dry::DryWish;
use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use super::form::form;
use super::painting::check_picture_defaults;
use super::progress::AnswerExtras;

/// Most stop strings in a request.
const MOST_STOPS: usize = 16;

/// Longest `cache_salt` in bytes.
const LONGEST_SALT: usize = 256;

/// Most answers to one prompt.
const MOST_CHOICES: i64 = 128;

/// Most alternatives to a token that can be asked for.
pub(super) const MOST_LOGPROBS: i64 = 20;

/// A request's options for its answer.
#[derive(Clone, Debug)]
pub(super) struct GenerateOptions {
    pub(super) max_tokens: MaxTokens,
    pub(super) sampling: SamplingParams,
    pub(super) stop: Vec<String>,
    pub(super) choices: usize,
    pub(super) ignore_eos: bool,
    /// Keys and values are shared with requests of the same salt; with none at all where it is absent.
    pub(super) cache: Option<CacheSalt>,
    pub(super) stream: bool,
    pub(super) usage: UsageIn,
    pub(super) extras: AnswerExtras,
    /// The sampler DRY, whose breakers wait for the tokenizer.
    dry: Option<DryWish>,
    /// Biases of texts, whose tokens wait for the tokenizer.
    text_biases: Vec<(String, f32)>,
    /// The plan of thinking for a chat; a text completion does not separate thinking.
    pub(super) thinking: Option<ThinkingPlan>,
    /// Whether the model may spell its thoughts out.
    pub(super) spelled_thoughts: bool,
    /// The limit of a chat's thoughts that are told apart in its text.
    pub(super) channels: Option<ChannelPlan>,
    /// The images of a chat.
    pub(super) images: Arc<[PromptImage]>,
    /// The adapter that `model` names behind the model.
    pub(super) adapter: Option<Arc<LoadedAdapter>>,
    /// The grammar that the answer follows.
    pub(super) grammar: Option<CompiledGrammar>,
    /// The parser of calls in the answer.
    pub(super) calls: Option<(ToolParser, ToolMarkers)>,
}

impl GenerateOptions {
    /// Reads and checks them. `fewest_tokens` is the least `max_tokens` that makes sense on the route.
    pub(super) fn read(fields: &RequestFields<'_>, vocab_size: usize, fewest_tokens: i64) -> Result<Self, ApiError> {
        refuse_unmet(|name| fields.text(name))?;
        let biases = AskedBiases::read(fields, vocab_size)?;
        Ok(Self {
            max_tokens: max_tokens(fields, fewest_tokens)?,
            sampling: SamplingParams { logit_bias: biases.tokens, ..sampling(fields)? },
            text_biases: biases.texts,
            stop: stop(fields)?,
            choices: choices(fields)?,
            ignore_eos: fields.get("ignore_eos")?.unwrap_or(false),
            cache: cache(fields)?,
            stream: fields.get("stream")?.unwrap_or(false),
            usage: fields.get::<StreamOptions>("stream_options")?.map_or(UsageIn::Nothing, StreamOptions::usage),
            extras: extras(fields)?,
            dry: DryWish::read(fields)?,
            thinking: None,
            spelled_thoughts: false,
            channels: None,
            images: Arc::default(),
            adapter: None,
            grammar: None,
            calls: None,
        })
    }

    /// Looks up the parts of the options that need the model's vocabulary.
    pub(super) async fn look_up(&mut self, serving: &Serving) -> Result<(), ErrorAnswer> {
        if let Some(dry) = self.dry.take() {
            self.sampling.dry = Some(dry.params(serving).await?);
        }
        if !self.text_biases.is_empty() {
            let failed = |error| text_error(error, "logit_bias", serving.info.context_length);
            let (texts, biases): (Vec<_>, Vec<_>) = std::mem::take(&mut self.text_biases).into_iter().unzip();
            let question = EncodeQuestion::new(texts, AddSpecials::No, None).map_err(failed)?;
            let lists = serving.text.encode(question).await.map_err(failed)?;
            let biased = lists.into_iter().zip(biases);
            self.sampling.logit_bias.extend(biased.flat_map(|(list, bias)| list.into_iter().map(move |t| (t, bias))));
        }
        Ok(())
    }

    /// One sequence of work for one answer.
    pub(super) fn work(&self, prompt: Arc<[u32]>, choice: usize, logprobs: Option<usize>) -> Generate {
        Generate {
            prompt,
            images: Arc::clone(&self.images),
            max_tokens: match self.max_tokens {
                MaxTokens::Some(tokens) => Some(tokens),
                MaxTokens::Unsaid | MaxTokens::Endless => None,
            },
            sampling: self.sampling.clone(),
            choice: choice as u64,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            logprobs,
            prompt_logprobs: false,
            progress: self.extras.progress,
            thinking: self.thinking.clone(),
            spelled_thoughts: self.spelled_thoughts,
            channels: self.channels.clone(),
            cache: self.cache.clone(),
            shift: None,
            adapter: self.adapter.clone(),
            grammar: self.grammar.clone(),
            calls: self.calls.clone(),
            // The request's own is set where the work is handed to the engine.
            priority: Priority::NORMAL,
        }
    }
}

/// The limit of an answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaxTokens {
    /// The request does not say.
    Unsaid,
    /// As long as the context allows: -1, as llama.cpp's clients say it.
    Endless,
    Some(usize),
}

fn max_tokens(fields: &RequestFields<'_>, fewest: i64) -> Result<MaxTokens, ApiError> {
    const NAMES: [&str; 3] = ["max_completion_tokens", "max_tokens", "n_predict"];
    if fields.first_of::<i64>(&NAMES)?.is_some_and(|(_, tokens)| tokens == -1) {
        return Ok(MaxTokens::Endless);
    }
    let tokens = fields.whole(&NAMES, fewest..=i64::from(u32::MAX))?;
    Ok(tokens.and_then(|tokens| usize::try_from(tokens).ok()).map_or(MaxTokens::Unsaid, MaxTokens::Some))
}

/// The salt of a request that shares its prompt: vLLM's `cache_salt`, and llama.cpp's `cache_prompt` to share nothing.
fn cache(fields: &RequestFields<'_>) -> Result<Option<CacheSalt>, ApiError> {
    let salt = fields.get::<String>("cache_salt")?.unwrap_or_default();
    if salt.len() > LONGEST_SALT {
        let message = format!("'cache_salt' has {} bytes; at most {LONGEST_SALT} are allowed", salt.len());
        return Err(ApiError::invalid("cache_salt", message));
    }
    let shares = fields.get::<bool>("cache_prompt")?.unwrap_or(true);
    Ok(shares.then(|| CacheSalt::new(&salt)))
}

/// Whether a manifest's fields are valid in a request. Those of speech have other meanings, and requests check them.
pub(crate) fn check_defaults(category: Category, defaults: &RequestDefaults) -> Result<(), ApiError> {
    match category {
        Category::Tts => return Ok(()),
        Category::Diffusion => return check_picture_defaults(defaults),
        _ => {}
    }
    let fields = RequestFields::of_defaults(defaults);
    GenerateOptions::read(&fields, usize::MAX, 0)?;
    form(&fields).map(|_| ())
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    fn usage(self) -> UsageIn {
        match (self.include_usage, self.continuous_usage_stats) {
            (Some(true), Some(true)) => UsageIn::EveryChunk,
            (Some(true), _) => UsageIn::LastChunk,
            _ => UsageIn::Nothing,
        }
    }
}

/// The chunks of a stream that contain the number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageIn {
    Nothing,
    /// An additional chunk after all others.
    LastChunk,
    /// All, so far: vLLM's `continuous_usage_stats`.
    EveryChunk,
}

/// llama-server's reports inside an answer.
fn extras(fields: &RequestFields<'_>) -> Result<AnswerExtras, ApiError> {
    let is_on = |name| fields.get::<bool>(name).map(|on| on.unwrap_or(false));
    Ok(AnswerExtras {
        timings_per_token: is_on("timings_per_token")?,
        progress: is_on("return_progress")?,
        verbose: is_on("verbose")?,
    })
}

fn sampling(fields: &RequestFields<'_>) -> Result<SamplingParams, ApiError> {
    let top_k = fields.whole(&["top_k"], -1..=i64::from(u32::MAX))?.unwrap_or(0);
    // Any integer names a stream of random numbers; negative ones too.
    let seed = fields.get::<i64>("seed")?.map_or_else(random_bits, i64::cast_unsigned);
    Ok(SamplingParams {
        temperature: fields.number(&["temperature"], 0.0..=2.0)?.unwrap_or(1.0),
        top_p: fields.number(&["top_p"], 0.0..=1.0)?.unwrap_or(1.0),
        top_k: usize::try_from(top_k).unwrap_or(0),
        min_p: fields.number(&["min_p"], 0.0..=1.0)?.unwrap_or(0.0),
        // Values outside of the filters' ranges turn them off, as in llama-server.
        typical_p: fields.number(&["typical_p"], -1e6..=1e6)?.filter(|share| *share > 0.0).unwrap_or(1.0),
        top_n_sigma: fields.number(&["top_n_sigma"], -1e6..=1e6)?.unwrap_or(0.0),
        xtc_probability: fields.number(&["xtc_probability"], -1.0..=1.0)?.unwrap_or(0.0),
        xtc_threshold: fields.number(&["xtc_threshold"], 0.0..=1.0)?.unwrap_or(0.1),
        min_keep: fields.whole(&["min_keep"], 0..=i64::from(u32::MAX))?.and_then(|n| n.try_into().ok()).unwrap_or(0),
        seed,
        logit_bias: Vec::new(),
        presence_penalty: fields.number(&["presence_penalty"], -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number(&["frequency_penalty"], -2.0..=2.0)?.unwrap_or(0.0),
        repetition_penalty: fields.number(&["repetition_penalty", "repeat_penalty"], 0.01..=10.0)?.unwrap_or(1.0),
        penalty_window: penalty_window(fields)?,
        dry: None,
    })
}

/// llama.cpp's `repeat_last_n`: the tokens at the end of the text that penalties look at, -1 for all.
fn penalty_window(fields: &RequestFields<'_>) -> Result<Option<usize>, ApiError> {
    let window = fields.whole(&["repeat_last_n"], -1..=i64::from(u32::MAX))?;
    Ok(window.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)))
}

/// 64 unpredictable bits; the standard library's hash keys come from the system.
pub(super) fn random_bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Biases of a request: of token ids, and of texts, which wait for the tokenizer.
#[derive(Clone, Debug, Default)]
struct AskedBiases {
    tokens: Vec<(u32, f32)>,
    texts: Vec<(String, f32)>,
}

/// A token, or a text whose tokens are meant.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a token id or a text")]
enum BiasSubject {
    Token(u32),
    Text(String),
}

/// A number, or `false` for a token that may never come.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a number or false")]
enum BiasValue {
    Number(f64),
    Switch(bool),
}

impl BiasValue {
    fn read(self, subject: &str) -> Result<f32, ApiError> {
        let wrong = |message: String| Err(ApiError::invalid("logit_bias", message));
        match self {
            Self::Number(bias) if (-100.0..=100.0).contains(&bias) => Ok(bias as f32),
            Self::Number(bias) => {
                wrong(format!("'logit_bias' of token {subject} is {bias}; it must be from -100 to 100"))
            }
            Self::Switch(false) => Ok(f32::NEG_INFINITY),
            Self::Switch(true) => wrong(format!("'logit_bias' of token {subject} is true; it may be false")),
        }
    }
}

impl AskedBiases {
    fn read(fields: &RequestFields<'_>, vocab_size: usize) -> Result<Self, ApiError> {
        // OpenAI's API has an object, and llama-server a list of pairs too.
        let is_list = fields.text("logit_bias").is_some_and(|text| text.trim_start().starts_with('['));
        let pairs: Vec<(BiasSubject, BiasValue)> = if is_list {
            fields.get("logit_bias")?.unwrap_or_default()
        } else {
            let by_token: BTreeMap<String, BiasValue> = fields.get("logit_bias")?.unwrap_or_default();
            let subject = |text: String| match text.parse() {
                Ok(token) => BiasSubject::Token(token),
                Err(_) => BiasSubject::Text(text),
            };
            by_token.into_iter().map(|(token, bias)| (subject(token), bias)).collect()
        };
        let mut asked = Self::default();
        for (subject, bias) in pairs {
            match subject {
                BiasSubject::Token(token) if (token as usize) < vocab_size => {
                    asked.tokens.push((token, bias.read(&token.to_string())?));
                }
                BiasSubject::Token(token) => {
                    let message = format!("'logit_bias': '{token}' is no token id of this model");
                    return Err(ApiError::invalid("logit_bias", message));
                }
                BiasSubject::Text(text) => {
                    let bias = bias.read(&format!("'{text}'"))?;
                    asked.texts.push((text, bias));
                }
            }
        }
        Ok(asked)
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

fn stop(fields: &RequestFields<'_>) -> Result<Vec<String>, ApiError> {
    let stops = match fields.get("stop")? {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop],
        Some(Stop::Many(stops)) => stops,
    };
    if stops.len() > MOST_STOPS {
        let message = format!("'stop' has {} entries; at most {MOST_STOPS} are allowed", stops.len());
        return Err(ApiError::invalid("stop", message));
    }
    // Clients send an empty text in place of no stop string.
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

fn choices(fields: &RequestFields<'_>) -> Result<usize, ApiError> {
    let n = fields.whole(&["n"], 1..=MOST_CHOICES)?.unwrap_or(1);
    // Choosing the best of several answers is not supported; a request for as many as are returned is harmless.
    if fields.whole(&["best_of"], 1..=MOST_CHOICES)?.is_some_and(|best_of| best_of != n) {
        let remedy = Remedy::Instead("leave it out, set it to 'n', or ask a model of a provider");
        return Err(beyond_worker("best_of", "choose the best of several answers", remedy));
    }
    Ok(usize::try_from(n).unwrap_or(1))
}
