//! Models of cloud providers: `claude:opus`, `openai:gpt-x` (RC-27). Each provider has one base URL and one key. Tasks
//! and permissions decide before which requests go to a provider; this crate counts their cost. No request is ever
//! repeated.

mod bill;
mod clouds;
mod command;
mod error;
mod own;
mod put;
mod report;
mod route;
mod spend;
mod transport;

pub use clouds::{CloudAnswer, CloudBody, CloudRequest, Clouds, CountRequest, Counted};
pub use error::{CloudError, CloudUnsupported, CommandFault, SaidByProvider, SpendingRefusal};
pub use own::{API_HEADERS, OwnMessages};
pub use report::{ProviderReport, RequestCounts, UTC_DAY};
pub use spend::{FILE as SPEND_FILE, Today};
