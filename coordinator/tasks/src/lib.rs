//! `tasks.yaml`: what names stand for. A task is a name for a ladder of models with a priority, a time budget and default
//! parameters; a client's profile says what it may ask for and what its names mean here.
//!
//! Pure: text comes in and a [`TasksFile`] with every problem goes out; a name comes in and a [`Resolved`] ladder goes out.
//! Tasks, plain models, aliases and models of providers all pass through [`resolve()`], and so does the rule about clouds.
//! Knows no files, no HTTP and nothing of what is loaded.

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
pub use file::{ClientProfile, EVERYBODY, Fallback, Task, TaskDefaults, TasksFile};
pub use names::Names;
pub use permit::{MachinePermit, ModelPermit, Permit};
pub use providers::{CLAUDE, Providers};
pub use resolve::{
    CloudFallback, Question, Removed, Resolved, Surroundings, guarded, operate_machine, operate_model, resolve,
};
pub use schema::{manifest_schema, tasks_schema};
pub use tree::Problem;
