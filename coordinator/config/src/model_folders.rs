//! The folders in which other programs keep a user's models. The command `scan` searches them, and models may be loaded
//! from them by path unless `model_roots` says otherwise.

use std::path::{Path, PathBuf};

/// The folders, which may not exist.
pub struct ModelFolders {
    /// The folder of Hugging Face's tools, with the user's token.
    pub hub_home: PathBuf,
    /// The cache of Hugging Face's tools.
    pub hub: PathBuf,
    /// Ollama's folder of models.
    pub ollama: PathBuf,
    /// LM Studio's folders of models, the newer and the older.
    pub studio: [PathBuf; 2],
    /// llama.cpp's cache.
    pub llama_cpp: PathBuf,
}

/// The source of a model as the health route shows it (MM-8). It is `ORG/NAME:FILE` for a file of Hugging Face's cache,
/// `ORG/NAME` for a whole revision there, else the path.
pub fn checkpoint(source: &Path) -> String {
    cached(source).unwrap_or_else(|| source.display().to_string())
}

/// The name of a model in Hugging Face's cache: `…/models--ORG--NAME/snapshots/REVISION/FILE`.
fn cached(source: &Path) -> Option<String> {
    let parts: Vec<&str> = source.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    let snapshots = parts.iter().rposition(|part| *part == "snapshots")?;
    let repository = parts.get(snapshots.checked_sub(1)?)?.strip_prefix("models--")?.replace("--", "/");
    let file = parts.get(snapshots + 2..)?.join("/");
    parts.get(snapshots + 1)?;
    Some(if file.is_empty() { repository } else { format!("{repository}:{file}") })
}

impl ModelFolders {
    /// The folders below this home folder, or where the variables of those programs point.
    pub fn below(home: &Path, variable: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let set = |name: &str| variable(name).filter(|folder| folder.is_absolute());
        let caches = set("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hub_home = set("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let hub = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
        Self {
            hub: hub.unwrap_or_else(|| hub_home.join("hub")),
            hub_home,
            ollama: set("OLLAMA_MODELS").unwrap_or_else(|| home.join(".ollama/models")),
            studio: [home.join(".lmstudio/models"), home.join(".cache/lm-studio/models")],
            llama_cpp: set("LLAMA_CACHE").unwrap_or_else(|| home.join(".cache/llama.cpp")),
        }
    }

    /// The folders of the user who runs this process, with the home folder as `~`.
    pub fn usual() -> Vec<PathBuf> {
        let Self { hub, ollama, studio: [new, old], llama_cpp, .. } =
            Self::below(Path::new("~"), |name| std::env::var_os(name).map(PathBuf::from));
        vec![hub, ollama, new, old, llama_cpp]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mm_8_a_checkpoint_is_named_by_its_repository_or_its_path() {
        for (source, name) in [
            ("/h/hub/models--org--qwen/snapshots/abc/q4/m.gguf", "org/qwen:q4/m.gguf"),
            ("/h/hub/models--org--qwen/snapshots/abc", "org/qwen"),
            ("/h/hub/models--org--qwen/snapshots", "/h/hub/models--org--qwen/snapshots"),
            ("/models/snapshots/m.gguf", "/models/snapshots/m.gguf"),
            ("snapshots/abc", "snapshots/abc"),
        ] {
            assert_eq!(checkpoint(Path::new(source)), name);
        }
    }
}
