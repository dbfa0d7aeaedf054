//! The tokens about which a state of a lexer decides.

use std::ops::Range;

use llguidance::HashMap;
use llguidance::toktrie::SimpleVob;

use super::class_tree::ClassTree;
use super::steps::LexemeEnd;
use super::tree::TokenTree;

/// The tokens about which a state of the lexer decides, and where the others are: at nodes whose byte ends a lexeme,
/// and below them.
pub(super) struct LexerMask {
    /// Tokens that stay inside of a lexeme.
    pub(super) inside: SimpleVob,
    /// Nodes whose byte is the last one of a lexeme.
    pub(super) last: Vec<u32>,
    /// Nodes whose byte no lexeme goes on with, by the lexemes that end in front of it.
    pub(super) behind: HashMap<LexemeEnd, BehindNodes>,
}

/// Nodes whose byte a lexeme ended in front of. The parser's answer is the same for all with the same byte.
#[derive(Clone, Default)]
pub(super) struct BehindNodes {
    /// Nodes of the tree of classes.
    pub(super) classes: Vec<u32>,
    /// Nodes of the tree of tokens.
    pub(super) nodes: Vec<u32>,
}

/// Parts of the tree of tokens.
pub(super) struct TokenParts {
    /// Nodes of the tree of classes, in its order.
    pub(super) classes: Vec<Range<usize>>,
    /// Nodes of the tree of tokens.
    pub(super) nodes: Vec<Range<usize>>,
}

impl LexerMask {
    /// A mask of these tokens and nothing else.
    pub(super) fn new(inside: SimpleVob) -> Self {
        Self { inside, last: Vec::new(), behind: HashMap::default() }
    }

    /// Allows tokens that stay inside of a lexeme.
    pub(super) fn allow(&mut self, tokens: &[u32]) {
        tokens.iter().for_each(|token| self.inside.allow_token(*token));
    }

    /// The mask without what it says of some parts of the tree.
    pub(super) fn without(&self, parts: &TokenParts, tree: &TokenTree, classes: &ClassTree) -> Self {
        let mut inside = self.inside.clone();
        let of_classes = parts.classes.iter().map(|nodes| classes.tokens(nodes.clone()));
        let tokens = of_classes.chain(parts.nodes.iter().map(|nodes| tree.tokens(nodes.clone())));
        tokens.flatten().for_each(|token| inside.disallow_token(*token));
        let places: Vec<Range<usize>> = parts.classes.iter().map(|nodes| classes.places(nodes.clone())).collect();
        let mut nodes = parts.nodes.clone();
        nodes.sort_unstable_by_key(|range| range.start);
        let has = |ranges: &[Range<usize>], at: usize| {
            ranges.get(ranges.partition_point(|range| range.end <= at)).is_some_and(|range| range.start <= at)
        };
        let is_kept = |at: &u32| !has(&nodes, *at as usize) && !has(&places, classes.place(*at));
        let kept = |from: &[u32]| from.iter().copied().filter(is_kept).collect::<Vec<u32>>();
        let behind = self.behind.iter().map(|(end, from)| {
            let mut left = BehindNodes { classes: Vec::new(), nodes: kept(&from.nodes) };
            for class in &from.classes {
                let members = classes.members(*class as usize);
                match members.iter().filter(|at| is_kept(at)).count() {
                    all if all == members.len() => left.classes.push(*class),
                    _ => left.nodes.extend(kept(members)),
                }
            }
            (*end, left)
        });
        Self { inside, last: kept(&self.last), behind: behind.collect() }
    }

    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        const ENTRY: usize = 96;
        let behind = self.behind.values();
        let behind = behind.map(|of| ENTRY + size_of_val(of.classes.as_slice()) + size_of_val(of.nodes.as_slice()));
        size_of_val(self.inside.as_slice()) + size_of_val(self.last.as_slice()) + behind.sum::<usize>()
    }
}
