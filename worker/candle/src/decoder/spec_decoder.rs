//! The one decoder: runs a [`DecoderSpec`] over layers from any source, for several sequences at once. Keeps the
//! blocks of keys and values, and the states of sequences; knows no file and no sampling.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use model_boss_engine::residency::Monitor;
use model_boss_engine::{
    AdapterLoader, BlockId, Decoder, DecoderError, DecoderInfo, DecoderStep, ImageTiles, Logits, PlaceUse, SeenRows,
};
use model_boss_images::SightFacts;
use model_boss_kernels::WORTH_SHARING;

use rayon::prelude::*;

use crate::adapter::loader::DecoderAdapterLoader;
use crate::adapter::parts::DecoderAdapter;
use crate::adapter::rows::{NO_ADAPTERS, RowAdapters};
use crate::decoder::recorded::{RecordedSteps, StepForm, StepInput, records};
use crate::decoder::stage::{Stage, StretchStep, monitor_over};
use crate::decoder::step_images::StepImages;
use crate::decoder::tower::SeeingTower;
use crate::device;
use crate::files::ModelFiles;
use crate::layers::kv::{KvStore, StepKv};
use crate::layers::kv_shape::KvHome;
use crate::layers::linear::Linear;
use crate::layers::norm::{Norm, NormedRows};
use crate::layers::span::SpanLength;
use crate::layers::states::{StateLayout, StateLimits, StateStore, StepStates};
use crate::layers::step::{StepContext, StepShape};
use crate::layers::streams::{StreamsBefore, StreamsBehind};
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::spec::DecoderSpec;
use crate::spec::part_names::EMBEDDING;

/// A decoder over stretches of layers, each on a device.
pub(crate) struct SpecDecoder {
    info: DecoderInfo,
    spec: DecoderSpec,
    shape: StepShape,
    ends: DecoderEnds,
    /// Stages in the order of the layers; never empty.
    stages: Vec<Stage>,
    /// The use of each stage's device.
    places: Arc<[PlaceUse]>,
    monitor: Option<Arc<Monitor>>,
    kv: KvStore,
    states: StateStore,
    /// Of a decoder whose steps can be recorded.
    recorded: Option<RecordedSteps>,
    adapters: Arc<DecoderAdapterLoader>,
    /// Of a model that sees.
    tower: Option<Box<dyn SeeingTower>>,
}

/// The sizes that a decoder keeps to.
pub(crate) struct DecoderLimits {
    pub(crate) context_length: usize,
    /// Blocks of keys and values that there is memory for.
    pub(crate) kv_blocks: usize,
    /// States of sequences that are kept.
    pub(crate) states: StateLimits,
    /// Bytes of a step's own values on each device.
    pub(crate) workspace_bytes: u64,
    /// As in [`DecoderInfo`].
    pub(crate) step_rows: usize,
    /// As in [`DecoderInfo`].
    pub(crate) warnings: Vec<String>,
}

/// The weights outside of layers: those before the first are on the first stage's device, the others on the last's.
pub(crate) struct DecoderEnds {
    /// `[vocab, hidden]`.
    pub(crate) embedding: Matrix,
    /// Makes several streams of the embedding, and one of them again.
    pub(crate) before: Option<StreamsBefore>,
    pub(crate) behind: Option<StreamsBehind>,
    pub(crate) norm: Norm,
    pub(crate) head: Linear,
}

impl SpecDecoder {
    /// `stages` cover all layers in order.
    pub(crate) fn new(
        spec: DecoderSpec,
        files: ModelFiles,
        limits: DecoderLimits,
        ends: DecoderEnds,
        stages: Vec<Stage>,
    ) -> Self {
        let DecoderLimits { context_length, kv_blocks, states, workspace_bytes, step_rows, warnings } = limits;
        let layout = StateLayout::new(&spec);
        let places: Arc<[PlaceUse]> = stages.iter().map(|stage| stage.place(&spec)).collect();
        let info = DecoderInfo {
            vocab_size: spec.vocab,
            context_length,
            kv_bytes_per_token: places.iter().map(PlaceUse::kv_bytes_per_token).sum(),
            state_bytes: layout.bytes(0..spec.layers.len()),
            kv_blocks,
            weight_bytes: stages.iter().map(|stage| stage.weight_bytes).sum(),
            step_rows,
            workspace_bytes,
            // Kernels of devices sum up in an order that depends on the number of rows.
            same_in_any_step: stages.iter().all(|stage| stage.target.device.is_cpu()),
            sight: None,
            warnings,
        };
        let (shape, monitor) = (StepShape::of(&spec), monitor_over(&stages));
        let kv = store_for(&spec, &stages, kv_blocks);
        let states = StateStore::new(layout, states);
        let recorded = recorder(&spec, &ends, &stages);
        let width = stages.iter().map(|stage| stage.target.dtype.size_in_bytes()).max().unwrap_or(0);
        let adapters = Arc::new(DecoderAdapterLoader::new(spec.clone(), files, width));
        Self { info, spec, shape, ends, stages, places, monitor, kv, states, recorded, adapters, tower: None }
    }

    /// The same with a tower, and what others have to know of it.
    pub(crate) fn seeing(mut self, tower: Box<dyn SeeingTower>, sight: SightFacts) -> Self {
        self.info.sight = Some(Arc::new(sight));
        self.tower = Some(tower);
        self
    }

    /// The same with keys and values in tensors on every device, as on one with memory of its own.
    #[cfg(test)]
    pub(crate) fn in_tensors(mut self) -> Self {
        self.stages.iter_mut().for_each(|stage| stage.home = KvHome::Tensors);
        self.kv = store_for(&self.spec, &self.stages, self.info.kv_blocks);
        self
    }

    /// Publishes the room of keys and values to observers.
    fn note_room(&self) {
        for (stage, place) in self.stages.iter().zip(self.places.iter()) {
            place.holds(self.kv.room(stage.layers.clone()), self.states.len());
        }
    }

    /// Refuses a batch that cannot be computed, before anything is touched.
    fn check(&self, batch: &[DecoderStep<'_>]) -> std::result::Result<(), DecoderError> {
        let refuse = |what: String| Err(DecoderError::Step(what));
        for step in batch {
            if step.tokens.is_empty() {
                return refuse("a sequence brings no tokens".to_owned());
            }
            if step.tokens.len() > self.info.context_length.saturating_sub(step.past) {
                let (past, new, context) = (step.past, step.tokens.len(), self.info.context_length);
                return refuse(format!("{new} tokens behind {past} do not fit into a context of {context}"));
            }
            if let Some(token) = step.tokens.iter().find(|token| **token as usize >= self.info.vocab_size) {
                return refuse(format!("token {token} is outside the vocabulary of {}", self.info.vocab_size));
            }
        }
        Ok(())
    }

    /// All layers over all rows: `[rows, hidden]`. Writes keys and values behind each sequence's past.
    fn run_layers(
        &mut self,
        batch: &[DecoderStep<'_>],
        states: &mut StepStates,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<Tensor, DecoderError> {
        let fail = |error| device::failure(&error);
        let lengths = lengths(batch);
        let adapters = adapters_of(batch, self.adapters.of)?;
        let images = StepImages::of(batch, self.spec.hidden)?;
        let mut kv: StepKv<'_> = self.kv.lend(batch)?;
        let tokens: Vec<u32> = batch.iter().flat_map(|step| step.tokens).copied().collect();
        self.stages.iter_mut().for_each(|stage| stage.stretch.begin_step());
        let mut x: Option<Tensor> = None;
        for (stage, place) in self.stages.iter_mut().zip(self.places.iter()) {
            let rows = match &x {
                None => {
                    let factor = self.spec.factors.embedding;
                    let rows = self.ends.embedded(&tokens, &stage.target, factor, &adapters);
                    rows.and_then(|rows| images.embed(rows, self.spec.factors.images))
                }
                Some(x) => {
                    place.received((x.elem_count() * stage.target.dtype.size_in_bytes()) as u64);
                    stage.receive(x)
                }
            };
            let WeightTarget { device, dtype, .. } = &stage.target;
            let context = StepContext::new(&lengths, &self.shape, *dtype, (device, stage.home));
            let context = context.map_err(fail)?.adapted(adapters.clone());
            kv.enter(stage.layers.clone()).map_err(fail)?;
            let layers = stage.layers.clone();
            let images = &images;
            let mut step = StretchStep { layers, kv: &mut kv, states: &mut *states, context: &context, images, stop };
            let rows = rows.map_err(fail)?;
            // On one of the threads that share the products. From outside, each of some hundred products would put this
            // thread to sleep and wake it again. A device has a thread of its own and keeps it.
            let forward = || stage.stretch.forward(rows, &mut step);
            x = Some(if device.is_cpu() { rayon::scope(|_| forward()) } else { forward() }?);
        }
        x.ok_or_else(|| DecoderError::Step("the model has no layers".to_owned()))
    }

    /// The rows behind the last norm in place of logits, `[rows, hidden]` in f32. Keys and values are written as by any
    /// other step.
    pub(crate) fn normed_rows(&mut self, batch: &[DecoderStep<'_>]) -> std::result::Result<Tensor, DecoderError> {
        self.step(batch, |decoder, states| {
            let mut x = decoder.run_layers(batch, states, &|| false)?;
            let mut normed = || {
                if let Some(behind) = &decoder.ends.behind {
                    x = behind.forward(&x, decoder.spec.hidden, &NO_ADAPTERS)?;
                }
                decoder.ends.norm.forward(&x)?.to_dtype(DType::F32)
            };
            let normed = normed().map_err(|error| device::failure(&error))?;
            decoder.stages.iter_mut().for_each(|stage| stage.stretch.end_step());
            Ok(normed)
        })
    }

    /// Does a step's work. States of sequences are kept if it ends well.
    fn step<R: Send>(
        &mut self,
        batch: &[DecoderStep<'_>],
        work: impl FnOnce(&mut Self, &mut StepStates) -> std::result::Result<R, DecoderError> + Send,
    ) -> std::result::Result<R, DecoderError> {
        self.check(batch)?;
        let on_cpu = self.stages.iter().all(|stage| stage.target.device.is_cpu());
        let mut states = self.states.begin(batch)?;
        // As each stretch does, and with it everything around.
        let result = if on_cpu { rayon::scope(|_| work(self, &mut states)) } else { work(self, &mut states) };
        match result {
            Ok(_) => self.states.commit(states),
            Err(_) => self.states.abandon(states),
        }
        self.note_room();
        result
    }

    /// Whether tokens see those behind them, so that texts have to come whole.
    pub(crate) fn sees_behind(&self) -> bool {
        self.spec.sees_behind()
    }

    /// Elements of a row, and where the rows behind the last norm are.
    pub(crate) fn rows_of(&self) -> (usize, usize, &WeightTarget) {
        let target = &self.stages[self.stages.len() - 1].target;
        (self.spec.hidden, self.spec.vocab, target)
    }

    /// A step of one token for each sequence as it was recorded, or will be; none of another form. Sequence by
    /// sequence its logits.
    fn repeat_step(
        &mut self,
        batch: &[DecoderStep<'_>],
        states: &mut StepStates,
    ) -> std::result::Result<Option<Vec<Vec<f32>>>, DecoderError> {
        let fail = |error: candle_core::Error| device::failure(&error);
        let (Some(recorded), [stage]) = (&mut self.recorded, self.stages.as_mut_slice()) else { return Ok(None) };
        let Some(form) = StepForm::of(batch).filter(|_| !recorded.is_off()) else {
            return Ok(None);
        };
        let lengths = form.filled(lengths(batch));
        let images = StepImages::of(&[], self.spec.hidden)?;
        let mut kv: StepKv<'_> = self.kv.lend(batch)?;
        let tokens: Vec<u32> = batch.iter().flat_map(|step| step.tokens).copied().collect();
        let (ends, spec, shape) = (&self.ends, &self.spec, &self.shape);
        let (moves, sequences) = (kv.moves(), kv.in_tables());
        stage.stretch.begin_step();
        let mut work = |input: &StepInput| {
            let target = &stage.target;
            let before = |kv: &mut StepKv<'_>| {
                let rows = ends.embedding.rows_at(&input.tokens()?, target)?;
                let factor = spec.factors.embedding;
                let rows = if factor == 1.0 { rows } else { (rows * factor)? };
                let angles = input.angles(shape, target.dtype)?;
                kv.enter_with(input.tables()?);
                Ok((rows, StepContext::with_angles(&lengths, shape, angles, (&target.device, stage.home))?))
            };
            let (rows, context) = before(&mut kv).map_err(fail)?;
            let layers = stage.layers.clone();
            let (context, images) = (&context, &images);
            let mut step = StretchStep { layers, kv: &mut kv, states: &mut *states, context, images, stop: &|| false };
            let x = stage.stretch.forward(rows, &mut step)?;
            ends.logits(x, spec, &NO_ADAPTERS).map_err(fail)
        };
        let logits = recorded.step((form, moves), (&tokens, sequences), (&lengths, shape), &mut work)?;
        stage.stretch.end_step();
        let logits = logits.narrow(0, 0, batch.len()).map_err(fail)?;
        read_rows(&logits, &vec![1; batch.len()], self.info.vocab_size).map(Some).map_err(fail)
    }

    /// Logits of the rows that were asked for, sequence by sequence.
    fn logits(&self, batch: &[DecoderStep<'_>], x: &Tensor) -> Result<Vec<Vec<f32>>> {
        let mut wanted: Vec<u32> = Vec::new();
        let mut end = 0;
        for step in batch {
            let rows = end..end + step.tokens.len() as u32;
            end = rows.end;
            match step.logits {
                Logits::None => {}
                Logits::Last => wanted.push(rows.end - 1),
                Logits::All => wanted.extend(rows),
            }
        }
        if wanted.is_empty() {
            return Ok(vec![Vec::new(); batch.len()]);
        }
        let adapters = adapters_of(batch, self.adapters.of).map_err(candle_core::Error::wrap)?.select(&wanted);
        let wanted = Tensor::new(wanted, x.device())?;
        let logits = self.ends.logits(x.index_select(&wanted, 0)?, &self.spec, &adapters)?;
        let counts: Vec<usize> = batch.iter().map(|step| step.logits.rows(step.tokens.len())).collect();
        read_rows(&logits, &counts, self.info.vocab_size)
    }
}

impl DecoderEnds {
    /// Rows of the embedding, times a factor, and of further streams behind them.
    fn embedded(&self, tokens: &[u32], target: &WeightTarget, factor: f64, adapters: &RowAdapters) -> Result<Tensor> {
        let mut rows = self.embedding.rows(tokens, target)?;
        if !adapters.is_empty() {
            rows = adapters.look_up(EMBEDDING.trim_end_matches(".weight"), tokens, rows)?;
        }
        if factor != 1.0 {
            rows = (rows * factor)?;
        }
        self.before.as_ref().map_or(Ok(rows.clone()), |before| before.forward(&rows, tokens, target, adapters))
    }

    /// `[rows, hidden]` behind the last layer → `[rows, vocabulary]` in f32.
    fn logits(&self, mut rows: Tensor, spec: &DecoderSpec, adapters: &RowAdapters) -> Result<Tensor> {
        if let Some(behind) = &self.behind {
            rows = behind.forward(&rows, spec.hidden, adapters)?;
        }
        let [logits] = Linear::forward_normed([&self.head], &NormedRows::new(&rows, Some(&self.norm), adapters))?;
        let mut logits = logits.to_dtype(DType::F32)?;
        if spec.factors.logits != 1.0 {
            logits = (logits * spec.factors.logits)?;
        }
        match spec.logit_softcap {
            Some(bound) => (logits / bound)?.tanh()? * bound,
            None => Ok(logits),
        }
    }
}

/// Logits of so many rows for each sequence, from any device.
fn read_rows(logits: &Tensor, counts: &[usize], vocab: usize) -> Result<Vec<Vec<f32>>> {
    device::with_numbers(logits, |mut left| {
        let parts: Vec<&[f32]> = counts
            .iter()
            .map(|count| {
                let (rows, rest) = left.split_at(count * vocab);
                left = rest;
                rows
            })
            .collect();
        // A large vocabulary's rows take longer to copy than to compute on a GPU.
        let rows = |rows: &&[f32]| rows.to_vec();
        if logits.elem_count() < WORTH_SHARING {
            parts.iter().map(rows).collect()
        } else {
            parts.par_iter().map(rows).collect()
        }
    })
}

/// The adapters of all rows of a step, for the decoder of this number.
fn adapters_of(batch: &[DecoderStep<'_>], of: u64) -> std::result::Result<RowAdapters, DecoderError> {
    let mut adapters = RowAdapters::default();
    let mut end = 0;
    for step in batch {
        let rows = end..end + step.tokens.len();
        end = rows.end;
        let Some(adapter) = step.adapter else { continue };
        let contents = adapter.contents::<DecoderAdapter>().filter(|adapter| adapter.of == of);
        let contents = contents.ok_or_else(|| DecoderError::Step("the adapter is another model's".to_owned()))?;
        adapters.push(rows, &contents);
    }
    Ok(adapters)
}

/// The part of a step that each sequence has.
fn lengths(batch: &[DecoderStep<'_>]) -> Vec<SpanLength> {
    batch.iter().map(SpanLength::of).collect()
}

/// Recordings of steps, where all of a decoder's work is on one GPU.
fn recorder(spec: &DecoderSpec, ends: &DecoderEnds, stages: &[Stage]) -> Option<RecordedSteps> {
    let [stage] = stages else { return None };
    let resident = stage.home == KvHome::Kernels && stage.stretch.monitor().is_none();
    let there = resident && ends.before.is_none() && !matches!(ends.embedding, Matrix::Stored(_));
    (there && records(spec)).then(|| RecordedSteps::new(stage.target.device.clone()))
}

/// A store without blocks, for at most so many, and for the layers of all stages.
fn store_for(spec: &DecoderSpec, stages: &[Stage], most: usize) -> KvStore {
    let of_layers = |stage| {
        let Stage { home, target, layers, .. }: &Stage = stage;
        std::iter::repeat_n((*home, target), layers.len())
    };
    KvStore::new(spec, stages.iter().flat_map(of_layers), most)
}

impl Decoder for SpecDecoder {
    fn info(&self) -> &DecoderInfo {
        &self.info
    }

    fn forward_until(
        &mut self,
        batch: &[DecoderStep<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<Vec<Vec<f32>>, DecoderError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.step(batch, |decoder, states| {
            if let Some(logits) = decoder.repeat_step(batch, states)? {
                return Ok(logits);
            }
            let x = decoder.run_layers(batch, states, stop)?;
            let logits = decoder.logits(batch, &x).map_err(|error| device::failure(&error))?;
            decoder.stages.iter_mut().for_each(|stage| stage.stretch.end_step());
            Ok(logits)
        })
    }

    fn see(
        &mut self,
        picture: &ImageTiles,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<SeenRows, DecoderError> {
        match &self.tower {
            Some(tower) => tower.rows(picture, stop),
            None => Err(DecoderError::Step("this model sees no images".to_owned())),
        }
    }

    fn length_class(&self, length: usize) -> usize {
        // At most one of a decoder's ropes follows the length.
        self.spec.ropes.iter().map(|rope| rope.scaling.length_class(length)).max().unwrap_or(0)
    }

    fn resumable(&self, blocks: &[BlockId], tokens: usize) -> usize {
        self.states.resumable(blocks, tokens)
    }

    fn merge(&mut self, from: BlockId, to: BlockId) {
        self.states.merge(from, to);
    }

    fn copy(&mut self, from: BlockId, to: BlockId) -> std::result::Result<(), DecoderError> {
        let copied = self.kv.copy(from, to).map_err(|error| device::failure(&error));
        if copied.is_ok() {
            self.states.copy(from, to);
        }
        self.note_room();
        copied
    }

    fn block_layout(&self) -> Option<String> {
        let types: Vec<_> = self.stages.iter().map(|stage| (&stage.target.dtype, stage.target.cached)).collect();
        Some(format!("{} {types:?} {:?}", self.kv.block_layout(), self.spec))
    }

    fn read_block(&mut self, block: BlockId, contents: &mut Vec<u8>) -> std::result::Result<(), DecoderError> {
        self.kv.read_block(block, contents).map_err(|error| device::failure(&error))?;
        self.states.read_block(block, contents);
        Ok(())
    }

    fn write_block(&mut self, block: BlockId, contents: &[u8]) -> std::result::Result<(), DecoderError> {
        let behind = self.kv.write_block(block, contents).map_err(|error| device::failure(&error))?;
        let Some(states) = self.states.states_in(behind) else {
            self.kv.free(&[block]);
            return Err(DecoderError::Step("a block has other states than this model's".to_owned()));
        };
        self.states.write_block(block, states);
        self.note_room();
        Ok(())
    }

    fn free(&mut self, blocks: &[BlockId]) {
        self.kv.free(blocks);
        self.states.free(blocks);
        self.note_room();
        self.stages.iter().for_each(|stage| device::trim(&stage.target.device));
    }

    fn adapter_loader(&self) -> Option<Arc<dyn AdapterLoader>> {
        Some(Arc::clone(&self.adapters) as Arc<dyn AdapterLoader>)
    }

    fn monitor(&self) -> Option<Arc<Monitor>> {
        self.monitor.clone()
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }
}
