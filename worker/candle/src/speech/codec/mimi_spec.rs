//! The sizes of Mimi, from its `config.json`. Absent keys have the defaults of `transformers`.

use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelError;
use crate::spec::{NormKind, NormSpec, RopePlanes, RopeScaling, RopeSpec};
use crate::speech::causal::CausalSpec;
use crate::speech::config::{activation, malformed};

/// The largest size that any part may have.
const MOST: usize = 1 << 16;

/// The most layers and stages.
const MOST_PARTS: usize = 64;

/// The sizes of a codec.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(in crate::speech) struct MimiSpec {
    pub(super) hidden_size: usize,
    pub(super) num_filters: usize,
    pub(super) num_residual_layers: usize,
    upsampling_ratios: Option<Vec<usize>>,
    pub(super) kernel_size: usize,
    pub(super) last_kernel_size: usize,
    pub(super) residual_kernel_size: usize,
    dilation_growth_rate: usize,
    use_causal_conv: bool,
    pad_mode: String,
    compress: usize,
    trim_right_ratio: f64,
    pub(super) codebook_size: usize,
    codebook_dim: Option<usize>,
    pub(in crate::speech) num_quantizers: usize,
    pub(super) use_conv_shortcut: bool,
    pub(super) vector_quantization_hidden_dimension: usize,
    pub(super) num_semantic_quantizers: usize,
    pub(super) upsample_groups: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    hidden_act: String,
    norm_eps: f64,
    rope_theta: Option<f64>,
    rope_parameters: Option<Value>,
    sliding_window: Option<usize>,
    audio_channels: usize,
    pub(in crate::speech) sampling_rate: u32,
    frame_rate: Option<f64>,
    #[serde(rename = "_frame_rate")]
    kept_frame_rate: Option<f64>,
}

impl Default for MimiSpec {
    fn default() -> Self {
        Self {
            hidden_size: 512,
            num_filters: 64,
            num_residual_layers: 1,
            upsampling_ratios: None,
            kernel_size: 7,
            last_kernel_size: 3,
            residual_kernel_size: 3,
            dilation_growth_rate: 2,
            use_causal_conv: true,
            pad_mode: "constant".to_owned(),
            compress: 2,
            trim_right_ratio: 1.0,
            codebook_size: 2048,
            codebook_dim: Some(256),
            num_quantizers: 32,
            use_conv_shortcut: false,
            vector_quantization_hidden_dimension: 256,
            num_semantic_quantizers: 1,
            upsample_groups: 512,
            num_hidden_layers: 8,
            intermediate_size: 2048,
            num_attention_heads: 8,
            num_key_value_heads: 8,
            head_dim: None,
            hidden_act: "gelu".to_owned(),
            norm_eps: 1e-5,
            rope_theta: None,
            rope_parameters: None,
            sliding_window: Some(250),
            audio_channels: 1,
            sampling_rate: 24_000,
            frame_rate: None,
            kept_frame_rate: None,
        }
    }
}

impl MimiSpec {
    /// Reads a configuration.
    pub(in crate::speech) fn from_config(config: Value) -> Result<Self, ModelError> {
        let spec: Self = serde_json::from_value(config).map_err(|error| malformed(format!("codec_config: {error}")))?;
        spec.check()?;
        Ok(spec)
    }

    /// Samples made of each moment, stage by stage.
    pub(super) fn ratios(&self) -> &[usize] {
        self.upsampling_ratios.as_deref().unwrap_or(&[8, 6, 5, 4])
    }

    /// Width of a vector of a codebook.
    pub(super) fn code_width(&self) -> usize {
        self.codebook_dim.unwrap_or(self.hidden_size)
    }

    /// Codes of each codebook.
    pub(in crate::speech) fn codes(&self) -> usize {
        self.codebook_size
    }

    /// Samples of a moment of the transformer.
    fn hop(&self) -> usize {
        self.ratios().iter().product()
    }

    /// Moments of the transformer that a frame becomes: the ratio of the two rates, as the reference rounds it.
    pub(super) fn moments(&self) -> usize {
        let rate = f64::from(self.sampling_rate);
        let moments = (rate / self.hop() as f64).ceil();
        let frames = self.frame_rate.or(self.kept_frame_rate).unwrap_or(rate / (2 * self.hop()) as f64);
        (moments / frames) as usize
    }

    /// Width inside of a residual block.
    pub(super) fn narrowed(&self, width: usize) -> usize {
        width / self.compress
    }

    /// The distance of a residual block's taps.
    pub(super) fn dilation(&self, block: usize) -> usize {
        self.dilation_growth_rate.pow(block as u32)
    }

    /// The layers between codebooks and samples.
    pub(super) fn layers(&self) -> Result<CausalSpec, ModelError> {
        let head = self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads);
        let parameters = self.rope_parameters.as_ref();
        let kind = parameters.and_then(|rope| rope.get("rope_type")).and_then(Value::as_str).unwrap_or("default");
        if kind != "default" {
            return Err(malformed(format!("codec_config: positions of type '{kind}' are not known in Mimi")));
        }
        let theta = parameters.and_then(|rope| rope.get("rope_theta")).and_then(Value::as_f64);
        Ok(CausalSpec {
            width: self.hidden_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head,
            inner: self.intermediate_size,
            activation: activation(&self.hidden_act)?,
            gated: false,
            norm: NormSpec { kind: NormKind::LayerWithBias, eps: self.norm_eps },
            rope: RopeSpec {
                planes: RopePlanes::Halves,
                width: head,
                theta: theta.or(self.rope_theta).unwrap_or(10_000.0),
                scaling: RopeScaling::None,
                axes: Vec::new(),
            },
            window: self.sliding_window,
            scaled: true,
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let refused = |what: String| Err(malformed(format!("codec_config: {what}")));
        let sizes = [
            self.hidden_size,
            self.num_filters,
            self.kernel_size,
            self.last_kernel_size,
            self.residual_kernel_size,
            self.dilation_growth_rate,
            self.compress,
            self.codebook_size,
            self.code_width(),
            self.vector_quantization_hidden_dimension,
            self.upsample_groups,
            self.intermediate_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim.unwrap_or(1),
            self.sliding_window.unwrap_or(1),
        ];
        if sizes.iter().chain(self.ratios()).any(|size| !(1..=MOST).contains(size)) {
            return refused(format!("a size is not from 1 to {MOST}"));
        }
        let parts = [self.num_hidden_layers, self.ratios().len(), self.num_residual_layers, self.num_quantizers];
        if parts.iter().any(|parts| !(1..=MOST_PARTS).contains(parts)) {
            return refused(format!("a number of layers or codebooks is not from 1 to {MOST_PARTS}"));
        }
        if !(1..self.num_quantizers).contains(&self.num_semantic_quantizers) {
            return refused(format!("{} of {} codebooks", self.num_semantic_quantizers, self.num_quantizers));
        }
        let reach = self.dilation_growth_rate.checked_pow(self.num_residual_layers as u32);
        let widest = self.num_filters.checked_shl(self.ratios().len() as u32);
        if reach.is_none_or(|reach| reach > MOST) || widest.is_none_or(|widest| widest > MOST) || self.hop() > MOST {
            return refused("the convolutions reach too far, or are too wide".to_owned());
        }
        if self.num_filters < self.compress {
            return refused(format!("{} filters cannot be divided by {}", self.num_filters, self.compress));
        }
        let heads = (self.num_attention_heads, self.num_key_value_heads);
        if !heads.0.is_multiple_of(heads.1) || !self.hidden_size.is_multiple_of(heads.0) {
            return refused(format!(
                "{} heads over {} do not divide a width of {}",
                heads.0, heads.1, self.hidden_size
            ));
        }
        if !self.hidden_size.is_multiple_of(self.upsample_groups) {
            return refused(format!("{} groups do not divide a width of {}", self.upsample_groups, self.hidden_size));
        }
        if !self.use_causal_conv || self.trim_right_ratio != 1.0 || self.pad_mode != "constant" {
            return refused("its convolutions are not causal, or begin with other than silence".to_owned());
        }
        if self.audio_channels != 1 || !(100..=192_000).contains(&self.sampling_rate) {
            return refused(format!("{} channels at {} Hz", self.audio_channels, self.sampling_rate));
        }
        if !(1..=64).contains(&self.moments()) {
            return refused("a frame is no whole number of moments".to_owned());
        }
        Ok(())
    }
}
