//! Models that providers elsewhere serve: `claude:opus`, `openai:gpt-x` (RC-27). Each provider has one base URL and one
//! key; what goes there is decided before (tasks, permissions), what it costs is counted here. Nothing is ever asked twice.

mod bill;
mod clouds;
mod command;
mod put;
mod report;
mod route;
mod spend;
mod transport;

pub use clouds::{CloudAnswer, CloudBody, CloudRequest, Clouds, CountRequest};
pub use report::{Counted, ProviderReport, UTC_DAY};
pub use spend::{FILE as SPEND_FILE, Today};
