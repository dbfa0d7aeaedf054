//! The sizes of a model, from `config.json`. Absent keys have the defaults of `transformers`.

use serde::Deserialize;

use crate::error::ModelError;
use crate::spec::{Activation, NormKind, NormSpec};
use crate::speech::config::{activation, malformed};

/// The largest size that any part may have.
const MOST: usize = 1 << 16;

/// The most layers, flows, and kernels of a part.
const MOST_PARTS: usize = 256;

/// The sizes of a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct VitsSpec {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    window_size: Option<usize>,
    pub(super) ffn_dim: usize,
    pub(super) ffn_kernel_size: usize,
    pub(super) flow_size: usize,
    hidden_act: String,
    layer_norm_eps: f64,
    pub(super) use_stochastic_duration_prediction: bool,
    pub(super) num_speakers: usize,
    pub(super) speaker_embedding_size: usize,
    pub(super) upsample_initial_channel: usize,
    pub(super) upsample_rates: Vec<usize>,
    pub(super) upsample_kernel_sizes: Vec<usize>,
    pub(super) resblock_kernel_sizes: Vec<usize>,
    pub(super) resblock_dilation_sizes: Vec<Vec<usize>>,
    pub(super) leaky_relu_slope: f32,
    pub(super) depth_separable_channels: usize,
    pub(super) depth_separable_num_layers: usize,
    pub(super) duration_predictor_flow_bins: usize,
    pub(super) duration_predictor_tail_bound: f32,
    pub(super) duration_predictor_kernel_size: usize,
    pub(super) duration_predictor_num_flows: usize,
    pub(super) duration_predictor_filter_channels: usize,
    pub(super) prior_encoder_num_flows: usize,
    pub(super) prior_encoder_num_wavenet_layers: usize,
    pub(super) wavenet_kernel_size: usize,
    pub(super) wavenet_dilation_rate: usize,
    pub(super) speaking_rate: f32,
    pub(super) noise_scale: f32,
    pub(super) noise_scale_duration: f32,
    pub(super) sampling_rate: u32,
}

impl Default for VitsSpec {
    fn default() -> Self {
        Self {
            vocab_size: 38,
            hidden_size: 192,
            num_hidden_layers: 6,
            num_attention_heads: 2,
            window_size: Some(4),
            ffn_dim: 768,
            ffn_kernel_size: 3,
            flow_size: 192,
            hidden_act: "relu".to_owned(),
            layer_norm_eps: 1e-5,
            use_stochastic_duration_prediction: true,
            num_speakers: 1,
            speaker_embedding_size: 0,
            upsample_initial_channel: 512,
            upsample_rates: vec![8, 8, 2, 2],
            upsample_kernel_sizes: vec![16, 16, 4, 4],
            resblock_kernel_sizes: vec![3, 7, 11],
            resblock_dilation_sizes: vec![vec![1, 3, 5]; 3],
            leaky_relu_slope: 0.1,
            depth_separable_channels: 2,
            depth_separable_num_layers: 3,
            duration_predictor_flow_bins: 10,
            duration_predictor_tail_bound: 5.0,
            duration_predictor_kernel_size: 3,
            duration_predictor_num_flows: 4,
            duration_predictor_filter_channels: 256,
            prior_encoder_num_flows: 4,
            prior_encoder_num_wavenet_layers: 4,
            wavenet_kernel_size: 5,
            wavenet_dilation_rate: 1,
            speaking_rate: 1.0,
            noise_scale: 0.667,
            noise_scale_duration: 0.8,
            sampling_rate: 16_000,
        }
    }
}

impl VitsSpec {
    /// Reads the text of a `config.json`.
    pub(super) fn from_config(json: &[u8]) -> Result<Self, ModelError> {
        let spec: Self = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    /// The distance up to which attention knows places; none where it does not.
    pub(super) fn window(&self) -> Option<usize> {
        self.window_size.filter(|window| *window > 0)
    }

    pub(super) fn activation(&self) -> Result<Activation, ModelError> {
        activation(&self.hidden_act)
    }

    pub(super) fn norm(&self) -> NormSpec {
        NormSpec { kind: NormKind::LayerWithBias, eps: self.layer_norm_eps }
    }

    /// The width of a speaker's vector; none where the model has one voice.
    pub(super) fn speaker(&self) -> Option<usize> {
        Some(self.speaker_embedding_size).filter(|size| self.num_speakers > 1 && *size > 0)
    }

    /// The samples that a frame becomes.
    pub(super) fn hop(&self) -> usize {
        self.upsample_rates.iter().product()
    }

    fn check(&self) -> Result<(), ModelError> {
        let widths = [
            self.vocab_size,
            self.hidden_size,
            self.num_attention_heads,
            self.ffn_dim,
            self.ffn_kernel_size,
            self.flow_size,
            self.upsample_initial_channel,
            self.duration_predictor_kernel_size,
            self.wavenet_kernel_size,
            self.wavenet_dilation_rate,
        ];
        if widths.iter().any(|width| !(1..=MOST).contains(width)) {
            return Err(malformed(format!("a size is not from 1 to {MOST}")));
        }
        let all = self.resblock_kernel_sizes.iter().chain(self.resblock_dilation_sizes.iter().flatten());
        let all = all.chain(&self.upsample_rates).chain(&self.upsample_kernel_sizes);
        if all.clone().any(|size| !(1..=MOST).contains(size)) || all.count() > MOST_PARTS {
            return Err(malformed("the sizes of the decoder are no list of small numbers".to_owned()));
        }
        let parts = [
            self.num_hidden_layers,
            self.prior_encoder_num_flows,
            self.prior_encoder_num_wavenet_layers,
            self.depth_separable_num_layers,
            self.duration_predictor_num_flows,
        ];
        if parts.iter().any(|parts| !(1..=MOST_PARTS).contains(parts)) {
            return Err(malformed(format!("a number of layers or flows is not from 1 to {MOST_PARTS}")));
        }
        let far = |rate: usize, layers: usize| u32::try_from(layers).ok().and_then(|layers| rate.checked_pow(layers));
        let reach = [
            far(self.wavenet_dilation_rate, self.prior_encoder_num_wavenet_layers),
            far(self.duration_predictor_kernel_size, self.depth_separable_num_layers),
        ];
        if reach.iter().any(|reach| reach.is_none_or(|reach| reach > 1 << 20)) {
            return Err(malformed("the convolutions reach too far".to_owned()));
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            let (width, heads) = (self.hidden_size, self.num_attention_heads);
            return Err(malformed(format!("{heads} heads do not divide a width of {width}")));
        }
        if !self.flow_size.is_multiple_of(2) {
            return Err(malformed(format!("flow_size {} cannot be halved", self.flow_size)));
        }
        let stages = self.upsample_rates.len();
        if stages == 0 || stages != self.upsample_kernel_sizes.len() || stages > 16 {
            return Err(malformed("upsample_rates and upsample_kernel_sizes are not of one length".to_owned()));
        }
        if self.upsample_initial_channel >> stages == 0 {
            return Err(malformed(format!("upsample_initial_channel cannot be halved {stages} times")));
        }
        for (rate, taps) in self.upsample_rates.iter().zip(&self.upsample_kernel_sizes) {
            if taps < rate {
                return Err(malformed(format!("a kernel of {taps} cannot make {rate} samples of each")));
            }
        }
        if self.resblock_kernel_sizes.is_empty()
            || self.resblock_kernel_sizes.len() != self.resblock_dilation_sizes.len()
        {
            return Err(malformed(
                "resblock_kernel_sizes and resblock_dilation_sizes are not of one length".to_owned(),
            ));
        }
        let odd =
            self.resblock_kernel_sizes.iter().chain([&self.wavenet_kernel_size, &self.duration_predictor_kernel_size]);
        if let Some(even) = odd.into_iter().find(|size| size.is_multiple_of(2)) {
            return Err(malformed(format!("a kernel of {even} has no middle")));
        }
        // A flow of durations has two numbers for each symbol.
        if self.use_stochastic_duration_prediction && self.depth_separable_channels != 2 {
            let channels = self.depth_separable_channels;
            return Err(malformed(format!("depth_separable_channels is {channels}, and durations have 2")));
        }
        if !(1..=100).contains(&self.duration_predictor_flow_bins) {
            return Err(malformed(format!("duration_predictor_flow_bins is {}", self.duration_predictor_flow_bins)));
        }
        if self.num_speakers == 0 || self.num_speakers > MOST || self.hop() > MOST {
            return Err(malformed("num_speakers or upsample_rates are out of range".to_owned()));
        }
        if !(4_000..=192_000).contains(&self.sampling_rate) {
            return Err(malformed(format!("sampling_rate is {}", self.sampling_rate)));
        }
        let numbers = [self.speaking_rate, self.noise_scale, self.noise_scale_duration, self.leaky_relu_slope];
        if numbers.iter().any(|number| !number.is_finite() || *number < 0.0) || self.speaking_rate <= 0.0 {
            return Err(malformed("speaking_rate, a noise scale or leaky_relu_slope is no such number".to_owned()));
        }
        Ok(())
    }
}
