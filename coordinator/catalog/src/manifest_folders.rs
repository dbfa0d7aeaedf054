//! The folders that a catalog is read from.

use std::path::{Path, PathBuf};

use model_boss_config::Config;

/// The operator's folder of manifests, and the models that came with the program.
#[derive(Clone, Debug)]
pub struct ManifestFolders {
    /// The operator's folder.
    pub own: PathBuf,
    /// The folder of the installation, if there is one. Its models yield their names to the operator's.
    pub installed: Option<PathBuf>,
}

/// The operator's folder alone.
impl<P: AsRef<Path>> From<P> for ManifestFolders {
    fn from(own: P) -> Self {
        Self { own: own.as_ref().to_owned(), installed: None }
    }
}

impl ManifestFolders {
    /// The folders that a coordinator with these settings reads.
    pub fn of(config: &Config) -> Self {
        Self { own: config.manifests_folder(), installed: config.installed_models_folder() }
    }
}
