//! Models of a hub: the names by which people call them, the choice among a repository's files, and their download into
//! the cache that Hugging Face's tools share. A file is visible there only when it is whole and has its checksum. The
//! crate knows neither which models are loaded nor who may have one downloaded.

mod cache;
mod choice;
mod client;
mod digest;
mod download;
mod error;
mod listing;
mod name;
mod other_stores;
mod part_file;
mod progress;
mod pull;
mod ranges;
mod removal;
mod settings;

pub use cache::{HubCache, is_present};
pub use error::{HubError, TokenUse};
pub use name::{HubChoice, HubName, ParseHubNameError};
pub use progress::{PullProgress, PullStage};
pub use pull::{Hub, Pulled, RunningPull};
pub use removal::{FileRemoval, RemovedFiles};
pub use settings::{HubSettings, HubToken};
