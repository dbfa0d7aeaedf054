//! The marks of a format that are special tokens of a vocabulary.

use std::collections::BTreeMap;

use super::format::ToolFormat;
use crate::text::Vocabulary;

/// The marks that are special tokens of one vocabulary. Readers of an answer do not see such tokens, but parsers do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolMarkers {
    ids: BTreeMap<&'static str, u32>,
}

impl ToolMarkers {
    /// The markers of a format. Looks at every token once.
    pub fn of(format: ToolFormat, vocabulary: &Vocabulary) -> Self {
        let marks: BTreeMap<&[u8], &'static str> = format.marks().map(|mark| (mark.as_bytes(), mark)).collect();
        let known = (0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX)).filter_map(|id| {
            let mark = marks.get(vocabulary.bytes(id)).filter(|_| vocabulary.is_special(id))?;
            Some((*mark, id))
        });
        Self { ids: known.collect() }
    }

    /// The special token that is this mark.
    pub(super) fn id(&self, mark: &str) -> Option<u32> {
        self.ids.get(mark).copied()
    }

    /// The first special token in a text: where it is, its length, and its number.
    pub(super) fn first_in(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self.ids.iter().filter_map(|(mark, id)| Some((text.find(mark)?, mark.len(), *id)));
        // Of two marks at one place the longer one is meant.
        found.min_by_key(|(at, length, _)| (*at, usize::MAX - length))
    }

    /// The special tokens among the marks.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.ids.values().copied()
    }
}
