//! One transformer layer: a part that mixes tokens and a feed-forward part, with norms at the places that the spec
//! names, each added to the stream. Immutable.

use candle_core::{Result, Tensor};

use crate::error::ModelError;
use crate::layers::attention::Attention;
use crate::layers::experts::Experts;
use crate::layers::kv::LayerKv;
use crate::layers::latent::Latent;
use crate::layers::mlp::Mlp;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::layers::step::StepContext;
use crate::layers::streams::LayerStreams;
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
}

enum LayerMlp {
    Dense(Mlp),
    Experts(Experts),
}

impl Layer {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let Some(LayerSpec { mixer, feed_forward, norms }) = spec.layers.get(index) else {
            return Err(ModelError::Layer { layer: index, what: "is not described".to_owned() });
        };
        let mut norm = |part: &str, there: bool| {
            there.then(|| Norm::read(parts, &part_names::layer(index, part), spec.norm)).transpose()
        };
        let parallel = *norms == NormPlaces::Parallel;
        let mixer_norms = [norm(MIXER_NORM, norms.before() || parallel)?, norm(MIXER_POST_NORM, norms.behind())?];
        let mlp_norms = [norm(MLP_NORM, norms.before())?, norm(MLP_POST_NORM, norms.behind())?];
        Ok(Self {
            mixer_norms,
            mixer: match mixer {
                Mixer::Attention(attention) => {
                    let uses = |other: &AttentionSpec| other.keys_of == Some(index);
                    let lends = spec.attentions().any(uses);
                    LayerMixer::Attention(Attention::read(parts, attention, spec.norm, index, lends)?)
                }
                Mixer::Latent(latent) => LayerMixer::Latent(Latent::read(parts, latent, index)?),
            },
            mlp_norms,
            mlp: match feed_forward {
                FeedForward::Gated(mlp) => LayerMlp::Dense(Mlp::gated(parts, mlp, &part_names::layer(index, "mlp"))?),
                FeedForward::Plain(mlp) => LayerMlp::Dense(Mlp::plain(parts, mlp, &part_names::layer(index, "mlp"))?),
                FeedForward::Experts(experts) => LayerMlp::Experts(Experts::read(parts, experts, index)?),
            },
            places: *norms,
            residual: spec.factors.residual,
            streams: match &spec.streams {
                Some(streams) => Some(LayerStreams::read(parts, spec, streams, index)?),
                None => None,
            },
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`; `kv` has this layer's part of every sequence of the step. Waiting for
    /// weights ends when `stop` returns that the step was cancelled.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        kv: Vec<LayerKv<'_>>,
        step: &StepContext,
        stop: &dyn Fn() -> bool,
    ) -> Result<Tensor> {
        let Some(streams) = &self.streams else { return self.forward_stream(x, kv, step, stop) };
        let predicted = streams.predicted(x)?;
        let active = predicted.active(streams);
        let [before, behind] = &self.mixer_norms;
        let input = normed(before, active)?;
        let mixed = (active + normed(behind, &self.mix(&input, kv, step)?)?)?;
        let mixed = ((mixed + streams.laurel(&input)?)? * 2_f64.powf(-0.5))?;
        let [before, behind] = &self.mlp_norms;
        let computed = (&mixed + normed(behind, &self.mlp(&normed(before, &mixed)?, stop)?)?)?;
        streams.corrected(predicted, &computed)
    }

    fn mix(&self, input: &Tensor, kv: Vec<LayerKv<'_>>, step: &StepContext) -> Result<Tensor> {
        match &self.mixer {
            LayerMixer::Attention(attention) => attention.forward(input, kv, step),
            LayerMixer::Latent(latent) => latent.forward(input, kv, step),
        }
    }

    /// The same of a row that is one stream.
    fn forward_stream(
        &self,
        x: &Tensor,
        kv: Vec<LayerKv<'_>>,
        step: &StepContext,
        stop: &dyn Fn() -> bool,
    ) -> Result<Tensor> {
        let [before, behind] = &self.mixer_norms;
        let input = normed(before, x)?;
        let mixed = self.mix(&input, kv, step)?;
        let mixed = self.scaled(normed(behind, &mixed)?)?;
        if self.places == NormPlaces::Parallel {
            return (x + mixed)? + self.scaled(self.mlp(&input, stop)?)?;
        }
        let x = (x + mixed)?;
        let [before, behind] = &self.mlp_norms;
        let result = self.mlp(&normed(before, &x)?, stop)?;
        &x + self.scaled(normed(behind, &result)?)?
    }

    fn mlp(&self, x: &Tensor, stop: &dyn Fn() -> bool) -> Result<Tensor> {
        match &self.mlp {
            LayerMlp::Dense(mlp) => mlp.forward(x),
            LayerMlp::Experts(experts) => experts.forward(x, stop),
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
