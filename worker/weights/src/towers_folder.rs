//! Folders of `sentence-transformers`, whose first module may have a folder of its own: the layers of an encoder, or a
//! tower for texts and one for images.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::locate::model_folder;
use crate::small_file::read_small_file;

/// The limit on `modules.json` in bytes.
const LONGEST: u64 = 1 << 20;

#[derive(Deserialize)]
struct FirstModule {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// The settings of an encoder's layers, by the newest name of the file and the older ones. The first that is there
/// counts.
pub const LAYER_SETTINGS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The folder with the weights, `config.json` and the tokenizer of a model of two towers: the source itself, or the
/// folder of the first module, where a CLIP model is.
pub fn towers_folder(source: &Path) -> PathBuf {
    first_module(source, &["CLIPModel"])
}

/// The same of an encoder, whose layers older versions have put into a folder of their own.
pub fn layers_folder(source: &Path) -> PathBuf {
    first_module(source, &["Transformer", "BERT", "RoBERTa"])
}

/// The folder of the first module, if it is of one of these classes and within the source; else the source.
fn first_module(source: &Path, classes: &[&str]) -> PathBuf {
    let folder = model_folder(source);
    let modules = read_small_file(&folder.join("modules.json"), LONGEST).ok().flatten();
    let modules: Option<Vec<FirstModule>> = modules.and_then(|text| serde_json::from_slice(&text).ok());
    let inside = |path: &str| {
        let mut parts = Path::new(path).components().peekable();
        parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let is_wanted = |first: &FirstModule| classes.contains(&first.kind.rsplit('.').next().unwrap_or_default());
    match modules.as_deref().and_then(<[FirstModule]>::first) {
        Some(first) if is_wanted(first) && inside(&first.path) => folder.join(&first.path),
        _ => source.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_3_towers_may_be_in_the_folder_of_a_module() {
        let folder = tempfile::tempdir().unwrap();
        let of = |modules: &str| {
            std::fs::write(folder.path().join("modules.json"), modules).unwrap();
            towers_folder(folder.path())
        };
        let kind = "sentence_transformers.models.CLIPModel";
        assert_eq!(towers_folder(folder.path()), folder.path());
        assert_eq!(of(&format!(r#"[{{"path":"0_CLIPModel","type":"{kind}"}}]"#)), folder.path().join("0_CLIPModel"));
        let layers = r#"[{"path":"0_Transformer","type":"sentence_transformers.models.Transformer"}]"#;
        assert_eq!(of(layers), folder.path());
        assert_eq!(layers_folder(folder.path()), folder.path().join("0_Transformer"));
        for plain in ["[]", "no json", r#"[{"path":"0","type":"sentence_transformers.models.Transformer"}]"#] {
            assert_eq!(of(plain), folder.path());
        }
        for outside in ["../x", "/etc", ""] {
            assert_eq!(of(&format!(r#"[{{"path":"{outside}","type":"{kind}"}}]"#)), folder.path());
        }
    }
}
