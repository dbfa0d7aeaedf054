//! The folder of a model with a tower for texts and one for images.

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

/// The folder with the weights, `config.json` and the tokenizer of such a model: the source itself, or the folder of
/// the first module, where `sentence-transformers` has put a CLIP model.
pub fn towers_folder(source: &Path) -> PathBuf {
    let folder = model_folder(source);
    let modules = read_small_file(&folder.join("modules.json"), LONGEST).ok().flatten();
    let modules: Option<Vec<FirstModule>> = modules.and_then(|text| serde_json::from_slice(&text).ok());
    let inside = |path: &str| {
        let mut parts = Path::new(path).components().peekable();
        parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    match modules.as_deref().and_then(<[FirstModule]>::first) {
        Some(first) if first.kind.ends_with("CLIPModel") && inside(&first.path) => folder.join(&first.path),
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
        for plain in ["[]", "no json", r#"[{"path":"0","type":"sentence_transformers.models.Transformer"}]"#] {
            assert_eq!(of(plain), folder.path());
        }
        for outside in ["../x", "/etc", ""] {
            assert_eq!(of(&format!(r#"[{{"path":"{outside}","type":"{kind}"}}]"#)), folder.path());
        }
    }
}
