//! Whether the candle worker can run a model, by the headers of its files (RC-16). Without information the answer is
//! yes: the worker reads more than headers and reports faults itself.

use std::fmt;
use std::path::Path;

use model_boss_host::plain_file::{CONFIG, text_beside_weights};
use model_boss_protocol::{
    CONFIG_ARCHITECTURES, Category, ENCODER_TYPES, GGUF_ARCHITECTURES, GGUF_ENCODERS, HEARING_TYPES, PIPELINE_CLASSES,
    SPEECH_TYPES, TOWER_TYPES, config_architecture,
};
use model_boss_weights::gguf::HeaderFault;
use model_boss_weights::{HeaderBudget, layers_folder, towers_folder};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::files::ModelFile;
use super::headers::gguf_outline;
use super::pipeline::PipelineIndex;

/// The most characters of a name in a message.
const MAX_NAME: usize = 100;

/// The decoder among the architectures of GGUF whose tokens see those behind them.
const BOTH_WAYS: &str = "gemma-embedding";

/// The reason why the candle worker cannot run this model; `None` where the headers show no obstacle.
pub(super) fn candle_lacks(category: Category, source: &Path, files: &[ModelFile]) -> Option<String> {
    let ggufs: Vec<&ModelFile> = files.iter().filter(|file| file.is_gguf()).collect();
    match category {
        Category::Llm => {}
        Category::Embedding | Category::Reranking if ggufs.is_empty() => {
            return encoder_lacks(source).filter(|_| !names_decoder(source));
        }
        Category::Vision if ggufs.is_empty() => return towers_lack(source),
        Category::Transcription => return speech_lacks(source, &ggufs),
        Category::Vision => return Some("our worker reads vision models from safetensors only".to_owned()),
        Category::Tts if ggufs.is_empty() => return voice_lacks(source),
        Category::Tts => return Some("our worker reads models that speak from safetensors only".to_owned()),
        // A decoder's last rows are vectors, and its words are scores.
        Category::Embedding | Category::Reranking => {}
        Category::Diffusion => return pipeline_lacks(source, files),
    }
    match ggufs.iter().find_map(|file| gguf_lacks(category, file.path())) {
        Some(lacks) => Some(lacks),
        None if ggufs.is_empty() => config_lacks(source),
        None => None,
    }
}

fn gguf_lacks(category: Category, path: &Path) -> Option<String> {
    let mut unsupported = None;
    let read = gguf_outline(path, &mut HeaderBudget::default(), |tensor| {
        if unsupported.is_none() && !tensor.kind.is_supported() {
            unsupported = Some(tensor.kind);
        }
    });
    let outline = match read {
        Ok(outline) => outline,
        Err(Some(HeaderFault::TensorType(error))) => {
            return Some(format!("our worker cannot read a tensor of it: {error}"));
        }
        Err(_) => return None,
    };
    let architecture = outline.text("general.architecture");
    if let Some(name) = architecture.filter(|name| GGUF_ENCODERS.contains(name) || *name == BOTH_WAYS)
        && category == Category::Llm
    {
        return Some(format!("models of '{name}' write no text: their category is embedding or reranking"));
    }
    let known = |name: &&str| GGUF_ARCHITECTURES.contains(name) || GGUF_ENCODERS.contains(name);
    if let Some(unknown) = architecture.filter(|name| !known(name)) {
        let unknown: String = unknown.escape_debug().take(MAX_NAME).collect();
        return Some(format!("our worker does not know the architecture '{unknown}'"));
    }
    unsupported.map(|kind| format!("our worker does not compute with tensors of type {kind}"))
}

/// The architecture that a model's `config.json` names.
fn architecture_of(source: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct ArchitectureConfig {
        architectures: FirstText,
    }
    let folder = if source.is_dir() { Some(source) } else { source.parent() };
    let text = text_beside_weights(&folder?.join("config.json"), CONFIG)?;
    serde_json::from_str::<ArchitectureConfig>(&text).ok()?.architectures.0
}

/// Whether that is one of decoders, or of one without its last product.
fn names_decoder(source: &Path) -> bool {
    architecture_of(source).is_some_and(|named| config_architecture(&named).is_some())
}

fn config_lacks(source: &Path) -> Option<String> {
    let named = architecture_of(source)?;
    if CONFIG_ARCHITECTURES.contains(&named.as_str()) {
        return None;
    }
    let unknown: String = named.escape_debug().take(MAX_NAME).collect();
    Some(format!("our worker does not know the architecture '{unknown}'"))
}

/// The same for a model that turns texts into vectors.
fn encoder_lacks(source: &Path) -> Option<String> {
    let model_type = model_type_of(&layers_folder(source)).filter(|kind| !ENCODER_TYPES.contains(&kind.as_str()))?;
    let unknown: String = model_type.escape_debug().take(MAX_NAME).collect();
    Some(format!("our worker gets no vectors or scores from models of type '{unknown}'"))
}

/// The same for a model that turns texts and images into vectors.
fn towers_lack(source: &Path) -> Option<String> {
    let model_type = model_type_of(&towers_folder(source)).filter(|kind| !TOWER_TYPES.contains(&kind.as_str()))?;
    let unknown: String = model_type.escape_debug().take(MAX_NAME).collect();
    Some(format!("our worker gets no vectors of images from models of type '{unknown}'"))
}

/// The same for a model that paints.
fn pipeline_lacks(source: &Path, files: &[ModelFile]) -> Option<String> {
    let Some(index) = PipelineIndex::read(source) else {
        let lacks = || "our worker paints with folders of diffusers, which have a model_index.json".to_owned();
        return files.iter().any(ModelFile::is_weights).then(lacks);
    };
    if PIPELINE_CLASSES.contains(&index.class.as_str()) {
        return None;
    }
    let unknown: String = index.class.escape_debug().take(MAX_NAME).collect();
    Some(format!("our worker does not paint by pipelines of class '{unknown}'"))
}

/// The same for a model that speaks.
fn voice_lacks(source: &Path) -> Option<String> {
    let model_type = model_type_of(source).filter(|kind| !SPEECH_TYPES.contains(&kind.as_str()))?;
    let unknown: String = model_type.escape_debug().take(MAX_NAME).collect();
    Some(format!("our worker does not speak by models of type '{unknown}'"))
}

/// The same for a model that turns speech into text.
fn speech_lacks(source: &Path, ggufs: &[&ModelFile]) -> Option<String> {
    let unknown = |named: &str| {
        let named: String = named.escape_debug().take(MAX_NAME).collect();
        format!("our worker gets no text of speech from models of type '{named}'")
    };
    let is_unknown = |named: &&str| !HEARING_TYPES.contains(named);
    for file in ggufs {
        let outline = gguf_outline(file.path(), &mut HeaderBudget::default(), |_| {}).ok()?;
        if let Some(named) = outline.text("general.architecture").filter(is_unknown) {
            return Some(unknown(named));
        }
    }
    model_type_of(source).as_deref().filter(is_unknown).map(unknown)
}

/// The type of model that a `config.json` names.
fn model_type_of(source: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct EncoderKind {
        model_type: String,
    }
    let folder = if source.is_dir() { Some(source) } else { source.parent() };
    let text = text_beside_weights(&folder?.join("config.json"), CONFIG)?;
    Some(serde_json::from_str::<EncoderKind>(&text).ok()?.model_type)
}

/// The first text of a JSON list; the rest is skipped.
struct FirstText(Option<String>);

impl<'de> Deserialize<'de> for FirstText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = FirstText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FirstText, A::Error> {
                let first = list.next_element()?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstText(first))
            }
        }
        deserializer.deserialize_seq(ListVisitor)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use model_boss_weights::gguf::{HeaderWriter, TensorType};

    use super::super::files::model_files;
    use super::*;

    fn gguf(path: &Path, architecture: &str, kind: TensorType) {
        let mut writer = HeaderWriter::new();
        writer.set("general.architecture", architecture).unwrap();
        writer.tensor("output.weight", kind, &[1, 256]).unwrap();
        let mut body = writer.begin(std::fs::File::create(path).unwrap()).unwrap();
        body.write(&vec![0; usize::try_from(kind.bytes_of(256).unwrap()).unwrap()]).unwrap();
        body.finish().unwrap().flush().unwrap();
    }

    #[test]
    fn rc_16_what_our_worker_lacks_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        for (architecture, kind, word) in [
            ("qwen3", TensorType::Q4_K, None),
            ("rwkv7", TensorType::Q4_K, Some("'rwkv7'")),
            ("llama", TensorType::IQ2_XS, Some("IQ2_XS")),
        ] {
            gguf(&path, architecture, kind);
            let lacks = candle_lacks(Category::Llm, &path, &model_files(&path));
            assert_eq!(lacks.is_some(), word.is_some(), "{lacks:?}");
            assert!(lacks.unwrap_or_default().contains(word.unwrap_or_default()));
        }
        gguf(&path, "qwen3", TensorType::Q4_K);
        assert_eq!(candle_lacks(Category::Embedding, &path, &model_files(&path)), None);
        for encoder in ["bert", "gemma-embedding"] {
            gguf(&path, encoder, TensorType::Q4_K);
            assert_eq!(candle_lacks(Category::Embedding, &path, &model_files(&path)), None, "{encoder}");
            let lacks = candle_lacks(Category::Llm, &path, &model_files(&path)).unwrap();
            assert!(lacks.contains("category is embedding"), "{lacks}");
        }
        gguf(&path, "neo-bert", TensorType::Q4_K);
        assert!(candle_lacks(Category::Embedding, &path, &model_files(&path)).unwrap().contains("'neo-bert'"));
        std::fs::write(&path, "cut").unwrap();
        assert_eq!(candle_lacks(Category::Llm, &path, &model_files(&path)), None, "the worker says what is wrong");
    }

    #[test]
    fn rc_16_a_config_names_its_architecture() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), "x").unwrap();
        let config = |name: &str| {
            std::fs::write(folder.path().join("config.json"), format!("{{\"architectures\":[\"{name}\"]}}")).unwrap();
            candle_lacks(Category::Llm, folder.path(), &model_files(folder.path()))
        };
        assert_eq!(config("Qwen3ForCausalLM"), None);
        assert!(config("BertModel").unwrap().contains("'BertModel'"));
        let encoder = |kind: &str| {
            std::fs::write(folder.path().join("config.json"), format!("{{\"model_type\":\"{kind}\"}}")).unwrap();
            candle_lacks(Category::Embedding, folder.path(), &model_files(folder.path()))
        };
        assert_eq!(encoder("bert"), None);
        assert_eq!(encoder("nomic_bert"), None);
        assert!(encoder("deberta-v2").unwrap().contains("'deberta-v2'"));
        let towers = |kind: &str| {
            std::fs::write(folder.path().join("config.json"), format!("{{\"model_type\":\"{kind}\"}}")).unwrap();
            candle_lacks(Category::Vision, folder.path(), &model_files(folder.path()))
        };
        assert_eq!((towers("siglip"), towers("clip")), (None, None));
        let voice = |kind: &str| {
            std::fs::write(folder.path().join("config.json"), format!("{{\"model_type\":\"{kind}\"}}")).unwrap();
            candle_lacks(Category::Tts, folder.path(), &model_files(folder.path()))
        };
        assert_eq!(voice("vits"), None);
        assert!(voice("bark").unwrap().contains("'bark'"));
        assert!(towers("blip").unwrap().contains("'blip'"));
        let judge = |text: &str| {
            std::fs::write(folder.path().join("config.json"), text).unwrap();
            candle_lacks(Category::Reranking, folder.path(), &model_files(folder.path()))
        };
        assert_eq!(
            judge(r#"{"model_type":"xlm-roberta","architectures":["XLMRobertaForSequenceClassification"]}"#),
            None
        );
        assert_eq!(judge(r#"{"model_type":"qwen3","architectures":["Qwen3ForCausalLM"]}"#), None);
        assert_eq!(judge(r#"{"model_type":"qwen3","architectures":["Qwen3Model"]}"#), None);
        assert!(judge(r#"{"model_type":"x","architectures":["Unknown"]}"#).unwrap().contains("'x'"));
        let painter = || candle_lacks(Category::Diffusion, folder.path(), &model_files(folder.path()));
        std::fs::write(folder.path().join("model.safetensors"), "x").unwrap();
        assert!(painter().unwrap().contains("model_index.json"));
        let pipeline = |class: &str| {
            let index = format!("{{\"_class_name\":\"{class}\"}}");
            std::fs::write(folder.path().join("model_index.json"), index).unwrap();
            painter()
        };
        assert_eq!(pipeline("FluxPipeline"), None);
        assert!(pipeline("KolorsPipeline").unwrap().contains("'KolorsPipeline'"));
    }
}
