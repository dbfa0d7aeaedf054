//! The memory that a model of speech takes beside its weights: keys and values of the windows that it hears at the same
//! time, and of their texts.

use std::path::Path;

use model_boss_host::plain_file::{CONFIG, text_beside_weights};
use model_boss_protocol::ByteCount;
use serde::Deserialize;

/// The sizes in `config.json`, with those that `transformers` has where a file leaves them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct SpeechShape {
    d_model: u64,
    encoder_ffn_dim: u64,
    decoder_layers: u64,
    max_source_positions: u64,
    max_target_positions: u64,
}

impl Default for SpeechShape {
    fn default() -> Self {
        Self {
            d_model: 384,
            encoder_ffn_dim: 1536,
            decoder_layers: 4,
            max_source_positions: 1500,
            max_target_positions: 448,
        }
    }
}

/// The largest that OpenAI published, for a file without a configuration.
const LARGEST: SpeechShape = SpeechShape {
    d_model: 1280,
    encoder_ffn_dim: 5120,
    decoder_layers: 32,
    max_source_positions: 1500,
    max_target_positions: 448,
};

/// The memory of so many windows at the same time. Keys and values have 32 bits, or 16 where the weights are narrower.
pub(super) fn beside_weights(source: &Path, windows: u64, narrow: bool) -> ByteCount {
    let folder = if source.is_dir() { Some(source) } else { source.parent() };
    let text = folder.and_then(|folder| text_beside_weights(&folder.join("config.json"), CONFIG));
    let shape = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(LARGEST);
    shape.windows(windows, if narrow { 2 } else { 4 })
}

impl SpeechShape {
    fn windows(self, windows: u64, element: u64) -> ByteCount {
        let product = |factors: &[u64]| factors.iter().copied().fold(1, u64::saturating_mul);
        let tokens = self.max_source_positions.saturating_add(self.max_target_positions);
        let cached = product(&[2, self.decoder_layers, tokens, self.d_model, element]);
        let rows = product(&[self.max_source_positions, self.d_model, 4]);
        let kept = cached.saturating_add(rows).saturating_mul(windows);
        // The encoder's widest rows, and what they are made of.
        let wide = self.d_model.saturating_mul(8).saturating_add(self.encoder_ffn_dim);
        ByteCount(kept.saturating_add(product(&[self.max_source_positions, wide, 4])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_windows_take_memory_by_the_models_shape() {
        let mib = |shape: SpeechShape, windows, element| shape.windows(windows, element).0 >> 20;
        assert_eq!(mib(SpeechShape::default(), 1, 4), 51);
        assert_eq!(mib(LARGEST, 8, 2), 2581);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(beside_weights(folder.path(), 1, true), LARGEST.windows(1, 2));
        std::fs::write(folder.path().join("config.json"), r#"{"model_type":"whisper","decoder_layers":2}"#).unwrap();
        let two = SpeechShape { decoder_layers: 2, ..SpeechShape::default() };
        assert_eq!(beside_weights(folder.path(), 3, false), two.windows(3, 4));
        let huge = SpeechShape { d_model: u64::MAX, ..LARGEST };
        assert_eq!(huge.windows(u64::MAX, 4), ByteCount(u64::MAX));
    }
}
