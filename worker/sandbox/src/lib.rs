//! The confinement of a worker's processes by the kernel.
//!
//! A process confines itself once, while it has one thread and before it looks at a model's files. From then on
//! Landlock limits the files that it can open, its sockets and its signals, and seccomp limits its system calls to a
//! list. The crate knows no models: callers list the files.

#[cfg(target_os = "linux")]
mod calls;
mod confine;
mod error;
mod files;
#[cfg(target_os = "linux")]
mod paths;
mod process_kind;

pub use confine::{confine, confine_program};
pub use error::SandboxError;
pub use files::AllowedFiles;
pub use process_kind::ProcessKind;
