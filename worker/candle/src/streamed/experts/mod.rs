//! Experts on demand on the CPU: everything but the experts of a mixture stays in memory, and experts are pages of a
//! cache ([`model_boss_engine::residency::experts`]).

mod open;
mod pages;
mod pool;
mod source;

pub(super) use open::{open, plan};
