//! The tokens that may come next in a grammar, computed with less work than the library has for it. The result is the
//! library's, token by token.
//!
//! The state of a grammar's lexer decides about most tokens alone. Those that stay inside of a lexeme are allowed, and
//! those with a byte that no lexeme has are not. Only tokens that reach the end of a lexeme need the parser. Hence the
//! first part is computed once for each state of the lexer and kept for all answers to the grammar ([`LexerMask`]).
//!
//! Where a lexeme ends in front of a byte that it cannot have, the parser is asked once for all tokens in which that
//! byte comes in the same state. If all bytes of a class begin the next lexeme and lead to one state, the lexer decides
//! about the tokens below them too.
//!
//! Most states make the same of all bytes of a class, such as small letters. Tokens are therefore walked by the classes
//! of their bytes ([`ClassTree`]), and one by one only behind bytes that a state tells apart within their class.
//!
//! If these have many tokens, another state helps. States are alike: free text in which a mark may begin differs from
//! free text only in the next byte of the mark, and the states of a pattern that counts differ only in long texts. A
//! mask is then made of that of another state: a subtree of tokens is left as it is where both states make the same
//! of all texts below it. A subtree whose texts all stay inside of a lexeme is allowed at once. Both are found in
//! tables of the lexer's steps ([`LexerSteps`]), by the kinds of bytes below each node ([`TextKinds`]).
//!
//! [`ClassTree`]: class_tree::ClassTree
//! [`LexerMask`]: lexer_mask::LexerMask
//! [`LexerSteps`]: steps::LexerSteps
//! [`TextKinds`]: text_kinds::TextKinds

mod class_tree;
mod computer;
mod kept;
mod lexer_mask;
mod lexer_walk;
mod parser_walk;
mod steps;
#[cfg(test)]
mod tests;
mod text_kinds;
mod tree;

pub(super) use computer::{MaskLimits, Masks};
