//! Settings that change while the process runs (TR-4): values stored beside the lease ledger, over those of the
//! configuration. Knows which settings hold now and why; the listener acts on them.

mod documents;
mod live;
mod runtime_config;

pub use documents::{DocumentAnswer, DocumentStore};
pub use live::{Configured, LiveSettings, Overrides, SettingsListener, StoredGuard};
pub use runtime_config::{Detail, Expected, RuntimeConfig, ShownValues, known_in};
