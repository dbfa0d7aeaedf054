//! Mixtures of experts (Shazeer et al., 2017, arXiv 1701.06538): a router chooses some experts for each row, and their
//! results are added by weight. Each expert computes on its rows together. Knows rows, not sequences, and not where the
//! experts' weights are.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use model_boss_engine::residency::experts::ChosenExpert;

use crate::adapter::rows::{NO_ADAPTERS, RowAdapters};
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::mlp::Mlp;
use crate::layers::named_weights::NamedWeights;
use crate::layers::router::{RoutedExpert, Router};
use crate::spec::{ExpertsSpec, MlpSpec, part_names};

pub(crate) struct Experts {
    routing: Arc<Routing>,
    experts: Arc<dyn ExpertSource>,
    shared: Option<SharedWeights>,
}

/// A layer's choice of experts.
pub(crate) struct Routing {
    /// `[rows, hidden]` → `[rows, experts]`, in f32: experts whose logits are near one another would be mistaken for
    /// each other in fewer bits.
    logits: Linear,
    router: Router,
    experts: usize,
}

/// The experts of one layer.
pub(crate) trait ExpertSource: Send + Sync {
    /// Calls `compute` once with each chosen expert, in any order. `x` has the layer's rows. A source that has to wait
    /// for weights ends the wait when `stop` returns that the step was cancelled.
    fn each(
        &self,
        x: &Tensor,
        chosen: &[ChosenExpert],
        stop: &dyn Fn() -> bool,
        compute: &mut dyn FnMut(usize, &Mlp) -> Result<()>,
    ) -> Result<()>;

    /// Notes the choice that the layer makes with its own router.
    fn routed_by(&self, _routing: &Arc<Routing>) {}
}

/// Experts that are all in memory.
struct ResidentExperts(Vec<Mlp>);

impl ExpertSource for ResidentExperts {
    fn each(
        &self,
        _x: &Tensor,
        chosen: &[ChosenExpert],
        _stop: &dyn Fn() -> bool,
        compute: &mut dyn FnMut(usize, &Mlp) -> Result<()>,
    ) -> Result<()> {
        let expert = |chosen: &ChosenExpert| Some((chosen.expert, self.0.get(chosen.expert)?));
        chosen.iter().filter_map(expert).try_for_each(|(index, expert)| compute(index, expert))
    }
}

/// The expert of every row, and the product that its weight is made of.
struct SharedWeights {
    mlp: Mlp,
    gate: Option<Linear>,
}

impl Routing {
    fn read(parts: &mut dyn NamedWeights, spec: &ExpertsSpec, index: usize) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, part);
        let logits = Linear::read(parts, &path("mlp.gate"), spec.router.bias.into())?.in_f32();
        let logits = logits.map_err(|error| ModelError::Device(crate::device::failure(&error)))?;
        let correction = if spec.router.correction {
            let stored = parts.tensor(&path("mlp.gate.e_score_correction_bias"))?;
            let values = stored.to_dtype(DType::F32).and_then(|stored| stored.flatten_all()?.to_vec1::<f32>());
            values.map_err(|error| ModelError::Device(crate::device::failure(&error)))?
        } else {
            Vec::new()
        };
        Ok(Self { logits, router: Router::new(spec, correction), experts: spec.count })
    }

    /// The rows of each expert, with their weights.
    pub(crate) fn choose(&self, x: &Tensor) -> Result<Vec<Vec<(u32, f32)>>> {
        self.choose_adapted(x, &NO_ADAPTERS)
    }

    fn choose_adapted(&self, x: &Tensor, adapters: &RowAdapters) -> Result<Vec<Vec<(u32, f32)>>> {
        let logits = self.logits.forward_adapted(&x.to_dtype(DType::F32)?, adapters)?.to_device(&Device::Cpu)?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let mut of_experts: Vec<Vec<(u32, f32)>> = vec![Vec::new(); self.experts];
        for (row, logits) in logits.chunks_exact(self.experts).enumerate() {
            for RoutedExpert { expert, weight } in self.router.choose(logits) {
                of_experts[expert].push((row as u32, weight));
            }
        }
        Ok(of_experts)
    }
}

impl Experts {
    /// Reads the router and the shared expert, and the others unless a `source` has them.
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &ExpertsSpec,
        index: usize,
        source: Option<Arc<dyn ExpertSource>>,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, part);
        let routing = Arc::new(Routing::read(parts, spec, index)?);
        let shared = match &spec.shared {
            None => None,
            Some(shared) => {
                let shared_path = path("mlp.shared_expert");
                let mlp = if spec.gated {
                    Mlp::gated(parts, &shared.mlp, &shared_path)?
                } else {
                    Mlp::plain(parts, &shared.mlp, &shared_path)?
                };
                let gate = shared.gate.then(|| Linear::read(parts, &path("mlp.shared_expert_gate"), false.into()));
                Some(SharedWeights { mlp, gate: gate.transpose()? })
            }
        };
        let experts = match source {
            Some(experts) => experts,
            None => {
                let experts = (0..spec.count).map(|expert| expert_mlp(parts, spec, index, expert));
                Arc::new(ResidentExperts(experts.collect::<std::result::Result<_, _>>()?))
            }
        };
        experts.routed_by(&routing);
        Ok(Self { routing, experts, shared })
    }

    /// `[rows, hidden]` → `[rows, hidden]`. A row's sum is in the order of its experts, whatever rows are beside it and
    /// in whatever order the experts compute.
    pub(crate) fn forward(&self, x: &Tensor, stop: &dyn Fn() -> bool, adapters: &RowAdapters) -> Result<Tensor> {
        let (rows, hidden) = x.dims2()?;
        let of_experts = self.routing.choose_adapted(x, adapters)?;
        let of_expert = |(expert, rows): (usize, &Vec<_>)| ChosenExpert { expert, rows: rows.len() };
        let chosen = of_experts.iter().enumerate().filter(|(_, rows)| !rows.is_empty()).map(of_expert);
        let chosen: Vec<ChosenExpert> = chosen.collect();
        let mut sum = Tensor::zeros((rows, hidden), x.dtype(), x.device())?;
        // Results of experts that computed before an earlier one.
        let mut early: HashMap<usize, (Tensor, Tensor)> = HashMap::new();
        let mut next = chosen.iter().map(|chosen| chosen.expert).peekable();
        self.experts.each(x, &chosen, stop, &mut |expert, mlp| {
            let (rows, weights): (Vec<u32>, Vec<f32>) = of_experts[expert].iter().copied().unzip();
            let of_rows = adapters.select(&rows);
            let rows = Tensor::new(rows, x.device())?;
            let weights = Tensor::new(weights, x.device())?.to_dtype(x.dtype())?.unsqueeze(1)?;
            let result = mlp.forward_adapted(&x.index_select(&rows, 0)?, &of_rows)?.broadcast_mul(&weights)?;
            early.insert(expert, (rows, result));
            while let Some((rows, result)) = next.peek().and_then(|next| early.remove(next)) {
                next.next();
                sum = sum.index_add(&rows, &result, 0)?;
            }
            Ok(())
        })?;
        let Some(SharedWeights { mlp, gate }) = &self.shared else { return Ok(sum) };
        let mut result = mlp.forward_adapted(x, adapters)?;
        if let Some(gate) = gate {
            result = result.broadcast_mul(&candle_nn::ops::sigmoid(&gate.forward_adapted(x, adapters)?)?)?;
        }
        sum + result
    }
}

/// One expert of a layer, from the source of its weights.
pub(crate) fn expert_mlp(
    parts: &mut dyn NamedWeights,
    spec: &ExpertsSpec,
    index: usize,
    expert: usize,
) -> std::result::Result<Mlp, ModelError> {
    let ExpertsSpec { intermediate, bias, activation, .. } = *spec;
    let of = MlpSpec { intermediate, bias, activation };
    let path = part_names::layer(index, &format!("mlp.experts.{expert}"));
    if spec.gated { Mlp::gated(parts, &of, &path) } else { Mlp::plain(parts, &of, &path) }
}
