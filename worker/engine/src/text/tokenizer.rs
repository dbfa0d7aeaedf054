//! Text to token ids, by the rules that a model's files give. Knows the special tokens, not what they mean in a chat.
//!
//! Those rules are a stranger's program: what runs them bounds their time and memory. [`Vocabulary`] needs none.

use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{
    AddedToken, AddedVocabulary, DecoderWrapper, NormalizerWrapper, PostProcessor, PreTokenizerWrapper,
    Tokenizer as Library, TruncationParams,
};

use super::gguf::{Encoder, Special};
use super::pair::PairMarks;
use super::vocabulary::{MOST_TOKENS, SpecialTokens, Vocabulary, VocabularyFacts, VocabularyTooLarge};
use super::{library, oniguruma};

/// A model's tokenizer.
pub struct Tokenizer {
    inner: Encoder,
    special: SpecialTokens,
    /// The token that ends every text of its own, in models that want it.
    add_eos: Option<u32>,
    /// The special tokens around a pair, of a vocabulary without a template for it.
    pair: Option<PairMarks>,
    /// Bytes of the longest token's spelling.
    longest: usize,
}

/// The tokenizer refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` is not one.
    #[error("tokenizer.json cannot be used")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The text could not be turned into tokens.
    #[error("the text cannot be turned into tokens")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The vocabulary is larger than any known one.
    #[error(transparent)]
    TooLarge(#[from] VocabularyTooLarge),
}

impl Tokenizer {
    /// A tokenizer from the bytes of a `tokenizer.json`.
    pub fn from_json(json: &[u8], special: SpecialTokens) -> Result<Self, TokenizerError> {
        let mut inner = library::call(|| Library::from_bytes(json)).map_err(TokenizerError::Malformed)?;
        rewrite_expressions(&mut inner).map_err(TokenizerError::Malformed)?;
        // Some files contain the settings of the training run. A prompt must never be truncated or padded without
        // notice.
        inner.with_truncation(None).map_err(TokenizerError::Malformed)?.with_padding(None);
        let longest = inner.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
        Ok(Self { inner: Encoder::Library(Box::new(inner)), special, add_eos: None, pair: None, longest })
    }

    /// Adds tokens that stand beside a `tokenizer.json`: those of its vocabulary are found in texts from then on, and
    /// others get the next numbers. `tokens` gets to know which it adds itself.
    pub fn with_added(
        mut self,
        tokens: impl FnOnce(&dyn Fn(&str) -> bool) -> Vec<AddedToken>,
    ) -> Result<Self, TokenizerError> {
        if let Encoder::Library(inner) = &mut self.inner {
            let added = inner.get_added_vocabulary().get_added_tokens_decoder();
            let tokens = tokens(&|spelling| added.values().any(|token| token.content == spelling));
            self.longest = tokens.iter().map(|token| token.content.len()).fold(self.longest, usize::max);
            library::call(|| inner.add_tokens(tokens)).map_err(TokenizerError::Malformed)?;
        }
        Ok(self)
    }

    /// Gives texts a space in front, or none, where the vocabulary is of bytes and its class leaves that to settings.
    pub fn with_prefix_space(mut self, add_prefix_space: bool) -> Self {
        if let Encoder::Library(library) = &mut self.inner
            && let Some(PreTokenizerWrapper::ByteLevel(bytes)) = library.get_pre_tokenizer()
        {
            let bytes = bytes.add_prefix_space(add_prefix_space);
            library.with_pre_tokenizer(Some(bytes));
        }
        self
    }

    /// Lower-cases texts before all else, as old models of `sentence-transformers` want it of a `tokenizer.json` that
    /// does not.
    pub fn lower_cased(mut self) -> Result<Self, TokenizerError> {
        if let Encoder::Library(library) = &mut self.inner {
            let own = match library.get_normalizer().cloned() {
                Some(NormalizerWrapper::Sequence(all)) => all.as_ref().to_vec(),
                own => own.into_iter().collect(),
            };
            if !own.iter().any(|normalizer| matches!(normalizer, NormalizerWrapper::Lowercase(_))) {
                let all = [vec![NormalizerWrapper::Lowercase(Lowercase)], own].concat();
                let all = NormalizerWrapper::Sequence(Sequence::new(all));
                library.with_normalizer(Some(all)).map_err(TokenizerError::Malformed)?;
            }
        }
        Ok(self)
    }

    /// A tokenizer that knows no tokens: every text becomes an empty list.
    pub fn without_tokens() -> Self {
        let empty = Library::new(tokenizers::models::bpe::BPE::default());
        Self {
            inner: Encoder::Library(Box::new(empty)),
            special: SpecialTokens::default(),
            add_eos: None,
            pair: None,
            longest: 0,
        }
    }

    /// A tokenizer from the vocabulary of a GGUF file or of a `tekken.json`. `longest` is the number of bytes of the
    /// longest token's spelling.
    pub fn from_pieces(encoder: Encoder, special: &Special, longest: usize) -> Self {
        let add_eos = special.eos.filter(|_| special.add_eos);
        let has_template = matches!(&encoder, Encoder::Library(library) if library.get_post_processor().is_some());
        let pair = (!has_template).then(|| PairMarks::of(special));
        let special = SpecialTokens { bos: special.bos, end: special.end.clone(), add_bos: Some(special.add_bos) };
        Self { inner: encoder, special, add_eos, pair, longest }
    }

    /// Replaces the special tokens.
    #[must_use]
    pub fn with_special(mut self, special: SpecialTokens) -> Self {
        self.special = special;
        self
    }

    /// The tokens of a text of its own, with `bos` in front and `eos` behind where the model wants them. Each is there
    /// once, even when the text spells it out.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = self.encode(text, true)?;
        if let Some(bos) = self.special.bos {
            let spelled = self.inner.spelling(bos).is_some_and(|spelling| text.starts_with(&spelling));
            let leading = tokens.iter().take_while(|token| **token == bos).count();
            let wanted = match self.special.add_bos {
                Some(wanted) => usize::from(wanted || spelled),
                None => usize::from(leading > 0),
            };
            if leading > wanted && leading <= 2 {
                tokens.drain(..leading - wanted);
            } else if leading < wanted {
                tokens.insert(0, bos);
            }
        }
        tokens.extend(self.add_eos.filter(|eos| tokens.last() != Some(eos)));
        Ok(tokens)
    }

    /// The tokens of a text that already spells its special tokens, such as a rendered chat template.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode(text, false)
    }

    /// The tokens of a pair of texts, as the model joins them, and the first of the second text. Of more than `most`
    /// tokens those at the end of the longer text are left out.
    pub fn encode_pair(&self, [one, other]: [&str; 2], most: usize) -> Result<(Vec<u32>, usize), TokenizerError> {
        if let Some(marks) = &self.pair {
            return Ok(marks.join([self.encode(one, false)?, self.encode(other, false)?], most));
        }
        let Encoder::Library(library) = &self.inner else {
            return Err(TokenizerError::Encode("this tokenizer does not join pairs of texts".into()));
        };
        let joined = library::call(|| {
            let (first, mut second) = (library.encode(one, false)?, library.encode(other, false)?);
            second.set_type_ids(vec![1; second.len()]);
            let around = library.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
            let limit = TruncationParams { max_length: most.saturating_sub(around), ..TruncationParams::default() };
            let (first, second) = truncate_encodings(first, Some(second), &limit)?;
            library.post_process(first, second, true)
        });
        let joined = joined.map_err(TokenizerError::Encode)?;
        let types = joined.get_type_ids();
        let second_from = types.iter().position(|kind| *kind == 1).unwrap_or(types.len());
        Ok((joined.get_ids().to_vec(), second_from))
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.inner.encode_with(text, add_special).map_err(|error| TokenizerError::Encode(error.into()))
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    /// The special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The id of a token by its spelling.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        self.inner.id(spelling)
    }

    /// Whether a token is one of the vocabulary's special ones, which readers of an answer do not see.
    pub fn is_special(&self, token: u32) -> bool {
        self.inner.is_special(token)
    }

    /// The bytes of every token.
    pub fn vocabulary(&self) -> Result<Vocabulary, TokenizerError> {
        let facts =
            |space_in_front| VocabularyFacts { space_in_front, special: self.special.clone(), longest: self.longest };
        match &self.inner {
            Encoder::Pieces(pieces) => {
                let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
                if pieces.len() > MOST_TOKENS {
                    return Err(VocabularyTooLarge::Id(count - 1).into());
                }
                let tokens = (0..count).map(|id| (pieces.token_bytes(id).to_vec(), !pieces.is_special(id)));
                Ok(Vocabulary::new(tokens, facts(pieces.space_in_front()))?)
            }
            Encoder::Library(library) => {
                let last = library.get_vocab(true).into_values().max();
                let count = last.map_or(0, |last| last.saturating_add(1));
                if let Some(last) = last.filter(|last| *last as usize >= MOST_TOKENS) {
                    return Err(VocabularyTooLarge::Id(last).into());
                }
                let added = library.get_added_vocabulary();
                let alphabet = ByteCharacters::of(library);
                let tokens = (0..count).map(|id| (alphabet.bytes(library, id), !is_hidden(added, id)));
                Ok(Vocabulary::new(tokens, facts(alphabet.space_in_front(library, count)))?)
            }
        }
    }
}

/// Gives the expressions that cut and change texts the meaning that they have to the engine they were written for.
fn rewrite_expressions(library: &mut Library) -> tokenizers::Result<()> {
    fn rewritten<T: serde::Serialize + serde::de::DeserializeOwned>(part: Option<&T>) -> tokenizers::Result<Option<T>> {
        let Some(part) = part else { return Ok(None) };
        let mut json = serde_json::to_value(part)?;
        let changed = oniguruma::rewrite_expressions(&mut json);
        Ok(if changed { Some(library::call(|| Ok(serde_json::from_value(json)?))?) } else { None })
    }
    if let Some(cuts) = rewritten::<PreTokenizerWrapper>(library.get_pre_tokenizer())? {
        library.with_pre_tokenizer(Some(cuts));
    }
    if let Some(changes) = rewritten::<NormalizerWrapper>(library.get_normalizer())? {
        library.with_normalizer(Some(changes))?;
    }
    Ok(())
}

fn is_hidden(added: &AddedVocabulary, id: u32) -> bool {
    added.get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("special", &self.special).finish_non_exhaustive()
    }
}

/// The conversion of a token's spelling in a `tokenizer.json` into bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ByteCharacters {
    /// Each character is one byte (GPT-2's table).
    ByteLevel {
        /// Texts that are put in the place of others before.
        replaced: Vec<(String, String)>,
        /// Whether a text begins with a space that is not part of it.
        space_in_front: bool,
    },
    /// This text behind a token is the end of a word: a space, which the text's last token has not.
    WordEnds(String),
    /// `▁` is a space, and `<0x0A>` is a byte.
    Pieces {
        /// Whether a text begins with a space that is not part of it.
        space_in_front: bool,
    },
    /// Any other decoder. It decodes a token after the token `behind`, if a suitable one was found.
    Asked {
        /// A token with a text of its own, and that text.
        behind: Option<(u32, String)>,
        /// Whether `<0x0A>` is a byte.
        byte_fallback: bool,
    },
}

impl ByteCharacters {
    fn of(library: &Library) -> Self {
        let mut decoders = Vec::new();
        library.get_decoder().into_iter().for_each(|decoder| flattened(decoder, &mut decoders));
        if let Some(by_bytes) = Self::of_bytes(&decoders) {
            return by_bytes;
        }
        let spaces = |decoder: &DecoderWrapper| {
            let wanted = serde_json::json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "});
            serde_json::to_value(decoder).is_ok_and(|decoder| decoder == wanted)
        };
        match decoders.as_slice() {
            [DecoderWrapper::BPE(ends)] => Self::WordEnds(ends.suffix.clone()),
            [replace, DecoderWrapper::ByteFallback(_), DecoderWrapper::Fuse(_)] if spaces(replace) => {
                Self::Pieces { space_in_front: false }
            }
            [replace, DecoderWrapper::ByteFallback(_), DecoderWrapper::Fuse(_), DecoderWrapper::Strip(strip)]
                if spaces(replace) && (strip.content, strip.start, strip.stop) == (' ', 1, 0) =>
            {
                Self::Pieces { space_in_front: true }
            }
            _ => Self::asked(library),
        }
    }

    /// A decoder of bytes, alone or with others that this program knows.
    fn of_bytes(decoders: &[&DecoderWrapper]) -> Option<Self> {
        let at = decoders.iter().position(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_)))?;
        let (before, behind) = (decoders.get(..at)?, decoders.get(at + 1..)?);
        let replaced = before.iter().filter(|decoder| !matches!(decoder, DecoderWrapper::Fuse(_)));
        let replaced: Option<Vec<_>> = replaced.map(|decoder| replaced_text(decoder)).collect();
        let mut behind = behind.iter().filter(|decoder| !matches!(decoder, DecoderWrapper::Fuse(_)));
        let space_in_front = match (behind.next(), behind.next()) {
            (None, _) => false,
            (Some(DecoderWrapper::Strip(strip)), None) if (strip.content, strip.start, strip.stop) == (' ', 1, 0) => {
                true
            }
            _ => return None,
        };
        Some(Self::ByteLevel { replaced: replaced?, space_in_front })
    }

    fn asked(library: &Library) -> Self {
        let plain = |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic());
        let letters = |text: &String| !text.is_empty() && text.chars().all(char::is_alphabetic);
        let mut ids: Vec<u32> = library.get_vocab(false).into_values().collect();
        ids.sort_unstable();
        // Letters of other scripts, too: a vocabulary may have no others. Behind the same token it has to stand alone.
        let found = |wanted: &dyn Fn(&String) -> bool| {
            ids.iter()
                .filter(|id| library.id_to_token(**id).as_ref().is_some_and(wanted))
                .map(|id| (*id, decoded(library, &[*id])))
                .find(|(id, text)| wanted(text) && decoded(library, &[*id, *id]).starts_with(text.as_str()))
        };
        let behind = found(&plain).or_else(|| found(&letters));
        let letter = library.token_to_id("<0x41>");
        Self::Asked { behind, byte_fallback: letter.is_some_and(|id| decoded(library, &[id]) == "A") }
    }

    /// The bytes of a token inside a text; none for an unknown id.
    fn bytes(&self, library: &Library, id: u32) -> Vec<u8> {
        let Some(spelling) = library.id_to_token(id) else { return Vec::new() };
        match self {
            Self::ByteLevel { replaced, .. } => {
                // Added tokens are spelled as they are: DeepSeek's `õ` is that character, not the byte 0xF5.
                let is_added = library.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id);
                let put = |text: String, (from, to): &(String, String)| text.replace(from, to);
                let spelling = if is_added { spelling } else { replaced.iter().fold(spelling, put) };
                let bytes: Option<Vec<u8>> = spelling.chars().map(byte_of).collect();
                bytes.filter(|_| !is_added).unwrap_or_else(|| spelling.into_bytes())
            }
            Self::WordEnds(end) => spelling.replace(end.as_str(), " ").into_bytes(),
            Self::Pieces { .. } => match fallback_byte(&spelling) {
                Some(byte) => vec![byte],
                None => spelling.replace('\u{2581}', " ").into_bytes(),
            },
            Self::Asked { behind, byte_fallback } => match (fallback_byte(&spelling), behind) {
                (Some(byte), _) if *byte_fallback => vec![byte],
                (_, Some((first, before))) => {
                    let both = decoded(library, &[*first, id]);
                    both.strip_prefix(before.as_str()).map_or_else(Vec::new, |text| text.as_bytes().to_vec())
                }
                (_, None) => decoded(library, &[id]).into_bytes(),
            },
        }
    }

    fn space_in_front(&self, library: &Library, count: u32) -> bool {
        match self {
            Self::ByteLevel { space_in_front, .. } | Self::Pieces { space_in_front } => *space_in_front,
            Self::WordEnds(_) => false,
            // The same token begins with a space inside a text, and without one at its beginning.
            Self::Asked { behind: None, .. } => false,
            Self::Asked { behind: Some(_), .. } => (0..count).any(|id| {
                let inside = self.bytes(library, id);
                inside.strip_prefix(b" ").is_some_and(|rest| decoded(library, &[id]).as_bytes() == rest)
            }),
        }
    }
}

/// A decoder, or those that a sequence of them has, at any depth.
fn flattened<'a>(decoder: &'a DecoderWrapper, into: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().for_each(|one| flattened(one, into)),
        one => into.push(one),
    }
}

/// The text that a decoder puts in the place of another one.
fn replaced_text(decoder: &DecoderWrapper) -> Option<(String, String)> {
    let fields = serde_json::to_value(decoder).ok().filter(|fields| fields["type"] == "Replace")?;
    Some((fields["pattern"]["String"].as_str()?.to_owned(), fields["content"].as_str()?.to_owned()))
}

/// The library's text of some tokens; empty where it fails.
fn decoded(library: &Library, tokens: &[u32]) -> String {
    library::call(|| library.decode(tokens, false)).unwrap_or_default()
}

/// The byte behind a character of the byte-level alphabet. Printable Latin-1 is itself, and the other 68 bytes follow
/// in order from U+0100 (GPT-2's `bytes_to_unicode`).
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// `<0x0A>` is the byte 10 where a vocabulary falls back to bytes.
fn fallback_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::text::{Specials, fixture};

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let bytes: BTreeSet<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
    }

    /// The numbers are those of the package `tokenizers` with truncation `longest_first`.
    #[test]
    fn em_2_pairs_are_joined_by_the_models_template_and_the_longer_text_is_cut() {
        let sequence = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
        let around = |id: &str, kind: u32| json!({"SpecialToken": {"id": id, "type_id": kind}});
        let token = |id: u32, name: &str| json!({"id": name, "ids": [id], "tokens": [name]});
        let file = json!({
            "version": "1.0",
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [around("C", 0), sequence("A", 0), around("S", 0)],
                "pair": [around("C", 0), sequence("A", 0), around("S", 0), sequence("B", 1), around("S", 1)],
                "special_tokens": {"C": token(0, "C"), "S": token(1, "S")},
            },
            "model": {"type": "WordLevel", "vocab": {"C": 0, "S": 1, "hello": 2, "world": 3}, "unk_token": "C"},
        });
        let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), SpecialTokens::default()).unwrap();
        let pair = |texts: [&str; 2], most| tokenizer.encode_pair(texts, most).unwrap();
        assert_eq!(pair(["hello", "world"], usize::MAX), (vec![0, 2, 1, 3, 1], 3));
        assert_eq!(pair(["hello", ""], 9), (vec![0, 2, 1, 1], 3));
        assert_eq!(pair(["hello hello hello", "world"], 6), (vec![0, 2, 2, 1, 3, 1], 4));
        assert_eq!(pair(["hello", "world world world"], 6), (vec![0, 2, 1, 3, 3, 1], 3));
        assert_eq!(pair(["hello hello", "world world"], 5), (vec![0, 2, 1, 3, 1], 3));
        assert!(Tokenizer::without_tokens().encode_pair(["", ""], 3).is_ok());
    }

    #[test]
    fn bos_comes_once() {
        let tokenizer = fixture::byte_level();
        let bos = tokenizer.id("<s>").unwrap();
        let special = |add_bos| SpecialTokens { bos: Some(bos), add_bos, ..SpecialTokens::default() };
        let hi = tokenizer.encode_rendered("hi").unwrap();
        let with_bos: Vec<u32> = std::iter::once(bos).chain(hi.iter().copied()).collect();
        let wanting = fixture::byte_level().with_special(special(Some(true)));
        assert_eq!(wanting.encode_prompt("hi").unwrap(), with_bos);
        assert_eq!(wanting.encode_prompt("<s>hi").unwrap(), with_bos);
        let silent = fixture::byte_level().with_special(special(None));
        assert_eq!(silent.encode_prompt("hi").unwrap(), hi);
        assert_eq!(silent.encode_prompt("<s>hi").unwrap(), with_bos);
        assert_eq!(silent.encode_rendered("<s>hi").unwrap(), with_bos, "a template spells bos itself");
    }

    #[test]
    fn settings_of_the_training_run_do_not_cut_prompts() {
        let mut json: serde_json::Value = serde_json::from_slice(&fixture::byte_level_json()).unwrap();
        json["truncation"] = serde_json::json!(
            {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), SpecialTokens::default()).unwrap();
        assert_eq!(tokenizer.encode_prompt("a long text").unwrap().len(), 11);
    }

    #[test]
    fn what_is_no_tokenizer_is_an_error() {
        assert!(matches!(Tokenizer::from_json(b"{}", SpecialTokens::default()), Err(TokenizerError::Malformed(_))));
    }

    /// Every decoder that works token by token gives the same text by the table as by itself.
    #[test]
    fn the_table_says_what_the_library_decodes() {
        let vocab = r###"{"[UNK]": 0, "hello": 1, "##ing": 2, "\u2581world": 3, ".": 4, "don": 5, "'t": 6, "<0x41>": 7, "x": 8}"###;
        let metaspace = r#"{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": true}"#;
        let replace = r#"{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}"#;
        let chain = |last: &str| {
            format!(
                r#"{{"type": "Sequence", "decoders": [{replace}, {{"type": "ByteFallback"}}, {{"type": "Fuse"}}{last}]}}"#
            )
        };
        for decoder in [
            "null".to_owned(),
            r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###.to_owned(),
            metaspace.to_owned(),
            chain(""),
            chain(r#", {"type": "Strip", "content": " ", "start": 1, "stop": 0}"#),
        ] {
            let json = format!(
                r#"{{"version": "1.0", "added_tokens": [], "decoder": {decoder},
                    "model": {{"type": "WordLevel", "unk_token": "[UNK]", "vocab": {vocab}}}}}"#
            );
            let tokenizer = Tokenizer::from_json(json.as_bytes(), SpecialTokens::default()).unwrap();
            let Encoder::Library(library) = &tokenizer.inner else { unreachable!() };
            let table = tokenizer.vocabulary().unwrap();
            for tokens in [&[1, 2, 3, 4][..], &[3, 8, 1], &[5, 6, 8], &[8], &[1, 7, 7, 3]] {
                assert_eq!(table.text(tokens, Specials::Spelled), decoded(library, tokens), "{decoder} {tokens:?}");
            }
        }
    }

    /// The texts are those of the PyPI package `tokenizers` 0.23.3.
    #[test]
    fn fa_3_bytes_of_a_character_stay_together_whatever_is_beside_their_decoder() {
        let bytes = r#"{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}"#;
        let chain = |inside: &str| format!(r#"{{"type": "Sequence", "decoders": [{inside}]}}"#);
        let replace = r#"{"type": "Replace", "pattern": {"String": "_"}, "content": "Ġ"}"#;
        let strip = r#"{"type": "Strip", "content": " ", "start": 1, "stop": 0}"#;
        for (decoder, expected) in [
            (chain(&format!(r#"{bytes}, {{"type": "Fuse"}}"#)), "_aé"),
            (chain(&format!("{replace}, {bytes}")), " aé"),
            (chain(&format!("{}, {strip}", chain(&format!("{replace}, {bytes}")))), "aé"),
        ] {
            let json = format!(
                r#"{{"version": "1.0", "added_tokens": [], "decoder": {decoder},
                    "model": {{"type": "BPE", "vocab": {{"Ã": 0, "©": 1, "a": 2, "_": 3}}, "merges": []}}}}"#
            );
            let tokenizer = Tokenizer::from_json(json.as_bytes(), SpecialTokens::default()).unwrap();
            assert_eq!(tokenizer.vocabulary().unwrap().text(&[3, 2, 0, 1], Specials::Spelled), expected, "{decoder}");
        }
    }

    /// The same.
    #[test]
    fn fa_3_words_of_any_script_are_apart() {
        let of = |decoder: &str, vocab: &str| {
            let json = format!(
                r#"{{"version": "1.0", "added_tokens": [], "decoder": {decoder},
                    "model": {{"type": "WordLevel", "unk_token": "?", "vocab": {vocab}}}}}"#
            );
            Tokenizer::from_json(json.as_bytes(), SpecialTokens::default()).unwrap().vocabulary().unwrap()
        };
        let pieces = of(
            r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###,
            r###"{"?": 0, "привет": 1, "мир": 2, "##ы": 3}"###,
        );
        assert_eq!(pieces.text(&[1, 2, 3], Specials::Spelled), "привет миры");
        let ends = of(r#"{"type": "BPEDecoder", "suffix": "</w>"}"#, r#"{"?": 0, "a": 1, "b</w>": 2}"#);
        assert_eq!(ends.text(&[1, 2, 1], Specials::Spelled), "ab a");
    }

    #[test]
    fn an_added_token_is_no_spelling_of_bytes() {
        let mut json: serde_json::Value = serde_json::from_slice(&fixture::byte_level_json()).unwrap();
        // No text has the byte 0xF5, so training gives it no token.
        json["model"]["vocab"].as_object_mut().unwrap().remove("õ");
        let mut added = json["added_tokens"][4].clone();
        (added["id"], added["content"]) = (serde_json::json!(261), serde_json::json!("õ"));
        json["added_tokens"].as_array_mut().unwrap().push(added);
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), SpecialTokens::default()).unwrap();
        let tokens = tokenizer.encode_rendered("aõé").unwrap();
        assert_eq!(tokens, [97, tokenizer.id("õ").unwrap(), 195, 169]);
        assert_eq!(tokenizer.vocabulary().unwrap().text(&tokens, Specials::Hidden), "aõé");
    }

    #[test]
    fn a_token_id_out_of_range_is_refused() {
        let json = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "unk_token": "a",
            "vocab": {"a": 0, "b": 4000000000}}}"#;
        let tokenizer = Tokenizer::from_json(json.as_bytes(), SpecialTokens::default()).unwrap();
        let error = tokenizer.vocabulary().unwrap_err();
        assert!(error.to_string().contains("4000000000 is over the limit"), "{error}");
    }

    /// Found by fuzzing: the library panics at these.
    #[test]
    fn files_that_the_library_panics_at_are_errors() {
        let merged = r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}"#;
        let prefix = r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],
            "continuing_subword_prefix":"~~~~"}}"#;
        let charsmap = r#"{"normalizer":{"type":"Precompiled","precompiled_charsmap":"ABAA"},
            "model":{"type":"WordLevel","unk_token":"a","vocab":{"a":0}}}"#;
        // A file that an interrupted download leaves.
        let cut = r#"{"model":{"type":"WordLevel","unk_token":"a","vocab":{"a":0}},"decoder":{"type":"Fuse""#;
        for json in [merged, prefix, charsmap, cut] {
            let refused = Tokenizer::from_json(json.as_bytes(), SpecialTokens::default());
            assert!(matches!(refused, Err(TokenizerError::Malformed(_))), "{json}");
        }
    }
}
