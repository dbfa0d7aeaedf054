//! An answer as server-sent events: one HTTP chunk per event, written as soon as it is there.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http_body::{Body, Frame};
use model_boss_engine::SequenceEvent;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource, sse};
use serde::Serialize;

use super::answer::{CallObject, Choice, Envelope, Object, UsageObject, UsageTally, Whole, logprobs};
use super::error::work_error;
use super::options::UsageIn;
use super::plan::{AnswerPlan, ChoiceEvents};
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
}

impl EventStream {
    pub(super) fn new(
        plan: AnswerPlan,
        (wanted, prompt_tokens): (Vec<bool>, usize),
        envelope: Envelope,
        (index, event): (usize, SequenceEvent),
        events: ChoiceEvents,
    ) -> Self {
        let (offsets, left) = (vec![0; wanted.len()], wanted.len());
        let (sampled, tally, ready) = (offsets.clone(), UsageTally::default(), VecDeque::new());
        let called = vec![false; wanted.len()];
        let mut stream = Self {
            plan,
            wanted,
            offsets,
            envelope,
            tally,
            prompt_tokens,
            cached_tokens: 0,
            sampled,
            called,
            left,
            events,
            ready,
        };
        stream.take(index, event);
        stream
    }

    /// Turns one event of a choice into chunks of the stream.
    fn take(&mut self, index: usize, event: SequenceEvent) {
        let shape = &self.plan.shape;
        let wanted = self.wanted[index];
        let choice = match event {
            SequenceEvent::Started { prompt_logprobs, cached_tokens } => {
                if index.is_multiple_of(self.plan.choices_per_prompt) {
                    self.cached_tokens += cached_tokens;
                }
                let prompt_logprobs = (!prompt_logprobs.is_empty())
                    .then(|| logprobs(shape, wanted, prompt_logprobs, &mut self.offsets[index]))
                    .flatten();
                Choice::first(shape, index, shape.echo(index / self.plan.choices_per_prompt), prompt_logprobs)
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
                Some(Choice::last(shape, index, &finished, self.called[index]))
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
        let mut object = self.envelope.object(&self.plan.shape, Whole::No, vec![choice]);
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
