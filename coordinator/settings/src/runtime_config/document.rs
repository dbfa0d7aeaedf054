//! The document in the store as this version reads it, and its copy in the state folder. Fields and keys of newer
//! versions are kept unchanged.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use model_boss_host::state_folder::{KeptFile, StateFolder};
use model_boss_lease_store::{StateFileUse, open_state_file};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The copy's name in the state folder.
const FILE: &str = "runtime-config.json";
/// The longest document in bytes: a change of it fits into one request.
const LONGEST: u64 = 4 << 20;

/// The content of the document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Stored {
    /// The number of changes so far.
    pub(super) version: u64,
    /// Values by key, as clients write them.
    pub(super) values: Map<String, Value>,
    /// A random id, drawn when the document was created. Versions of documents with different ids are not compared.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) line: String,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// A document that was read from a store, with the store's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The store's name, without credentials.
    store: String,
    /// The time of reading, in seconds since 1970.
    pub(super) at: u64,
    pub(super) document: Stored,
}

/// The file with the copy.
pub(super) struct LocalCopy {
    file: KeptFile,
    newest: Arc<Mutex<Vec<u8>>>,
    store: String,
}

impl Stored {
    /// Parses a document. The error has the reason why this version cannot use it.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The document after these changes; `null` removes a key.
    pub(super) fn changed(&self, changes: &Map<String, Value>) -> Self {
        let mut next = self.clone();
        for (key, value) in changes {
            match value {
                Value::Null => drop(next.values.remove(key)),
                value => drop(next.values.insert(key.clone(), value.clone())),
            }
        }
        if next.values != self.values {
            next.version = next.version.saturating_add(1);
        }
        next
    }

    /// Whether `other` is an earlier state of the same document.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        self.line == other.line && self.version > other.version
    }
}

impl LocalCopy {
    /// Opens the copy in `folder` of the document in `store`. Returns the copied document too, if it came from that
    /// store and can be parsed.
    pub(super) fn open(folder: &StateFolder, store: &str) -> (Self, Option<Kept>) {
        let file = folder.file(FILE);
        let read = read(&file);
        if let Err(why) = &read {
            // The trouble is shown until the copy is written again.
            folder.trouble(&file, format!("the copy of the runtime configuration is not used: {why}"));
        }
        let newest = Arc::<Mutex<Vec<u8>>>::default();
        let content = Arc::clone(&newest);
        let file = folder.keep(FILE, "the runtime configuration cannot be copied", move || {
            Ok(content.lock().unwrap_or_else(PoisonError::into_inner).clone())
        });
        (Self { file, newest, store: store.to_owned() }, read.ok().flatten().filter(|kept| kept.store == store))
    }

    /// The record of a document that the store has now, for the copy.
    pub(super) fn seen(&self, document: Stored) -> Kept {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Kept { store: self.store.clone(), at, document }
    }

    /// Writes the copy of the document into the state folder.
    pub(super) fn keep(&self, kept: &Kept) {
        match serde_json::to_vec(kept) {
            Ok(content) => {
                *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = content;
                self.file.changed();
            }
            Err(error) => tracing::warn!("the runtime configuration cannot be copied: {error}"),
        }
    }
}

/// The copy in a state folder, from any store; for the display of a configuration.
pub(super) fn read_copy(folder: &Path) -> Option<Kept> {
    read(&folder.join(FILE)).ok().flatten()
}

fn read(file: &Path) -> Result<Option<Kept>, String> {
    let mut bytes = Vec::new();
    match open_state_file(file, StateFileUse::Read) {
        Ok(open) => open.take(LONGEST + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if bytes.len() as u64 > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| error.to_string())
}
