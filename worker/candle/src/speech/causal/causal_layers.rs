//! A stack of layers, and the memory of the moments before.

use candle_core::{DType, Device, Result as CandleResult, Tensor};

use super::causal_layer::CausalLayer;
use super::causal_spec::CausalSpec;
use super::causal_step::CausalStep;
use crate::error::ModelError;
use crate::layers::rope::{Position, Rope};
use crate::speech::weights::SpeechWeights;

/// A stack of layers with its weights.
pub(in crate::speech) struct CausalLayers {
    layers: Vec<CausalLayer>,
    rope: Rope,
    window: usize,
    device: Device,
}

/// The keys and values of earlier moments.
pub(in crate::speech) struct CausalMemory {
    /// Those of each layer, `[heads, moments, head]`; none before the first moment.
    layers: Vec<Option<[Tensor; 2]>>,
    past: usize,
}

impl CausalLayers {
    /// Reads the layers below a path.
    pub(in crate::speech) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        spec: &CausalSpec,
    ) -> Result<Self, ModelError> {
        let layer = |at| CausalLayer::read(weights, &format!("{path}.{at}"), spec);
        let layers = (0..spec.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let window = spec.window.unwrap_or(usize::MAX).max(1);
        Ok(Self { layers, rope: Rope::new(&spec.rope), window, device: weights.device.clone() })
    }

    /// The memory of a part of which nothing has come.
    pub(in crate::speech) fn memory(&self) -> CausalMemory {
        CausalMemory { layers: self.layers.iter().map(|_| None).collect(), past: 0 }
    }

    /// The next moments: `[moments, width]` → `[moments, width]`.
    pub(in crate::speech) fn forward(&self, x: &Tensor, memory: &mut CausalMemory) -> CandleResult<Tensor> {
        let moments = x.dim(0)?;
        let step = self.step(moments, memory.past)?;
        let mut x = x.clone();
        for (layer, kept) in self.layers.iter().zip(&mut memory.layers) {
            x = layer.forward(&x, kept, &step)?;
        }
        memory.past += moments;
        Ok(x)
    }

    fn step(&self, moments: usize, past: usize) -> CandleResult<CausalStep> {
        let end = past + moments;
        let positions: Vec<Position> = (past..end).map(|at| Position { at: [at; 3], length: end }).collect();
        let angles = self.rope.angles(&positions, DType::F32, &self.device)?;
        // Keys that were kept, and those of the step.
        let first = past - past.min(self.window - 1);
        let sees = |moment: usize, key: usize| key <= moment && moment - key < self.window;
        let all = (past..end).all(|moment| sees(moment, first) && sees(moment, end - 1));
        let mask = || {
            let value = |moment: usize, key: usize| if sees(moment, key) { 0.0 } else { f32::NEG_INFINITY };
            let rows = (past..end).flat_map(|moment| (first..end).map(move |key| value(moment, key)));
            Tensor::from_vec(rows.collect::<Vec<f32>>(), (moments, end - first), &self.device)
        };
        let mask = if all { None } else { Some(mask()?) };
        Ok(CausalStep { cos: angles.cos, sin: angles.sin, mask, kept: end.min(self.window - 1) })
    }
}
