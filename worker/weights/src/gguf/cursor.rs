//! A checked reader of little-endian words from the front of a file. It knows lengths, not keys or tensors.

use super::error::HeaderFault;

/// A position in the part of a file that has been read.
pub(super) struct Cursor<'a> {
    head: &'a [u8],
    at: usize,
    file_len: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor at the front of a file of `file_len` bytes, of which `head` was read.
    pub(super) fn new(head: &'a [u8], file_len: u64) -> Self {
        Self { head, at: 0, file_len }
    }

    /// A second cursor at the position of `other`.
    pub(super) fn resume(other: &Self) -> Self {
        Self { ..*other }
    }

    /// Offset in the file.
    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes of the file after the position.
    pub(super) fn left_in_file(&self) -> u64 {
        self.file_len.saturating_sub(self.at as u64)
    }

    /// The next `needs` bytes.
    pub(super) fn take(&mut self, needs: u64, what: &'static str) -> Result<&'a [u8], HeaderFault> {
        let at = self.at as u64;
        if needs > self.left_in_file() {
            return Err(HeaderFault::Truncated { what, at, needs, file_len: self.file_len });
        }
        let Some((taken, _)) =
            usize::try_from(needs).ok().and_then(|needs| self.head.get(self.at..)?.split_at_checked(needs))
        else {
            return Err(HeaderFault::Incomplete { until: at + needs });
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn word<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], HeaderFault> {
        let mut word = [0; N];
        word.copy_from_slice(self.take(N as u64, what)?);
        Ok(word)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, HeaderFault> {
        self.word(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, HeaderFault> {
        self.word(what).map(u64::from_le_bytes)
    }

    /// A string: its length in bytes as a 64-bit word, then its bytes, not checked to be UTF-8.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], HeaderFault> {
        let len = self.u64(what)?;
        self.take(len, what)
    }
}
