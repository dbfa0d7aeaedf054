//! Tidy tests: the repository agrees with its own documents. They read files only and need no network.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap here is a failed test with a line number")]

mod documents;
mod modules;
mod names;
mod printing;
mod prose;
mod requirements;
mod sources;
mod structure;
