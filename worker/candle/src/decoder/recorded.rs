//! Steps of one token for each sequence, recorded on a GPU and repeated there by one launch. What differs from step to
//! step lies in memory that stays where it is: tokens, the places of keys and values, angles. All else is the recording
//! itself, so there is one for each number of sequences and room for tokens that they see.

use candle_core::{DType, Device, Error, Result, Tensor};
use model_boss_engine::{BLOCK_TOKENS, DecoderError, DecoderStep, Logits};

use crate::device;
use crate::device::rows::{StepTables, TableSequence};
use crate::device::scratch::{Repeat, StepMemory};
use crate::layers::rope::Angles;
use crate::layers::span::SpanLength;
use crate::layers::step::StepShape;
use crate::spec::{DecoderSpec, FeedForward, Mixer};

/// Rows of recorded steps. A step has as many as its sequences or the next more, since a recording takes some steps'
/// time and rows that fill up little. With still more, launches are a small part of a step.
const ROWS: [usize; 10] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64];
/// Tokens of a room for what sequences see: attention splits keys into as many.
const SEEN_AT_ONCE: usize = 8 * BLOCK_TOKENS;
/// The most recordings that are kept, and the most bytes of their own memory if there are several.
const MOST_RECORDINGS: usize = 12;
const MOST_BYTES: usize = 64 << 20;

/// All recordings of a decoder.
pub(crate) struct RecordedSteps {
    steps: Vec<RecordedStep>,
    /// As in [`KvStore`](crate::layers::kv::KvStore), when the recordings were made.
    moves: u64,
    device: Device,
    /// Set by a recording that failed: further ones would too.
    off: bool,
}

/// The form of the steps that a recording serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepForm {
    pub(crate) rows: usize,
    /// Tokens that a sequence sees at most.
    pub(crate) seen: usize,
}

struct RecordedStep {
    form: StepForm,
    input: StepInput,
    /// `[rows, vocabulary]` in f32.
    logits: Tensor,
    scratch: StepMemory,
    repeat: Option<Repeat>,
}

/// The part of a step that differs from others of its form, on a device.
#[derive(Clone)]
pub(crate) struct StepInput {
    form: StepForm,
    /// The tokens, and behind them the numbers of [`StepTables`].
    cells: Tensor,
    /// As from [`StepShape::turns`].
    turns: Tensor,
}

/// A step's work: logits `[rows, vocabulary]` of its input.
type StepWork<'a> = dyn FnMut(&StepInput) -> std::result::Result<Tensor, DecoderError> + 'a;

/// Whether all of a step's layers can be recorded: their work depends on nothing that the host has to read.
pub(crate) fn records(spec: &DecoderSpec) -> bool {
    spec.streams.is_none()
        && spec.layers.iter().all(|layer| {
            lends_nothing(&layer.mixer) && matches!(layer.feed_forward, FeedForward::Gated(_) | FeedForward::Plain(_))
        })
}

/// Whether all that a layer's attention computes is read in the layer itself.
fn lends_nothing(mixer: &Mixer) -> bool {
    match mixer {
        Mixer::Attention(attention) => attention.keys_of.is_none(),
        Mixer::Latent(_) => true,
        _ => false,
    }
}

impl StepForm {
    /// The form of a step that a recording serves.
    pub(crate) fn of(batch: &[DecoderStep<'_>]) -> Option<Self> {
        let rows = ROWS.into_iter().find(|rows| batch.len() <= *rows)?;
        let in_image = |step: &DecoderStep<'_>| step.images.iter().any(|image| image.range.contains(&step.past));
        let alone = |step: &DecoderStep<'_>| step.adapter.is_none() && !in_image(step);
        let one = |step: &DecoderStep<'_>| step.tokens.len() == 1 && step.logits == Logits::Last && alone(step);
        if !batch.iter().all(one) {
            return None;
        }
        let seen = batch.iter().map(|step| step.past + 1).max()?;
        Some(Self { rows, seen: room_for(seen.div_ceil(SEEN_AT_ONCE)) * SEEN_AT_ONCE })
    }

    /// The lengths of a step's sequences, and of the rows that fill up.
    pub(crate) fn filled(self, mut lengths: Vec<SpanLength>) -> Vec<SpanLength> {
        lengths.resize(self.rows, SpanLength { new: 1, length: 1, ..SpanLength::default() });
        lengths
    }

    /// Blocks of a sequence there is room for.
    fn table(self) -> usize {
        self.seen / BLOCK_TOKENS
    }
}

/// At least this number, with two significant binary digits: so that growing sequences seldom need another recording.
fn room_for(parts: usize) -> usize {
    let parts = parts.max(1);
    let whole = parts.next_power_of_two();
    let three_quarters = whole / 4 * 3;
    if three_quarters >= parts { three_quarters } else { whole }
}

impl StepInput {
    fn new(form: StepForm, shape: &StepShape, device: &Device) -> Result<Self> {
        let cells = Tensor::zeros(4 * form.rows + form.rows * form.table(), DType::U32, device)?;
        Ok(Self { form, cells, turns: Tensor::zeros(shape.turns_of(form.rows).max(1), DType::F32, device)? })
    }

    /// `[rows]`
    pub(crate) fn tokens(&self) -> Result<Tensor> {
        self.cells.narrow(0, 0, self.form.rows)
    }

    pub(crate) fn tables(&self) -> Result<StepTables> {
        let StepForm { rows, seen } = self.form;
        let numbers = self.cells.narrow(0, rows, self.cells.elem_count() - rows)?;
        Ok(StepTables { numbers, rows, table: self.form.table(), most_seen: seen })
    }

    pub(crate) fn angles(&self, shape: &StepShape, dtype: DType) -> Result<Vec<Angles>> {
        shape.angles(&self.turns, self.form.rows, dtype)
    }
}

fn fail(error: Error) -> DecoderError {
    device::failure(&error)
}

/// The numbers of [`StepInput`]'s cells.
fn cells(tokens: &[u32], sequences: Vec<TableSequence>, form: StepForm) -> Vec<u32> {
    let mut cells = tokens.to_vec();
    cells.resize(form.rows, 0);
    cells.extend(StepTables::cells(sequences, BLOCK_TOKENS, (form.rows, form.table())));
    cells
}

impl RecordedSteps {
    pub(crate) fn new(device: Device) -> Self {
        Self { steps: Vec::new(), moves: 0, device, off: false }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    /// Bytes of the recordings' own memory.
    fn bytes(&self) -> usize {
        let logits = |step: &RecordedStep| step.logits.elem_count() * step.logits.dtype().size_in_bytes();
        self.steps.iter().map(|step| logits(step) + step.scratch.bytes()).sum()
    }

    /// Drops all recordings, before the memory that they use is given back.
    pub(crate) fn clear(&mut self) {
        if !self.steps.is_empty() {
            self.steps.clear();
            device::trim_recordings(&self.device);
        }
    }

    /// Does a step and returns its logits, `[rows, vocabulary]` in f32. The lengths are filled up. `moves` is that of
    /// the keys and values.
    pub(crate) fn step(
        &mut self,
        (form, moves): (StepForm, u64),
        (tokens, sequences): (&[u32], Vec<TableSequence>),
        (lengths, shape): (&[SpanLength], &StepShape),
        work: &mut StepWork<'_>,
    ) -> std::result::Result<Tensor, DecoderError> {
        if moves != self.moves {
            self.clear();
            self.moves = moves;
        }
        let mut step = match self.steps.iter().position(|step| step.form == form) {
            Some(at) => self.steps.remove(at),
            None => return self.first(form, (tokens, sequences), (lengths, shape), work),
        };
        step.input.fill(cells(tokens, sequences, form), shape.turns(lengths)).map_err(fail)?;
        if step.repeat.is_none() {
            let recorded = device::record(&self.device, &mut step.scratch, || {
                let logits = work(&step.input).map_err(Error::msg)?;
                step.logits.slice_set(&logits, 0, 0)
            });
            match recorded {
                Ok(repeat) => step.repeat = Some(repeat),
                Err(error) => {
                    tracing::warn!("steps are launched kernel by kernel, because recording one failed: {error}");
                    self.off = true;
                    self.clear();
                    return work(&step.input);
                }
            }
        }
        if let Some(repeat) = &mut step.repeat {
            repeat().map_err(fail)?;
        }
        let logits = step.logits.clone();
        // Those used last are at the end.
        self.steps.push(step);
        Ok(logits)
    }

    /// The first step of a form, done as it will be recorded.
    fn first(
        &mut self,
        form: StepForm,
        (tokens, sequences): (&[u32], Vec<TableSequence>),
        (lengths, shape): (&[SpanLength], &StepShape),
        work: &mut StepWork<'_>,
    ) -> std::result::Result<Tensor, DecoderError> {
        let input = StepInput::new(form, shape, &self.device).map_err(fail)?;
        input.fill(cells(tokens, sequences, form), shape.turns(lengths)).map_err(fail)?;
        let mut scratch = StepMemory::default();
        let logits = device::rehearse(&self.device, &mut scratch, || work(&input)).map_err(fail)??;
        let kept = logits.zeros_like().map_err(fail)?;
        self.steps.push(RecordedStep { form, input, logits: kept, scratch, repeat: None });
        while self.steps.len() > MOST_RECORDINGS || self.steps.len() > 1 && self.bytes() > MOST_BYTES {
            self.steps.remove(0);
        }
        Ok(logits)
    }
}

impl StepInput {
    fn fill(&self, cells: Vec<u32>, mut turns: Vec<f32>) -> Result<()> {
        turns.resize(turns.len().max(1), 0.0);
        device::overwrite(&self.cells, &cells)?;
        device::overwrite(&self.turns, &turns)
    }
}

#[cfg(test)]
mod tests {
    use model_boss_engine::BlockId;

    use super::*;

    fn step(past: usize, tokens: &[u32], logits: Logits) -> DecoderStep<'_> {
        const BLOCKS: &[BlockId] = &[BlockId(0)];
        DecoderStep {
            blocks: BLOCKS,
            past,
            length: past + tokens.len(),
            shared: 0,
            tokens,
            images: &[],
            adapter: None,
            logits,
        }
    }

    #[test]
    fn steps_of_one_token_with_its_logits_have_a_form() {
        let form = StepForm::of;
        let one = step(255, &[7], Logits::Last);
        assert_eq!(form(std::slice::from_ref(&one)), Some(StepForm { rows: 1, seen: 256 }));
        assert_eq!(form(&[one.clone(), step(256, &[1], Logits::Last)]), Some(StepForm { rows: 2, seen: 512 }));
        assert_eq!(form(&[one.clone(), step(3, &[1, 2], Logits::Last)]), None, "a piece of prompt");
        assert_eq!(form(&[one.clone(), step(3, &[1], Logits::None)]), None, "no logits");
        let rows = |count: usize| form(&vec![one.clone(); count]).map(|form| form.rows);
        assert_eq!([2, 3, 5, 9, 64, 65].map(rows), [Some(2), Some(4), Some(8), Some(12), Some(64), None]);
    }

    #[test]
    fn rooms_have_two_binary_digits() {
        let rooms: Vec<usize> = (0..=13).map(room_for).collect();
        assert_eq!(rooms, [1, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]);
    }

    #[test]
    fn cells_are_tokens_and_tables_with_room() {
        let sequences = vec![
            TableSequence { blocks: vec![3, 7], past: 40, new: 1 },
            TableSequence { blocks: vec![1], past: 0, new: 1 },
        ];
        let form = StepForm { rows: 2, seen: 256 };
        let cells = cells(&[50, 51], sequences, form);
        assert_eq!(cells[..8], [50, 51, 7 * 32 + 8, 32, 0, 1, 41, 1]);
        assert_eq!((&cells[8..11], cells[16], cells.len()), (&[3, 7, 0][..], 1, 8 + 2 * 8));
    }

    #[test]
    fn rows_that_fill_up_have_cells_and_lengths() {
        let form = StepForm { rows: 4, seen: 256 };
        let one = |past| TableSequence { blocks: vec![1], past, new: 1 };
        let cells = cells(&[5, 6, 7], vec![one(1), one(2), one(3)], form);
        assert_eq!((&cells[..4], cells.len()), (&[5, 6, 7, 0][..], 4 * 4 + 4 * 8));
        assert_eq!(form.filled(Vec::new()).len(), 4);
    }
}
