//! Text generation: several sequences at once through one decoder (continuous batching). Knows tokens and text, no
//! device and no HTTP.
//!
//! A step drops cancelled sequences and lets waiting ones in, first come first served. [`crate::batch`] plans how many
//! tokens each brings. The decoder runs once over all of them, and each sequence gets its row of logits.

mod sequence;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::activity::{Activity, End};
use crate::batch::{self, StepBudget};
use crate::decoder::{Decoder, DecoderError, SequenceStep};
use crate::engine::{
    Engine, EngineError, EngineInfo, Generate, Progress, Reply, SequenceEvent, SequenceId, Work, WorkError,
};
use crate::places::PlaceUse;
use crate::residency::Monitor;
use crate::text::Vocabulary;

use sequence::{Continuation, RunningSequence, Sequence};

/// Settings of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextEngineSettings {
    /// Longest prompt plus answer; the decoder's own limit when absent or larger.
    pub context_length: Option<usize>,
    /// Sequences worked on at once.
    pub max_concurrent: usize,
    /// Sequences that may wait; more are refused.
    pub max_waiting: usize,
    /// The limits of a step.
    pub step_budget: StepBudget,
}

impl Default for TextEngineSettings {
    fn default() -> Self {
        Self { context_length: None, max_concurrent: 8, max_waiting: 4_096, step_budget: StepBudget::default() }
    }
}

/// One result for each running sequence, in order.
type StepRows = Vec<Result<Vec<f32>, WorkError>>;

/// The engine for text models.
pub struct TextEngine {
    decoder: Box<dyn Decoder>,
    vocabulary: Arc<Vocabulary>,
    settings: TextEngineSettings,
    info: EngineInfo,
    activity: Arc<Activity>,
    waiting: VecDeque<Sequence>,
    running: Vec<RunningSequence>,
}

impl TextEngine {
    /// An engine over a loaded decoder.
    pub fn new(
        decoder: Box<dyn Decoder>,
        vocabulary: Arc<Vocabulary>,
        settings: TextEngineSettings,
        activity: Arc<Activity>,
    ) -> Self {
        let loaded = decoder.info();
        let info = EngineInfo {
            context_length: settings.context_length.unwrap_or(usize::MAX).min(loaded.context_length),
            vocab_size: loaded.vocab_size,
            weight_bytes: loaded.weight_bytes,
            kv_bytes_per_token: loaded.kv_bytes_per_token,
            max_concurrent: settings.max_concurrent.max(1),
        };
        Self { decoder, vocabulary, settings, info, activity, waiting: VecDeque::new(), running: Vec::new() }
    }

    /// The report on streamed layers; none where all layers are resident.
    pub fn monitor(&self) -> Option<Arc<Monitor>> {
        self.decoder.monitor()
    }

    /// The use of the decoder's devices.
    pub fn places(&self) -> Arc<[PlaceUse]> {
        self.decoder.places()
    }

    /// The reason why this work cannot be done at all.
    fn refusal(&self, work: &Generate) -> Option<WorkError> {
        let (prompt, context) = (work.prompt.len(), self.info.context_length);
        // An answer needs room for one token; an evaluation of the prompt alone does not.
        let needed = prompt + usize::from(work.max_tokens != Some(0));
        if prompt == 0 {
            Some(WorkError::EmptyPrompt)
        } else if needed > context {
            Some(WorkError::ContextLengthExceeded { prompt, context })
        } else if let Some(&token) = work.prompt.iter().find(|token| **token as usize >= self.info.vocab_size) {
            Some(WorkError::UnknownToken { token, vocab_size: self.info.vocab_size })
        } else if self.waiting.len() >= self.settings.max_waiting {
            Some(WorkError::QueueFull(self.waiting.len()))
        } else {
            None
        }
    }

    /// Forgets everything whose client has gone.
    fn drop_abandoned(&mut self) {
        let (decoder, activity) = (&mut self.decoder, &self.activity);
        let abandoned = |reply: &dyn Reply| {
            let closed = reply.is_closed();
            if closed {
                activity.ended(End::Cancelled);
            }
            closed
        };
        self.waiting.retain(|sequence| !abandoned(sequence.reply()));
        self.running.retain(|running| {
            let gone = abandoned(running.reply());
            if gone {
                decoder.close(running.kv());
            }
            !gone
        });
    }

    /// Lets waiting sequences into the batch, in order, while there is room.
    fn admit(&mut self) -> Result<(), EngineError> {
        while self.running.len() < self.info.max_concurrent {
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            match self.decoder.open(sequence.capacity()) {
                Ok(kv) => self.running.push(RunningSequence::new(sequence, kv)),
                // Running sequences will end and free memory; without any, no memory will become free.
                Err(DecoderError::OutOfMemory(_)) if !self.running.is_empty() => {
                    self.waiting.push_front(sequence);
                    break;
                }
                Err(error) => {
                    let fatal = fatal(&error);
                    self.activity.ended(End::Failed);
                    sequence.fail(error.into());
                    fatal?;
                }
            }
        }
        Ok(())
    }

    /// Runs the decoder over the batch. One result for each running sequence, in order.
    ///
    /// A failed step changes no sequence, so each is tried by itself: only those that are at fault fail.
    ///
    /// A cancelled step ends between two layers; then there is no result.
    fn forward(&mut self, shares: &[usize]) -> Result<Option<StepRows>, EngineError> {
        let batch: Vec<SequenceStep<'_>> =
            self.running.iter().zip(shares).filter(|(_, share)| **share > 0).map(|(r, share)| r.step(*share)).collect();
        let vocab_size = self.info.vocab_size;
        let running = &self.running;
        let abandoned = || running.iter().all(|running| running.reply().is_closed());
        let mut rows = match self.decoder.forward_until(&batch, &abandoned) {
            Ok(rows) if fits(&batch, &rows, vocab_size) => rows.into_iter().map(Ok).collect(),
            Ok(_) => vec![Err(WorkError::Step("the decoder gave rows of another length".into())); batch.len()],
            Err(DecoderError::Interrupted) => return Ok(None),
            Err(error) if batch.len() == 1 || matches!(error, DecoderError::Fatal(_)) => {
                fatal(&error)?;
                vec![Err(error.into())]
            }
            Err(_) => {
                let mut rows = Vec::with_capacity(batch.len());
                for step in &batch {
                    rows.push(match self.decoder.forward_until(std::slice::from_ref(step), &abandoned) {
                        Err(DecoderError::Interrupted) => return Ok(None),
                        Ok(mut single) if fits(std::slice::from_ref(step), &single, vocab_size) => {
                            Ok(single.pop().unwrap_or_default())
                        }
                        Ok(_) => Err(WorkError::Step("the decoder gave rows of another length".into())),
                        Err(error) => {
                            fatal(&error)?;
                            Err(error.into())
                        }
                    });
                }
                rows
            }
        }
        .into_iter();
        let rows = shares
            .iter()
            .map(|share| if *share == 0 { Ok(Vec::new()) } else { rows.next().unwrap_or(Ok(Vec::new())) })
            .collect();
        Ok(Some(rows))
    }

    fn try_step(&mut self) -> Result<Progress, EngineError> {
        self.drop_abandoned();
        self.admit()?;
        if self.running.is_empty() {
            return Ok(Progress::Idle);
        }
        // Published before the step, so that a step that never ends is visible with its sequences.
        self.publish();
        let started = Instant::now();
        let stages: Vec<_> = self.running.iter().map(|running| running.stage(self.info.vocab_size)).collect();
        let shares = batch::plan(&stages, self.settings.step_budget);
        let prompt_tokens =
            stages.iter().zip(&shares).filter(|(s, _)| **s != batch::SequenceStage::Decode).map(|(_, n)| n).sum();
        // Sequences whose client disconnected are counted and closed when the next step begins.
        let Some(rows) = self.forward(&shares)? else { return Ok(Progress::Stepped) };
        let mut still_running = Vec::with_capacity(self.running.len());
        for ((mut running, rows), share) in self.running.drain(..).zip(rows).zip(shares) {
            let step = match rows {
                Ok(rows) => running.advance(share, rows, &self.vocabulary, &self.activity),
                Err(error) => running.fail(error),
            };
            match step {
                Continuation::Continues => still_running.push(running),
                Continuation::Ended(end) => {
                    self.activity.ended(end);
                    self.decoder.close(running.kv());
                }
            }
        }
        self.running = still_running;
        self.activity.stepped(prompt_tokens);
        self.activity.histograms().step.record(started.elapsed());
        Ok(Progress::Stepped)
    }

    fn publish(&self) {
        let tokens: usize = self.running.iter().map(|running| self.decoder.len(running.kv())).sum();
        let kv_bytes = tokens as u64 * self.info.kv_bytes_per_token as u64;
        self.activity.occupied(self.running.len(), self.waiting.len(), kv_bytes);
    }
}

impl Engine for TextEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn submit(&mut self, id: SequenceId, work: Work, mut reply: Box<dyn Reply>) {
        let Work::Generate(work) = work;
        match self.refusal(&work) {
            Some(error) => {
                self.activity.ended(End::Failed);
                reply.send(SequenceEvent::Failed(error));
            }
            None => {
                let sequence = Sequence::new(id, work, reply, self.info.context_length, &self.vocabulary);
                self.waiting.push_back(sequence);
            }
        }
        self.publish();
    }

    fn cancel(&mut self, id: SequenceId) {
        self.waiting.retain(|sequence| sequence.id() != id);
        if let Some(at) = self.running.iter().position(|running| running.id() == id) {
            let running = self.running.remove(at);
            self.decoder.close(running.kv());
        }
        self.activity.ended(End::Cancelled);
        self.publish();
    }

    fn step(&mut self) -> Result<Progress, EngineError> {
        let outcome = self.try_step();
        if let Err(EngineError::DeviceLost(why)) = &outcome {
            let error = WorkError::Step(format!("the device failed: {why}"));
            self.waiting.drain(..).for_each(|mut sequence| sequence.fail(error.clone()));
            self.running.drain(..).for_each(|mut running| {
                running.fail(error.clone());
            });
        }
        self.publish();
        outcome
    }
}

/// The error that ends the process, if this is one.
fn fatal(error: &DecoderError) -> Result<(), EngineError> {
    match error {
        DecoderError::Fatal(why) => Err(EngineError::DeviceLost(why.clone())),
        DecoderError::OutOfMemory(_) | DecoderError::Step(_) | DecoderError::Interrupted => Ok(()),
    }
}

impl From<DecoderError> for WorkError {
    fn from(error: DecoderError) -> Self {
        match error {
            DecoderError::OutOfMemory(why) => Self::OutOfMemory(why),
            DecoderError::Step(why) | DecoderError::Fatal(why) => Self::Step(why),
            DecoderError::Interrupted => Self::Step(error.to_string()),
        }
    }
}

/// Whether the decoder gave what was asked for.
fn fits(batch: &[SequenceStep<'_>], rows: &[Vec<f32>], vocab_size: usize) -> bool {
    batch.len() == rows.len()
        && batch.iter().zip(rows).all(|(step, rows)| rows.len() == step.logits.rows(step.tokens.len()) * vocab_size)
}

#[cfg(test)]
mod tests;
