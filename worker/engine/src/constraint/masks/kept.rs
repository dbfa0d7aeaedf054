//! Masks that are kept for other answers, within a budget of memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::derivre::StateID;

use super::lexer_mask::LexerMask;

/// A grammar among those over one vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GrammarId(u64);

/// A mask that is kept for a state: that of all tokens, or of those below a class of first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MaskPart {
    All,
    /// The tokens that are longer than those of a node of the tree of classes, and begin as they do.
    Below(u32),
}

/// Masks of lexer states, of all grammars over one vocabulary. When the budget is used up, the half that was not used
/// for longest is dropped.
pub(super) struct KeptMasks {
    most_bytes: usize,
    grammars: AtomicU64,
    kept: Mutex<KeptEntries>,
}

#[derive(Default)]
struct KeptEntries {
    masks: HashMap<MaskKey, KeptMask>,
    bytes: usize,
    /// Counts uses.
    now: u64,
}

/// A state of a grammar's lexer, and the tokens of the mask.
type MaskKey = (GrammarId, StateID, MaskPart);

struct KeptMask {
    mask: Arc<LexerMask>,
    used: u64,
}

/// Bytes of an entry beside its mask.
const ENTRY_BYTES: usize = 128;

impl KeptMasks {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self { most_bytes, grammars: AtomicU64::new(0), kept: Mutex::default() }
    }

    /// A new grammar.
    pub(super) fn grammar(&self) -> GrammarId {
        GrammarId(self.grammars.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn get(&self, grammar: GrammarId, state: StateID, part: MaskPart) -> Option<Arc<LexerMask>> {
        let mut kept = self.lock();
        kept.now += 1;
        let now = kept.now;
        let found = kept.masks.get_mut(&(grammar, state, part))?;
        found.used = now;
        Some(Arc::clone(&found.mask))
    }

    /// Masks of all tokens of a grammar: that of the state which is most like another, and some of those used last.
    pub(super) fn near(
        &self,
        grammar: GrammarId,
        last: usize,
        likeness: impl Fn(StateID) -> usize,
    ) -> Vec<(StateID, Arc<LexerMask>)> {
        let kept = self.lock();
        let of_grammar = kept.masks.iter().filter(|((of, _, part), _)| *of == grammar && *part == MaskPart::All);
        let mut known: Vec<_> = of_grammar.map(|((_, state, _), entry)| (entry.used, *state, &entry.mask)).collect();
        let most_alike =
            known.iter().map(|entry| (likeness(entry.1), *entry)).max_by_key(|(alike, entry)| (*alike, entry.0));
        known.sort_unstable_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let found = most_alike.map(|(_, entry)| entry).into_iter().chain(known.into_iter().take(last));
        found.map(|(_, state, mask)| (state, Arc::clone(mask))).collect()
    }

    pub(super) fn keep(&self, grammar: GrammarId, state: StateID, part: MaskPart, mask: &Arc<LexerMask>) {
        let bytes = bytes(mask);
        if bytes > self.most_bytes / 2 {
            return;
        }
        let mut kept = self.lock();
        while kept.bytes + bytes > self.most_bytes {
            kept.drop_older_half();
        }
        kept.now += 1;
        let entry = KeptMask { mask: Arc::clone(mask), used: kept.now };
        kept.bytes += bytes;
        if let Some(replaced) = kept.masks.insert((grammar, state, part), entry) {
            kept.bytes -= self::bytes(&replaced.mask);
        }
    }

    /// Drops the masks of a grammar that no answer follows any longer.
    pub(super) fn forget(&self, grammar: GrammarId) {
        self.lock().retain(|(of, ..), _| *of != grammar);
    }

    /// Bytes of all that is kept.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let kept = self.lock();
        assert_eq!(kept.bytes, kept.masks.values().map(|entry| bytes(&entry.mask)).sum::<usize>());
        kept.bytes
    }

    /// No code panics while it has the lock.
    fn lock(&self) -> MutexGuard<'_, KeptEntries> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptEntries {
    fn drop_older_half(&mut self) {
        let mut uses: Vec<u64> = self.masks.values().map(|entry| entry.used).collect();
        if uses.is_empty() {
            return;
        }
        let middle = (uses.len() - 1) / 2;
        let median = *uses.select_nth_unstable(middle).1;
        self.retain(|_, entry| entry.used > median);
    }

    fn retain(&mut self, is_kept: impl Fn(&MaskKey, &KeptMask) -> bool) {
        let dropped = &mut self.bytes;
        self.masks.retain(|key, entry| {
            let stays = is_kept(key, entry);
            if !stays {
                *dropped -= bytes(&entry.mask);
            }
            stays
        });
    }
}

fn bytes(mask: &LexerMask) -> usize {
    ENTRY_BYTES + mask.size()
}
