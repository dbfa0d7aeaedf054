//! A second, smaller model of the same vocabulary that writes drafts for the first (speculative decoding: Leviathan et
//! al., 2023, arXiv 2211.17192). It is asked only where that pays, by measured times and by how often it was right.

use std::collections::HashMap;
use std::time::Instant;

use super::balance::DraftBalance;
use super::draft::{Draft, DraftSightings};
use super::plan::{DraftChance, DraftCost, DraftPlan, StepAhead, plan_drafts};
use super::row_cost::RowCost;
use crate::decoder::{Decoder, DecoderError, DecoderStep, Logits};
use crate::engine::SequenceId;
use crate::kv::{BlockTable, CacheSalt, KvCache};

/// Tokens that the model reads in one step of the engine: others wait for it.
const READ_AT_ONCE: usize = 128;
/// The longest beginning that is read for a draft. Of a longer one the end is read alone.
const MOST_READ: usize = 512;
/// The chance of a sequence's first draft.
const FIRST_CHANCE: f64 = 0.6;
/// The part of the last time in the seconds of a token that is read.
const LAST_READ: f64 = 0.3;
/// Tokens that are read at least for a time to be counted as that of reading.
const MEASURED: usize = 16;

/// A draft model, and what it has of each sequence.
pub(crate) struct DraftModel {
    decoder: Box<dyn Decoder>,
    kv: KvCache,
    sequences: HashMap<SequenceId, DraftedSequence>,
    /// Tokens from here on are not of the first model's vocabulary.
    vocab_size: usize,
    /// A step's time as a share of the first model's, before one was measured.
    ratio: f64,
    cost: RowCost,
    /// Seconds of a token that is read.
    read: Option<f64>,
    balance: DraftBalance,
    /// How often first tokens were right in sequences that draw tokens, and in those that take the likeliest.
    by_kind: [DraftSightings; 2],
    /// How often its first tokens were right, and how sure it was of them.
    sureness: Sureness,
    /// Whether a step of it has failed: then it writes nothing more.
    has_failed: bool,
}

/// A sequence for which the model could write a draft.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftWish<'a> {
    pub(crate) id: SequenceId,
    pub(crate) salt: Option<&'a CacheSalt>,
    /// All tokens, those of the last call and new ones.
    pub(crate) tokens: &'a [u32],
    /// The most tokens of the draft.
    pub(crate) most: usize,
    /// Whether the likeliest token is taken each time.
    pub(crate) is_greedy: bool,
}

/// The model's part in one sequence.
struct DraftedSequence {
    table: BlockTable,
    /// The first token that it has read.
    from: usize,
    /// The class of lengths that its blocks are computed for.
    class: usize,
    /// The last draft. Keys and values of its tokens are behind those of the table, but for the last token's.
    ahead: Vec<u32>,
    /// The tokens that the sequence had when it was written; none without a draft.
    behind: Option<usize>,
    /// Tokens of the last draft that the first model evaluates.
    kept: usize,
    /// How sure the model was of the last draft's first token.
    sure: f64,
    seen: DraftSightings,
}

/// How much the model's own chances are worth: it may be surer than it is right.
#[derive(Clone, Copy, Debug)]
struct Sureness {
    promised: f64,
    right: f64,
}

impl Sureness {
    const REMEMBERED: f64 = 0.98;

    fn count(&mut self, promised: f64, right: bool) {
        self.promised = self.promised * Self::REMEMBERED + promised;
        self.right = self.right * Self::REMEMBERED + f64::from(u8::from(right));
    }

    fn factor(self) -> f64 {
        ((self.right + 1.0) / (self.promised + 1.0)).clamp(0.2, 1.2)
    }
}

/// A sequence whose draft is being written.
struct Writing<'a> {
    /// Its place among the wishes.
    at: usize,
    wish: DraftWish<'a>,
    most: usize,
    draft: Draft,
    /// The chance that the whole draft so far is right.
    chance: f64,
}

impl DraftModel {
    /// The chance of a draft that was found elsewhere, from which on this model is not asked: it costs nothing.
    pub(crate) const BETTER_FOUND: f64 = 0.8;

    /// A model that writes drafts for another one with this vocabulary and these bytes of weights.
    ///
    /// # Errors
    /// The reason why it cannot write drafts.
    pub(crate) fn new(decoder: Box<dyn Decoder>, vocab_size: usize, weight_bytes: u64) -> Result<Self, String> {
        let info = decoder.info();
        if info.state_bytes > 0 {
            return Err("it has states, which cannot be turned back where a draft is wrong".to_owned());
        }
        let ratio = (info.weight_bytes as f64 / weight_bytes.max(1) as f64).clamp(0.01, 1.0);
        Ok(Self {
            kv: KvCache::new(info.kv_blocks),
            decoder,
            sequences: HashMap::new(),
            vocab_size,
            ratio,
            cost: RowCost::default(),
            read: None,
            balance: DraftBalance::default(),
            by_kind: Default::default(),
            sureness: Sureness { promised: 0.0, right: 0.0 },
            has_failed: false,
        })
    }

    /// The model's decoder.
    pub(crate) fn decoder(&self) -> &dyn Decoder {
        &*self.decoder
    }

    /// Writes drafts where they pay, one for each wish; empty ones for the others. `always`: also where they do not.
    ///
    /// # Errors
    /// The device is lost. After any other failure there are no drafts.
    pub(crate) fn write(
        &mut self,
        wishes: &[DraftWish<'_>],
        ahead: StepAhead,
        always: bool,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Draft>, DecoderError> {
        let mut drafts = vec![Draft::default(); wishes.len()];
        for wish in wishes {
            self.compare(wish, ahead);
        }
        if self.has_failed {
            return Ok(drafts);
        }
        let began = Instant::now();
        match self.try_write(wishes, ahead, always, stop) {
            Ok(written) => {
                for Writing { at, draft, .. } in written {
                    drafts[at] = draft;
                }
            }
            Err(error @ DecoderError::Fatal(_)) => return Err(error),
            Err(DecoderError::Interrupted) => {}
            Err(DecoderError::OutOfMemory(_)) => {
                self.forget_all();
                self.kv.drop_cached();
            }
            // Answers are the same without drafts.
            Err(DecoderError::Step(_)) => self.has_failed = true,
        }
        self.give_back();
        self.balance.spent(began.elapsed().as_secs_f64());
        Ok(drafts)
    }

    fn try_write<'a>(
        &mut self,
        wishes: &[DraftWish<'a>],
        ahead: StepAhead,
        always: bool,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Writing<'a>>, DecoderError> {
        let chances: Vec<DraftChance> = wishes.iter().map(|wish| self.chance(wish)).collect();
        let cost = self.costs(ahead);
        let plan = match always {
            true => {
                let chosen = chances.iter().enumerate().filter(|(_, wish)| wish.most > 0);
                DraftPlan { chosen: chosen.map(|(at, wish)| (at, wish.most)).collect(), seconds: 0.0 }
            }
            false => plan_drafts(&chances, ahead, cost),
        };
        if !always && !self.balance.allows(plan.seconds) {
            return Ok(Vec::new());
        }
        let mut room = if always { usize::MAX } else { READ_AT_ONCE };
        let mut writing = Vec::with_capacity(plan.chosen.len());
        for (at, most) in plan.chosen {
            let wish = DraftWish { most: chances[at].most, ..wishes[at] };
            if self.enter(&wish)? && self.read(&wish, &mut room, stop)? {
                writing.push(Writing { at, wish, most, draft: Draft::default(), chance: 1.0 });
            }
        }
        let (mut open, mut done): (Vec<Writing<'a>>, Vec<Writing<'a>>) = (writing, Vec::new());
        while !open.is_empty() {
            self.round(&mut open, stop)?;
            let worth =
                |one: &Writing<'_>| one.draft.tokens.len() < one.most && (always || pays(one.chance, ahead, cost));
            let (go_on, end) = open.into_iter().partition(worth);
            open = go_on;
            done.extend::<Vec<Writing<'a>>>(end);
        }
        for one in &done {
            if let Some(sequence) = self.sequences.get_mut(&one.wish.id) {
                sequence.ahead.clone_from(&one.draft.tokens);
                sequence.behind = Some(one.wish.tokens.len());
                sequence.sure = one.draft.chances.first().copied().unwrap_or_default();
            }
        }
        Ok(done)
    }

    /// One token more of each draft.
    fn round(&mut self, open: &mut [Writing<'_>], stop: &(dyn Fn() -> bool + Sync)) -> Result<(), DecoderError> {
        let feeds: Vec<(SequenceId, Vec<u32>, usize)> = open
            .iter()
            .map(|one| {
                let read = self.sequences.get(&one.wish.id).map_or(0, DraftedSequence::read);
                let written = one.draft.tokens.len();
                let tokens = match one.draft.tokens.last() {
                    Some(last) => vec![*last],
                    None => one.wish.tokens[read..].to_vec(),
                };
                (one.wish.id, tokens, written.saturating_sub(1))
            })
            .collect();
        let began = Instant::now();
        let sequences = &self.sequences;
        let steps = feeds.iter().zip(&*open).filter_map(|((id, tokens, written), one)| {
            let sequence = sequences.get(id)?;
            // Behind the first round all tokens of the sequence are there, and those of the draft but the last.
            let all = one.wish.tokens.len() - sequence.from;
            let past = if one.draft.tokens.is_empty() { sequence.table.len() } else { all + written };
            let (blocks, length) = (sequence.table.blocks(), past + tokens.len());
            let (images, adapter, logits) = (&[][..], None, Logits::Last);
            Some(DecoderStep { blocks, past, length, shared: 0, tokens, images, adapter, logits })
        });
        let steps: Vec<DecoderStep<'_>> = steps.collect();
        let rows: usize = steps.iter().map(|step| step.tokens.len()).sum();
        let logits = self.decoder.forward_until(&steps, stop)?;
        for (one, row) in open.iter_mut().zip(logits) {
            let (token, sure) = likeliest(&row[..row.len().min(self.vocab_size)]);
            one.chance *= (sure * self.sureness.factor()).min(0.99);
            one.draft.tokens.push(token);
            one.draft.chances.push(one.chance);
        }
        self.cost.stepped(rows, began.elapsed().as_secs_f64());
        Ok(())
    }

    /// The chance of a wish, and the tokens that would be read for it.
    fn chance(&self, wish: &DraftWish<'_>) -> DraftChance {
        let sequence = self.sequences.get(&wish.id);
        // A sequence begins as the last ones of its kind were: where tokens are drawn, guesses are right less often.
        let first = self.by_kind[usize::from(wish.is_greedy)].chance(FIRST_CHANCE);
        let chance = sequence.map_or(first, |sequence| sequence.seen.chance(first));
        let len = wish.tokens.len();
        let behind = sequence.map_or(len.min(self.window()), |sequence| len.saturating_sub(sequence.read()));
        let most = wish.most.min(self.decoder.info().context_length / 2);
        DraftChance { most, chance, behind }
    }

    /// The most tokens that are read at the end of a sequence whose beginning was not. A draft has room behind them.
    fn window(&self) -> usize {
        MOST_READ.min(self.decoder.info().context_length / 2)
    }

    fn costs(&self, ahead: StepAhead) -> DraftCost {
        let (step, row) = ahead.cost.parts().unwrap_or_default();
        let guess = (step * self.ratio, row * self.ratio);
        let step = self.cost.parts().unwrap_or(guess);
        DraftCost { step, read: self.read.unwrap_or(row * self.ratio) }
    }

    /// Has blocks for a sequence and its draft. Returns whether there are as many.
    fn enter(&mut self, wish: &DraftWish<'_>) -> Result<bool, DecoderError> {
        let length = wish.tokens.len();
        let fits = |sequence: &DraftedSequence| {
            let held = length - sequence.from;
            self.decoder.length_class(held + wish.most) == sequence.class
                && held + wish.most <= self.decoder.info().context_length
                && length - sequence.read() <= MOST_READ
        };
        if !self.sequences.get(&wish.id).is_some_and(fits) {
            let seen = self.sequences.get(&wish.id).map(|sequence| sequence.seen).unwrap_or_default();
            if !self.sequences.contains_key(&wish.id) {
                // Old sightings are forgotten, so that a kind is tried again.
                self.by_kind[usize::from(wish.is_greedy)].fade();
            }
            self.forget(wish.id, wish.tokens);
            let Some(sequence) = self.admit(wish, seen)? else { return Ok(false) };
            self.sequences.insert(wish.id, sequence);
        }
        let Some(sequence) = self.sequences.get_mut(&wish.id) else { return Ok(false) };
        Ok(self.kv.grow(&mut sequence.table, length - sequence.from + wish.most))
    }

    /// Lets a sequence in: behind what was read of it before, or else its last tokens alone.
    fn admit(&mut self, wish: &DraftWish<'_>, seen: DraftSightings) -> Result<Option<DraftedSequence>, DecoderError> {
        let begin = |from: usize, class: usize, table: BlockTable| DraftedSequence {
            table,
            from,
            class,
            ahead: Vec::new(),
            behind: None,
            kept: 0,
            sure: 0.0,
            seen,
        };
        let length = wish.tokens.len();
        let whole = length + wish.most <= self.decoder.info().context_length;
        let class = self.decoder.length_class(length + wish.most);
        if whole
            && class <= 1
            && let Some(admitted) = self.kv.admit(wish.salt, wish.tokens, 0)
        {
            let mut table = admitted.table;
            if let Some((from, to)) = admitted.copy {
                let copied = self.decoder.copy(from, to);
                self.kv.copied(from);
                if copied.is_err() {
                    KvCache::copy_failed(&mut table);
                }
            }
            if length - table.len() <= MOST_READ {
                return Ok(Some(begin(0, class, table)));
            }
            self.kv.withdraw(table);
        }
        let from = length.saturating_sub(self.window());
        let class = self.decoder.length_class(length - from + wish.most);
        let admitted = self.kv.admit(None, &wish.tokens[from..], 0);
        Ok(admitted.map(|admitted| begin(from, class, admitted.table)))
    }

    /// Reads the tokens of a sequence but the last ones, which a draft's first round reads. Returns whether it came so
    /// far.
    fn read(
        &mut self,
        wish: &DraftWish<'_>,
        room: &mut usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, DecoderError> {
        let Some(sequence) = self.sequences.get_mut(&wish.id) else { return Ok(false) };
        let read = sequence.read();
        let behind = wish.tokens.len() - read;
        if behind <= MEASURED {
            return Ok(true);
        }
        let piece = (behind - 1).min(*room);
        if piece == 0 {
            return Ok(false);
        }
        *room -= piece;
        let (blocks, past, tokens) = (sequence.table.blocks(), sequence.table.len(), &wish.tokens[read..read + piece]);
        let (images, adapter, logits) = (&[][..], None, Logits::None);
        let length = past + piece;
        let began = Instant::now();
        let step = DecoderStep { blocks, past, length, shared: 0, tokens, images, adapter, logits };
        self.decoder.forward_until(&[step], stop)?;
        if piece >= MEASURED {
            let now = began.elapsed().as_secs_f64() / piece as f64;
            self.read = Some(self.read.map_or(now, |before| before + LAST_READ * (now - before)));
        }
        self.kv.advance(&mut sequence.table, &wish.tokens[sequence.from..], length);
        Ok(piece + 1 == behind)
    }

    /// Counts how much of the last draft of a sequence came, and has the rest written over.
    fn compare(&mut self, wish: &DraftWish<'_>, ahead: StepAhead) {
        let (kind, tokens) = (usize::from(wish.is_greedy), wish.tokens);
        let Some(sequence) = self.sequences.get_mut(&wish.id) else { return };
        let read = sequence.read();
        let (written, kept) = (std::mem::take(&mut sequence.ahead), std::mem::take(&mut sequence.kept));
        // The draft was written behind all tokens that there were: its first round read those that were not read.
        let Some(behind) = sequence.behind.take() else { return };
        if tokens.len() <= behind {
            return;
        }
        let came = tokens[behind..].iter().zip(&written).take_while(|(came, token)| came == token).count();
        if !written.is_empty() {
            let is_right = came > 0;
            sequence.seen.count(is_right);
            self.by_kind[kind].count(is_right);
            self.sureness.count(sequence.sure, is_right);
        }
        if let Some((step, row)) = ahead.cost.parts() {
            let rows = ahead.rows.max(1) as f64;
            let share = (step + row * rows) / ahead.sequences.max(1) as f64;
            self.balance.saved(came.min(kept) as f64 * share);
            self.balance.spent(kept as f64 * row);
        }
        // The last token of a draft was not read.
        let held = behind + came.min(written.len().saturating_sub(1));
        if held > read {
            self.kv.advance(&mut sequence.table, &tokens[sequence.from..], held - sequence.from);
        }
    }

    /// So many tokens of the draft that was just written for a sequence are evaluated; none where this is not called.
    pub(crate) fn kept(&mut self, id: SequenceId, count: usize) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.kept = count;
        }
    }

    /// Counts a step of the engine.
    pub(crate) fn stepped(&mut self, took: f64, cost: RowCost) {
        if let Some((step, row)) = cost.parts() {
            self.balance.stepped(took, step + row);
        }
    }

    /// Forgets a sequence that has ended, or whose first tokens have changed. What was read of it can be found again.
    pub(crate) fn forget(&mut self, id: SequenceId, tokens: &[u32]) {
        let Some(DraftedSequence { table, from, .. }) = self.sequences.remove(&id) else { return };
        match tokens.get(from..from + table.len()) {
            Some(read) => self.kv.release(table, read),
            None => self.kv.withdraw(table),
        }
    }

    fn forget_all(&mut self) {
        for (_, sequence) in self.sequences.drain() {
            self.kv.withdraw(sequence.table);
        }
    }

    /// Gives memory of blocks that hold nothing back to the device.
    pub(crate) fn give_back(&mut self) {
        for (from, to) in self.kv.take_merged() {
            self.decoder.merge(from, to);
        }
        let freed = self.kv.take_freed();
        if !freed.is_empty() {
            self.decoder.free(&freed);
        }
    }
}

impl DraftedSequence {
    /// Tokens of the sequence that need not be read again.
    fn read(&self) -> usize {
        self.from + self.table.len()
    }
}

/// Whether a further token of a draft is worth its time, where the draft so far is right with this chance.
fn pays(chance: f64, ahead: StepAhead, draft: DraftCost) -> bool {
    let Some((step, row)) = ahead.cost.parts() else { return false };
    let saved = (step + row * ahead.rows as f64) / ahead.sequences.max(1) as f64;
    chance * saved > draft.step.0 + draft.step.1 + row
}

/// The likeliest token, and its chance.
fn likeliest(row: &[f32]) -> (u32, f64) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let at = row.iter().position(|logit| *logit == most).unwrap_or_default();
    let sum: f64 = row.iter().map(|logit| f64::from((logit - most).exp())).sum();
    (u32::try_from(at).unwrap_or_default(), if sum.is_finite() { 1.0 / sum.max(1.0) } else { 0.0 })
}

#[cfg(test)]
mod tests;
