//! The tokens of a vocabulary as a tree of bytes, in depth-first order.

use std::ops::Range;

use super::text_kinds::{Character, TextKinds};

/// The tokens of a vocabulary. The nodes below a node come right behind it.
pub(super) struct TokenTree {
    nodes: Vec<TokenNode>,
    /// Tokens in the order of the nodes at which they end.
    tokens: Vec<u32>,
}

/// A byte of a token, behind the bytes of the nodes above.
#[derive(Clone, Copy)]
pub(super) struct TokenNode {
    pub(super) byte: u8,
    /// Bytes of the longest text below this node. 255: at least as many.
    pub(super) height: u8,
    /// The texts below this node.
    pub(super) texts: TextKinds,
    /// Bytes in front of this one.
    pub(super) depth: u16,
    /// The first node behind all nodes below this one.
    end: u32,
    /// The place of the first token that ends here or below.
    tokens: u32,
}

impl TokenTree {
    /// The tree of these tokens, which are numbered from 0. Those without bytes are left out. None has 64 KiB.
    pub(super) fn new(words: &[Vec<u8>]) -> Self {
        let mut sorted: Vec<(&[u8], u32)> = words.iter().map(Vec::as_slice).zip(0..).collect();
        sorted.retain(|(word, _)| !word.is_empty());
        sorted.sort_unstable();
        let (mut nodes, mut path) = (Vec::<TokenNode>::new(), Vec::<usize>::new());
        let mut before: &[u8] = &[];
        for (place, (word, _)) in sorted.iter().enumerate() {
            let same = same_bytes(before, word);
            close(&mut nodes, &mut path, same);
            for (depth, byte) in word.iter().enumerate().skip(same) {
                let above = path.last().map(|at| nodes[*at].texts).unwrap_or(TextKinds::none(Some(Character::NONE)));
                let character =
                    Some(above).filter(|texts| texts.are_known()).and_then(|texts| texts.character().with(*byte));
                path.push(nodes.len());
                nodes.push(TokenNode {
                    byte: *byte,
                    height: 0,
                    depth: depth as u16,
                    end: 0,
                    tokens: place as u32,
                    texts: TextKinds::none(character),
                });
            }
            before = word;
        }
        close(&mut nodes, &mut path, 0);
        Self { nodes, tokens: sorted.into_iter().map(|(_, token)| token).collect() }
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of first bytes.
    pub(super) fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        let known = |at: usize| Some(at).filter(|at| *at < self.nodes.len());
        std::iter::successors(known(0), move |at| known(self.below(*at).end))
    }

    /// A node.
    pub(super) fn node(&self, at: usize) -> &TokenNode {
        &self.nodes[at]
    }

    /// A node, and all below it.
    pub(super) fn below(&self, at: usize) -> Range<usize> {
        at..self.nodes[at].end as usize
    }

    /// The tokens that end at these nodes, which lie one behind the other.
    pub(super) fn tokens(&self, nodes: Range<usize>) -> &[u32] {
        &self.tokens[self.place(nodes.start)..self.place(nodes.end)]
    }

    /// A token that begins with the bytes down to a node, or is they.
    pub(super) fn token_through(&self, at: usize) -> u32 {
        self.tokens[self.place(at)]
    }

    /// Visits nodes in order. `enter` says of each whether those below it are visited too.
    pub(super) fn walk(&self, nodes: Range<usize>, mut enter: impl FnMut(usize, &TokenNode) -> bool) {
        let mut at = nodes.start;
        while at < nodes.end {
            let node = &self.nodes[at];
            at = if enter(at, node) { at + 1 } else { node.end as usize };
        }
    }

    /// The first place of tokens that end at a node or behind it.
    fn place(&self, at: usize) -> usize {
        self.nodes.get(at).map_or(self.tokens.len(), |node| node.tokens as usize)
    }
}

/// Number of bytes with which both begin.
pub(super) fn same_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Ends the nodes of a path behind its first ones: no more nodes come below them.
fn close(nodes: &mut [TokenNode], path: &mut Vec<usize>, kept: usize) {
    let end = nodes.len() as u32;
    while path.len() > kept
        && let Some(at) = path.pop()
    {
        nodes[at].end = end;
        let TokenNode { byte, height, texts, .. } = nodes[at];
        if let Some(above) = path.last().map(|at| &mut nodes[*at]) {
            above.height = above.height.max(height.saturating_add(1));
            above.texts = above.texts.or(byte, texts);
        }
    }
}
