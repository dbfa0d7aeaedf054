//! The files of a draft model, which a manifest names beside its own.

use std::path::{Path, PathBuf};

use model_boss_core::{SizeEstimate, SizeRule, Streaming};
use model_boss_protocol::{Backend, ByteCount, Category, Manifest, ResidencyMode};

use super::files::{self, ModelFile};
use super::folders::Folders;
use super::size;

/// A draft model by its files. Changed files make another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftSource {
    /// A folder, or one file.
    pub path: PathBuf,
    pub(crate) files: Vec<ModelFile>,
}

impl DraftSource {
    /// The files that a manifest names; `folder` is its folder.
    pub(crate) fn of_manifest(manifest: &Manifest, folder: &Path, folders: &mut Folders) -> Option<Self> {
        let source = manifest.draft.as_ref()?;
        let path = folders.hub.path_of(source).or_else(|| Some(folder.join(source.path.as_ref()?)))?;
        let files = files::model_files_in(&path, folders);
        Some(Self { path, files })
    }

    /// The memory that it needs beside a model with this manifest. The function reads files, so it may block.
    pub fn bytes(&self, beside: &Manifest) -> ByteCount {
        let manifest = Manifest {
            name: beside.name.clone(),
            context_length: beside.context_length,
            max_concurrent: beside.max_concurrent,
            residency: Some(ResidencyMode::Resident),
            source: beside.draft.clone(),
            ..Manifest::default()
        };
        size::estimate(&manifest, Category::Llm, &self.path, &self.files, Backend::Candle).bytes
    }

    /// The size of a model together with its draft model. A size that the operator stated is meant with it.
    pub(crate) fn with(draft: Option<&Self>, size: SizeEstimate, manifest: &Manifest) -> SizeEstimate {
        let Some(draft) = draft.filter(|_| size.rule != SizeRule::Manifest) else { return size };
        let added = draft.bytes(manifest);
        let streamed = size.streamed.map(|streaming| Streaming {
            whole: streaming.whole + added,
            least: streaming.least + added,
            ..streaming
        });
        SizeEstimate { bytes: size.bytes + added, streamed, ..size }
    }
}
