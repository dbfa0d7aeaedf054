//! The steps that one rendering may take.

use super::fault::{RenderFault, RenderResult};

/// Some hundred times what the longest known template needs for 2,000 messages.
const STEPS: u64 = 20_000_000;

/// The steps that are left.
#[derive(Debug)]
pub(super) struct Fuel(u64);

impl Default for Fuel {
    fn default() -> Self {
        Self(STEPS)
    }
}

impl Fuel {
    /// Takes steps.
    pub(super) fn spend(&mut self, steps: u64) -> RenderResult<()> {
        match self.0.checked_sub(steps) {
            Some(rest) => self.0 = rest,
            None => return Err(RenderFault::Limit("takes more than 20 million steps")),
        }
        Ok(())
    }
}
