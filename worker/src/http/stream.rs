//! An answer as server-sent events: one HTTP chunk per event, written as soon as it is there.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http_body::{Body, Frame};
use model_boss_engine::{Finished, SequenceEvent};
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource, sse};
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{ApiShape, CallObject, Choice, Envelope, Object, Whole, logprobs};
use super::error::work_error;
use super::native_answer::{NativeAnswer, NativeText};
use super::options::UsageIn;
use super::plan::{AnswerPlan, ChoiceEvents};
use super::progress::ChoiceProgress;
use super::tally::{UsageObject, UsageTally};
use crate::gone::ENGINE_GONE;

/// The body of a streamed answer. Dropped when the client disconnects, which ends its sequences.
pub(super) struct EventStream {
    plan: AnswerPlan,
    /// Per choice: whether log-probabilities are wanted.
    wanted: Vec<bool>,
    /// Per choice: characters of text so far.
    offsets: Vec<usize>,
    envelope: Envelope,
    tally: UsageTally,
    /// Per choice: its progress.
    progress: Vec<ChoiceProgress>,
    /// Per choice: whether its first chunk was sent.
    opened: Vec<bool>,
    /// Per choice: whether its text has a line break.
    has_new_line: Vec<bool>,
    /// The tokens of all prompts together.
    prompt_tokens: usize,
    /// Those of them that did not have to be evaluated, as far as is known.
    cached_tokens: usize,
    /// Per choice: tokens sampled so far.
    sampled: Vec<usize>,
    /// Per choice: whether it has called a tool.
    called: Vec<bool>,
    /// Choices that have not ended.
    left: usize,
    events: ChoiceEvents,
    ready: VecDeque<Bytes>,
    /// The description of the request, for the next chunk.
    verbose: Option<Value>,
}

impl EventStream {
    pub(super) fn new(
        plan: AnswerPlan,
        (wanted, prompts): (Vec<bool>, Vec<usize>),
        envelope: Envelope,
        (index, event): (usize, SequenceEvent),
        events: ChoiceEvents,
    ) -> Self {
        let (offsets, left) = (vec![0; wanted.len()], wanted.len());
        let (sampled, tally, ready) = (offsets.clone(), UsageTally::default(), VecDeque::new());
        let called = vec![false; wanted.len()];
        let per_prompt = plan.choices_per_prompt.max(1);
        let of_choice = |choice: usize| prompts.get(choice / per_prompt).copied().unwrap_or_default();
        let progress = (0..left).map(|choice| ChoiceProgress::of(of_choice(choice))).collect();
        let prompt_tokens = prompts.iter().sum();
        let mut stream = Self {
            plan,
            wanted,
            offsets,
            envelope,
            tally,
            progress,
            opened: called.clone(),
            has_new_line: called.clone(),
            prompt_tokens,
            cached_tokens: 0,
            sampled,
            called,
            left,
            events,
            ready,
            verbose: None,
        };
        stream.take(index, event);
        stream
    }

    /// Turns one event of a choice into chunks of the stream.
    fn take(&mut self, index: usize, event: SequenceEvent) {
        self.note_progress(index, &event);
        if let ApiShape::Native(native) = &self.plan.shape {
            let native = Arc::clone(native);
            return self.take_native(&native, index, event);
        }
        let shape = &self.plan.shape;
        let wanted = self.wanted[index];
        let choice = match event {
            SequenceEvent::Evaluating { .. } => {
                if *shape == ApiShape::Chat && !std::mem::replace(&mut self.opened[index], true) {
                    let first = Choice::first(shape, index, "", None);
                    first.into_iter().for_each(|first| self.write_choice(first));
                }
                return self.write_progress(index);
            }
            SequenceEvent::Started { prompt_logprobs, cached_tokens } => {
                if index.is_multiple_of(self.plan.choices_per_prompt) {
                    self.cached_tokens += cached_tokens;
                }
                let prompt_logprobs = (!prompt_logprobs.is_empty())
                    .then(|| logprobs(shape, wanted, prompt_logprobs, &mut self.offsets[index]))
                    .flatten();
                let is_open = std::mem::replace(&mut self.opened[index], true);
                let echo = shape.echo(index / self.plan.choices_per_prompt);
                Choice::first(shape, index, echo, prompt_logprobs).filter(|_| !is_open)
            }
            SequenceEvent::Thought { text, sampled } => {
                self.sampled[index] = sampled;
                Some(Choice::thought(index, text))
            }
            SequenceEvent::Text { text, logprobs: tokens, sampled } => {
                self.sampled[index] = sampled;
                let logprobs = logprobs(shape, wanted, tokens, &mut self.offsets[index]);
                Some(Choice::piece(shape, index, text, logprobs))
            }
            SequenceEvent::Call { index: number, name, arguments, sampled } => {
                (self.sampled[index], self.called[index]) = (sampled, true);
                Some(Choice::call(index, CallObject::piece(number, name, arguments, self.plan.short_ids)))
            }
            SequenceEvent::Finished(finished) => {
                self.sampled[index] = finished.usage.completion_tokens;
                self.tally.add(&finished, index.is_multiple_of(self.plan.choices_per_prompt));
                self.left -= 1;
                let last = Choice::last(shape, index, &finished, self.called[index]);
                self.note_verbose(index, &finished);
                Some(last)
            }
            SequenceEvent::Failed(error) => return self.fail(&work_error(&error, shape.prompt_field())),
        };
        if let Some(choice) = choice {
            self.write_choice(choice);
        }
        if self.left == 0 {
            self.end();
        }
    }

    fn write_choice(&mut self, choice: Choice) {
        let index = choice.index();
        let mut object = self.envelope.object(&self.plan.shape, Whole::No, vec![choice]);
        object.verbose = self.verbose.take();
        if self.plan.extras.timings_per_token && self.progress[index].has_sampled() {
            object.timings = Some(self.progress[index].timings());
        }
        match self.plan.usage {
            UsageIn::EveryChunk => {
                let prompt = (self.prompt_tokens, self.cached_tokens);
                object.usage = Some(Some(UsageObject::so_far(prompt, self.sampled.iter().sum())));
            }
            UsageIn::LastChunk => object.usage = Some(None),
            UsageIn::Nothing if self.left == 0 => object.timings = Some(self.tally.timings()),
            UsageIn::Nothing => {}
        }
        self.ready.push_back(event(&object));
    }

    /// Sends a report on the prompt.
    fn write_progress(&mut self, index: usize) {
        let silent = Choice::silent(&self.plan.shape, index);
        let mut object = self.envelope.object(&self.plan.shape, Whole::No, vec![silent]);
        object.prompt_progress = Some(self.progress[index].report());
        object.timings = self.plan.extras.timings_per_token.then(|| self.progress[index].timings());
        self.ready.push_back(event(&object));
    }

    fn note_progress(&mut self, index: usize, event: &SequenceEvent) {
        let progress = &mut self.progress[index];
        match event {
            SequenceEvent::Evaluating { cached_tokens, evaluated } => progress.evaluating(*cached_tokens, *evaluated),
            SequenceEvent::Started { cached_tokens, .. } => progress.started(*cached_tokens),
            SequenceEvent::Thought { sampled, .. }
            | SequenceEvent::Text { sampled, .. }
            | SequenceEvent::Call { sampled, .. } => progress.sampled(*sampled),
            SequenceEvent::Finished(_) | SequenceEvent::Failed(_) => {}
        }
    }

    /// Describes the request in the first answer's last chunk, where that is wanted.
    fn note_verbose(&mut self, index: usize, finished: &Finished) {
        if let Some(native) = self.plan.verbose.as_ref().filter(|_| index == 0) {
            let mut alone = UsageTally::default();
            alone.add(finished, true);
            self.verbose = Some(native.last((0, 0), NativeText::default(), finished, &alone.timings()));
        }
    }

    /// Turns one event of a choice into events of llama-server's own shape. No marker ends such a stream.
    fn take_native(&mut self, native: &NativeAnswer, index: usize, taken: SequenceEvent) {
        let (prompt_tokens, timed) = (self.progress[index].prompt_tokens(), self.plan.extras.timings_per_token);
        match taken {
            SequenceEvent::Evaluating { .. } => {
                let mut piece = native.piece(index, NativeText::default(), prompt_tokens, 0);
                piece["prompt_progress"] = json!(self.progress[index].report());
                if timed {
                    piece["timings"] = json!(self.progress[index].timings());
                }
                self.ready.push_back(event(&piece));
            }
            SequenceEvent::Text { text, logprobs, sampled } => {
                self.has_new_line[index] |= text.contains('\n');
                // An event has one token. The text of those that came together is beside the last.
                let count = logprobs.len().max(1);
                let mut tokens = logprobs.into_iter();
                for behind in (0..count).rev() {
                    let content = if behind == 0 { text.clone() } else { String::new() };
                    let said = NativeText { content, tokens: tokens.next().into_iter().collect(), has_new_line: false };
                    let mut piece = native.piece(index, said, prompt_tokens, sampled - behind.min(sampled));
                    if timed {
                        piece["timings"] = json!(self.progress[index].timings());
                    }
                    self.ready.push_back(event(&piece));
                }
            }
            SequenceEvent::Finished(finished) => {
                let mut alone = UsageTally::default();
                alone.add(&finished, true);
                let said = NativeText { has_new_line: self.has_new_line[index], ..NativeText::default() };
                let place = (index / self.plan.choices_per_prompt, index);
                self.left -= 1;
                self.tally.add(&finished, index.is_multiple_of(self.plan.choices_per_prompt));
                let mut last = native.last(place, said, &finished, &alone.timings());
                if self.left == 0 && self.wanted.len() > 1 {
                    // The coordinator counts by the end of a stream, which is only one answer's here.
                    last["usage"] = json!(self.tally.usage());
                }
                self.ready.push_back(event(&last));
            }
            SequenceEvent::Failed(error) => self.fail(&work_error(&error, self.plan.shape.prompt_field())),
            // Completions have no thoughts and no calls.
            SequenceEvent::Started { .. } | SequenceEvent::Thought { .. } | SequenceEvent::Call { .. } => {}
        }
    }

    fn end(&mut self) {
        if self.plan.usage != UsageIn::Nothing {
            let mut object: Object<'_> = self.envelope.object(&self.plan.shape, Whole::No, Vec::new());
            object.usage = Some(Some(self.tally.usage()));
            object.timings = Some(self.tally.timings());
            self.ready.push_back(event(&object));
        }
        self.ready.push_back(Bytes::from_static(sse::DONE.as_bytes()));
    }

    /// Sends the error in the stream and ends it.
    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(event(&error.body(ErrorSource::Worker)));
        self.left = 0;
        self.events.close();
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.left == 0 {
                return Poll::Ready(None);
            }
            match ready!(self.events.poll_recv(context)) {
                Some((index, event)) => self.take(index, event),
                None => self.fail(&engine_gone()),
            }
        }
    }
}

/// `data: {…}` and an empty line.
fn event(value: &impl Serialize) -> Bytes {
    // Objects of texts and numbers always serialise; if that ever changes, the stream reports it.
    let json = serde_json::to_string(value).unwrap_or_else(|_| engine_gone().body(ErrorSource::Worker).to_json());
    Bytes::from(sse::event(json))
}

fn engine_gone() -> ApiError {
    ApiError::new(ErrorCode::Internal, ENGINE_GONE)
}
