//! Where programs of this field keep the models of a user: what `scan` looks through, and what may be loaded by path
//! unless `model_roots` says otherwise.

use std::path::{Path, PathBuf};

/// The folders, whether they exist or not.
pub(crate) struct ModelFolders {
    /// Hugging Face's cache.
    pub(crate) hub: PathBuf,
    /// Ollama's.
    pub(crate) ollama: PathBuf,
    /// LM Studio's, new and old.
    pub(crate) studio: [PathBuf; 2],
    /// llama.cpp's.
    pub(crate) llama_cpp: PathBuf,
}

impl ModelFolders {
    /// Below this home folder, or where the variables of those programs say.
    pub(crate) fn below(home: &Path, variable: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let set = |name: &str| variable(name).filter(|folder| folder.is_absolute());
        let hub = set("HF_HUB_CACHE").or_else(|| set("HF_HOME").map(|folder| folder.join("hub")));
        Self {
            hub: hub.unwrap_or_else(|| home.join(".cache/huggingface/hub")),
            ollama: set("OLLAMA_MODELS").unwrap_or_else(|| home.join(".ollama/models")),
            studio: [home.join(".lmstudio/models"), home.join(".cache/lm-studio/models")],
            llama_cpp: set("LLAMA_CACHE").unwrap_or_else(|| home.join(".cache/llama.cpp")),
        }
    }

    /// Those of the user who runs this process, home folder as `~`.
    pub(crate) fn usual() -> Vec<PathBuf> {
        let Self { hub, ollama, studio: [new, old], llama_cpp } =
            Self::below(Path::new("~"), |name| std::env::var_os(name).map(PathBuf::from));
        vec![hub, ollama, new, old, llama_cpp]
    }
}
