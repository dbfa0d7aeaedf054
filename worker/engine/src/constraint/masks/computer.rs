//! Masks of a grammar's answers: those of lexer states, completed by the parser.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use super::class_tree::ClassTree;
use super::kept::{GrammarId, KeptMasks};
use super::lexer_mask::LexerMask;
use super::lexer_walk::{LexerWalk, Subtrees};
use super::steps::{LexerStep, LexerSteps, Row};
use super::tree::{TokenTree, same_bytes};

/// Sets of tokens that the library allows at once where a lexeme may go on with any of their texts: white space, and
/// the text of JSON strings.
pub(crate) const SLICES: [&str; 4] =
    [r"[\x20\x0A\x0D\x09]+", r#"[^"\\\x00-\x1F\x7F]{1,10}"#, r#"[^"\\\x00-\x1F\x7F]{1,30}"#, r#"[^"\\\x00-\x1F\x7F]+"#];

/// The slices that have most tokens.
const LARGE_SLICES: Range<usize> = 1..SLICES.len();

/// Most work to find out whether a slice may come next, as in the library.
const SLICE_BUDGET: u64 = 1_000;

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
        Self { few_nodes: 8_192, most_bytes: 16 << 20 }
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
struct GrammarMasks {
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

    /// The masks of a grammar whose parser was made with the library's slices.
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
        if let Some(known) = self.kept.get(self.grammar, state).filter(|_| start.is_empty()) {
            return self.complete(parser, &known);
        }
        if !start.is_empty() || self.is_easy(parser, state) {
            return self.library.compute_bias(parser, start);
        }
        let mask = Arc::new(self.lexer_mask(parser, state));
        self.kept.keep(self.grammar, state, &mask);
        self.complete(parser, &mask)
    }

    fn trie(&self) -> &TokTrie {
        self.library.trie()
    }
}

impl GrammarMasks {
    /// Whether the library is fast in a state: few tokens begin with a byte that may come next, or a large slice may.
    fn is_easy(&self, parser: &mut ParserRecognizer<'_>, state: StateID) -> bool {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let row = steps.row(parser, state);
        let begun = |at: &usize| steps.step(parser, row, self.tree.node(*at).byte) != LexerStep::Dead;
        let nodes: usize = self.tree.roots().filter(begun).map(|at| self.tree.below(at).len()).sum();
        if nodes <= self.few_nodes {
            return true;
        }
        let lexer = parser.lexer_mut();
        lexer.subsume_possible(state)
            && LARGE_SLICES
                .into_iter()
                .any(|slice| matches!(lexer.check_subsume(state, slice, SLICE_BUDGET, None), Ok(true)))
    }

    /// The mask of a state.
    fn lexer_mask(&self, parser: &mut ParserRecognizer<'_>, state: StateID) -> LexerMask {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let row = steps.row(parser, state);
        let budget = steps.budget();
        let (tree, classes) = (&*self.tree, &*self.classes);
        // Beyond it, less work is needed to make the mask of that of another state.
        let most_mixed = tree.len() / 64;
        let mut walk =
            LexerWalk { tree, classes, parser, steps: &mut steps, budget, walked: 0, mixed_nodes: most_mixed };
        let mut mask = LexerMask::new(self.library.trie().alloc_token_set());
        if walk.mixed_nodes_at_roots(row) < most_mixed {
            walk.add_classes(Subtrees { nodes: 0..classes.len(), row }, &mut mask);
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
        const TRIED: usize = 4;
        let (tree, classes) = (&*self.tree, &*self.classes);
        let mut near = None::<(usize, Row, Arc<LexerMask>)>;
        for (other, known) in self.kept.recent(self.grammar).into_iter().take(TRIED) {
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

    /// Adds the tokens about which the parser decides.
    fn complete(&self, parser: &mut ParserRecognizer<'_>, known: &LexerMask) -> SimpleVob {
        parser.trie_started("ends of lexemes");
        let mut walk = ParserWalk { masks: self, parser, path: &[], mask: known.inside.clone(), walked: 0 };
        for at in &known.last {
            walk.enter(*at as usize);
        }
        for alike in known.behind.values() {
            // One that the parser refuses answers for all.
            let _ = alike.iter().all(|at| walk.enter(*at as usize));
        }
        walk.finish()
    }
}

/// A walk over nodes at which lexemes end.
struct ParserWalk<'a, 'p> {
    masks: &'a GrammarMasks,
    parser: &'a mut ParserRecognizer<'p>,
    /// The bytes that the parser took.
    path: &'a [u8],
    mask: SimpleVob,
    walked: usize,
}

impl ParserWalk<'_, '_> {
    /// Allows the tokens at a node and below that the parser takes. Returns whether it takes the node's byte.
    fn enter(&mut self, at: usize) -> bool {
        let tree = &self.masks.tree;
        let start = usize::from(tree.node(at).depth);
        let inside = &self.masks.trie().token(tree.token_through(at))[..start];
        let same = same_bytes(self.path, inside);
        self.parser.pop_bytes(self.path.len() - same);
        let more = inside[same..].iter().take_while(|byte| self.parser.try_push_byte(**byte)).count();
        self.path = &inside[..same + more];
        if self.path.len() < start {
            // Only a lexer that is out of its limits refuses a byte inside of a lexeme.
            return false;
        }
        let mut taken = start;
        let mut is_entered = false;
        tree.walk(tree.below(at), |at, node| {
            self.walked += 1;
            let depth = usize::from(node.depth);
            self.parser.pop_bytes(taken - depth);
            let is_taken = self.parser.try_push_byte(node.byte);
            taken = depth + usize::from(is_taken);
            if is_taken {
                is_entered = true;
                tree.tokens(at..at + 1).iter().for_each(|token| self.mask.allow_token(*token));
            }
            is_taken
        });
        self.parser.pop_bytes(taken - start);
        is_entered
    }

    fn finish(self) -> SimpleVob {
        self.parser.pop_bytes(self.path.len());
        self.parser.trie_finished();
        self.parser.save_stats(self.walked);
        self.mask
    }
}

impl Drop for GrammarMasks {
    fn drop(&mut self) {
        self.kept.forget(self.grammar);
    }
}
