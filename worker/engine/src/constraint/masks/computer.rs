//! Masks of a grammar's answers: those of lexer states, completed by the parser.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use super::class_tree::ClassTree;
use super::kept::{GrammarId, KeptMasks, MaskPart};
use super::lexer_mask::LexerMask;
use super::lexer_walk::{LexerWalk, Subtrees};
use super::parser_walk::{MasksBehind, ParserWalk};
use super::steps::{LexerStep, LexerSteps, Row};
use super::tree::TokenTree;

/// Limits of the masks over one vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaskLimits {
    /// The library walks over as many nodes of the tree of tokens in a small part of the time that a mask may take.
    pub(crate) few_nodes: usize,
    /// Memory for masks that are kept.
    pub(crate) most_bytes: usize,
}

impl Default for MaskLimits {
    fn default() -> Self {
        Self { few_nodes: 512, most_bytes: 16 << 20 }
    }
}

/// The masks of all grammars over one vocabulary.
pub(crate) struct Masks {
    pub(super) tree: Arc<TokenTree>,
    classes: Arc<ClassTree>,
    pub(super) kept: Arc<KeptMasks>,
    limits: MaskLimits,
}

/// Computes the masks of one grammar. All answers to it share this.
pub(super) struct GrammarMasks {
    library: Arc<SlicedBiasComputer>,
    tree: Arc<TokenTree>,
    classes: Arc<ClassTree>,
    kept: Arc<KeptMasks>,
    few_nodes: usize,
    grammar: GrammarId,
    steps: Mutex<LexerSteps>,
}

impl Masks {
    /// The masks over these tokens, as the library knows them.
    pub(crate) fn new(words: &[Vec<u8>], limits: MaskLimits) -> Self {
        let tree = TokenTree::new(words);
        let (classes, kept) = (ClassTree::new(&tree), KeptMasks::new(limits.most_bytes));
        Self { tree: Arc::new(tree), classes: Arc::new(classes), kept: Arc::new(kept), limits }
    }

    /// The masks of a grammar. The library computes those with few tokens.
    pub(crate) fn of_grammar(&self, library: Arc<SlicedBiasComputer>) -> Arc<dyn BiasComputer> {
        Arc::new(GrammarMasks {
            library,
            tree: Arc::clone(&self.tree),
            classes: Arc::clone(&self.classes),
            kept: Arc::clone(&self.kept),
            few_nodes: self.limits.few_nodes,
            grammar: self.kept.grammar(),
            steps: Mutex::default(),
        })
    }
}

impl BiasComputer for GrammarMasks {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let state = parser.lexer_state();
        if let Some(known) = self.kept.get(self.grammar, state, MaskPart::All).filter(|_| start.is_empty()) {
            return ParserWalk::complete(self, parser, &known);
        }
        if !start.is_empty() || self.is_easy(parser, state) {
            return self.library.compute_bias(parser, start);
        }
        let mask = Arc::new(self.lexer_mask(parser, state));
        self.kept.keep(self.grammar, state, MaskPart::All, &mask);
        ParserWalk::complete(self, parser, &mask)
    }

    fn trie(&self) -> &TokTrie {
        self.library.trie()
    }
}

impl GrammarMasks {
    /// Whether the library is fast in a state: few tokens begin with a byte that may come next.
    fn is_easy(&self, parser: &mut ParserRecognizer<'_>, state: StateID) -> bool {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let row = steps.row(parser, state);
        let begun = |at: &usize| steps.step(parser, row, self.tree.node(*at).byte) != LexerStep::Dead;
        let nodes: usize = self.tree.roots().filter(begun).map(|at| self.tree.below(at).len()).sum();
        nodes <= self.few_nodes
    }

    /// The mask of a state.
    fn lexer_mask(&self, parser: &mut ParserRecognizer<'_>, state: StateID) -> LexerMask {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let row = steps.row(parser, state);
        // Beyond it, less work is needed to make the mask of that of another state.
        let most_mixed = self.tree.len() / 64;
        let mut walk = LexerWalk { mixed_nodes: most_mixed, ..self.walk(parser, &mut steps) };
        let mut mask = LexerMask::new(self.library.trie().alloc_token_set());
        if walk.mixed_nodes_at_roots(row) < most_mixed {
            walk.add_classes(Subtrees { nodes: 0..self.classes.len(), row }, &mut mask);
        } else {
            walk.mixed_nodes = 0;
        }
        if walk.mixed_nodes == 0 {
            walk.mixed_nodes = usize::MAX;
            mask = self.mask_like_another(&mut walk, row);
        }
        let walked = walk.walked;
        parser.save_stats(walked);
        steps.bound();
        mask
    }

    /// The mask of a state that does not make the same of the bytes of a class, made of that of the most similar one.
    fn mask_like_another(&self, walk: &mut LexerWalk<'_, '_>, row: Row) -> LexerMask {
        const LAST: usize = 4;
        let (tree, classes) = (&*self.tree, &*self.classes);
        let mut near = None::<(usize, Row, Arc<LexerMask>)>;
        for (other, known) in self.kept.near(self.grammar, LAST, |other| walk.steps.equal_steps(row, other)) {
            let other = walk.row(other);
            let tokens = walk.tokens_of_differing_roots(row, other);
            if near.as_ref().is_none_or(|(fewest, ..)| tokens < *fewest) {
                near = Some((tokens, other, known));
            }
            if tokens == 0 {
                break;
            }
        }
        let near = near.and_then(|(_, other, known)| Some((walk.differing(row, other)?, known)));
        match near {
            Some((differing, known)) => {
                let mut mask = known.without(&differing.parts(), tree, classes);
                differing.classes.into_iter().for_each(|subtrees| walk.add_classes(subtrees, &mut mask));
                for subtrees in differing.nodes {
                    walk.add(subtrees, &mut mask);
                }
                mask
            }
            None => {
                let mut mask = LexerMask::new(self.library.trie().alloc_token_set());
                walk.add_classes(Subtrees { nodes: 0..classes.len(), row }, &mut mask);
                mask
            }
        }
    }

    fn walk<'a, 'p>(&'a self, parser: &'a mut ParserRecognizer<'p>, steps: &'a mut LexerSteps) -> LexerWalk<'a, 'p> {
        let budget = steps.budget();
        let (tree, classes) = (&*self.tree, &*self.classes);
        LexerWalk { tree, classes, parser, steps, budget, walked: 0, mixed_nodes: usize::MAX }
    }
}

impl MasksBehind for GrammarMasks {
    fn tree(&self) -> &TokenTree {
        &self.tree
    }

    fn classes(&self) -> &ClassTree {
        &self.classes
    }

    fn trie(&self) -> &TokTrie {
        self.library.trie()
    }

    fn below(&self, parser: &mut ParserRecognizer<'_>, class: usize, state: StateID) -> Arc<LexerMask> {
        let part = MaskPart::Below(class as u32);
        if let Some(known) = self.kept.get(self.grammar, state, part) {
            return known;
        }
        let mut mask = LexerMask::new(self.library.trie().alloc_token_set());
        let nodes = class + 1..self.classes.below(class).end;
        if !nodes.is_empty() {
            let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            let row = steps.row(parser, state);
            let mut walk = self.walk(parser, &mut steps);
            walk.add_classes(Subtrees { nodes, row }, &mut mask);
            let walked = walk.walked;
            parser.save_stats(walked);
            steps.bound();
        }
        let mask = Arc::new(mask);
        self.kept.keep(self.grammar, state, part, &mask);
        mask
    }
}

impl Drop for GrammarMasks {
    fn drop(&mut self) {
        self.kept.forget(self.grammar);
    }
}
