//! Whether our own worker can run a model, as far as the headers of its files tell (RC-16). When they tell nothing the
//! answer is yes: the worker reads more than headers and names what is wrong.

use std::path::Path;

use model_boss_protocol::{CONFIG_ARCHITECTURES, Category, GGUF_ARCHITECTURES};
use model_boss_weights::gguf::Fault;
use serde::Deserialize;

use super::headers::with_gguf_header;
use super::size::ModelFile;
use crate::plain_file::text_beside_weights;

/// What our worker lacks for this model; `None` where nothing speaks against it.
pub(super) fn candle_lacks(category: Category, source: &Path, files: &[ModelFile]) -> Option<String> {
    if category != Category::Llm {
        return Some(format!("our worker has no engine for {category} models"));
    }
    let ggufs: Vec<&ModelFile> = files.iter().filter(|file| file.is_gguf()).collect();
    match ggufs.iter().find_map(|file| gguf_lacks(file.path())) {
        Some(lacks) => Some(lacks),
        None if ggufs.is_empty() => config_lacks(source),
        None => None,
    }
}

fn gguf_lacks(path: &Path) -> Option<String> {
    let read = with_gguf_header(path, |header| {
        let architecture = header.find::<&str>("general.architecture").ok().flatten();
        if let Some(unknown) = architecture.filter(|name| !GGUF_ARCHITECTURES.contains(name)) {
            return Some(format!("our worker does not know the architecture '{}'", unknown.escape_debug()));
        }
        let tensor = header.first_unsupported()?;
        Some(format!("our worker does not compute with tensors of type {}", tensor.kind))
    });
    match read {
        Ok(lacks) => lacks,
        Err(Some(Fault::TensorType(error))) => Some(format!("our worker cannot read a tensor of it: {error}")),
        Err(_) => None,
    }
}

fn config_lacks(source: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Config {
        architectures: Vec<String>,
    }
    let folder = if source.is_dir() { Some(source) } else { source.parent() };
    let text = text_beside_weights(&folder?.join("config.json"))?;
    let named = serde_json::from_str::<Config>(&text).ok()?.architectures.into_iter().next()?;
    let known = CONFIG_ARCHITECTURES.contains(&named.as_str());
    (!known).then(|| format!("our worker does not know the architecture '{}'", named.escape_debug()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use model_boss_weights::gguf::{HeaderWriter, TensorType};

    use super::super::size::model_files;
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
            ("gemma3", TensorType::Q4_K, Some("'gemma3'")),
            ("llama", TensorType::IQ4_XS, Some("IQ4_XS")),
        ] {
            gguf(&path, architecture, kind);
            let lacks = candle_lacks(Category::Llm, &path, &model_files(&path));
            assert_eq!(lacks.is_some(), word.is_some(), "{lacks:?}");
            assert!(lacks.unwrap_or_default().contains(word.unwrap_or_default()));
        }
        gguf(&path, "qwen3", TensorType::Q4_K);
        assert!(candle_lacks(Category::Embedding, &path, &model_files(&path)).unwrap().contains("embedding"));
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
    }
}
