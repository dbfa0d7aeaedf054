//! The tokens about which a state of a lexer decides.

use std::ops::Range;

use llguidance::HashMap;
use llguidance::toktrie::SimpleVob;

use super::steps::LexemeEnd;

/// The tokens about which a state of the lexer decides, and where the others are: at nodes whose byte ends a lexeme,
/// and below them.
pub(super) struct LexerMask {
    /// Tokens that stay inside of a lexeme.
    pub(super) inside: SimpleVob,
    /// Nodes whose byte is the last one of a lexeme.
    pub(super) last: Vec<u32>,
    /// Nodes whose byte no lexeme goes on with, by the lexemes that end in front of it and the byte. The parser's
    /// answer is the same for all nodes of an entry.
    pub(super) behind: HashMap<(LexemeEnd, u8), Vec<u32>>,
}

impl LexerMask {
    /// A mask of these tokens and nothing else.
    pub(super) fn new(inside: SimpleVob) -> Self {
        Self { inside, last: Vec::new(), behind: HashMap::default() }
    }

    /// The mask without what it says of some nodes and the tokens that end at them.
    pub(super) fn without<'a>(&self, nodes: &[Range<usize>], tokens: impl Iterator<Item = &'a u32>) -> Self {
        let mut inside = self.inside.clone();
        tokens.for_each(|token| inside.disallow_token(*token));
        let kept = |from: &[u32]| -> Vec<u32> {
            let is_kept = |at: &u32| {
                let place = nodes.partition_point(|range| range.end <= *at as usize);
                nodes.get(place).is_none_or(|range| (*at as usize) < range.start)
            };
            from.iter().copied().filter(is_kept).collect()
        };
        let behind = self.behind.iter().map(|(key, from)| (*key, kept(from))).filter(|(_, nodes)| !nodes.is_empty());
        Self { inside, last: kept(&self.last), behind: behind.collect() }
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        const ENTRY: usize = 64;
        let behind = self.behind.values().map(|nodes| ENTRY + size_of_val(nodes.as_slice())).sum::<usize>();
        size_of_val(self.inside.as_slice()) + size_of_val(self.last.as_slice()) + behind
    }
}
