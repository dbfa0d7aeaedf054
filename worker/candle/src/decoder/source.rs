//! Sources of layers. The decoder asks for one layer after the other and drops each before the next. A source may
//! therefore hold them all, or stream them through slots.

use std::ops::Deref;
use std::sync::Arc;

use model_boss_engine::DecoderError;
use model_boss_engine::residency::Monitor;

use crate::layers::layer::Layer;

/// A source of layers in order.
pub(crate) trait LayerSource: Send {
    /// Keeps a layer's weights in place while it computes.
    type Guard<'a>: Deref<Target = Layer>
    where
        Self: 'a;

    /// A layer by its number in the model, ready to compute. Layers are requested in order, from the first it has. A
    /// layer that is still being read is waited for until `stop` returns that the step was cancelled.
    fn layer(&mut self, index: usize, stop: &dyn Fn() -> bool) -> Result<Self::Guard<'_>, DecoderError>;

    /// A step begins.
    fn begin_step(&mut self) {}

    /// A step has ended well.
    fn end_step(&mut self) {}

    /// The report on streamed layers; none where all layers are resident.
    fn monitor(&self) -> Option<Arc<Monitor>> {
        None
    }
}

/// All layers of a stage in the device's memory.
pub(crate) struct Resident {
    first: usize,
    layers: Vec<Layer>,
}

impl Resident {
    /// Layers from the `first` on.
    pub(crate) fn new(first: usize, layers: Vec<Layer>) -> Self {
        Self { first, layers }
    }
}

impl LayerSource for Resident {
    type Guard<'a> = &'a Layer;

    fn layer(&mut self, index: usize, _stop: &dyn Fn() -> bool) -> Result<&Layer, DecoderError> {
        let found = index.checked_sub(self.first).and_then(|index| self.layers.get(index));
        found.ok_or_else(|| DecoderError::Step(format!("there is no layer {index}")))
    }
}
