//! What can be set, its defaults and where a value came from. Does not know what the rest of the program does with it.
//!
//! One list of settings ([`Config`]) serves the file, the environment, the command line and `config show`: each field
//! is a leaf with a path (`stay_warm.llm`), and everything else walks the list.

mod keys;
mod kinds;
mod load;
pub mod model_folders;
pub mod origins;
mod provider;
pub mod secrets;
mod sections;
mod setting;
mod tables;
#[cfg(test)]
mod tests;
mod values;

pub use keys::{ApiKeys, ApiKeysError};
pub use load::{ConfigError, DEFAULT_FILE, Loaded, Origin, Shown, Sources, catalogue, flag, variable};
pub use provider::{Price, Provider, ProviderKind, ProviderTables, is_loopback};
pub use sections::{Config, DEFAULT_TASKS, JsonLimits, LeaseTerms, Limits, Log, Sse, StayWarm, Text};
pub use setting::entries;
pub use tables::{BackendTables, DeclaredDevice, DeclaredDevices};
pub use values::{Hosts, IdleTime, LogFormat, LogLevel, RedisUrl};
