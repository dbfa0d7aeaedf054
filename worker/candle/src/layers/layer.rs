//! One transformer layer: a part that mixes tokens and a feed-forward part, with norms at the places that the spec
//! names, each added to the stream. Immutable.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::error::ModelError;
use crate::layers::attention::Attention;
use crate::layers::delta_net::DeltaNet;
use crate::layers::experts::{ExpertSource, Experts};
use crate::layers::kv::LayerKv;
use crate::layers::latent::Latent;
use crate::layers::linear::PartRows;
use crate::layers::mamba::Mamba;
use crate::layers::mlp::Mlp;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::{Norm, NormedRows};
use crate::layers::short_conv::ShortConv;
use crate::layers::states::LayerState;
use crate::layers::step::StepContext;
use crate::layers::streams::LayerStreams;
use crate::matrix::Matrix;
use crate::spec::part_names::{self, MIXER_NORM, MIXER_POST_NORM, MLP_NORM, MLP_POST_NORM};
use crate::spec::{AttentionSpec, DecoderSpec, FeedForward, LayerSpec, Mixer, NormPlaces};

pub(crate) struct Layer {
    /// Before and behind the part that mixes tokens.
    mixer_norms: [Option<Norm>; 2],
    mixer: LayerMixer,
    /// Before and behind the feed-forward part.
    mlp_norms: [Option<Norm>; 2],
    mlp: LayerMlp,
    places: NormPlaces,
    /// The factor on each part's result.
    residual: f64,
    streams: Option<LayerStreams>,
}

enum LayerMixer {
    Attention(Attention),
    Latent(Latent),
    ShortConv(ShortConv),
    DeltaNet(DeltaNet),
    Mamba(Mamba),
    Both(Box<(Attention, Mamba)>),
    None,
}

/// A layer's weights, with the factors on matrices that the spec has.
struct Factored<'a> {
    parts: &'a mut dyn NamedWeights,
    factors: &'a [(&'static str, f64)],
    /// The beginning of the names of the layer's parts.
    layer: String,
}

impl NamedWeights for Factored<'_> {
    fn matrix(&mut self, name: &str) -> std::result::Result<Matrix, ModelError> {
        self.parts.matrix(name)
    }

    fn factor(&self, name: &str) -> Option<f64> {
        match (self.parts.factor(name), self.own_factor(name)) {
            (Some(stored), Some(own)) => Some(stored * own),
            (stored, own) => stored.or(own),
        }
    }

    fn order(&self, name: &str) -> std::result::Result<Option<Tensor>, ModelError> {
        self.parts.order(name)
    }

    fn tensor(&mut self, name: &str) -> std::result::Result<Tensor, ModelError> {
        let tensor = self.parts.tensor(name)?;
        match self.own_factor(name) {
            Some(factor) => (tensor * factor).map_err(|error| ModelError::Device(crate::device::failure(&error))),
            None => Ok(tensor),
        }
    }
}

impl Factored<'_> {
    /// The spec's factor on a part of the layer.
    fn own_factor(&self, name: &str) -> Option<f64> {
        let part = name.strip_prefix(&self.layer)?;
        self.factors.iter().find(|(of, _)| *of == part).map(|(_, factor)| *factor)
    }
}

/// Keys, values and states of a step's sequences in one layer. Parts that a layer does not have are empty.
pub(crate) struct LayerMemory<'a> {
    pub(crate) kv: Vec<LayerKv<'a>>,
    pub(crate) states: Vec<LayerState<'a>>,
}

enum LayerMlp {
    Dense(Box<Mlp>),
    Experts(Box<Experts>),
    None,
}

impl Layer {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        Self::read_with(parts, spec, index, None)
    }

    /// The same with experts that are not among the parts.
    pub(crate) fn read_with(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        index: usize,
        source: Option<Arc<dyn ExpertSource>>,
    ) -> std::result::Result<Self, ModelError> {
        let Some(LayerSpec { mixer, feed_forward, norms }) = spec.layers.get(index) else {
            return Err(ModelError::Layer { layer: index, what: "is not described".to_owned() });
        };
        let parts = &mut Factored { parts, factors: &spec.matrix_factors, layer: part_names::layer(index, "") };
        let mut norm = |part: &str, there: bool| {
            there.then(|| Norm::read(parts, &part_names::layer(index, part), spec.norm)).transpose()
        };
        let parallel = *norms == NormPlaces::Parallel;
        let (mixes, feeds) = (*mixer != Mixer::None, *feed_forward != FeedForward::None);
        let uses = |other: &AttentionSpec| other.keys_of == Some(index);
        let lends = spec.attentions().any(uses);
        let before = mixes && (norms.before() || parallel);
        let mixer_norms = [norm(MIXER_NORM, before)?, norm(MIXER_POST_NORM, mixes && norms.behind())?];
        let mlp_norms = [norm(MLP_NORM, feeds && norms.before())?, norm(MLP_POST_NORM, feeds && norms.behind())?];
        let dense = |mlp: Mlp| LayerMlp::Dense(Box::new(mlp));
        Ok(Self {
            mixer_norms,
            mixer: match mixer {
                Mixer::Attention(attention) => {
                    LayerMixer::Attention(Attention::read(parts, attention, spec.norm, index, lends)?)
                }
                Mixer::Latent(latent) => LayerMixer::Latent(Latent::read(parts, latent, index)?),
                Mixer::ShortConv(conv) => LayerMixer::ShortConv(ShortConv::read(parts, conv, index)?),
                Mixer::DeltaNet(net) => LayerMixer::DeltaNet(DeltaNet::read(parts, net, index)?),
                Mixer::Mamba(mamba) => LayerMixer::Mamba(Mamba::read(parts, mamba, index)?),
                Mixer::Both(attention, mamba) => {
                    let attention = Attention::read(parts, attention, spec.norm, index, lends)?;
                    LayerMixer::Both(Box::new((attention, Mamba::read(parts, mamba, index)?)))
                }
                Mixer::None => LayerMixer::None,
            },
            mlp_norms,
            mlp: match feed_forward {
                FeedForward::Gated(mlp) => dense(Mlp::gated(parts, mlp, &part_names::layer(index, "mlp"))?),
                FeedForward::Plain(mlp) => dense(Mlp::plain(parts, mlp, &part_names::layer(index, "mlp"))?),
                FeedForward::Experts(experts) => {
                    LayerMlp::Experts(Box::new(Experts::read(parts, experts, index, source)?))
                }
                FeedForward::None => LayerMlp::None,
            },
            places: *norms,
            residual: spec.factors.residual,
            streams: match &spec.streams {
                Some(streams) => Some(LayerStreams::read(parts, spec, streams, index)?),
                None => None,
            },
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`; `memory` has this layer's part of every sequence of the step. Waiting for
    /// weights ends when `stop` returns that the step was cancelled.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        memory: LayerMemory<'_>,
        step: &StepContext,
        stop: &dyn Fn() -> bool,
    ) -> Result<Tensor> {
        let Some(streams) = &self.streams else { return self.forward_stream(x, memory, step, stop) };
        let adapters = &step.adapters;
        let predicted = streams.predicted(x, adapters)?;
        let active = predicted.active(streams);
        let [before, behind] = &self.mixer_norms;
        let input = normed(before, active)?;
        let mixed = self.mix(&NormedRows::new(&input, None, adapters), memory, step, None)?.alone();
        let mixed = (active + normed(behind, &mixed)?)?;
        let mixed = ((mixed + streams.laurel(&input, adapters)?)? * 2_f64.powf(-0.5))?;
        let [before, behind] = &self.mlp_norms;
        let fed = self.mlp(&NormedRows::new(&mixed, before.as_ref(), adapters), stop, None)?.alone();
        let computed = (&mixed + normed(behind, &fed)?)?;
        streams.corrected(predicted, &computed, adapters)
    }

    /// The part that mixes tokens, of rows behind its norm. It is added to `stream` if that takes no launch of its own.
    fn mix(
        &self,
        input: &NormedRows<'_>,
        memory: LayerMemory<'_>,
        step: &StepContext,
        stream: Option<&Tensor>,
    ) -> Result<PartRows> {
        if let LayerMixer::Attention(attention) = &self.mixer {
            return attention.forward(input, memory.kv, step, stream);
        }
        let input = &input.rows()?;
        let mixed = match &self.mixer {
            LayerMixer::Attention(_) | LayerMixer::None => input.zeros_like(),
            LayerMixer::Latent(latent) => latent.forward(input, memory.kv, step),
            LayerMixer::ShortConv(conv) => conv.forward(input, memory.states, step),
            LayerMixer::DeltaNet(net) => net.forward(input, memory.states, step),
            LayerMixer::Mamba(mamba) => mamba.forward(input, memory.states, step),
            LayerMixer::Both(both) => {
                let (attention, mamba) = &**both;
                let attended =
                    attention.forward(&NormedRows::new(input, None, &step.adapters), memory.kv, step, None)?.alone();
                attended + mamba.forward(input, memory.states, step)?
            }
        };
        mixed.map(PartRows::Alone)
    }

    /// The same of a row that is one stream.
    fn forward_stream(
        &self,
        x: &Tensor,
        memory: LayerMemory<'_>,
        step: &StepContext,
        stop: &dyn Fn() -> bool,
    ) -> Result<Tensor> {
        if matches!(self.mixer, LayerMixer::None) {
            return self.feed(x, step, stop);
        }
        let [before, behind] = &self.mixer_norms;
        if self.places == NormPlaces::Parallel {
            let input = normed(before, x)?;
            let input = NormedRows::new(&input, None, &step.adapters);
            let mixed = self.scaled(normed(behind, &self.mix(&input, memory, step, None)?.alone())?)?;
            return (x + mixed)? + self.scaled(self.mlp(&input, stop, None)?.alone())?;
        }
        let input = NormedRows::new(x, before.as_ref(), &step.adapters);
        let mixed = match self.mix(&input, memory, step, self.onto(behind, x))? {
            PartRows::Added(x) => return self.feed(&x, step, stop),
            PartRows::Alone(mixed) => self.scaled(normed(behind, &mixed)?)?,
        };
        match &self.mlp_norms[0] {
            Some(norm) if !matches!(self.mlp, LayerMlp::None) => {
                let (x, input) = norm.of_sum(x, &mixed)?;
                self.feed_normed(&x, &NormedRows::new(&input, None, &step.adapters), stop)
            }
            _ => self.feed(&(x + mixed)?, step, stop),
        }
    }

    /// The stream for a part to add its result to, where nothing comes between.
    fn onto<'x>(&self, behind: &Option<Norm>, x: &'x Tensor) -> Option<&'x Tensor> {
        (behind.is_none() && self.residual == 1.0).then_some(x)
    }

    /// Adds the feed-forward part to the stream.
    fn feed(&self, x: &Tensor, step: &StepContext, stop: &dyn Fn() -> bool) -> Result<Tensor> {
        if matches!(self.mlp, LayerMlp::None) {
            return Ok(x.clone());
        }
        self.feed_normed(x, &NormedRows::new(x, self.mlp_norms[0].as_ref(), &step.adapters), stop)
    }

    /// The same, with the part's input.
    fn feed_normed(&self, x: &Tensor, input: &NormedRows<'_>, stop: &dyn Fn() -> bool) -> Result<Tensor> {
        let behind = &self.mlp_norms[1];
        match self.mlp(input, stop, self.onto(behind, x))? {
            PartRows::Added(sum) => Ok(sum),
            PartRows::Alone(result) => x + self.scaled(normed(behind, &result)?)?,
        }
    }

    /// The feed-forward part of rows behind its norm. It is added to `stream` if that takes no launch of its own.
    fn mlp(&self, x: &NormedRows<'_>, stop: &dyn Fn() -> bool, stream: Option<&Tensor>) -> Result<PartRows> {
        match &self.mlp {
            LayerMlp::Dense(mlp) => mlp.forward_onto(x, stream),
            LayerMlp::Experts(experts) => experts.forward(&x.rows()?, stop, x.adapters()).map(PartRows::Alone),
            LayerMlp::None => x.rows()?.zeros_like().map(PartRows::Alone),
        }
    }

    fn scaled(&self, result: Tensor) -> Result<Tensor> {
        if self.residual == 1.0 { Ok(result) } else { result * self.residual }
    }
}

/// A free clone without a norm.
fn normed(norm: &Option<Norm>, x: &Tensor) -> Result<Tensor> {
    norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))
}
