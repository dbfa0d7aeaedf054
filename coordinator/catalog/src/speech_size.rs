//! The memory that a model of speech takes beside its weights: keys and values of the windows that it hears at the same
//! time, and of their texts; keys and values of what it speaks.

use std::path::Path;

use model_boss_host::plain_file::{CONFIG, text_beside_weights};
use model_boss_protocol::ByteCount;
use model_boss_weights::model_folder;
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

/// The sizes of a CSM, with those that `transformers` has where a file leaves them out.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default)]
struct CsmShape {
    num_hidden_layers: u64,
    hidden_size: u64,
    num_attention_heads: u64,
    num_key_value_heads: u64,
    head_dim: Option<u64>,
    max_position_embeddings: u64,
}

impl Default for CsmShape {
    fn default() -> Self {
        Self {
            num_hidden_layers: 16,
            hidden_size: 2048,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: None,
            max_position_embeddings: 2048,
        }
    }
}

/// Rows of the widest layers, heads of codebooks in 32 bits, and sound.
const CSM_WORK: u64 = 384 << 20;

/// The sizes of the decoder of a Parler-TTS, with those that its package has where a file leaves them out.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default)]
struct ParlerShape {
    num_hidden_layers: u64,
    hidden_size: u64,
    num_attention_heads: u64,
    num_key_value_heads: Option<u64>,
}

impl Default for ParlerShape {
    fn default() -> Self {
        Self { num_hidden_layers: 24, hidden_size: 1024, num_attention_heads: 16, num_key_value_heads: None }
    }
}

/// Columns of the longest part of Parler-TTS where its folder does not tell, and the tokens of a text before them.
const PARLER_COLUMNS: u64 = 2580;
const PARLER_TEXT: u64 = 240;

/// Pieces of its sound.
const PARLER_WORK: u64 = 256 << 20;

/// The memory of a model that speaks by a decoder: keys and values of the longest part, and those that are copied while
/// they grow. None for other models.
pub(super) fn of_speakers(source: &Path) -> Option<ByteCount> {
    #[derive(Deserialize)]
    struct SpeakerKind {
        model_type: String,
    }
    #[derive(Deserialize)]
    struct ParlerFields {
        #[serde(default)]
        decoder: ParlerShape,
    }
    #[derive(Deserialize)]
    struct PartLength {
        max_length: Option<u64>,
    }
    let folder = model_folder(source);
    let text = text_beside_weights(&folder.join("config.json"), CONFIG)?;
    let (sizes, work) = match serde_json::from_str::<SpeakerKind>(&text).ok()?.model_type.as_str() {
        "csm" => {
            let shape: CsmShape = serde_json::from_str(&text).ok()?;
            let head = shape.head_dim.unwrap_or(shape.hidden_size / shape.num_attention_heads.max(1));
            let layers = shape.num_hidden_layers;
            (vec![2, 2, 4, layers, shape.num_key_value_heads, head, shape.max_position_embeddings], CSM_WORK)
        }
        "parler_tts" => {
            let shape = serde_json::from_str::<ParlerFields>(&text).ok()?.decoder;
            let rules = text_beside_weights(&folder.join("generation_config.json"), CONFIG);
            let length = rules.and_then(|text| serde_json::from_str::<PartLength>(&text).ok()?.max_length);
            let columns = length.unwrap_or(PARLER_COLUMNS).saturating_add(PARLER_TEXT);
            let kv_heads = shape.num_key_value_heads.unwrap_or(shape.num_attention_heads);
            let head = shape.hidden_size / shape.num_attention_heads.max(1);
            // Keys and values in 32 bits, and a quarter more.
            (vec![2, 5, shape.num_hidden_layers, kv_heads, head, columns], PARLER_WORK)
        }
        _ => return None,
    };
    Some(ByteCount(sizes.into_iter().fold(1, u64::saturating_mul).saturating_add(work)))
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

    #[test]
    fn rc_28_a_speaker_with_a_decoder_keeps_keys_and_values() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(folder.path().join("config.json"), text).unwrap();
        write(r#"{"model_type":"vits"}"#);
        assert_eq!(of_speakers(folder.path()), None);
        write(r#"{"model_type":"csm"}"#);
        // Of CSM-1B: 16 layers, 8 heads of 64, 2,048 positions, 32 bits, twice.
        assert_eq!(of_speakers(folder.path()), Some(ByteCount((256 << 20) + CSM_WORK)));
        write(r#"{"model_type":"parler_tts","decoder":{"num_hidden_layers":24,"hidden_size":1024}}"#);
        let mini = |columns: u64| Some(ByteCount(2 * 5 * 24 * 1024 * (columns + PARLER_TEXT) + PARLER_WORK));
        assert_eq!(of_speakers(folder.path()), mini(PARLER_COLUMNS));
        std::fs::write(folder.path().join("generation_config.json"), r#"{"max_length":100}"#).unwrap();
        assert_eq!(of_speakers(folder.path()), mini(100));
    }
}
