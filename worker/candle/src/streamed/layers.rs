//! Streamed layers: a [`LayerSource`] over the engine's executor. The same code makes streamed and resident layers of
//! the same parts.

use std::ops::Deref;
use std::sync::Arc;

use candle_core::Tensor;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::{Monitor, StreamDevice, Streamer, TimeSpan};

use super::block::StreamedBlock;
use super::table::SmallTensors;
use crate::decoder::source::LayerSource;
use crate::device::fault::StepFault;
use crate::error::ModelError;
use crate::layers::layer::Layer;
use crate::layers::named_weights::NamedWeights;
use crate::matrix::Matrix;
use crate::spec::DecoderSpec;

/// A stage's layers, some resident and the others streamed through a device's slots.
pub(crate) struct StreamedLayers<D: StreamDevice<Block = StreamedBlock>> {
    pub(super) spec: DecoderSpec,
    pub(super) small: SmallTensors,
    /// The layers by number; `None` for a streamed one.
    pub(super) resident: Vec<Option<Arc<Layer>>>,
    pub(super) streamer: Streamer<D>,
    pub(super) monitor: Arc<Monitor>,
    /// The timer of devices that compute asynchronously.
    pub(super) clock: Option<Box<dyn StepTimer>>,
}

/// A timer of the layers' computation on a device.
pub(crate) trait StepTimer: Send {
    fn begin_step(&mut self);

    fn layer_begins(&mut self, layer: usize);

    fn layer_ends(&mut self);

    /// The times of the step's layers; waits until they have computed.
    fn spans(&mut self) -> Option<Vec<(usize, TimeSpan)>>;
}

impl<D: StreamDevice<Block = StreamedBlock>> LayerSource for StreamedLayers<D> {
    type Guard<'a> = LayerInUse<'a, D>;

    fn layer(&mut self, index: usize, stop: &dyn Fn() -> bool) -> Result<LayerInUse<'_, D>, DecoderError> {
        let failed = |fault| StepFault(fault).of_step();
        let block = self.streamer.take(index, stop).map_err(failed)?;
        block.as_ref().map_or(Ok(()), |block| block.begin_use()).map_err(failed)?;
        let layer = match (self.resident.get(index).cloned().flatten(), block) {
            (Some(layer), _) => layer,
            (None, Some(block)) => {
                let mut parts = BlockWeights { small: &self.small, block: &block };
                let layer = Layer::read(&mut parts, &self.spec, index);
                Arc::new(layer.map_err(|error| DecoderError::Step(error.to_string()))?)
            }
            (None, None) => return Err(DecoderError::Step(format!("there is no layer {index}"))),
        };
        if let Some(clock) = &mut self.clock {
            clock.layer_begins(index);
        }
        let (streamer, clock) = (&mut self.streamer, self.clock.as_mut());
        Ok(LayerInUse { layer: Some(layer), index, streamer, clock })
    }

    fn begin_step(&mut self) {
        self.streamer.begin_step();
        if let Some(clock) = &mut self.clock {
            clock.begin_step();
        }
    }

    fn end_step(&mut self) {
        if let Some(spans) = self.clock.as_mut().and_then(|clock| clock.spans()) {
            self.streamer.computed_at(&spans);
        }
        self.streamer.end_step();
    }

    fn monitor(&self) -> Option<Arc<Monitor>> {
        Some(Arc::clone(&self.monitor))
    }
}

/// A layer in use. Dropping it releases its weights, if no other part needs them.
pub(crate) struct LayerInUse<'a, D: StreamDevice<Block = StreamedBlock>> {
    layer: Option<Arc<Layer>>,
    index: usize,
    streamer: &'a mut Streamer<D>,
    clock: Option<&'a mut Box<dyn StepTimer>>,
}

impl<D: StreamDevice<Block = StreamedBlock>> Deref for LayerInUse<'_, D> {
    type Target = Layer;

    #[allow(clippy::expect_used, reason = "taken in drop only")]
    fn deref(&self) -> &Layer {
        self.layer.as_deref().expect("a layer in use")
    }
}

impl<D: StreamDevice<Block = StreamedBlock>> Drop for LayerInUse<'_, D> {
    fn drop(&mut self) {
        // Values that borrow from the block are dropped first, so that its memory is free for the next read.
        self.layer = None;
        if let Some(clock) = &mut self.clock {
            clock.layer_ends();
        }
        self.streamer.computed(self.index);
    }
}

/// A layer's parts: matrices from its block, all others from resident memory.
pub(crate) struct BlockWeights<'a> {
    pub(crate) small: &'a SmallTensors,
    pub(crate) block: &'a StreamedBlock,
}

impl NamedWeights for BlockWeights<'_> {
    fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        let small = || self.small.tensors.get(name).cloned().map(Matrix::Tensor);
        self.block.matrix(name).cloned().or_else(small).ok_or_else(|| missing(name))
    }

    fn order(&self, name: &str) -> Result<Option<Tensor>, ModelError> {
        Ok(self.small.orders.get(name).cloned())
    }

    fn factor(&self, name: &str) -> Option<f64> {
        self.small.factors.get(name).copied()
    }

    fn tensor(&mut self, name: &str) -> Result<Tensor, ModelError> {
        self.small.tensors.get(name).cloned().ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> ModelError {
    ModelError::Tensor { name: name.to_owned(), what: "is not among what was read".to_owned() }
}
