//! External engines as the coordinator runs them: command lines, environments, readiness, and the meaning of exits. The
//! crate is pure: it does no I/O.

mod command;
mod exit;
mod files;
mod health;
mod launch;
mod llama_server;

pub use command::command_line;
pub use exit::exit_reason;
pub use files::{LlamaFiles, NoLlamaFiles, llama_files};
pub use health::{HealthRule, Seen};
pub use launch::{Facts, Launch, LaunchError};
pub use llama_server::{LlamaServer, llama_server};
