//! Walks of a lexer over the tokens of a vocabulary: what a state makes of them, and where two states differ.

use std::ops::Range;

use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;

use super::class_tree::ClassTree;
use super::lexer_mask::{LexerMask, TokenParts};
use super::steps::{CompareBudget, LexerStep, LexerSteps, Row};
use super::text_kinds::TextKinds;
use super::tree::TokenTree;

/// Subtrees, side by side, and the state of the lexer in front of them.
pub(super) struct Subtrees {
    pub(super) nodes: Range<usize>,
    pub(super) row: Row,
}

/// The parts of the tree of tokens of which two states make something else.
#[derive(Default)]
pub(super) struct Differing {
    /// Subtrees of the tree of classes.
    pub(super) classes: Vec<Subtrees>,
    /// Subtrees of the tree of tokens.
    pub(super) nodes: Vec<Subtrees>,
}

/// A walk of the lexer over the tree of tokens.
pub(super) struct LexerWalk<'a, 'p> {
    pub(super) tree: &'a TokenTree,
    pub(super) classes: &'a ClassTree,
    pub(super) parser: &'a mut ParserRecognizer<'p>,
    pub(super) steps: &'a mut LexerSteps,
    pub(super) budget: CompareBudget,
    pub(super) walked: usize,
    /// Nodes that may still be walked over because the state does not make the same of the bytes of a class.
    pub(super) mixed_nodes: usize,
}

/// Two states that the same texts lead to, and a number of bytes: they make the same of all shorter texts.
#[derive(Clone, Copy)]
struct RowPair {
    rows: (Row, Row),
    least: usize,
}

impl LexerWalk<'_, '_> {
    /// The row of a state.
    pub(super) fn row(&mut self, state: StateID) -> Row {
        self.steps.row(self.parser, state)
    }

    /// Number of nodes at and below first bytes of which a state does not make the same as of the rest of their class.
    pub(super) fn mixed_nodes_at_roots(&mut self, row: Row) -> usize {
        let (tree, classes) = (self.tree, self.classes);
        let mut nodes = 0;
        for at in classes.roots() {
            if self.steps.class_step(self.parser, row, classes.node(at).class).is_some() {
                continue;
            }
            for member in classes.members(at) {
                let member = *member as usize;
                if self.steps.step(self.parser, row, tree.node(member).byte) != LexerStep::Dead {
                    nodes += tree.below(member).len();
                }
            }
        }
        nodes
    }

    /// Number of tokens with first bytes behind which two states may differ.
    pub(super) fn tokens_of_differing_roots(&mut self, one: Row, other: Row) -> usize {
        let (tree, classes, pair) = (self.tree, self.classes, RowPair { rows: (one, other), least: 0 });
        let mut tokens = 0;
        for at in classes.roots() {
            match self.is_same_class(pair, at) {
                Some(Ok(true)) => {}
                Some(_) => tokens += classes.tokens(classes.below(at)).len(),
                None => {
                    for member in classes.members(at) {
                        let member = *member as usize;
                        if !self.is_same_node(pair, member).unwrap_or(false) {
                            tokens += tree.tokens(tree.below(member)).len();
                        }
                    }
                }
            }
        }
        tokens
    }

    /// The subtrees of which two states make something else, and the row of the first state in front of each. `None` if
    /// they are most of the tree.
    pub(super) fn differing(&mut self, one: Row, other: Row) -> Option<Differing> {
        let classes = self.classes;
        let (mut pairs, mut found) = (vec![RowPair { rows: (one, other), least: 0 }], Differing::default());
        let (mut walked, mut walked_nodes, mut is_most) = (0, 0, false);
        let (mut most, mut most_nodes) = (classes.len() / 2, self.tree.len() / 2);
        classes.walk(0..classes.len(), |at, node| {
            walked += 1;
            pairs.truncate(usize::from(node.depth) + 1);
            let Some(&pair) = pairs.last().filter(|_| !is_most) else { return false };
            match self.is_same_class(pair, at) {
                Some(Ok(true)) => {}
                Some(Ok(false)) => {
                    let nodes = classes.below(at);
                    is_most = take(&mut most, nodes.len());
                    let is_beside = |last: &&mut Subtrees| {
                        last.nodes.end == at && classes.node(last.nodes.start).depth == node.depth
                    };
                    push(&mut found.classes, Subtrees { nodes, row: pair.rows.0 }, is_beside);
                }
                Some(Err(pair)) => {
                    pairs.push(pair);
                    return true;
                }
                None => {
                    for member in classes.members(at) {
                        is_most |= self.differing_nodes(
                            pair,
                            *member as usize,
                            &mut found.nodes,
                            &mut most_nodes,
                            &mut walked_nodes,
                        );
                    }
                }
            }
            false
        });
        self.walked += walked + walked_nodes;
        Some(found).filter(|_| !is_most)
    }

    /// Adds the subtrees at and below a node of which two states make something else. Returns whether they are most of
    /// the tree.
    fn differing_nodes(
        &mut self,
        pair: RowPair,
        at: usize,
        found: &mut Vec<Subtrees>,
        most: &mut usize,
        walked: &mut usize,
    ) -> bool {
        let tree = self.tree;
        // Beyond it a walk of the one state alone is less work.
        let most_walked = 1_024.max(tree.len() / 16);
        let start = usize::from(tree.node(at).depth);
        let (mut pairs, mut is_most) = (vec![pair], false);
        tree.walk(tree.below(at), |at, node| {
            *walked += 1;
            pairs.truncate(usize::from(node.depth) - start + 1);
            is_most |= *walked > most_walked;
            let Some(&pair) = pairs.last().filter(|_| !is_most) else { return false };
            match self.is_same_node(pair, at) {
                Ok(true) => {}
                Ok(false) => {
                    let nodes = tree.below(at);
                    is_most = take(most, nodes.len());
                    let is_beside =
                        |last: &&mut Subtrees| last.nodes.end == at && tree.node(last.nodes.start).depth == node.depth;
                    push(found, Subtrees { nodes, row: pair.rows.0 }, is_beside);
                }
                Err(pair) => {
                    pairs.push(pair);
                    return true;
                }
            }
            false
        });
        is_most
    }

    /// Whether two states make the same of a node and all below it. `Err`: of the node, and it leads to this pair.
    fn is_same_node(&mut self, pair: RowPair, at: usize) -> Result<bool, RowPair> {
        let node = self.tree.node(at);
        let compared = self.steps.compare(self.parser, pair.rows.0, pair.rows.1, node.byte);
        self.is_same_below(compared, pair.least, node.texts, usize::from(node.height))
    }

    /// The same for a class. `None`: the states do not make the same of all its bytes.
    fn is_same_class(&mut self, pair: RowPair, at: usize) -> Option<Result<bool, RowPair>> {
        let node = self.classes.node(at);
        let compared = self.steps.compare_class(self.parser, pair.rows.0, pair.rows.1, node.class)?;
        Some(self.is_same_below(compared, pair.least, node.texts, usize::from(node.height)))
    }

    fn is_same_below(
        &mut self,
        compared: Result<bool, (Row, Row)>,
        least: usize,
        texts: TextKinds,
        height: usize,
    ) -> Result<bool, RowPair> {
        compared.or_else(|rows| {
            let least = least.saturating_sub(1);
            if height < least || self.are_alike(rows, texts, height) {
                return Ok(true);
            }
            Err(RowPair { rows, least: self.steps.least(rows, texts.all()).max(least) })
        })
    }

    /// Whether two states make the same of all texts of some kinds.
    fn are_alike(&mut self, rows: (Row, Row), texts: TextKinds, height: usize) -> bool {
        let mut are_alike = |texts| self.steps.are_alike(self.parser, rows, texts, height, &mut self.budget);
        rows.0 != Row::ANY && are_alike(texts.all()) || are_alike(texts)
    }

    /// Adds what a state makes of subtrees of classes.
    pub(super) fn add_classes(&mut self, subtrees: Subtrees, mask: &mut LexerMask) {
        let (tree, classes) = (self.tree, self.classes);
        let start = usize::from(classes.node(subtrees.nodes.start).depth);
        let (mut rows, mut walked) = (vec![subtrees.row], 0);
        classes.walk(subtrees.nodes, |at, node| {
            walked += 1;
            rows.truncate(usize::from(node.depth) - start + 1);
            let Some(&row) = rows.last().filter(|_| self.mixed_nodes > 0) else { return false };
            let members = classes.members(at);
            match self.steps.class_step(self.parser, row, node.class) {
                Some(LexerStep::Inside(next)) => {
                    let below = classes.below(at);
                    let is_all_inside =
                        below.len() > FEW && self.are_alike((Row::ANY, next), node.texts, usize::from(node.height));
                    mask.allow(classes.tokens(if is_all_inside { below } else { at..at + 1 }));
                    rows.push(next);
                    return !is_all_inside;
                }
                Some(LexerStep::Last) => mask.last.extend(members),
                Some(LexerStep::Behind) => {
                    mask.behind.entry(self.steps.end(row)).or_default().classes.push(at as u32);
                }
                Some(LexerStep::Dead) => {}
                None => {
                    for member in members {
                        if self.mixed_nodes > 0 {
                            let walked = self.add(Subtrees { nodes: tree.below(*member as usize), row }, mask);
                            self.mixed_nodes = self.mixed_nodes.saturating_sub(walked);
                        }
                    }
                }
            }
            false
        });
        self.walked += walked;
    }

    /// Adds what a state makes of subtrees. Returns the number of nodes that were walked over.
    pub(super) fn add(&mut self, subtrees: Subtrees, mask: &mut LexerMask) -> usize {
        let tree = self.tree;
        let start = usize::from(tree.node(subtrees.nodes.start).depth);
        let (mut rows, mut walked) = (vec![subtrees.row], 0);
        tree.walk(subtrees.nodes, |at, node| {
            walked += 1;
            rows.truncate(usize::from(node.depth) - start + 1);
            let Some(&row) = rows.last() else { return false };
            match self.steps.step(self.parser, row, node.byte) {
                LexerStep::Inside(next) => {
                    let below = tree.below(at);
                    let is_all_inside =
                        below.len() > FEW && self.are_alike((Row::ANY, next), node.texts, usize::from(node.height));
                    mask.allow(tree.tokens(if is_all_inside { below } else { at..at + 1 }));
                    rows.push(next);
                    return !is_all_inside;
                }
                LexerStep::Last => mask.last.push(at as u32),
                LexerStep::Behind => mask.behind.entry(self.steps.end(row)).or_default().nodes.push(at as u32),
                LexerStep::Dead => {}
            }
            false
        });
        self.walked += walked;
        walked
    }
}

/// Subtrees of no more nodes are looked at one by one.
const FEW: usize = 3;

/// Takes nodes away from those that may differ. Returns whether none may any longer.
fn take(most: &mut usize, nodes: usize) -> bool {
    *most = most.saturating_sub(nodes);
    *most == 0
}

/// Adds a subtree to the last ones, if they lie beside it and have the same state in front of them.
fn push(found: &mut Vec<Subtrees>, subtrees: Subtrees, is_beside: impl FnOnce(&&mut Subtrees) -> bool) {
    match found.last_mut().filter(|last| last.row == subtrees.row).filter(is_beside) {
        Some(last) => last.nodes.end = subtrees.nodes.end,
        None => found.push(subtrees),
    }
}

impl Differing {
    /// These parts, without the states in front of them.
    pub(super) fn parts(&self) -> TokenParts {
        let nodes = |subtrees: &[Subtrees]| subtrees.iter().map(|subtrees| subtrees.nodes.clone()).collect();
        TokenParts { classes: nodes(&self.classes), nodes: nodes(&self.nodes) }
    }
}
