//! The models of this machine. Manifests and packages are read into a catalog with all their faults; models that
//! clients name by path are added to it. One bad manifest never hides the others, and an invalid edit leaves the last
//! good version. The crate reads files' names, sizes and headers, never their data.

mod about;
mod adapters;
mod by_path;
mod draft;
mod engines;
mod entries;
mod files;
mod fitness;
mod folders;
mod headers;
mod json_beside;
mod kind;
mod live;
mod manifest_folders;
mod model;
mod named_adapters;
mod package;
mod pipeline;
mod pulled;
mod read;
mod roots;
mod size;
mod speech_size;
mod stamps;
#[cfg(test)]
mod tests;
mod voices;

pub use adapters::{AdapterContent, AdapterReadError, AdapterSource};
pub use by_path::{Asker, PathError};
pub use draft::DraftSource;
pub use engines::{Engines, ForeignEngine, NoEngine, find_llama_server};
pub use entries::Catalog;
pub use live::{CatalogListener, LiveCatalog};
pub use manifest_folders::ManifestFolders;
pub use model::Model;
pub use named_adapters::AddAdapterError;
pub use pulled::{PulledManifest, PulledManifestError, write_manifest};
pub use roots::ModelRoots;
