//! Masks of a grammar's answers: those of lexer states, completed by the parser.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use super::kept::{GrammarId, KeptMasks};
use super::lexer_mask::LexerMask;
use super::steps::{CompareBudget, LexerStep, LexerSteps, Row};
use super::tree::{TokenNode, TokenTree, same_bytes};

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
    steps: Mutex<LexerSteps>,
}

/// Subtrees of the tree of tokens, side by side, and the state of the lexer in front of them.
struct Subtrees {
    nodes: Range<usize>,
    row: Row,
}

/// A walk of the lexer over the tree of tokens.
struct LexerWalk<'a, 'p> {
    tree: &'a TokenTree,
    parser: &'a mut ParserRecognizer<'p>,
    steps: &'a mut LexerSteps,
    budget: CompareBudget,
    walked: usize,
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

    /// The mask of a state, made of that of the most similar one.
    fn lexer_mask(&self, parser: &mut ParserRecognizer<'_>, state: StateID) -> LexerMask {
        const TRIED: usize = 4;
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let row = steps.row(parser, state);
        let budget = steps.budget();
        let mut walk = LexerWalk { tree: &self.tree, parser, steps: &mut steps, budget, walked: 0 };
        let mut near = None::<(usize, Row, Arc<LexerMask>)>;
        for (other, known) in self.kept.recent(self.grammar).into_iter().take(TRIED) {
            let other = walk.row(other);
            let nodes = walk.nodes_of_differing_roots(row, other);
            if near.as_ref().is_none_or(|(fewest, ..)| nodes < *fewest) {
                near = Some((nodes, other, known));
            }
            if nodes == 0 {
                break;
            }
        }
        let near = near.and_then(|(_, other, known)| Some((walk.differing(row, other)?, known)));
        let mask = match near {
            Some((differing, known)) => {
                let nodes: Vec<_> = differing.iter().map(|subtrees| subtrees.nodes.clone()).collect();
                let tokens = nodes.iter().flat_map(|nodes| self.tree.tokens(nodes.clone()));
                let mut mask = known.without(&nodes, tokens);
                differing.into_iter().for_each(|subtrees| walk.add(subtrees, &mut mask));
                mask
            }
            None => {
                let mut mask = LexerMask::new(self.library.trie().alloc_token_set());
                walk.add(Subtrees { nodes: 0..self.tree.len(), row }, &mut mask);
                mask
            }
        };
        let walked = walk.walked;
        parser.save_stats(walked);
        steps.bound();
        mask
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

impl LexerWalk<'_, '_> {
    fn row(&mut self, state: StateID) -> Row {
        self.steps.row(self.parser, state)
    }

    /// Number of nodes at and below first bytes behind which two states may differ.
    fn nodes_of_differing_roots(&mut self, one: Row, other: Row) -> usize {
        let tree = self.tree;
        tree.roots()
            .filter(|at| !self.is_same((one, other), 0, *at).unwrap_or(false))
            .map(|at| tree.below(at).len())
            .sum()
    }

    /// The subtrees of which two states make something else, and the row of the first state in front of each. `None` if
    /// they are most of the tree.
    fn differing(&mut self, one: Row, other: Row) -> Option<Vec<Subtrees>> {
        let tree = self.tree;
        let (mut pairs, mut differing) = (vec![((one, other), 0)], Vec::<Subtrees>::new());
        let (mut walked, mut most) = (0, tree.len() / 2);
        // Beyond it a walk of the one state alone is less work.
        let most_walked = 1_024.max(tree.len() / 16);
        tree.walk(0..tree.len(), |at, node| {
            walked += 1;
            pairs.truncate(usize::from(node.depth) + 1);
            if walked > most_walked {
                most = 0;
            }
            let Some(&(pair, least)) = pairs.last().filter(|_| most > 0) else { return false };
            match self.is_same(pair, least, at) {
                Ok(true) => {}
                Ok(false) => {
                    let nodes = tree.below(at);
                    most = most.saturating_sub(nodes.len());
                    match differing.last_mut().filter(|last| {
                        let depth = tree.node(last.nodes.start).depth;
                        last.nodes.end == at && last.row == pair.0 && depth == node.depth
                    }) {
                        Some(last) => last.nodes.end = nodes.end,
                        None => differing.push(Subtrees { nodes, row: pair.0 }),
                    }
                }
                Err(pair) => {
                    pairs.push(pair);
                    return true;
                }
            }
            false
        });
        self.walked += walked;
        Some(differing).filter(|_| most > 0)
    }

    /// Whether two states make the same of a node and all below it, where they do so of all texts that are shorter than
    /// `least`. `Err`: of the node, and it leads to two states of which the same is known.
    fn is_same(&mut self, (one, other): (Row, Row), least: usize, at: usize) -> Result<bool, ((Row, Row), usize)> {
        let node = self.tree.node(at);
        let compared = self.steps.compare(self.parser, one, other, node.byte);
        compared.or_else(|pair| {
            let least = least.saturating_sub(1);
            if usize::from(node.height) < least || self.are_alike(pair, node) {
                return Ok(true);
            }
            Err((pair, self.steps.least(pair, node.texts.all()).max(least)))
        })
    }

    /// Whether two states make the same of all below a node.
    fn are_alike(&mut self, pair: (Row, Row), node: &TokenNode) -> bool {
        let (texts, height) = (node.texts, usize::from(node.height));
        let mut are_alike = |texts| self.steps.are_alike(self.parser, pair, texts, height, &mut self.budget);
        pair.0 != Row::ANY && are_alike(texts.all()) || are_alike(texts)
    }

    /// Adds what a state makes of subtrees.
    fn add(&mut self, subtrees: Subtrees, mask: &mut LexerMask) {
        const FEW: usize = 3;
        let tree = self.tree;
        let start = usize::from(tree.node(subtrees.nodes.start).depth);
        let (mut rows, mut walked) = (vec![subtrees.row], 0);
        tree.walk(subtrees.nodes, |at, node| {
            walked += 1;
            rows.truncate(usize::from(node.depth) - start + 1);
            let Some(&row) = rows.last() else { return false };
            match self.steps.step(self.parser, row, node.byte) {
                LexerStep::Inside(next) => {
                    let is_all_inside = tree.below(at).len() > FEW && self.are_alike((Row::ANY, next), node);
                    let inside = if is_all_inside { tree.below(at) } else { at..at + 1 };
                    tree.tokens(inside).iter().for_each(|token| mask.inside.allow_token(*token));
                    rows.push(next);
                    return !is_all_inside;
                }
                LexerStep::Last => mask.last.push(at as u32),
                LexerStep::Behind => {
                    let end = self.steps.end(row);
                    mask.behind.entry((end, node.byte)).or_default().push(at as u32);
                }
                LexerStep::Dead => {}
            }
            false
        });
        self.walked += walked;
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
