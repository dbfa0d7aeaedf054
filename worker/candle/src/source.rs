//! Where layers come from. The decoder asks for one after the other and lets go of each before the next, so a source may
//! hold them all or pull them through a window.

use std::ops::Deref;

use candle_core::{Result, bail};

use crate::layer::Layer;

/// Hands out layers in order.
pub(crate) trait LayerSource: Send {
    /// Keeps a layer's weights in place while it computes.
    type Guard<'a>: Deref<Target = Layer>
    where
        Self: 'a;

    /// How many layers.
    fn len(&self) -> usize;

    /// A layer, ready to compute.
    fn layer(&mut self, index: usize) -> Result<Self::Guard<'_>>;
}

/// All layers in the device's memory.
pub(crate) struct Resident(Vec<Layer>);

impl Resident {
    pub(crate) fn new(layers: Vec<Layer>) -> Self {
        Self(layers)
    }
}

impl LayerSource for Resident {
    type Guard<'a> = &'a Layer;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn layer(&mut self, index: usize) -> Result<&Layer> {
        match self.0.get(index) {
            Some(layer) => Ok(layer),
            None => bail!("there is no layer {index}"),
        }
    }
}
