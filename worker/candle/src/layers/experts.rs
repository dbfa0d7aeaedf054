//! Mixtures of experts (Shazeer et al., 2017, arXiv 1701.06538): a router chooses some experts for each row, and their
//! results are added by weight. Each expert computes on its rows together. Knows rows, not sequences.

use candle_core::{DType, Device, Result, Tensor};

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::mlp::Mlp;
use crate::layers::named_weights::NamedWeights;
use crate::layers::router::{Choice, Router};
use crate::spec::{ExpertsSpec, MlpSpec, tensors};

pub(crate) struct Experts {
    /// `[rows, hidden]` → `[rows, experts]`.
    logits: Linear,
    router: Router,
    experts: Vec<Mlp>,
    shared: Option<Shared>,
}

/// The expert of every row, and the product that its weight is made of.
struct Shared {
    mlp: Mlp,
    gate: Option<Linear>,
}

impl Experts {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &ExpertsSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| tensors::layer(index, part);
        let logits = Linear::read(parts, &path("mlp.gate"), spec.router.bias.into())?;
        let correction = if spec.router.correction {
            let stored = parts.tensor(&path("mlp.gate.e_score_correction_bias"))?;
            let values = stored.to_dtype(DType::F32).and_then(|stored| stored.flatten_all()?.to_vec1::<f32>());
            values.map_err(|error| ModelError::Device(crate::device::failure(&error)))?
        } else {
            Vec::new()
        };
        let shared = match &spec.shared {
            None => None,
            Some(shared) => {
                let mlp = expert(parts, &shared.mlp, spec.gated, &path("mlp.shared_expert"))?;
                let gate = shared.gate.then(|| Linear::read(parts, &path("mlp.shared_expert_gate"), false.into()));
                Some(Shared { mlp, gate: gate.transpose()? })
            }
        };
        let ExpertsSpec { intermediate, bias, activation, .. } = *spec;
        let of = MlpSpec { intermediate, bias, activation };
        let experts =
            (0..spec.count).map(|index| expert(parts, &of, spec.gated, &path(&format!("mlp.experts.{index}"))));
        let experts = experts.collect::<std::result::Result<_, _>>()?;
        Ok(Self { logits, router: Router::new(spec, correction), experts, shared })
    }

    /// `[rows, hidden]` → `[rows, hidden]`. A row's sum is in the order of its experts, whatever rows are beside it.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, hidden) = x.dims2()?;
        let logits = self.logits.forward(x)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let mut of_experts: Vec<Vec<(u32, f32)>> = vec![Vec::new(); self.experts.len()];
        for (row, logits) in logits.chunks_exact(self.experts.len()).enumerate() {
            for Choice { expert, weight } in self.router.choose(logits) {
                of_experts[expert].push((row as u32, weight));
            }
        }
        let mut sum = Tensor::zeros((rows, hidden), x.dtype(), x.device())?;
        for (expert, chosen) in self.experts.iter().zip(&of_experts).filter(|(_, chosen)| !chosen.is_empty()) {
            let (rows, weights): (Vec<u32>, Vec<f32>) = chosen.iter().copied().unzip();
            let rows = Tensor::new(rows, x.device())?;
            let weights = Tensor::new(weights, x.device())?.to_dtype(x.dtype())?.unsqueeze(1)?;
            let result = expert.forward(&x.index_select(&rows, 0)?)?.broadcast_mul(&weights)?;
            sum = sum.index_add(&rows, &result, 0)?;
        }
        let Some(Shared { mlp, gate }) = &self.shared else { return Ok(sum) };
        let mut result = mlp.forward(x)?;
        if let Some(gate) = gate {
            result = result.broadcast_mul(&candle_nn::ops::sigmoid(&gate.forward(x)?)?)?;
        }
        sum + result
    }
}

fn expert(
    parts: &mut dyn NamedWeights,
    spec: &MlpSpec,
    gated: bool,
    path: &str,
) -> std::result::Result<Mlp, ModelError> {
    if gated { Mlp::gated(parts, spec, path) } else { Mlp::plain(parts, spec, path) }
}
