//! `tasks.yaml`: the names of tasks and the profiles of clients. A task is a name for a ladder of models with a
//! priority, a time budget and default parameters. A client's profile contains its limits, and the meaning of the names
//! it uses.
//!
//! The crate is pure: it parses text to a [`TasksFile`] with every problem, and resolves a name to a [`Resolved`]
//! ladder. Tasks, plain models, aliases and models of providers all pass through [`resolve()`], and so does the rule
//! about clouds. Files, HTTP and the state of models are handled in other crates.

mod check;
mod denial;
mod file;
mod names;
mod permit;
mod providers;
mod read;
mod resolve;
mod schema;
mod tree;

pub use check::unknown_models;
pub use denial::Denial;
pub use file::{ClientProfile, EVERYBODY, Fallback, KeyRule, Task, TaskDefaults, TasksFile};
pub use names::TaskNames;
pub use permit::{CancelPermit, MachinePermit, ModelPermit, Permit};
pub use providers::{CLAUDE, Providers};
pub use resolve::{
    CloudFallback, NameQuestion, Removed, Resolved, Surroundings, cancel_requests, guarded, operate_machine,
    operate_model, resolve,
};
pub use schema::{manifest_schema, tasks_schema};
pub use tree::Problem;
