//! Several residual streams (AltUp: Baykal et al., 2023, arXiv 2301.13310), as Gemma 3n has them: layers compute on
//! one, predict all others and correct them by what they computed. Behind the streams of a row are inputs that each
//! layer has for itself.
//!
//! A row is `[streams * hidden + layers * layer_input]`, so that stages pass it on as they pass any row.

use candle_core::{D, Result, Tensor};

use crate::adapter::rows::RowAdapters;
use crate::error::ModelError;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::RmsNorm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::spec::{DecoderSpec, NormKind, NormSpec, StreamsSpec, part_names};

/// The least square of a stream that it is divided by.
const LEAST_SQUARE: f64 = 1e-5;

/// A layer's weights for its streams.
pub(crate) struct LayerStreams {
    spec: StreamsSpec,
    hidden: usize,
    index: usize,
    router_norm: RmsNorm,
    router: Linear,
    predict: Linear,
    correct: Linear,
    scale: Option<Tensor>,
    laurel: [Linear; 2],
    laurel_norm: RmsNorm,
    input_gate: Linear,
    input_projection: Linear,
    input_norm: RmsNorm,
}

/// A layer's view of a row: the predictions of its streams.
pub(crate) struct Predicted {
    /// `[rows, hidden]` each.
    streams: Vec<Tensor>,
    /// All layers' own inputs, `[rows, layers * layer_input]`.
    inputs: Tensor,
}

impl Predicted {
    /// The stream that the layer computes on.
    pub(crate) fn active(&self, streams: &LayerStreams) -> &Tensor {
        &self.streams[streams.spec.active]
    }
}

impl LayerStreams {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        streams: &StreamsSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, part);
        let scale = if streams.scaled { Some(parts.tensor(&path("altup.correct_output_scale"))?) } else { None };
        let mut norm = |part: &str| RmsNorm::read(parts, &path(part), spec.norm);
        let router_norm = norm("altup.router_norm.weight")?;
        let laurel_norm = norm("laurel.post_laurel_norm.weight")?;
        let input_norm = norm("post_per_layer_input_norm.weight")?;
        let mut linear = |part: &str| Linear::read(parts, &path(part), Bias::Without);
        Ok(Self {
            spec: *streams,
            hidden: spec.hidden,
            index,
            router_norm,
            router: linear("altup.modality_router")?,
            predict: linear("altup.prediction_coefs")?,
            correct: linear("altup.correction_coefs")?,
            scale,
            laurel: [linear("laurel.linear_left")?, linear("laurel.linear_right")?],
            laurel_norm,
            input_gate: linear("per_layer_input_gate")?,
            input_projection: linear("per_layer_projection")?,
            input_norm,
        })
    }

    /// The streams that the layer's rows are predicted to be.
    pub(crate) fn predicted(&self, x: &Tensor, adapters: &RowAdapters) -> Result<Predicted> {
        let (count, hidden) = (self.spec.count, self.hidden);
        let streams = (0..count).map(|stream| x.narrow(1, stream * hidden, hidden)?.contiguous());
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let inputs = x.narrow(1, count * hidden, x.dim(1)? - count * hidden)?;
        let weights = self.predict.forward_adapted(&self.modes(&streams[self.spec.active], adapters)?, adapters)?;
        let predicted = |to: usize| {
            let mut sum = streams[to].clone();
            for (from, stream) in streams.iter().enumerate() {
                sum = (sum + stream.broadcast_mul(&weights.narrow(1, to * count + from, 1)?)?)?;
            }
            Ok(sum)
        };
        let predicted = (0..count).map(predicted).collect::<Result<Vec<_>>>()?;
        Ok(Predicted { streams: predicted, inputs })
    }

    /// The narrow product beside attention, of its normed input.
    pub(crate) fn laurel(&self, input: &Tensor, adapters: &RowAdapters) -> Result<Tensor> {
        let [left, right] = &self.laurel;
        input + self.laurel_norm.forward(&right.forward_adapted(&left.forward_adapted(input, adapters)?, adapters)?)?
    }

    /// All streams, corrected by what the layer computed for its own, and the layer's own input.
    pub(crate) fn corrected(&self, predicted: Predicted, computed: &Tensor, adapters: &RowAdapters) -> Result<Tensor> {
        let weights = (self.correct.forward_adapted(&self.modes(computed, adapters)?, adapters)? + 1.0)?;
        let surprise = (computed - &predicted.streams[self.spec.active])?;
        let corrected = |(stream, predicted): (usize, &Tensor)| {
            predicted + surprise.broadcast_mul(&weights.narrow(1, stream, 1)?)?
        };
        let mut streams = predicted.streams.iter().enumerate().map(corrected).collect::<Result<Vec<_>>>()?;
        let mut first = streams[self.spec.active].clone();
        if let Some(scale) = &self.scale {
            first = first.broadcast_mul(scale)?;
        }
        let own = predicted.inputs.narrow(1, self.index * self.spec.layer_input, self.spec.layer_input)?;
        let met = (self.spec.activation.forward(&self.input_gate.forward_adapted(&first, adapters)?)? * own)?;
        let added = self.input_norm.forward(&self.input_projection.forward_adapted(&met, adapters)?)?;
        for stream in streams.iter_mut().skip(1) {
            *stream = (&*stream + &added)?;
        }
        streams.push(predicted.inputs);
        Tensor::cat(&streams, 1)
    }

    /// The modes that the weights of prediction and correction are made of, `[rows, streams]`.
    fn modes(&self, x: &Tensor, adapters: &RowAdapters) -> Result<Tensor> {
        let scaled = (self.router_norm.forward(x)? / self.hidden as f64)?;
        self.router.forward_adapted(&scaled, adapters)?.tanh()
    }
}

/// The weights that make streams of an embedding, and the layers' own inputs.
pub(crate) struct StreamsBefore {
    spec: StreamsSpec,
    projections: Vec<Linear>,
    /// `[layer_vocab, layers * layer_input]`.
    inputs: Matrix,
    input_projection: Linear,
    input_norm: RmsNorm,
    layers: usize,
}

impl StreamsBefore {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
    ) -> std::result::Result<Option<Self>, ModelError> {
        let Some(streams) = spec.streams else { return Ok(None) };
        let projections = projections(parts, "model.altup_projections", &streams)?;
        Ok(Some(Self {
            spec: streams,
            projections,
            inputs: parts.matrix("model.embed_tokens_per_layer.weight")?,
            input_projection: Linear::read(parts, "model.per_layer_model_projection", Bias::Without)?,
            input_norm: RmsNorm::read(parts, "model.per_layer_projection_norm.weight", plain(spec.norm))?,
            layers: spec.layers.len(),
        }))
    }

    /// Rows of all streams, from rows of the embedding: `[rows, hidden]`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        tokens: &[u32],
        target: &WeightTarget,
        adapters: &RowAdapters,
    ) -> Result<Tensor> {
        let StreamsSpec { layer_input, layer_vocab, .. } = self.spec;
        let (rows, hidden) = x.dims2()?;
        let mut streams = vec![x.clone()];
        for projection in &self.projections {
            streams.push(as_large(&projection.forward_adapted(x, adapters)?, x)?);
        }
        let known: Vec<u32> =
            tokens.iter().map(|token| if (*token as usize) < layer_vocab { *token } else { 0 }).collect();
        let stored = (self.inputs.rows(&known, target)? * (layer_input as f64).sqrt())?;
        let projected = (self.input_projection.forward_adapted(x, adapters)? * (hidden as f64).powf(-0.5))?;
        let projected = self.input_norm.forward(&projected.reshape((rows * self.layers, layer_input))?)?;
        let inputs = (projected.reshape((rows, self.layers * layer_input))? + stored)?;
        streams.push((inputs * 2_f64.powf(-0.5))?);
        Tensor::cat(&streams, 1)
    }
}

/// The weights that make one stream of all.
pub(crate) struct StreamsBehind {
    projections: Vec<Linear>,
}

impl StreamsBehind {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
    ) -> std::result::Result<Option<Self>, ModelError> {
        let Some(streams) = spec.streams else { return Ok(None) };
        Ok(Some(Self { projections: projections(parts, "model.altup_unembed_projections", &streams)? }))
    }

    /// The mean of all streams, `[rows, hidden]`, each as large as the first.
    pub(crate) fn forward(&self, x: &Tensor, hidden: usize, adapters: &RowAdapters) -> Result<Tensor> {
        let stream = |at: usize| x.narrow(1, at * hidden, hidden)?.contiguous();
        let first = stream(0)?;
        let mut sum = first.clone();
        for (at, projection) in self.projections.iter().enumerate() {
            sum = (sum + as_large(&projection.forward_adapted(&stream(at + 1)?, adapters)?, &first)?)?;
        }
        sum / (self.projections.len() + 1) as f64
    }
}

fn projections(
    parts: &mut dyn NamedWeights,
    path: &str,
    spec: &StreamsSpec,
) -> std::result::Result<Vec<Linear>, ModelError> {
    (1..spec.count).map(|stream| Linear::read(parts, &format!("{path}.{}", stream - 1), Bias::Without)).collect()
}

/// Rows scaled to the root mean square of others.
fn as_large(x: &Tensor, like: &Tensor) -> Result<Tensor> {
    let size = |x: &Tensor| x.sqr()?.mean_keepdim(D::Minus1);
    let factor = (size(like)?.sqrt()? / size(x)?.maximum(LEAST_SQUARE)?.sqrt()?)?;
    x.broadcast_mul(&factor)
}

fn plain(norm: NormSpec) -> NormSpec {
    NormSpec { kind: NormKind::Rms, ..norm }
}
