//! Experts on demand: the experts of a mixture that is larger than its memory, as pages of a cache (FA-6).
//!
//! A page is one expert of one layer. [`table`] is pure: it decides which pages stay, which leave, and which guesses
//! are read ahead. [`plan`](mod@plan) decides how many bytes pages may take. The [`ExpertPager`] acts: its threads read
//! pages from a [`PageSource`] while the step computes with those that are there.

mod pager;
pub mod plan;
pub mod table;
#[cfg(test)]
mod tests;
mod threads;
#[cfg(test)]
mod trace;

pub use pager::{Asked, ExpertPager, PageServeError};
pub use plan::LayerPages;
pub use table::{ChosenExpert, ExpertPage};
pub use threads::{PageRead, PageSource};
