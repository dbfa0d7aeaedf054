//! Masks of a grammar's answers: those of lexer states, completed by the parser.

use std::ops::Range;
use std::sync::Arc;

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use super::kept::{GrammarId, KeptMasks};
use super::lexer_mask::LexerMask;
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
    pub(super) kept: Arc<KeptMasks>,
    limits: MaskLimits,
}

/// Computes the masks of one grammar. All answers to it share this.
struct GrammarMasks {
    library: Arc<SlicedBiasComputer>,
    tree: Arc<TokenTree>,
    kept: Arc<KeptMasks>,
    few_nodes: usize,
    grammar: GrammarId,
}

/// The effect of a byte in a state of the lexer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LexerStep {
    Inside(StateID),
    /// It is the last byte of a lexeme.
    Last,
    /// The lexeme ended in front of it.
    Behind,
    Dead,
}

impl Masks {
    /// The masks over these tokens, as the library knows them.
    pub(crate) fn new(words: &[Vec<u8>], limits: MaskLimits) -> Self {
        Self { tree: Arc::new(TokenTree::new(words)), kept: Arc::new(KeptMasks::new(limits.most_bytes)), limits }
    }

    /// The masks of a grammar whose parser was made with the library's slices.
    pub(crate) fn of_grammar(&self, library: Arc<SlicedBiasComputer>) -> Arc<dyn BiasComputer> {
        Arc::new(GrammarMasks {
            library,
            tree: Arc::clone(&self.tree),
            kept: Arc::clone(&self.kept),
            few_nodes: self.limits.few_nodes,
            grammar: self.kept.grammar(),
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
        let begun = |at: &usize| step(parser, state, self.tree.node(*at).byte) != LexerStep::Dead;
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

    /// The mask of a state, made of that of the most similar one.
    fn lexer_mask(&self, parser: &mut ParserRecognizer<'_>, state: StateID) -> LexerMask {
        const TRIED: usize = 4;
        let tried = self.kept.recent(self.grammar).into_iter().take(TRIED);
        let near = tried.map(|(other, known)| (self.differing(parser, state, other), known));
        let near =
            near.min_by_key(|(differing, _)| nodes(differing)).filter(|(all, _)| nodes(all) < self.tree.len() / 2);
        let (differing, mut mask) = match near {
            Some((differing, known)) => {
                let tokens = differing.iter().flat_map(|nodes| self.tree.tokens(nodes.clone()));
                let mask = known.without(&differing, tokens);
                (differing, mask)
            }
            None => {
                let inside = self.trie().alloc_token_set();
                (self.tree.roots().map(|at| self.tree.below(at)).collect(), LexerMask::new(inside))
            }
        };
        let (mut states, mut walked) = (Vec::new(), 0);
        for nodes in differing {
            states.clear();
            states.push(state);
            self.tree.walk(nodes, |at, node| {
                walked += 1;
                states.truncate(usize::from(node.depth) + 1);
                let Some(&state) = states.last() else { return false };
                match step(parser, state, node.byte) {
                    LexerStep::Inside(next) => {
                        self.tree.tokens(at..at + 1).iter().for_each(|token| mask.inside.allow_token(*token));
                        states.push(next);
                        return true;
                    }
                    LexerStep::Last => mask.last.push(at as u32),
                    LexerStep::Behind => mask.behind.entry((state, node.byte)).or_default().push(at as u32),
                    LexerStep::Dead => {}
                }
                false
            });
        }
        parser.save_stats(walked);
        mask
    }

    /// The nodes at and below first bytes that do not lead two states to the same one.
    fn differing(&self, parser: &mut ParserRecognizer<'_>, one: StateID, other: StateID) -> Vec<Range<usize>> {
        let mut differs = |at: &usize| {
            let byte = self.tree.node(*at).byte;
            let step_of_one = step(parser, one, byte);
            // The parser may answer differently for two states in which a lexeme ended.
            step_of_one == LexerStep::Behind || step_of_one != step(parser, other, byte)
        };
        self.tree.roots().filter(|at| differs(at)).map(|at| self.tree.below(at)).collect()
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

/// Number of nodes.
fn nodes(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

/// The effect of a byte, as `Lexer::advance` defines it: its result can be used, but not named.
fn step(parser: &mut ParserRecognizer<'_>, state: StateID, byte: u8) -> LexerStep {
    let lexer = parser.lexer_mut();
    let next = lexer.transition_start_state(state, Some(byte), &None);
    match () {
        () if next.is_dead() && lexer.advance(state, byte, false, &None).is_error() => LexerStep::Dead,
        () if next.is_dead() => LexerStep::Behind,
        () if next.has_lowest_match() => LexerStep::Last,
        () => LexerStep::Inside(next),
    }
}
