//! From work to an answer: passes sequences to the engine, and returns the results as one body or as a stream.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use model_boss_engine::sampling::TokenLogprob;
use model_boss_engine::{Finished, Reply, SequenceEvent, Work};
use model_boss_protocol::WorkUnit;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::gone::engine_gone as unanswered;
use crate::meter::WorkMeter;
use crate::state::{Serving, WorkerState};

use super::answer::{ApiShape, CallObject, Choice, Envelope, Said, Whole, logprobs};
use super::error::{ErrorAnswer, work_error};
use super::native_answer::{NativeAnswer, NativeText};
use super::plan::{AnswerPlan, ChoiceEvents};
use super::stream::EventStream;
use super::tally::UsageTally;

struct ChoiceReply {
    choice: usize,
    events: UnboundedSender<(usize, SequenceEvent)>,
}

impl Reply for ChoiceReply {
    fn send(&mut self, event: SequenceEvent) {
        // A closed channel is noticed by the engine in its next step.
        let _ = self.events.send((self.choice, event));
    }

    fn is_closed(&self) -> bool {
        self.events.is_closed()
    }
}

/// Does the work and answers.
pub(super) async fn answer(
    worker: &WorkerState,
    serving: &Serving,
    mut plan: AnswerPlan,
) -> Result<Response, ErrorAnswer> {
    let wanted: Vec<bool> = plan.works.iter().map(|work| work.logprobs.is_some()).collect();
    let prompts = plan.works.iter().step_by(plan.choices_per_prompt.max(1));
    let prompt_tokens = prompts.map(|work| work.prompt.len()).collect();
    let adapter = plan.works.first().and_then(|work| work.adapter.as_ref());
    let answering = serving.adapters.answering(&worker.spec.model, adapter);
    let (sender, mut events) = unbounded_channel();
    for (choice, work) in plan.works.drain(..).enumerate() {
        let reply = ChoiceReply { choice, events: sender.clone() };
        serving.submit(Work::Generate(work), Box::new(reply)).await?;
    }
    // From here on the engine holds the only senders, and the channel ends with it.
    drop(sender);
    let envelope = Envelope::new(&plan.shape, &answering);
    if !plan.stream {
        return whole(&plan, &wanted, &envelope, &mut events).await;
    }
    // The head of the answer waits for the first event, so that an early failure keeps its true status.
    let Some(first) = events.recv().await else { return Err(unanswered().await.into()) };
    if let (_, SequenceEvent::Failed(error)) = &first {
        return Err(work_error(error, plan.shape.prompt_field()).into());
    }
    let stream = EventStream::new(plan, (wanted, prompt_tokens), envelope, first, events);
    let mut response = Body::new(stream).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// The parts of one choice so far.
#[derive(Default)]
struct Collected {
    thoughts: String,
    text: String,
    calls: Vec<CallObject>,
    logprobs: Vec<TokenLogprob>,
    finished: Option<Finished>,
}

/// The progress of an answer that is not streamed, for those who ask.
struct WholeMeter {
    meter: Option<Arc<WorkMeter>>,
    /// Per choice: tokens sampled so far.
    sampled: Vec<usize>,
}

impl WholeMeter {
    fn new(choices: usize) -> Self {
        Self { meter: WorkMeter::current(), sampled: vec![0; choices] }
    }

    fn count(&mut self, choice: usize, event: &SequenceEvent) {
        let Some(meter) = &self.meter else { return };
        let (sampled, text) = match event {
            SequenceEvent::Text { sampled, text, .. } => (*sampled, text.as_str()),
            SequenceEvent::Thought { sampled, .. } | SequenceEvent::Call { sampled, .. } => (*sampled, ""),
            _ => return,
        };
        self.sampled[choice] = sampled;
        meter.counted(WorkUnit::Tokens, self.sampled.iter().sum::<usize>() as u64, None);
        // The texts of several answers would be mixed.
        if choice == 0 {
            meter.wrote(text);
        }
    }
}

async fn whole(
    plan: &AnswerPlan,
    wanted: &[bool],
    envelope: &Envelope,
    events: &mut ChoiceEvents,
) -> Result<Response, ErrorAnswer> {
    let shape = &plan.shape;
    let mut choices: Vec<Collected> = wanted.iter().map(|_| Collected::default()).collect();
    let mut left = choices.len();
    let mut meter = WholeMeter::new(choices.len());
    while left > 0 {
        let Some((index, event)) = events.recv().await else { return Err(unanswered().await.into()) };
        meter.count(index, &event);
        let choice = &mut choices[index];
        match event {
            SequenceEvent::Evaluating { .. } => {}
            SequenceEvent::Started { prompt_logprobs, .. } => {
                choice.text.push_str(shape.echo(index / plan.choices_per_prompt));
                choice.logprobs = prompt_logprobs;
            }
            SequenceEvent::Thought { text, .. } => choice.thoughts.push_str(&text),
            SequenceEvent::Text { text, logprobs, .. } => {
                choice.text.push_str(&text);
                choice.logprobs.extend(logprobs);
            }
            SequenceEvent::Call { index, name, arguments, .. } => {
                CallObject::piece(index, name, arguments, plan.short_ids).add_to(&mut choice.calls);
            }
            SequenceEvent::Finished(finished) => {
                choice.finished = Some(finished);
                left -= 1;
            }
            SequenceEvent::Failed(error) => return Err(work_error(&error, shape.prompt_field()).into()),
        }
    }
    if let ApiShape::Native(native) = shape {
        return Ok(native_whole(native, plan.choices_per_prompt, choices));
    }
    let mut tally = UsageTally::default();
    let mut verbose = None;
    let mut answered = Vec::with_capacity(choices.len());
    for (index, choice) in choices.into_iter().enumerate() {
        let Some(finished) = choice.finished else { continue };
        tally.add(&finished, index.is_multiple_of(plan.choices_per_prompt));
        if let Some(native) = plan.verbose.as_ref().filter(|_| index == 0) {
            let text = NativeText::of(choice.text.clone(), Vec::new());
            let mut alone = UsageTally::default();
            alone.add(&finished, true);
            verbose = Some(native.last((0, 0), text, &finished, &alone.timings()));
        }
        let logprobs = logprobs(shape, wanted[index], choice.logprobs, &mut 0);
        let thoughts = Some(choice.thoughts).filter(|thoughts| !thoughts.is_empty());
        let said = Said { thoughts, text: choice.text, calls: choice.calls };
        answered.push(Choice::whole(shape, index, said, logprobs, &finished));
    }
    let mut object = envelope.object(shape, Whole::Yes, answered);
    object.usage = Some(Some(tally.usage()));
    object.timings = Some(tally.timings());
    object.verbose = verbose;
    Ok(axum::Json(object).into_response())
}

/// Whole answers in llama-server's own shape: a list where there are several.
fn native_whole(native: &NativeAnswer, choices_per_prompt: usize, choices: Vec<Collected>) -> Response {
    let answer = |(index, choice): (usize, Collected)| {
        let finished = choice.finished?;
        let mut tally = UsageTally::default();
        tally.add(&finished, true);
        let text = NativeText::of(choice.text, choice.logprobs);
        Some(native.last((index / choices_per_prompt, index), text, &finished, &tally.timings()))
    };
    let mut answers: Vec<Value> = choices.into_iter().enumerate().filter_map(answer).collect();
    match (native.is_list, answers.pop()) {
        (false, Some(only)) => axum::Json(only).into_response(),
        (_, last) => {
            answers.extend(last);
            axum::Json(answers).into_response()
        }
    }
}
