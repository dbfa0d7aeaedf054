//! `POST /completion` as llama-server has it: its fields, and its shape of answers, whole and in events.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use model_boss_engine::Generate;
use model_boss_engine::sampling::SamplingParams;
use model_boss_engine::text::Specials;
use model_boss_protocol::{ApiError, Remedy, beyond_worker};
use serde_json::{Value, json};

use crate::state::{Serving, WorkerState};

use super::answer::ApiShape;
use super::body::reading;
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::form::{Form, compiled, form};
use super::generate::answer;
use super::native_answer::NativeAnswer;
use super::options::{GenerateOptions, MaxTokens};
use super::plan::AnswerPlan;
use super::prompts::AskedPrompts;

/// The most alternatives to a token.
const MOST_PROBS: i64 = 1_000;

/// Continues one or several prompts.
pub(super) async fn complete(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let draft = reading(&worker, body?, draft).await?;
    let plan = draft.plan(&worker).await?.with_headers(&headers)?;
    answer(&worker, worker.serving()?, plan).await
}

/// A request without the tokens of its prompts.
pub(super) struct NativeDraft {
    prompts: AskedPrompts,
    options: GenerateOptions,
    probs: usize,
    with_tokens: bool,
    slot: i64,
    form: Option<Form>,
}

impl NativeDraft {
    /// The options of a request for the continuation of `prompts`.
    pub(super) fn read(
        worker: &WorkerState,
        fields: &RequestFields<'_>,
        prompts: AskedPrompts,
    ) -> Result<Self, ErrorAnswer> {
        let serving = worker.serving()?;
        refuse(fields)?;
        let mut options = GenerateOptions::read(fields, serving.info.vocab_size, 0)?;
        options.adapter = serving.adapters.asked(&worker.spec.model, fields.model().as_deref())?;
        llama_servers_usual(fields, &mut options.sampling);
        prompts.fit(options.choices)?;
        let probs = fields.whole(&["n_probs", "logprobs"], 0..=MOST_PROBS)?.unwrap_or(0);
        Ok(Self {
            prompts,
            probs: usize::try_from(probs).unwrap_or(0),
            with_tokens: fields.get("return_tokens")?.unwrap_or(false),
            slot: fields.get("id_slot")?.unwrap_or(-1),
            form: form(fields)?,
            options,
        })
    }

    /// The work for the engine.
    pub(super) async fn plan(self, worker: &Arc<WorkerState>) -> Result<AnswerPlan, ErrorAnswer> {
        let Self { prompts, mut options, probs, with_tokens, slot, form } = self;
        let serving = worker.serving()?;
        options.look_up(serving).await?;
        options.grammar = compiled(serving, form, None).await?;
        let is_list = prompts.is_list;
        let prompts = prompts.tokens(serving).await?;
        let with_probs = probs > 0;
        // Events have the tokens of their text.
        let reads_tokens = with_probs || with_tokens || options.stream;
        let mut works = Vec::with_capacity(prompts.len() * options.choices);
        let mut texts = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            texts.push(serving.text.vocabulary.text(&prompt.tokens, Specials::Spelled));
            let prompt: Arc<[u32]> = prompt.tokens.into();
            let logprobs = reads_tokens.then_some(probs);
            works.extend((0..options.choices).map(|choice| options.work(Arc::clone(&prompt), choice, logprobs)));
        }
        let native = NativeAnswer {
            model: worker.spec.model.to_string(),
            context: serving.info.context_length,
            settings: settings(serving, &options, probs),
            prompts: texts,
            with_tokens,
            with_probs,
            is_list: is_list || works.len() > 1,
            slot,
        };
        Ok(AnswerPlan {
            works,
            choices_per_prompt: options.choices,
            shape: ApiShape::Native(Arc::new(native)),
            stream: options.stream,
            usage: options.usage,
            short_ids: false,
            extras: options.extras,
            verbose: None,
        })
    }
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<NativeDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let prompts = AskedPrompts::read(worker.serving()?, &fields)?;
    NativeDraft::read(worker, &fields, prompts)
}

/// llama-server's values of the samplers that neither the request nor the manifest sets.
fn llama_servers_usual(fields: &RequestFields<'_>, sampling: &mut SamplingParams) {
    let unsaid = |name: &str| fields.text(name).is_none_or(|text| text == "null");
    if unsaid("temperature") {
        sampling.temperature = 0.8;
    }
    if unsaid("top_k") {
        sampling.top_k = 40;
    }
    if unsaid("top_p") {
        sampling.top_p = 0.95;
    }
    if unsaid("min_p") {
        sampling.min_p = 0.05;
    }
    let is_penalised =
        sampling.repetition_penalty != 1.0 || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
    if unsaid("repeat_last_n") && is_penalised {
        sampling.penalty_window = Some(64);
    }
}

/// Refuses llama-server's fields that would change the answer and have no effect here.
fn refuse(fields: &RequestFields<'_>) -> Result<(), ApiError> {
    for (field, act) in [
        ("post_sampling_probs", "tell probabilities behind the samplers"),
        ("t_max_predict_ms", "end an answer by a time"),
        ("n_indent", "demand an indentation"),
    ] {
        let value = fields.get::<Value>(field)?.unwrap_or_default();
        let asks = value.as_bool().unwrap_or(false) || value.as_f64().is_some_and(|number| number > 0.0);
        if asks {
            return Err(beyond_worker(field, act, Remedy::LlamaServer));
        }
    }
    Ok(())
}

/// `generation_settings`: every option as it is used.
pub(super) fn settings(serving: &Serving, options: &GenerateOptions, probs: usize) -> Value {
    let sampling = &options.sampling;
    let most = match options.max_tokens {
        MaxTokens::Some(tokens) => json!(tokens),
        MaxTokens::Unsaid | MaxTokens::Endless => json!(-1),
    };
    let special = serving.text.vocabulary.special();
    let ends = special.end.iter().filter(|_| options.ignore_eos).map(|token| json!({ "bias": null, "token": token }));
    let biases = sampling.logit_bias.iter().map(|(token, bias)| {
        // JSON has no infinities; llama-server writes null for them.
        json!({ "bias": bias.is_finite().then_some(bias), "token": token })
    });
    let biases: Vec<Value> = biases.chain(ends).collect();
    let window = sampling.penalty_window.map_or(json!(-1), |window| json!(window));
    let dry = sampling.dry.as_ref();
    json!({
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": if sampling.top_n_sigma > 0.0 { sampling.top_n_sigma } else { -1.0 },
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": window,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": dry.map_or(0.0, |dry| dry.multiplier),
        "dry_base": dry.map_or(1.75, |dry| dry.base),
        "dry_allowed_length": dry.map_or(2, |dry| dry.allowed_length),
        "dry_penalty_last_n": dry.and_then(|dry| dry.last_n).map_or(json!(-1), |last| json!(last)),
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "stop": options.stop,
        "max_tokens": most,
        "n_predict": most,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": options.ignore_eos,
        "stream": options.stream,
        "logit_bias": biases,
        "n_probs": probs,
        "min_keep": sampling.min_keep,
        "grammar": "",
        "samplers": SAMPLERS,
        "timings_per_token": options.extras.timings_per_token,
        "post_sampling_probs": false,
        "lora": [],
    })
}

/// The order of the samplers, by llama.cpp's names.
const SAMPLERS: [&str; 9] =
    ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "temperature", "top_p", "min_p", "xtc"];

/// The description of a request whose answer has OpenAI's shape, for `__verbose`.
pub(super) fn told(worker: &WorkerState, works: &[Generate], options: &GenerateOptions) -> Option<NativeAnswer> {
    let serving = worker.serving().ok().filter(|_| options.extras.verbose)?;
    let spelled = |work: &Generate| serving.text.vocabulary.text(&work.prompt, Specials::Spelled);
    Some(NativeAnswer {
        model: worker.spec.model.to_string(),
        context: serving.info.context_length,
        settings: settings(serving, options, 0),
        prompts: works.iter().step_by(options.choices.max(1)).map(spelled).collect(),
        with_tokens: false,
        with_probs: false,
        is_list: false,
        slot: -1,
    })
}
