//! Vocabularies of GGUF that the library cannot express: SentencePiece by score (`llama`), unigram (`t5`), RWKV's and
//! PLaMo 2's.

use std::collections::HashMap;

use model_boss_weights::gguf::{Array, Header};

use super::charsmap::Charsmap;
use super::error::VocabularyError;
use super::longest_match::{LongestMatchTable, unescape};
use super::merging::{MergeTable, MergeUnits, ScoredToken};
use super::piece_vocabulary::{PieceToken, PieceVocabulary, SpellingWay};
use super::pieces::{TokenKind, VocabularyPieces, byte_of};
use super::plamo::PlamoTable;
use super::special::Special;
use super::unigram::{Normalisation, UnigramTable};

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// `llama`: pieces merged by score.
pub(super) fn merged(
    header: &Header<'_>,
    pieces: &VocabularyPieces<'_>,
    special: &Special,
) -> Result<PieceVocabulary, VocabularyError> {
    let mut scored: HashMap<Vec<u8>, ScoredToken> = HashMap::with_capacity(pieces.len());
    for ((id, spelling, _), score) in pieces.iter().zip(scores(pieces)?) {
        let token = ScoredToken { id, score: *score };
        if let Some(first) = scored.insert(spelling.as_bytes().to_vec(), token) {
            return Err(pieces.duplicate(first.id, id));
        }
    }
    let table = MergeTable::new(scored, bytes_of(pieces), special.unknown, MergeUnits::Characters);
    let space_in_front = header.find("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let way = SpellingWay::Merged { table, space_in_front };
    PieceVocabulary::new(spaced_tokens(pieces, special), special, way, space_in_front)
}

/// `t5`: the likeliest spelling by a unigram model.
pub(super) fn likeliest(
    header: &Header<'_>,
    pieces: &VocabularyPieces<'_>,
    special: &Special,
) -> Result<PieceVocabulary, VocabularyError> {
    let scores = scores(pieces)?;
    let mut tokens: Vec<(&str, u32, f64)> = Vec::with_capacity(pieces.len());
    let mut least = f32::MAX;
    for ((id, spelling, kind), score) in pieces.iter().zip(scores) {
        match kind {
            TokenKind::Normal => {
                least = least.min(*score);
                tokens.push((spelling, id, f64::from(*score)));
            }
            TokenKind::UserDefined => tokens.push((spelling, id, 0.0)),
            TokenKind::Unused => tokens.push((spelling, id, f64::from(*score))),
            TokenKind::Unknown | TokenKind::Control | TokenKind::Byte => {}
        }
    }
    let charsmap = match header.find::<Array<'_>>(CHARSMAP)? {
        Some(map) => {
            let numbers = map.integers().ok_or(VocabularyError::Elements(CHARSMAP))?;
            // Bytes, which some writers give a sign.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let bytes: Vec<u8> = numbers.into_iter().map(|number| number as u8).collect();
            Some(Charsmap::read(&bytes)?)
        }
        None => None,
    };
    let space_in_front = header.find("tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    let single_spaces = header.find("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false);
    let normalisation = Normalisation { space_in_front, single_spaces, charsmap };
    let table = UnigramTable::new(&tokens, least, special.unknown, normalisation)?;
    let way = SpellingWay::Likeliest(table);
    PieceVocabulary::new(spaced_tokens(pieces, special), special, way, space_in_front)
}

/// `rwkv`: the longest token at each place.
pub(super) fn longest(pieces: &VocabularyPieces<'_>, special: &Special) -> Result<PieceVocabulary, VocabularyError> {
    let table =
        LongestMatchTable::new(pieces.iter().map(|(id, spelling, _)| (unescape(spelling), id)), special.unknown)?;
    let token = |(id, spelling, _): (u32, &str, TokenKind)| PieceToken {
        spelling: spelling.to_owned(),
        bytes: Some(unescape(spelling)),
        hidden: special.control.contains(&id),
    };
    PieceVocabulary::new(pieces.iter().map(token).collect(), special, SpellingWay::Longest(table), false)
}

/// `plamo2`: the spelling with the best sum of scores.
pub(super) fn plamo(pieces: &VocabularyPieces<'_>, special: &Special) -> Result<PieceVocabulary, VocabularyError> {
    let scored: Vec<(&str, u32, f32)> = pieces
        .iter()
        .zip(scores(pieces)?)
        .filter(|((_, _, kind), _)| *kind != TokenKind::Byte)
        .map(|((id, spelling, _), score)| (spelling, id, *score))
        .collect();
    let bytes = bytes_of(pieces);
    if let Some(missing) = bytes.iter().position(Option::is_none) {
        return Err(VocabularyError::NoByte(missing));
    }
    let token = |(id, spelling, kind): (u32, &str, TokenKind)| PieceToken {
        spelling: spelling.to_owned(),
        bytes: (kind == TokenKind::Byte).then(|| byte_of(spelling).map(|byte| vec![byte])).flatten(),
        hidden: special.control.contains(&id),
    };
    let way = SpellingWay::Plamo(PlamoTable::new(&scored, bytes)?);
    PieceVocabulary::new(pieces.iter().map(token).collect(), special, way, false)
}

fn scores<'p>(pieces: &'p VocabularyPieces<'_>) -> Result<&'p [f32], VocabularyError> {
    if pieces.scores.is_empty() { Err(VocabularyError::NoScores) } else { Ok(&pieces.scores) }
}

/// The token of each byte.
fn bytes_of(pieces: &VocabularyPieces<'_>) -> Vec<Option<u32>> {
    let mut bytes = vec![None; 256];
    for (id, spelling, _) in pieces.iter() {
        if let Some(entry) = byte_of(spelling).and_then(|byte| bytes.get_mut(usize::from(byte))) {
            *entry = Some(id);
        }
    }
    bytes
}

/// Tokens whose `▁` is a space, and whose bytes are spelled `<0x0A>`.
fn spaced_tokens(pieces: &VocabularyPieces<'_>, special: &Special) -> Vec<PieceToken> {
    let token = |(id, spelling, kind): (u32, &str, TokenKind)| {
        let control = special.control.contains(&id);
        let bytes = match kind {
            TokenKind::Byte if !control => byte_of(spelling).map(|byte| vec![byte]),
            TokenKind::Normal | TokenKind::Unused if !control && spelling.contains('\u{2581}') => {
                Some(spelling.replace('\u{2581}', " ").into_bytes())
            }
            _ => None,
        };
        PieceToken { spelling: spelling.to_owned(), bytes, hidden: control }
    };
    pieces.iter().map(token).collect()
}
