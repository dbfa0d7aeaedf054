//! Dense feed-forward parts: gated (Shazeer, 2020, arXiv 2002.05202), `down(act(gate(x)) * up(x))`, and plain,
//! `down(act(up(x)))`. Knows rows, not sequences.

use candle_core::{Result, Tensor};

use crate::adapter::rows::RowAdapters;
use crate::error::ModelError;
use crate::layers::linear::{Linear, PartRows};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::NormedRows;
use crate::spec::{Activation, MlpSpec};

pub(crate) struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    /// Reads `PATH.gate_proj`, `PATH.up_proj` and `PATH.down_proj`.
    pub(crate) fn gated(
        parts: &mut dyn NamedWeights,
        spec: &MlpSpec,
        path: &str,
    ) -> std::result::Result<Self, ModelError> {
        let gate = Linear::read(parts, &format!("{path}.gate_proj"), spec.bias.into())?;
        Ok(Self { gate: Some(gate), ..Self::plain(parts, spec, path)? })
    }

    /// Reads `PATH.up_proj` and `PATH.down_proj`.
    pub(crate) fn plain(
        parts: &mut dyn NamedWeights,
        spec: &MlpSpec,
        path: &str,
    ) -> std::result::Result<Self, ModelError> {
        let mut linear = |part: &str| Linear::read(parts, &format!("{path}.{part}"), spec.bias.into());
        let (up, down) = (linear("up_proj")?, linear("down_proj")?);
        Ok(Self { gate: None, up, down, activation: spec.activation })
    }

    /// `[rows, hidden]` → `[rows, hidden]`, of rows with adapters.
    pub(crate) fn forward_adapted(&self, x: &Tensor, adapters: &RowAdapters) -> Result<Tensor> {
        Ok(self.forward_onto(&NormedRows::new(x, None, adapters), None)?.alone())
    }

    /// The same of rows behind a norm, added to a stream if one is given and that takes no launch of its own.
    pub(crate) fn forward_onto(&self, x: &NormedRows<'_>, stream: Option<&Tensor>) -> Result<PartRows> {
        let inner = match &self.gate {
            Some(gate) => match Linear::forward_gated([gate, &self.up], x, self.activation.silu_form())? {
                Some(inner) => inner,
                None => {
                    let [gate, up] = Linear::forward_normed([gate, &self.up], x)?;
                    self.activation.gated(&gate, &up)?
                }
            },
            None => {
                let [up] = Linear::forward_normed([&self.up], x)?;
                self.activation.in_place(up)?
            }
        };
        self.down.forward_onto(&inner, stream, x.adapters())
    }
}
