//! The settings of model-boss: their list, kinds and defaults, and the source of each value. Other crates implement
//! their effects.
//!
//! One list of settings ([`Config`]) serves the file, the environment, the command line and `config show`. Each field
//! is a leaf with a path (`stay_warm.llm`), and every consumer walks the list.

mod installation;
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

pub use installation::{DEFAULT_FILE, Installation};
pub use load::{ConfigError, Loaded, Origin, ShownSetting, Sources, catalogue, environment, flag, variable};
pub use provider::{KeyMissing, Price, Provider, ProviderKind, ProviderTables, is_loopback};
pub use sections::{
    Config, DEFAULT_TASKS, JobSettings, JsonLimits, LeaseTerms, Limits, Log, ParkingSettings, Sse, StayWarm,
    TextSettings,
};
pub use setting::entries;
pub use tables::{BackendTables, DeclaredDevice, DeclaredDevices};
pub use values::{Hosts, IdleTime, LogFormat, LogLevel, ParkingPlace, RedisUrl};
