//! Builds a word-piece tokenizer, as BERT has. Knows the library's parts.
//!
//! GGUF spells pieces the other way round from the library. The first piece of a word carries `▁`, where the library
//! marks all others by `##`.

use model_boss_weights::gguf::Header;
use tokenizers::decoders::wordpiece::WordPiece as Decoder;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::error::VocabularyError;
use super::pieces::{TokenKind, VocabularyPieces};
use super::special::Special;

const CONTINUATION: &str = "##";

pub(super) fn build(
    header: &Header<'_>,
    pieces: &VocabularyPieces<'_>,
    special: &Special,
) -> Result<Tokenizer, VocabularyError> {
    let mut vocab = Vocab::with_capacity(pieces.len());
    for (id, spelling, kind) in pieces.iter() {
        let spelling = match (kind, spelling.strip_prefix('\u{2581}')) {
            (TokenKind::Normal, Some(first)) => first.to_owned(),
            // Entries in brackets, such as `[unused1]`, are no pieces of words.
            (TokenKind::Normal, None) if !(spelling.starts_with('[') && spelling.len() > 1) => {
                format!("{CONTINUATION}{spelling}")
            }
            _ => spelling.to_owned(),
        };
        if let Some(first) = vocab.insert(spelling, id) {
            return Err(pieces.duplicate(first, id));
        }
    }
    let spelled = |id: Option<u32>, what| {
        let id = id.ok_or(VocabularyError::NoToken(what))?;
        let spelling = pieces.spelling(id).ok_or(VocabularyError::NoToken(what))?;
        Ok::<_, VocabularyError>((spelling.to_owned(), id))
    };
    let (unknown, _) = spelled(special.unknown, "unknown words")?;
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(unknown)
        .continuing_subword_prefix(CONTINUATION.to_owned())
        .max_input_chars_per_word(100)
        .build()
        .map_err(VocabularyError::Build)?;

    let lowercase = header.find("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip_accents = header.find("tokenizer.ggml.normalizer.strip_accents")?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(Some(BertNormalizer::new(true, true, strip_accents, lowercase)))
        .map_err(VocabularyError::Build)?
        .with_pre_tokenizer(Some(BertPreTokenizer))
        .with_decoder(Some(Decoder::new(CONTINUATION.to_owned(), true)));
    if special.add_bos && special.add_separator {
        let first = spelled(special.bos, "the start of a text")?;
        let last = spelled(special.separator, "the end of a text")?;
        tokenizer.with_post_processor(Some(BertProcessing::new(last, first)));
    }
    add_special_tokens(&mut tokenizer, pieces, special)?;
    Ok(tokenizer)
}

/// Makes the library find control tokens and user-defined tokens in a text before anything else.
pub(super) fn add_special_tokens(
    tokenizer: &mut Tokenizer,
    pieces: &VocabularyPieces<'_>,
    special: &Special,
) -> Result<(), VocabularyError> {
    let token = |id: &u32, control: bool| {
        let spelling = pieces.spelling(*id).unwrap_or_default();
        AddedToken::from(spelling, control)
            .normalized(false)
            .lstrip(special.strips_left.contains(id))
            .rstrip(special.strips_right.contains(id))
    };
    tokenizer.add_special_tokens(special.control.iter().map(|id| token(id, true))).map_err(VocabularyError::Build)?;
    tokenizer.add_tokens(special.user_defined.iter().map(|id| token(id, false))).map_err(VocabularyError::Build)?;
    Ok(())
}
