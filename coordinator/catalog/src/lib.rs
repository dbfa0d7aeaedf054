//! The models there are: manifests and packages read into a list, with everything that is wrong named, and those that a
//! client named by their path. One bad manifest never hides the others, and an edit that cannot be used leaves what was
//! there. Knows files and their sizes; never what is in them.

mod about;
mod by_path;
mod engines;
mod entries;
mod files;
mod fitness;
mod folders;
mod headers;
mod json_beside;
mod live;
mod model;
mod package;
mod read;
mod roots;
mod size;
#[cfg(test)]
mod tests;

pub use by_path::{Asker, PathError};
pub use engines::{Engines, ForeignEngine, find_llama_server};
pub use entries::Catalog;
pub use live::{CatalogListener, LiveCatalog};
pub use model::Model;
pub use roots::ModelRoots;
