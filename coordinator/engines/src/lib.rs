//! Engines of other projects as the coordinator runs them: which command line, which environment, when one counts as
//! ready, what its end means. Pure: it starts nothing and asks nobody.

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
