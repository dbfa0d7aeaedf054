//! Adapters of a loaded model (LoRA: Hu et al., 2021, arXiv 2106.09685): low-rank products beside its matrices, by
//! which a sequence is computed. The engine passes them to the decoder and keeps sequences of different adapters apart.
//! Their contents are the decoder's own.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bit of numbers that are made of files.
const OF_FILES: u64 = 1 << 63;

/// Whether an adapter of this number is the same in every process; 0 is no adapter.
pub(crate) const fn is_lasting(id: u64) -> bool {
    id == 0 || id & OF_FILES != 0
}

/// An adapter that is ready for use. Its memory is free when the last sequence that uses it has ended.
pub struct LoadedAdapter {
    id: u64,
    bytes: u64,
    warnings: Vec<String>,
    contents: Arc<dyn Any + Send + Sync>,
}

impl LoadedAdapter {
    /// An adapter with the contents that its decoder made, which take so many bytes on its devices.
    pub fn new<T: Any + Send + Sync>(contents: Arc<T>, bytes: u64, warnings: Vec<String>) -> Self {
        static LOADED: AtomicU64 = AtomicU64::new(1);
        Self { id: LOADED.fetch_add(1, Ordering::Relaxed), bytes, warnings, contents }
    }

    /// The same adapter with a number that is made of its files: the same files have it in every process.
    pub fn of_files(self, digest: u64) -> Self {
        Self { id: digest | OF_FILES, ..self }
    }

    /// The number of the adapter, which no adapter of other files has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes on all devices.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Parts of its files that have no effect, in words; usually none.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The contents, for the decoder that made them.
    pub fn contents<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.contents).downcast().ok()
    }
}

impl fmt::Debug for LoadedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedAdapter").field("id", &self.id).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// An adapter's files in memory.
#[derive(Clone, Debug)]
pub enum AdapterFiles {
    /// A folder that PEFT wrote.
    Peft {
        /// `adapter_config.json`.
        config: Vec<u8>,
        /// `adapter_model.safetensors`.
        weights: Vec<u8>,
    },
    /// A file of llama.cpp.
    Gguf(Vec<u8>),
}

/// Makes adapters for one loaded model, on any thread.
pub trait AdapterLoader: Send + Sync {
    /// Checks an adapter's files against the model and makes the adapter of them.
    fn load(&self, files: &AdapterFiles) -> Result<LoadedAdapter, AdapterError>;
}

/// The reason why files are no adapter of a model. The model is not harmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// A file is malformed.
    #[error("{file}: {what}")]
    Malformed {
        /// The file's name.
        file: &'static str,
        /// The fault.
        what: String,
    },
    /// The adapter needs something that this build does not do.
    #[error("{what}: not supported; {remedy}")]
    Unsupported {
        /// The field or tensor that asks for it.
        what: String,
        /// The way out.
        remedy: &'static str,
    },
    /// A tensor does not fit the model.
    #[error("tensor '{name}' {what}")]
    Tensor {
        /// The tensor's name in the file.
        name: String,
        /// The fault.
        what: String,
    },
    /// The adapter is for a model of another form.
    #[error("it is not an adapter of this model: {0}")]
    OtherBase(String),
    /// There is no memory for it.
    #[error("there is no memory for it: {0}")]
    NoRoom(String),
}
