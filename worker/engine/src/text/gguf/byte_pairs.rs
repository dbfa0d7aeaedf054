//! Builds a byte-pair tokenizer from `tokenizer.ggml.merges`. Knows the library's parts; the patterns come from
//! [`super::pre_tokenizer`].

use std::collections::HashSet;

use model_boss_weights::gguf::{Header, Strings};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{Lowercase, Replace};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{DecoderWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use super::error::VocabularyError;
use super::pieces::VocabularyPieces;
use super::pre_tokenizer::{Alphabet, Rules};
use super::special::Special;
use super::word_pieces::add_special_tokens;

pub(super) fn build(
    header: &Header<'_>,
    pieces: &VocabularyPieces<'_>,
    special: &Special,
    rules: &Rules,
) -> Result<Tokenizer, VocabularyError> {
    let mut vocab = Vocab::with_capacity(pieces.len());
    for (id, spelling, _) in pieces.iter() {
        if let Some(first) = vocab.insert(spelling.to_owned(), id) {
            return Err(pieces.duplicate(first, id));
        }
    }
    let merges = merges(header, &vocab)?;
    let characters = rules.alphabet != Alphabet::Bytes;
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(rules.ignore_merges)
        .byte_fallback(characters)
        .build()
        .map_err(VocabularyError::Build)?;

    let mut cuts: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in rules.patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let cut = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(VocabularyError::Build)?;
        cuts.push(cut.into());
    }
    let mut tokenizer = Tokenizer::new(model);
    if rules.alphabet == Alphabet::Words {
        cuts.push(WhitespaceSplit.into());
        if header.find("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(false) {
            tokenizer.with_normalizer(Some(Lowercase)).map_err(VocabularyError::Build)?;
        }
        let steps: Vec<DecoderWrapper> = vec![ByteFallback::new().into(), Fuse::new().into()];
        tokenizer.with_decoder(Some(DecoderSequence::new(steps)));
    } else if characters {
        let escape = Replace::new(" ", "\u{2581}").map_err(VocabularyError::Build)?;
        let unescape = Replace::new("\u{2581}", " ").map_err(VocabularyError::Build)?;
        tokenizer.with_normalizer(Some(escape)).map_err(VocabularyError::Build)?;
        let steps: Vec<DecoderWrapper> = vec![unescape.into(), ByteFallback::new().into(), Fuse::new().into()];
        tokenizer.with_decoder(Some(DecoderSequence::new(steps)));
    } else {
        let bytes = ByteLevel::new(false, true, false);
        cuts.push(bytes.into());
        tokenizer.with_decoder(Some(bytes));
    }
    tokenizer.with_pre_tokenizer(Some(Sequence::new(cuts)));
    add_special_tokens(&mut tokenizer, pieces, special)?;
    Ok(tokenizer)
}

/// Pairs in the order of their rank. Pairs are left out where a side or the whole is no token, because no text can
/// reach them. Of repetitions the first one counts.
fn merges(header: &Header<'_>, vocab: &Vocab) -> Result<Merges, VocabularyError> {
    let strings: Strings<'_> = header.need("tokenizer.ggml.merges")?;
    let mut merges = Merges::with_capacity(strings.len());
    // Hashed as the vocabulary is: there are as many, and the standard library's way takes longer than all else here.
    let mut seen = HashSet::with_capacity_and_hasher(strings.len(), vocab.hasher().clone());
    let mut whole = String::new();
    for (index, bytes) in strings.enumerate() {
        let merge = std::str::from_utf8(bytes).map_err(|_| VocabularyError::MergeNotUtf8(index))?;
        // The left side may itself begin with a space.
        let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ');
        let Some((left, right)) = space.and_then(|(at, _)| Some((merge.get(..at)?, merge.get(at + 1..)?))) else {
            continue;
        };
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        let (Some(left_id), Some(right_id), true) = (vocab.get(left), vocab.get(right), vocab.contains_key(&whole))
        else {
            continue;
        };
        if seen.insert((*left_id, *right_id)) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}
