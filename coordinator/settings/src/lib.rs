//! Settings that change while the process runs (TR-4): values stored beside the lease ledger, which override the
//! configuration. The crate has the effective settings and their sources; a listener applies them.

mod documents;
mod error;
mod live;
mod runtime_config;

pub use documents::{DocumentAnswer, DocumentStore};
pub use error::SettingsError;
pub use live::{Configured, LiveSettings, Overrides, SettingsListener, StoredGuard};
pub use runtime_config::{Detail, Expected, RuntimeConfig, ShownValues, key_schemas, known_in};
