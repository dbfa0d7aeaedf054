//! Completes masks of lexer states by the tokens about which the parser decides.

use std::sync::Arc;

use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use super::class_tree::ClassTree;
use super::lexer_mask::{BehindNodes, LexerMask};
use super::tree::{TokenTree, same_bytes};

/// The tokens of a vocabulary, and masks of what follows a class of bytes.
pub(super) trait MasksBehind {
    fn tree(&self) -> &TokenTree;
    fn classes(&self) -> &ClassTree;
    fn trie(&self) -> &TokTrie;
    /// The mask of the tokens below a class of first bytes, in the state behind them.
    fn below(&self, parser: &mut ParserRecognizer<'_>, class: usize, state: StateID) -> Arc<LexerMask>;
}

/// A walk of the parser over nodes at which lexemes end.
pub(super) struct ParserWalk<'a, 'p> {
    masks: &'a dyn MasksBehind,
    parser: &'a mut ParserRecognizer<'p>,
    /// The bytes that the parser took.
    path: &'a [u8],
    mask: SimpleVob,
    walked: usize,
}

/// The parser's answer to a byte that a lexeme ended in front of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteAnswer {
    /// The lexeme cannot come here, whatever the byte is.
    NoLexeme,
    Refused,
    /// The next lexeme begins with it. Where another byte leads to the same state, the parser makes the same of all
    /// that comes behind both.
    Begins(StateID),
    /// It is a lexeme of its own.
    Ends,
}

/// Classes with fewer nodes below them are walked over by the parser.
const FEW: usize = 16;

impl<'a, 'p> ParserWalk<'a, 'p> {
    /// The tokens of a mask, and those about which the parser decides.
    pub(super) fn complete(
        masks: &'a dyn MasksBehind,
        parser: &'a mut ParserRecognizer<'p>,
        known: &LexerMask,
    ) -> SimpleVob {
        parser.trie_started("ends of lexemes");
        let mut walk = Self { masks, parser, path: &[], mask: known.inside.clone(), walked: 0 };
        walk.add_ends(known);
        walk.parser.pop_bytes(walk.path.len());
        walk.parser.trie_finished();
        walk.parser.save_stats(walk.walked);
        walk.mask
    }

    fn add_ends(&mut self, known: &LexerMask) {
        for at in &known.last {
            self.enter(*at as usize);
        }
        for behind in known.behind.values() {
            self.add_behind(behind);
        }
    }

    /// Adds the tokens through nodes that the same lexemes end in front of. The parser is asked once for each byte.
    fn add_behind(&mut self, behind: &BehindNodes) {
        let (tree, classes) = (self.masks.tree(), self.masks.classes());
        let mut answers = [None; 256];
        for class in behind.classes.iter().map(|at| *at as usize) {
            let (members, bytes) = (classes.members(class), classes.node(class).class.bytes());
            let (Some(first), Some(byte)) = (members.first(), bytes.first()) else { continue };
            for byte in bytes {
                if !self.answer(*first as usize, *byte, &mut answers) {
                    return;
                }
            }
            let is_one = bytes.iter().all(|other| answers[usize::from(*other)] == answers[usize::from(*byte)]);
            match answers[usize::from(*byte)] {
                Some(ByteAnswer::Refused) if is_one => {}
                Some(ByteAnswer::Begins(state)) if is_one && classes.below(class).len() > FEW => {
                    classes.tokens(class..class + 1).iter().for_each(|token| self.mask.allow_token(*token));
                    let below = self.masks.below(self.parser, class, state);
                    self.mask.or(&below.inside);
                    self.add_ends(&below);
                }
                _ => {
                    for at in members.iter().map(|at| *at as usize) {
                        if answers[usize::from(tree.node(at).byte)] != Some(ByteAnswer::Refused) {
                            self.enter(at);
                        }
                    }
                }
            }
        }
        for at in behind.nodes.iter().map(|at| *at as usize) {
            let byte = tree.node(at).byte;
            if !self.answer(at, byte, &mut answers) {
                return;
            }
            if answers[usize::from(byte)] != Some(ByteAnswer::Refused) {
                self.enter(at);
            }
        }
    }

    /// Asks about a byte in the place of that of a node, if its answer is not known. `false` if no byte can come there.
    fn answer(&mut self, at: usize, byte: u8, answers: &mut [Option<ByteAnswer>; 256]) -> bool {
        let answer = &mut answers[usize::from(byte)];
        if answer.is_none() {
            *answer = Some(self.ask(at, byte));
        }
        *answer != Some(ByteAnswer::NoLexeme)
    }

    fn ask(&mut self, at: usize, byte: u8) -> ByteAnswer {
        self.walked += 1;
        if !self.go_in_front_of(at) {
            return ByteAnswer::Refused;
        }
        let rows = |parser: &mut ParserRecognizer<'_>| {
            let stats = parser.stats_mut();
            stats.rows + stats.cached_rows
        };
        let before = rows(self.parser);
        let is_taken = self.parser.try_push_byte(byte);
        // The parser has a row for each lexeme that came.
        let lexemes = rows(self.parser) - before;
        let answer = match (is_taken, lexemes) {
            (false, 0) => ByteAnswer::NoLexeme,
            (false, _) => ByteAnswer::Refused,
            (true, 1) => ByteAnswer::Begins(self.parser.lexer_state()),
            (true, _) => ByteAnswer::Ends,
        };
        self.parser.pop_bytes(usize::from(is_taken));
        answer
    }

    /// Has the parser take the bytes in front of a node. `false` if the lexer is out of its limits.
    fn go_in_front_of(&mut self, at: usize) -> bool {
        let tree = self.masks.tree();
        let start = usize::from(tree.node(at).depth);
        let inside = &self.masks.trie().token(tree.token_through(at))[..start];
        let same = same_bytes(self.path, inside);
        self.parser.pop_bytes(self.path.len() - same);
        let more = inside[same..].iter().take_while(|byte| self.parser.try_push_byte(**byte)).count();
        self.path = &inside[..same + more];
        self.path.len() == start
    }

    /// Allows the tokens at a node and below that the parser takes.
    fn enter(&mut self, at: usize) {
        if !self.go_in_front_of(at) {
            return;
        }
        let tree = self.masks.tree();
        let start = usize::from(tree.node(at).depth);
        let mut taken = start;
        tree.walk(tree.below(at), |at, node| {
            self.walked += 1;
            let depth = usize::from(node.depth);
            self.parser.pop_bytes(taken - depth);
            let is_taken = self.parser.try_push_byte(node.byte);
            taken = depth + usize::from(is_taken);
            if is_taken {
                tree.tokens(at..at + 1).iter().for_each(|token| self.mask.allow_token(*token));
            }
            is_taken
        });
        self.parser.pop_bytes(taken - start);
    }
}
