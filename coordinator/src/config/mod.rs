//! What can be set, its defaults and where a value came from. Does not know what the rest of the program does with it.
//!
//! One list of settings ([`Config`]) serves the file, the environment, the command line and `config show`: each field
//! is a leaf with a path (`stay_warm.llm`), and everything else walks the list.

mod keys;
mod kinds;
mod load;
mod provider;
mod sections;
mod setting;
mod tables;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use keys::{ApiKeys, ApiKeysError};
pub(crate) use load::{ConfigError, DEFAULT_FILE, Loaded, Shown, Sources, catalogue, flag, variable};
pub(crate) use provider::{Price, Provider, ProviderKind, ProviderTables, is_loopback};
pub(crate) use sections::{Config, DEFAULT_TASKS, Limits, Sse};
pub(crate) use setting::entries;
pub(crate) use tables::{BackendTables, DeclaredDevice, DeclaredDevices};
pub(crate) use values::{Hosts, IdleTime, LogFormat, LogLevel, RedisUrl};
