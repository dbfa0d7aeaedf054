//! The limit of header bytes that are read for one model, over all of its files. Each file may be small, but there
//! may be ten thousand.

/// The default budget: bytes for the headers of one model.
const OF_A_MODEL: u64 = 256 << 20;

/// The rest of the bytes that may be read of a model's headers.
#[derive(Debug)]
pub struct HeaderBudget {
    left: u64,
}

impl Default for HeaderBudget {
    fn default() -> Self {
        Self::new(OF_A_MODEL)
    }
}

impl HeaderBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        Self { left: bytes }
    }

    /// The bytes that may still be read.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Takes bytes from the budget; fails if too few are left.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), String> {
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or_else(|| format!("the headers of one model would be longer than {OF_A_MODEL} bytes together"))?;
        Ok(())
    }
}
