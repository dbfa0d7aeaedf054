//! The longest text of a model's folder, as `sentence-transformers` and `transformers` find it.

use std::path::Path;

use model_boss_weights::LAYER_SETTINGS;
use serde::Deserialize;
use serde_json::Value;

use super::folder_file::file;
use crate::error::ModelError;

/// Tokenizers without a limit say a number from here on.
const NO_LIMIT: f64 = 1e9;

#[derive(Default, Deserialize)]
struct LayerSettings {
    max_seq_length: Option<usize>,
    /// The settings that the tokenizer is loaded with, by its newer name and the older one.
    processor_kwargs: Option<LengthSettings>,
    tokenizer_args: Option<LengthSettings>,
}

#[derive(Default, Deserialize)]
struct LengthSettings {
    model_max_length: Option<Value>,
}

impl LengthSettings {
    fn limit(&self) -> Option<usize> {
        let limit = self.model_max_length.as_ref()?.as_f64()?;
        (1.0..NO_LIMIT).contains(&limit).then_some(limit as usize)
    }
}

/// The longest text in tokens, if the folder has a limit. Settings that the tokenizer is loaded with come before the
/// layers' own, and these before those of its own file.
pub(super) fn longest_text(folder: &Path) -> Result<Option<usize>, ModelError> {
    let mut layers = LayerSettings::default();
    for name in LAYER_SETTINGS {
        if let Some(found) = file(&folder.join(name))? {
            layers = found;
            break;
        }
    }
    let loaded_with = layers.processor_kwargs.or(layers.tokenizer_args).unwrap_or_default();
    if let Some(limit) = loaded_with.limit().or(layers.max_seq_length) {
        return Ok(Some(limit));
    }
    let own: LengthSettings = file(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    Ok(own.limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_the_longest_text_is_in_one_of_several_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let longest = || longest_text(folder.path()).unwrap();
        assert_eq!(longest(), None);
        write("tokenizer_config.json", r#"{"model_max_length":1000000000000000019884624838656}"#);
        assert_eq!(longest(), None, "a tokenizer without a limit");
        write("tokenizer_config.json", r#"{"model_max_length":512}"#);
        assert_eq!(longest(), Some(512));
        write("sentence_bert_config.json", r#"{"transformer_task":"feature-extraction","max_seq_length":null}"#);
        assert_eq!(longest(), Some(512), "the file of a current version has no limit of its own");
        write("sentence_bert_config.json", r#"{"max_seq_length":128}"#);
        assert_eq!(longest(), Some(128));
        for name in ["tokenizer_args", "processor_kwargs"] {
            let text = format!(r#"{{"max_seq_length":128,"{name}":{{"model_max_length":64}}}}"#);
            write("sentence_bert_config.json", &text);
            assert_eq!(longest(), Some(64), "{name}");
        }
        std::fs::remove_file(folder.path().join("sentence_bert_config.json")).unwrap();
        write("sentence_xlm-roberta_config.json", r#"{"max_seq_length":100}"#);
        assert_eq!(longest(), Some(100));
        write("sentence_bert_config.json", r#"{"max_seq_length":"many"}"#);
        assert!(longest_text(folder.path()).is_err());
    }
}
