//! A model's category by its files, for one whose manifest states none: encoders give vectors, or numbers for labels,
//! and some models speak, or paint.

use std::path::Path;

use model_boss_host::plain_file::{CONFIG, text_beside_weights};
use model_boss_protocol::{
    CONFIG_ARCHITECTURES, Category, ENCODER_TYPES, GGUF_ENCODERS, HEARING_TYPES, SPEECH_TYPES, config_architecture,
};
use model_boss_weights::{HeaderBudget, layers_folder, model_folder};
use serde::Deserialize;

use super::files::ModelFile;
use super::headers::gguf_outline;
use super::pipeline::PipelineIndex;

/// llama.cpp's number for files whose numbers are scores, in `pooling_type`.
const RANK: u64 = 4;

/// The category that the files show; `None` for one that writes text, or where they cannot be read.
pub(super) fn category_of(source: &Path, files: &[ModelFile]) -> Option<Category> {
    if PipelineIndex::read(source).is_some() {
        return Some(Category::Diffusion);
    }
    match files.iter().find(|file| file.is_gguf()) {
        Some(file) => of_gguf(file.path()).or_else(|| speech_beside(source)),
        None if files.iter().any(ModelFile::is_weights) => of_config(source),
        None => None,
    }
}

/// A file with a pooling gives one vector of a text, whatever its layers.
fn of_gguf(path: &Path) -> Option<Category> {
    let outline = gguf_outline(path, &mut HeaderBudget::default(), |_| {}).ok()?;
    let architecture = outline.text("general.architecture")?;
    if HEARING_TYPES.contains(&architecture) {
        return Some(Category::Transcription);
    }
    match outline.number(&format!("{architecture}.pooling_type")) {
        Some(RANK) => Some(Category::Reranking),
        Some(1..RANK) => Some(Category::Embedding),
        _ => GGUF_ENCODERS.contains(&architecture).then_some(Category::Embedding),
    }
}

/// A file without an architecture may have its configuration beside it.
fn speech_beside(source: &Path) -> Option<Category> {
    let folder = if source.is_dir() { Some(source) } else { source.parent() }?;
    let text = text_beside_weights(&folder.join("config.json"), CONFIG)?;
    let config: KindConfig = serde_json::from_str(&text).ok()?;
    HEARING_TYPES.contains(&config.model_type.as_str()).then_some(Category::Transcription)
}

#[derive(Deserialize)]
struct KindConfig {
    #[serde(default)]
    model_type: String,
    #[serde(default)]
    architectures: Vec<String>,
    is_causal: Option<bool>,
    use_bidirectional_attention: Option<bool>,
}

/// Encoders, folders of `sentence-transformers`, and decoders without their last product or whose tokens see those
/// behind them.
fn of_config(source: &Path) -> Option<Category> {
    let folder = if source.is_dir() { Some(source) } else { source.parent() }?;
    let layers = layers_folder(source);
    let text = text_beside_weights(&model_folder(&layers).join("config.json"), CONFIG)?;
    let config: KindConfig = serde_json::from_str(&text).ok()?;
    if SPEECH_TYPES.contains(&config.model_type.as_str()) {
        return Some(Category::Tts);
    }
    if HEARING_TYPES.contains(&config.model_type.as_str()) {
        return Some(Category::Transcription);
    }
    if is_judge(folder) {
        return Some(Category::Reranking);
    }
    let class = config.architectures.first().map_or("", String::as_str);
    if ENCODER_TYPES.contains(&config.model_type.as_str()) {
        let judges = class.ends_with("ForSequenceClassification");
        return Some(if judges { Category::Reranking } else { Category::Embedding });
    }
    let without_product = !CONFIG_ARCHITECTURES.contains(&class) && config_architecture(class).is_some();
    let both_ways = config.is_causal == Some(false) || config.use_bidirectional_attention == Some(true);
    let gives_vectors = without_product || both_ways || folder.join("modules.json").is_file();
    gives_vectors.then_some(Category::Embedding)
}

/// Whether `sentence-transformers` has saved the folder as one of a judge.
fn is_judge(folder: &Path) -> bool {
    #[derive(Deserialize)]
    struct SavedAs {
        model_type: String,
    }
    let text = text_beside_weights(&folder.join("config_sentence_transformers.json"), CONFIG);
    let saved_as: Option<SavedAs> = text.and_then(|text| serde_json::from_str(&text).ok());
    saved_as.is_some_and(|saved_as| saved_as.model_type == "CrossEncoder")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use model_boss_weights::gguf::{HeaderWriter, TensorType};

    use super::super::files::model_files;
    use super::*;

    #[test]
    fn em_1_files_show_that_a_model_gives_vectors_or_scores() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        for (architecture, pooling, expected) in [
            ("bert", Some(1_u32), Some(Category::Embedding)),
            ("bert", Some(4), Some(Category::Reranking)),
            ("nomic-bert", None, Some(Category::Embedding)),
            ("gemma-embedding", Some(1), Some(Category::Embedding)),
            ("qwen3", Some(3), Some(Category::Embedding)),
            ("qwen3", Some(0), None),
            ("qwen3", None, None),
            ("whisper", None, Some(Category::Transcription)),
        ] {
            let mut writer = HeaderWriter::new();
            writer.set("general.architecture", architecture).unwrap();
            if let Some(pooling) = pooling {
                writer.set(&format!("{architecture}.pooling_type"), &pooling).unwrap();
            }
            writer.tensor("token_embd.weight", TensorType::F32, &[1, 4]).unwrap();
            let mut body = writer.begin(std::fs::File::create(&path).unwrap()).unwrap();
            body.write(&[0; 16]).unwrap();
            body.finish().unwrap().flush().unwrap();
            assert_eq!(category_of(&path, &model_files(&path)), expected, "{architecture} {pooling:?}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), "x").unwrap();
        let of = |config: &str| {
            std::fs::write(folder.path().join("config.json"), config).unwrap();
            category_of(folder.path(), &model_files(folder.path()))
        };
        for (config, expected) in [
            (r#"{"model_type":"vits","architectures":["VitsModel"]}"#, Some(Category::Tts)),
            (r#"{"model_type":"nomic_bert","architectures":["NomicBertModel"]}"#, Some(Category::Embedding)),
            (r#"{"model_type":"new","architectures":["NewForSequenceClassification"]}"#, Some(Category::Reranking)),
            (r#"{"model_type":"gemma3_text","architectures":["Gemma3TextModel"]}"#, Some(Category::Embedding)),
            (
                r#"{"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"is_causal":false}"#,
                Some(Category::Embedding),
            ),
            (r#"{"model_type":"qwen2","architectures":["Qwen2ForCausalLM"]}"#, None),
            (r#"{"model_type":"whisper"}"#, Some(Category::Transcription)),
            ("{", None),
        ] {
            assert_eq!(of(config), expected, "{config}");
        }
        std::fs::write(folder.path().join("model_index.json"), r#"{"_class_name":"FluxPipeline"}"#).unwrap();
        assert_eq!(of("{"), Some(Category::Diffusion));
        std::fs::remove_file(folder.path().join("model_index.json")).unwrap();
        std::fs::write(folder.path().join("modules.json"), "[]").unwrap();
        assert_eq!(of(r#"{"architectures":["Qwen3ForCausalLM"]}"#), Some(Category::Embedding));
        let saved = folder.path().join("config_sentence_transformers.json");
        std::fs::write(saved, r#"{"model_type":"CrossEncoder"}"#).unwrap();
        assert_eq!(of(r#"{"model_type":"bert","architectures":["BertModel"]}"#), Some(Category::Reranking));
    }
}
