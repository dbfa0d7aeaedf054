//! The digest of a body, by which a repeated order is told from another one.

use ring::digest::{Context, SHA256};

/// A digest of what has arrived so far.
#[derive(Clone)]
pub struct BodyDigest(Context);

impl Default for BodyDigest {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl BodyDigest {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest in hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
