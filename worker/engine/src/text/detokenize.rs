//! Tokens back to text, one at a time, never half a character.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::vocabulary::Vocabulary;

/// Turns an answer's tokens into text as they come. The joined texts equal the text of prompt and answer decoded at
/// once, without the prompt's. An unfinished character at the very end is left out.
#[derive(Debug)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    /// The start of an unfinished character.
    pending: Vec<u8>,
    /// The next space may be the one in front of every text, which belongs to none. An answer does not begin a text:
    /// its prompt did.
    drop_space: bool,
    /// Special tokens that are shown all the same.
    spelled: BTreeSet<u32>,
}

impl Detokenizer {
    /// A detokenizer for the answer to a prompt; with an empty prompt, for a text of its own.
    pub fn new(vocabulary: Arc<Vocabulary>, prompt: &[u32]) -> Self {
        let drop_space = vocabulary.space_in_front() && prompt.is_empty();
        Self { vocabulary, pending: Vec::new(), drop_space, spelled: BTreeSet::new() }
    }

    /// Shows these tokens, though they are special.
    #[must_use]
    pub fn spelling(self, spelled: impl IntoIterator<Item = u32>) -> Self {
        Self { spelled: spelled.into_iter().collect(), ..self }
    }

    /// The text that is certain after one more token; often empty in scripts whose characters take several tokens.
    pub fn push(&mut self, token: u32) -> String {
        let bytes = if self.spelled.contains(&token) {
            self.vocabulary.bytes(token)
        } else {
            self.vocabulary.visible_bytes(token)
        };
        if let Some((first, rest)) = bytes.split_first() {
            self.pending.extend(if self.drop_space && *first == b' ' { rest } else { bytes });
            self.drop_space = false;
        }
        take_whole_characters(&mut self.pending)
    }
}

/// Takes all complete characters off the front of `pending`; bytes that can never become text become U+FFFD.
fn take_whole_characters(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = pending.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, bad) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    Some(length) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        rest = &bad[length..];
                    }
                    None => {
                        rest = bad;
                        break;
                    }
                }
            }
        }
    }
    *pending = rest.to_vec();
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Specials, Tokenizer, fixture};
    use proptest::prelude::*;

    fn pieces(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
        behind(tokenizer, &[], tokens)
    }

    fn behind(tokenizer: &Tokenizer, prompt: &[u32], tokens: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(Arc::new(tokenizer.vocabulary().unwrap()), prompt);
        tokens.iter().map(|token| detokenizer.push(*token)).collect()
    }

    fn decode(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
        tokenizer.vocabulary().unwrap().text(tokens, Specials::Hidden)
    }

    #[test]
    fn a_character_comes_whole_or_not_at_all() {
        let tokenizer = fixture::byte_level();
        let tokens = tokenizer.encode_rendered("aé€😀").unwrap();
        assert_eq!(pieces(&tokenizer, &tokens), ["a", "", "é", "", "", "€", "", "", "", "😀"]);
        assert_eq!(pieces(&tokenizer, &tokens[..9]).concat(), "aé€", "a cut character is left out");
    }

    #[test]
    fn spaces_of_sentence_pieces_stay_right() {
        let tokenizer = fixture::sentence_piece();
        let tokens = tokenizer.encode_rendered("hello world é").unwrap();
        let all = pieces(&tokenizer, &tokens);
        assert_eq!(all.concat(), "hello world é");
        assert!(all.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)), "{all:?}");
        assert_eq!(all.concat(), decode(&tokenizer, &tokens));
    }

    #[test]
    fn an_answer_keeps_the_space_it_begins_with() {
        let tokenizer = fixture::sentence_piece();
        let tokens = tokenizer.encode_rendered("hello world é").unwrap();
        let world = tokens.iter().position(|token| *token == tokenizer.id("\u{2581}wor").unwrap()).unwrap();
        assert_eq!(behind(&tokenizer, &tokens[..world], &tokens[world..]).concat(), " world é");
        assert_eq!(behind(&tokenizer, &tokens[..2], &tokens[2..]).concat(), "ello world é");
        assert_eq!(pieces(&tokenizer, &tokens[world..]).concat(), "world é", "a text of its own has none");
    }

    #[test]
    fn special_tokens_have_no_text() {
        let tokenizer = fixture::byte_level();
        let mut tokens = tokenizer.encode_rendered("€").unwrap();
        tokens.insert(1, tokenizer.id("<s>").unwrap());
        assert_eq!(pieces(&tokenizer, &tokens).concat(), "€");
    }

    proptest! {
        #[test]
        fn byte_level_pieces_join_to_the_decoded_text(tokens in proptest::collection::vec(0_u32..256, 0..60)) {
            let tokenizer = fixture::byte_level();
            let joined = pieces(&tokenizer, &tokens).concat();
            let whole = decode(&tokenizer, &tokens);
            prop_assert!(whole.starts_with(&joined));
            prop_assert!(whole[joined.len()..].chars().all(|c| c == char::REPLACEMENT_CHARACTER));
        }

        #[test]
        fn prompt_and_answer_join_to_the_whole_text(text in "[he élo]{1,20}", cut in 0_usize..40) {
            let tokenizer = fixture::sentence_piece();
            let tokens = tokenizer.encode_rendered(&text).unwrap();
            let (prompt, answer) = tokens.split_at(cut.min(tokens.len()));
            // A prompt never ends inside a character: it was a text.
            let before = decode(&tokenizer, prompt);
            prop_assume!(!before.ends_with(char::REPLACEMENT_CHARACTER));
            prop_assert_eq!(before + &behind(&tokenizer, prompt, answer).concat(), text);
        }

        #[test]
        fn any_text_survives_both_vocabularies(text in "\\PC{0,40}") {
            let tokenizer = fixture::byte_level();
            prop_assert_eq!(pieces(&tokenizer, &tokenizer.encode_rendered(&text).unwrap()).concat(), text.clone());
            let tokenizer = fixture::sentence_piece();
            let tokens = tokenizer.encode_rendered(&text).unwrap();
            prop_assert_eq!(pieces(&tokenizer, &tokens).concat(), decode(&tokenizer, &tokens));
        }
    }
}
