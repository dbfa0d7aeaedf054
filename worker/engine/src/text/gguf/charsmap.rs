//! SentencePiece's precompiled character map: prefixes of a text and their replacements, as a normaliser uses them.
//!
//! The format is SentencePiece's (`normalizer.cc`). A 32-bit length comes first, then a trie of that many bytes, then
//! replacements that each end with a zero. The trie is a double array (Darts): each unit is a 32-bit word with the
//! label of its byte, a mark for prefixes that end there, and the offset to its children.

use super::error::VocabularyError;

/// The replacements of prefixes.
#[derive(Debug)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Reads the bytes of `precompiled_charsmap`.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, VocabularyError> {
        let parts = bytes
            .split_first_chunk::<4>()
            .and_then(|(length, rest)| rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?));
        let (trie, replacements) = parts.ok_or(VocabularyError::Charsmap("it is cut short"))?;
        let (units, rest) = trie.as_chunks::<4>();
        if units.is_empty() || !rest.is_empty() {
            return Err(VocabularyError::Charsmap("its trie is not made of whole words"));
        }
        if replacements.last().is_some_and(|last| *last != 0) {
            return Err(VocabularyError::Charsmap("its last replacement does not end"));
        }
        Ok(Self {
            units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// The longest prefix of a text that has a replacement: its length, and the replacement. Units that lie outside the
    /// trie have no children.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let mut found = None;
        let mut at = children(self.unit(0)?);
        for (index, byte) in text.iter().enumerate() {
            at ^= usize::from(*byte);
            let Some(unit) = self.unit(at).filter(|unit| *byte != 0 && label(*unit) == u32::from(*byte)) else { break };
            at ^= children(unit);
            if ends_here(unit) {
                found = self.unit(at).map(|leaf| (index + 1, leaf & 0x7fff_ffff));
            }
        }
        let (length, start) = found?;
        let rest = self.replacements.get(usize::try_from(start).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some((length, rest.get(..end)?))
    }

    fn unit(&self, index: usize) -> Option<u32> {
        self.units.get(index).copied()
    }
}

/// Where a unit's children begin, to be combined with its own index by exclusive or.
fn children(unit: u32) -> usize {
    let offset = (unit >> 10) << ((unit & (1 << 9)) >> 6);
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// The byte of a unit; leaves have none, and their highest bit makes it unequal to all.
fn label(unit: u32) -> u32 {
    unit & (1 << 31 | 0xff)
}

fn ends_here(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}
