//! Text generation: several sequences at once through one decoder (continuous batching). Knows tokens and text, no
//! device and no HTTP.
//!
//! A step drops cancelled sequences and lets waiting ones in, by importance and arrival. [`crate::batch`] plans how
//! many tokens each brings. The decoder runs once over all of them, and each sequence gets its row of logits.
//!
//! Bulk work sits most steps out while more important sequences compute, and gives its place to them when all are
//! taken.
//!
//! Sequences are let in while there are blocks for all their tokens. When blocks run out later, the sequence that
//! came last, of the least important ones, gives its own back and waits at the front of the queue. Its tokens are
//! evaluated again then, and its client sees nothing but a pause. An answer that goes on when the context is full
//! waits in the same way: it comes back with fewer tokens, at new places.

mod admission;
mod ahead;
mod allowed;
mod choose;
mod continuation;
mod drafting;

mod images;
mod logprobs;
mod looking;
pub(crate) mod parking;
mod sequence;
mod settings;
mod spelled;
mod stream;
mod thinking;
mod turns;
mod waiting;
mod with_drafts;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::activity::{Activity, End};
use crate::batch::{self, Pace, StepBudget};
use crate::constraint::MaskThreads;
use crate::decoder::{Decoder, DecoderError, DecoderStep};
use crate::drafts::{DraftModel, RowCost};
use crate::engine::{
    Engine, EngineError, EngineInfo, Generate, Progress, Reply, SequenceEvent, SequenceId, Work, WorkError,
};
use crate::kv::{BLOCK_TOKENS, BlockTable, KvCache};
use crate::residency::Monitor;
use crate::text::Vocabulary;
use model_boss_protocol::Priority;

use ahead::look_ahead;
use choose::{StepRows, choose};
use continuation::Continuation;
use images::{KnownImages, are_placed};
use looking::{keep_whole, look};
use sequence::RunningSequence;
use turns::{can_go_on, fatal, fits, is_bulk, release, wait_in_turn};
use waiting::Sequence;

pub use settings::{DraftUse, TextEngineSettings};

/// The longest wait for masks before clients that have gone are looked for.
const MASK_PATIENCE: Duration = Duration::from_millis(20);

/// The engine for text models.
pub struct TextEngine {
    decoder: Box<dyn Decoder>,
    vocabulary: Arc<Vocabulary>,
    settings: TextEngineSettings,
    info: EngineInfo,
    activity: Arc<Activity>,
    /// Blocks of keys and values.
    kv: KvCache,
    /// By importance and arrival.
    waiting: VecDeque<RunningSequence>,
    running: Vec<RunningSequence>,
    /// Sequences submitted so far.
    arrivals: u64,
    /// Steps so far.
    steps: u64,
    /// The device had less memory than was planned: until a sequence ends, none is let in.
    short_of_memory: bool,
    pace: Pace,
    cost: RowCost,
    draft_model: Option<DraftModel>,
    images: KnownImages,
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
            context_length: settings
                .context_length
                .unwrap_or(usize::MAX)
                .min(loaded.context_length)
                .min(loaded.kv_blocks.saturating_mul(BLOCK_TOKENS)),
            vocab_size: loaded.vocab_size,
            weight_bytes: loaded.weight_bytes,
            workspace_bytes: loaded.workspace_bytes,
            kv_bytes_per_token: loaded.kv_bytes_per_token,
            kv_tokens: loaded.kv_blocks.checked_mul(BLOCK_TOKENS),
            max_concurrent: settings.max_concurrent.max(1),
            sight: loaded.sight.clone(),
        };
        let kv = KvCache::new(loaded.kv_blocks);
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self {
            decoder,
            vocabulary,
            settings,
            info,
            activity,
            kv,
            waiting,
            running,
            arrivals: 0,
            steps: 0,
            short_of_memory: false,
            pace: Pace::default(),
            cost: RowCost::default(),
            draft_model: None,
            images: KnownImages::default(),
        }
    }

    /// The report on streamed layers; none where all layers are resident.
    pub fn monitor(&self) -> Option<Arc<Monitor>> {
        self.decoder.monitor()
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
        } else if !are_placed(&work.images, prompt) || self.info.sight.is_none() && !work.images.is_empty() {
            Some(WorkError::MisplacedImages)
        } else if self.waiting.len() >= self.settings.max_waiting {
            Some(WorkError::QueueFull(self.waiting.len()))
        } else {
            None
        }
    }

    /// Forgets everything whose client has gone.
    fn drop_abandoned(&mut self) {
        let (kv, activity, drafts) = (&mut self.kv, &self.activity, &mut self.draft_model);
        let abandoned = |reply: &dyn Reply| {
            let closed = reply.is_closed();
            if closed {
                activity.ended(End::Cancelled);
            }
            closed
        };
        self.waiting.retain(|sequence| !abandoned(sequence.reply()));
        self.running.retain_mut(|running| {
            let gone = abandoned(running.reply());
            if gone {
                release((kv, drafts), running);
            }
            !gone
        });
    }

    /// Sends sequences back to the queue that what their blocks hold is of no use to any more: their length has got
    /// another class, or the decoder has not kept the state behind them.
    fn leave_useless(&mut self) {
        for mut running in std::mem::take(&mut self.running) {
            let same_class = self.decoder.length_class(running.tokens().len()) == running.length_class();
            let useful = |(table, _): (&mut BlockTable, &[u32])| can_go_on(&*self.decoder, table);
            if same_class && running.table().is_none_or(useful) {
                self.running.push(running);
            } else {
                release((&mut self.kv, &mut self.draft_model), &mut running);
                wait_in_turn(&mut self.waiting, running);
            }
        }
    }

    /// Gives every sequence of the batch room for its tokens. Sequences that came last give their blocks back where
    /// that takes more than there are.
    fn make_room(&mut self) {
        // The most important are served first, and of those the ones that came first.
        let mut order: Vec<(Priority, u64)> = self.running.iter().map(RunningSequence::rank).collect();
        order.sort_unstable();
        for rank in order {
            while let Some(running) = self.running.iter_mut().find(|running| running.rank() == rank) {
                if running.table().is_none_or(|(table, tokens)| self.kv.grow(table, tokens.len())) {
                    break;
                }
                self.preempt();
            }
        }
    }

    /// Sends the least important sequence back to the queue, and of those the one that came last, without its blocks.
    fn preempt(&mut self) {
        let last = self.running.iter().enumerate().max_by_key(|(_, running)| running.rank());
        let Some(at) = last.map(|(at, _)| at) else { return };
        let mut sequence = self.running.remove(at);
        release((&mut self.kv, &mut self.draft_model), &mut sequence);
        wait_in_turn(&mut self.waiting, sequence);
        self.activity.preempted();
    }

    /// Moves states of blocks that others are used in place of.
    fn merge(&mut self) {
        for (from, to) in self.kv.take_merged() {
            self.decoder.merge(from, to);
        }
    }

    /// Frees memory when the device has less of it than was planned. Returns whether another try makes sense.
    fn relieve(&mut self) -> bool {
        let dropped = self.kv.drop_cached();
        let several = self.running.len() > 1;
        if several {
            self.preempt();
            self.kv.drop_cached();
        }
        // Until one of the others ends, another sequence would have no more room than this one.
        self.short_of_memory = several;
        dropped || several
    }

    /// Gives memory of blocks that hold nothing back to the device.
    fn give_back(&mut self) {
        self.merge();
        let freed = self.kv.take_freed();
        if !freed.is_empty() {
            self.decoder.free(&freed);
        }
        if let Some(model) = &mut self.draft_model {
            model.give_back();
        }
    }

    /// Runs the decoder over the batch. One result for each running sequence, in order.
    ///
    /// A failed step changes no sequence, so each is tried by itself: only those that are at fault fail.
    ///
    /// A cancelled step ends between two layers; then there is no result.
    fn forward(&mut self, shares: &[usize]) -> Result<Option<StepRows>, EngineError> {
        let batch: Vec<DecoderStep<'_>> =
            self.running.iter().zip(shares).filter(|(_, share)| **share > 0).map(|(r, share)| r.step(*share)).collect();
        let vocab_size = self.info.vocab_size;
        let running = &self.running;
        let abandoned = || running.iter().all(|running| running.reply().is_closed());
        let outcome = self.decoder.forward_until(&batch, &abandoned);
        if let Err(DecoderError::OutOfMemory(why)) = outcome {
            drop(batch);
            let retried = self.relieve();
            // Without others there is nothing left to give back.
            let failed = || self.running.iter().map(|_| Err(WorkError::OutOfMemory(why.clone()))).collect();
            return Ok((!retried).then(failed));
        }
        let mut rows = match outcome {
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
        // Before room is made: those that go on have one token more.
        let masks = self.resume();
        self.merge();
        self.leave_useless();
        self.make_room();
        self.merge();
        self.admit()?;
        if self.running.is_empty() {
            return Ok(Progress::Idle);
        }
        // Published before the step, so that a step that never ends is visible with its sequences.
        self.publish();
        let started = Instant::now();
        let mut stages: Vec<_> = self.running.iter().map(|running| running.stage(self.info.vocab_size)).collect();
        self.steps += 1;
        // A step over streamed layers takes as long with few sequences as with many.
        if self.decoder.monitor().is_none() {
            let running = &self.running;
            batch::give_way(&mut stages, |at| running.get(at).is_some_and(is_bulk), self.steps);
        }
        if stages.iter().all(|stage| *stage == batch::SequenceStage::Waiting) {
            if let Some((threads, seen)) = masks {
                threads.wait_beyond(seen, MASK_PATIENCE);
            }
            return Ok(Progress::Stepped);
        }
        let budget = self.settings.step_budget.paced(self.pace.seconds(), self.decoder.info().step_rows);
        let mut shares = batch::plan(&stages, budget);
        if self.info.sight.is_some() && !self.look(&stages, &mut shares, budget)? {
            return Ok(Progress::Stepped);
        }
        let drafts = (self.settings.drafts, self.cost);
        let models = (&*self.decoder, self.draft_model.as_mut());
        let drafted = look_ahead(&mut self.running, &mut shares, models, drafts);
        let drafted = drafted.map_err(|error| EngineError::DeviceLost(error.to_string()))?;
        let prompt_tokens =
            stages.iter().zip(&shares).filter(|(s, _)| **s != batch::SequenceStage::Decode).map(|(_, n)| n).sum();
        // Sequences whose client disconnected are counted and closed when the next step begins.
        let Some(rows) = self.forward(&shares)? else { return Ok(Progress::Stepped) };
        for ((running, rows), share) in self.running.iter_mut().zip(&rows).zip(&shares) {
            let (in_prompt, certain) = (running.is_in_prompt(), running.drafts().0.certain(*share));
            if rows.is_ok()
                && let Some((table, tokens)) = running.table()
            {
                let fed = table.len() + certain;
                self.kv.advance(table, tokens, fed);
                // Answers to the same prompt begin with all of it.
                if in_prompt && fed == tokens.len() {
                    self.kv.index_rest(table, tokens);
                }
                running.images_mut().forget(fed);
            }
        }
        let steps = choose(&mut self.running, rows, &shares, (&self.vocabulary, &self.activity));
        let mut still_running = Vec::with_capacity(self.running.len());
        for (running, step) in std::mem::take(&mut self.running).into_iter().zip(steps) {
            still_running.extend(self.keep(running, step));
        }
        self.running = still_running;
        self.activity.stepped(prompt_tokens);
        let took = started.elapsed();
        if let Some(model) = &mut self.draft_model {
            model.stepped(took.as_secs_f64(), self.cost);
        }
        let took = took.saturating_sub(drafted);
        self.pace.stepped(prompt_tokens, took.as_secs_f64());
        if prompt_tokens == 0 {
            self.cost.stepped(shares.iter().sum(), took.as_secs_f64());
        }
        self.activity.histograms().step.record(took);
        Ok(Progress::Stepped)
    }

    /// Has the decoder look at the images of a step, whose shares may change by that. Returns whether the step can be
    /// done: if the decoder failed at an image, the sequence fails and another step is planned.
    fn look(
        &mut self,
        stages: &[batch::SequenceStage],
        shares: &mut [usize],
        budget: StepBudget,
    ) -> Result<bool, EngineError> {
        if self.info.sight.as_ref().is_some_and(|sight| sight.both_ways) {
            keep_whole(&self.running, shares, budget.prefill_alone);
        }
        let decoder: &mut dyn Decoder = &mut *self.decoder;
        let blinded = look((decoder, &mut self.images), &mut self.running, shares, stages)?;
        let whole = blinded.is_empty();
        for (at, error) in blinded.into_iter().rev() {
            let mut running = self.running.remove(at);
            let step = running.fail(error);
            self.keep(running, step);
        }
        Ok(whole && shares.iter().any(|share| *share > 0))
    }

    /// A sequence that stays in the batch after a step. One that ended gives its blocks back, and one that needs a
    /// shift waits again.
    fn keep(&mut self, mut running: RunningSequence, step: Continuation) -> Option<RunningSequence> {
        let confirmed = running.drafts().0.take_confirmed();
        if confirmed > 0
            && let Some((table, tokens)) = running.table()
        {
            let fed = table.len() + confirmed;
            self.kv.advance(table, tokens, fed);
        }
        match step {
            Continuation::Continues => return Some(running),
            Continuation::NeedsShift => {
                release((&mut self.kv, &mut self.draft_model), &mut running);
                running.shift();
                wait_in_turn(&mut self.waiting, running);
            }
            Continuation::Ended(end) => {
                self.activity.ended(end);
                self.short_of_memory = false;
                release((&mut self.kv, &mut self.draft_model), &mut running);
            }
        }
        None
    }

    /// Lets sequences go on whose masks were not ready when their logits came. Returns the threads that compute masks,
    /// with the number of masks that were done before.
    fn resume(&mut self) -> Option<(Arc<MaskThreads>, u64)> {
        let threads = Arc::clone(self.running.iter().find_map(RunningSequence::mask_threads)?);
        let seen = threads.done();
        let mut still_running = Vec::with_capacity(self.running.len());
        for mut running in std::mem::take(&mut self.running) {
            let step = running.resume(&self.vocabulary, &self.activity);
            still_running.extend(self.keep(running, step));
        }
        self.running = still_running;
        Some((threads, seen))
    }

    fn publish(&self) {
        self.activity.occupied(self.running.len(), self.waiting.len());
        self.activity.holds(self.kv.usage(), BLOCK_TOKENS * self.info.kv_bytes_per_token);
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
                let images = self.images.enter(&work.prompt, Arc::clone(&work.images));
                let sequence = Sequence::new(id, work, reply, self.info.context_length, &self.vocabulary);
                wait_in_turn(&mut self.waiting, RunningSequence::new(sequence, images, self.arrivals));
                self.arrivals += 1;
            }
        }
        self.publish();
    }

    fn cancel(&mut self, id: SequenceId) {
        self.waiting.retain(|sequence| sequence.id() != id);
        if let Some(at) = self.running.iter().position(|running| running.id() == id) {
            let mut running = self.running.remove(at);
            release((&mut self.kv, &mut self.draft_model), &mut running);
            self.give_back();
        }
        self.activity.ended(End::Cancelled);
        self.publish();
    }

    fn step(&mut self) -> Result<Progress, EngineError> {
        let outcome = self.try_step();
        if let Err(EngineError::DeviceLost(why)) = &outcome {
            let error = WorkError::Step(format!("the device failed: {why}"));
            self.waiting.drain(..).chain(self.running.drain(..)).for_each(|mut sequence| {
                sequence.fail(error.clone());
            });
        }
        self.give_back();
        self.publish();
        outcome
    }
}

#[cfg(test)]
mod tests;
