//! The sizes of a codec, from its configuration: as `transformers` writes it, or as the package of Parler-TTS did
//! before.

use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelError;
use crate::speech::config::malformed;

/// The largest size of any kind.
const MOST: usize = 1 << 16;

/// The sizes of a codec. Absent ones have the defaults of the reference.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(in crate::speech) struct DacSpec {
    #[serde(alias = "n_codebooks")]
    pub(in crate::speech) num_codebooks: usize,
    /// Codes of each codebook.
    pub(in crate::speech) codebook_size: usize,
    /// Width of a codebook's vectors.
    pub(super) codebook_dim: usize,
    /// Width of a frame.
    #[serde(alias = "hidden_size")]
    latent_dim: Option<usize>,
    encoder_hidden_size: usize,
    downsampling_ratios: Option<Vec<usize>>,
    /// Width of the first moments, which each stage halves.
    pub(super) decoder_hidden_size: usize,
    upsampling_ratios: Option<Vec<usize>>,
    /// Samples per second.
    pub(in crate::speech) sampling_rate: u32,
}

impl Default for DacSpec {
    fn default() -> Self {
        Self {
            num_codebooks: 9,
            codebook_size: 1024,
            codebook_dim: 8,
            latent_dim: None,
            encoder_hidden_size: 64,
            downsampling_ratios: None,
            decoder_hidden_size: 1536,
            upsampling_ratios: None,
            sampling_rate: 44_100,
        }
    }
}

impl DacSpec {
    /// Reads a configuration.
    pub(in crate::speech) fn from_config(config: Value) -> Result<Self, ModelError> {
        let spec: Self =
            serde_json::from_value(config).map_err(|error| malformed(format!("audio_encoder: {error}")))?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), ModelError> {
        let sizes = [self.num_codebooks, self.codebook_size, self.codebook_dim, self.width(), self.decoder_hidden_size];
        if sizes.iter().chain(self.ratios()).any(|size| !(1..=MOST).contains(size)) || self.sampling_rate == 0 {
            return Err(malformed(format!("audio_encoder: its sizes are from 1 to {MOST}")));
        }
        let stages = self.ratios().len();
        if stages == 0 || stages > 16 || self.decoder_hidden_size >> stages == 0 {
            return Err(malformed(format!("audio_encoder: {stages} stages cannot halve {}", self.decoder_hidden_size)));
        }
        if self.ratios().iter().try_fold(1_usize, |hop, ratio| hop.checked_mul(*ratio)).is_none_or(|hop| hop > MOST) {
            return Err(malformed("audio_encoder: a frame has too many samples".to_owned()));
        }
        Ok(())
    }

    /// Width of a frame.
    pub(super) fn width(&self) -> usize {
        let stages = self.downsampling_ratios.as_ref().map_or(4, Vec::len).min(16);
        self.latent_dim.unwrap_or_else(|| self.encoder_hidden_size.saturating_mul(1 << stages))
    }

    /// Moments made of each, stage by stage.
    pub(super) fn ratios(&self) -> &[usize] {
        self.upsampling_ratios.as_deref().unwrap_or(&[8, 8, 4, 2])
    }

    /// Samples of a frame.
    pub(super) fn hop(&self) -> usize {
        self.ratios().iter().product()
    }
}
