//! SentencePiece's own files (`tokenizer.model`): the fields of the message `ModelProto` that spell texts. Nothing of
//! the training is read.
//!
//! The format is protobuf's (`sentencepiece_model.proto`): numbered fields, each a number, four bytes or a stretch of
//! bytes. ProtobufFields that are not known are skipped.

use std::collections::HashMap;

use super::charsmap::Charsmap;
use super::encoder::Encoder;
use super::error::VocabularyError;
use super::merging::{MergeTable, MergeUnits, ScoredToken};
use super::piece_vocabulary::{PieceToken, PieceVocabulary, SpellingWay};
use super::pieces::{TokenKind, byte_of};
use super::special::Special;
use super::unigram::{Normalisation, UnigramTable};

/// One field of a message.
enum ProtobufValue<'a> {
    Number(u64),
    Float(f32),
    Bytes(&'a [u8]),
}

/// The fields of a message, by number.
struct ProtobufFields<'a>(&'a [u8]);

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Result<(u64, ProtobufValue<'a>), VocabularyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field().ok_or(VocabularyError::SentencePieceModel("it is cut short or no protobuf message"));
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> ProtobufFields<'a> {
    fn field(&mut self) -> Option<(u64, ProtobufValue<'a>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => ProtobufValue::Number(self.number()?),
            1 => {
                self.take(8)?;
                ProtobufValue::Bytes(&[])
            }
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                ProtobufValue::Bytes(self.take(length)?)
            }
            5 => ProtobufValue::Float(f32::from_le_bytes(*self.take(4)?.first_chunk()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for place in 0..10 {
            let byte = *self.take(1)?.first()?;
            number |= u64::from(byte & 0x7f) << (7 * place).min(63);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

/// How a model spells a text; the numbers are `TrainerSpec`'s.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PieceModelType {
    Unigram,
    BytePairs,
}

struct PieceModelFile {
    tokens: Vec<(String, f32, TokenKind)>,
    model: PieceModelType,
    space_in_front: bool,
    single_spaces: bool,
    escapes: bool,
    charsmap: Vec<u8>,
}

/// The vocabulary of a `tokenizer.model`, with the bytes of its longest spelling.
pub(in crate::text) fn sentence_piece_model(file: &[u8]) -> Result<(Encoder, Special, usize), VocabularyError> {
    let PieceModelFile { tokens, model, space_in_front, single_spaces, escapes, charsmap } = read(file)?;
    if !escapes {
        return Err(VocabularyError::SentencePieceModel("it keeps spaces as they are, which is not supported"));
    }
    let changes = !charsmap.is_empty();
    let charsmap = if charsmap.is_empty() { None } else { Some(Charsmap::read(&charsmap)?) };
    let id = |at: usize| u32::try_from(at).map_err(|_| VocabularyError::TooMany(at));
    let mut special = Special::default();
    let mut bytes = vec![None; 256];
    let mut least = f32::MAX;
    let mut pieces = Vec::with_capacity(tokens.len());
    for (at, (spelling, score, kind)) in tokens.iter().enumerate() {
        let id = id(at)?;
        match kind {
            TokenKind::Control => drop(special.control.insert(id)),
            TokenKind::Unknown => {
                special.control.insert(id);
                special.unknown = Some(id);
            }
            TokenKind::UserDefined => drop(special.user_defined.insert(id)),
            TokenKind::Normal => least = least.min(*score),
            TokenKind::Unused | TokenKind::Byte => {}
        }
        let byte = byte_of(spelling).filter(|_| *kind == TokenKind::Byte);
        if let Some(entry) = byte.and_then(|byte| bytes.get_mut(usize::from(byte))) {
            *entry = Some(id);
        }
        pieces.push(PieceToken {
            bytes: Some(byte.map_or_else(|| spelling.replace('\u{2581}', " ").into_bytes(), |byte| vec![byte])),
            spelling: spelling.clone(),
            hidden: special.control.contains(&id),
        });
    }
    let find = |names: &[&str]| {
        let at = tokens
            .iter()
            .position(|(spelling, _, kind)| *kind == TokenKind::Control && names.contains(&spelling.as_str()));
        at.and_then(|at| u32::try_from(at).ok())
    };
    special.bos = find(&["<s>", "<bos>"]);
    special.eos = find(&["</s>", "<eos>"]);
    special.padding = find(&["<pad>"]);
    special.end = special.eos.into_iter().collect();
    if !special.user_defined.is_empty() && (single_spaces || changes || model == PieceModelType::Unigram) {
        return Err(VocabularyError::SentencePieceModel(
            "it has user-defined symbols, which are supported only in byte-pair models that change no text; use the \
             model's tokenizer.json",
        ));
    }
    let normalisation = Normalisation { space_in_front, single_spaces, charsmap };
    let way = match model {
        PieceModelType::BytePairs => {
            special.add_bos = special.bos.is_some();
            let scored = tokens.iter().enumerate().map(|(at, (spelling, score, _))| {
                Ok((spelling.clone().into_bytes(), ScoredToken { id: id(at)?, score: *score }))
            });
            let scored = scored.collect::<Result<HashMap<_, _>, VocabularyError>>()?;
            let table = MergeTable::new(scored, bytes, special.unknown, MergeUnits::Characters);
            SpellingWay::Normalised { table, normalisation }
        }
        PieceModelType::Unigram => {
            special.add_eos = special.eos.is_some();
            let mut usable = Vec::with_capacity(tokens.len());
            for (at, (spelling, score, kind)) in tokens.iter().enumerate() {
                match kind {
                    TokenKind::Normal | TokenKind::Unused => {
                        usable.push((spelling.as_str(), id(at)?, f64::from(*score)))
                    }
                    TokenKind::UserDefined => usable.push((spelling.as_str(), id(at)?, 0.0)),
                    TokenKind::Control | TokenKind::Unknown | TokenKind::Byte => {}
                }
            }
            SpellingWay::Likeliest(UnigramTable::new(&usable, least, special.unknown, normalisation)?.with_bytes(bytes))
        }
    };
    let vocabulary = PieceVocabulary::new(pieces, &special, way, space_in_front)?;
    let longest = vocabulary.longest();
    Ok((Encoder::Pieces(Box::new(vocabulary)), special, longest))
}

fn read(file: &[u8]) -> Result<PieceModelFile, VocabularyError> {
    // Models that list tokens by rank (Llama 3's) have a text file of this name: `IQ== 0`.
    if !file.is_empty() && file.iter().take(64).all(|byte| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\n')) {
        return Err(VocabularyError::SentencePieceModel(
            "it is tiktoken's list of ranks, which says neither how texts are cut nor its special tokens; use the model's \
             tokenizer.json",
        ));
    }
    let mut model = PieceModelFile {
        tokens: Vec::new(),
        model: PieceModelType::Unigram,
        space_in_front: true,
        single_spaces: true,
        escapes: true,
        charsmap: Vec::new(),
    };
    for field in ProtobufFields(file) {
        match field? {
            (1, ProtobufValue::Bytes(piece)) => model.tokens.push(token(piece)?),
            (2, ProtobufValue::Bytes(trainer)) => {
                for field in ProtobufFields(trainer) {
                    match field? {
                        (3, ProtobufValue::Number(1)) => model.model = PieceModelType::Unigram,
                        (3, ProtobufValue::Number(2)) => model.model = PieceModelType::BytePairs,
                        (3, ProtobufValue::Number(_)) => {
                            return Err(VocabularyError::SentencePieceModel(
                                "only its kinds unigram and bpe are supported",
                            ));
                        }
                        (24, ProtobufValue::Number(suffix)) if suffix != 0 => {
                            return Err(VocabularyError::SentencePieceModel(
                                "it puts spaces behind words, which is not supported",
                            ));
                        }
                        _ => {}
                    }
                }
            }
            (3, ProtobufValue::Bytes(normalizer)) => {
                for field in ProtobufFields(normalizer) {
                    match field? {
                        (2, ProtobufValue::Bytes(charsmap)) => model.charsmap = charsmap.to_vec(),
                        (3, ProtobufValue::Number(number)) => model.space_in_front = number != 0,
                        (4, ProtobufValue::Number(number)) => model.single_spaces = number != 0,
                        (5, ProtobufValue::Number(number)) => model.escapes = number != 0,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if model.tokens.is_empty() {
        return Err(VocabularyError::SentencePieceModel("it lists no pieces"));
    }
    Ok(model)
}

fn token(piece: &[u8]) -> Result<(String, f32, TokenKind), VocabularyError> {
    let (mut spelling, mut score, mut kind) = (String::new(), 0.0, TokenKind::Normal);
    for field in ProtobufFields(piece) {
        match field? {
            (1, ProtobufValue::Bytes(text)) => {
                let text = std::str::from_utf8(text);
                text.map_err(|_| VocabularyError::SentencePieceModel("a piece is not UTF-8"))?
                    .clone_into(&mut spelling);
            }
            (2, ProtobufValue::Float(number)) => score = number,
            (3, ProtobufValue::Number(number)) => kind = TokenKind::from_id(i64::try_from(number).unwrap_or(0)),
            _ => {}
        }
    }
    Ok((spelling, score, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn piece(spelling: &str, score: f32, kind: u8) -> Vec<u8> {
        field(1, &[field(1, spelling.as_bytes()), vec![0x15], score.to_le_bytes().to_vec(), vec![0x18, kind]].concat())
    }

    fn model(trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
        let pieces = [
            piece("<unk>", 0.0, 2),
            piece("<s>", 0.0, 3),
            piece("</s>", 0.0, 3),
            piece("\u{2581}", -4.0, 1),
            piece("a", -3.0, 1),
            piece("aa", -2.0, 1),
            piece("\u{2581}aa", -1.0, 1),
            piece("<0xC3>", 0.0, 6),
            piece("<0xA9>", 0.0, 6),
        ];
        [pieces.concat(), field(2, trainer), field(3, normalizer)].concat()
    }

    #[test]
    fn fa_3_a_models_own_settings_spell_its_texts() {
        let (encoder, special, longest) = sentence_piece_model(&model(&[0x18, 2], &[0x20, 0])).unwrap();
        assert_eq!(encoder.encode("aa  é</s>").unwrap(), [6, 3, 3, 7, 8, 2], "merged, and spaces are kept");
        assert_eq!(encoder.decode(&[6, 3, 7, 8], true).unwrap(), "aa é");
        assert_eq!((special.bos, special.eos, special.add_bos, longest), (Some(1), Some(2), true, 6));
        let (encoder, special, _) = sentence_piece_model(&model(&[0x18, 1], &[0x18, 0])).unwrap();
        assert_eq!(encoder.encode("  aa   aé").unwrap(), [5, 3, 4, 0], "the likeliest, and spaces are merged");
        assert!(special.add_eos && !special.add_bos);
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        let error = |file: &[u8]| sentence_piece_model(file).unwrap_err().to_string();
        let whole = model(&[0x18, 2], &[]);
        assert!(error(&whole[..whole.len() - 1]).contains("cut short"));
        assert!(error(&[]).contains("no pieces") && error(b"IQ== 0\nIg== 1\n").contains("tokenizer.json"));
        assert!(error(&model(&[0x18, 3], &[])).contains("only its kinds unigram and bpe"));
        assert!(error(&model(&[0x18, 2, 0xc0, 1, 1], &[])).contains("spaces behind words"));
        assert!(error(&[model(&[0x18, 2], &[]), piece("<x>", 0.0, 4)].concat()).contains("user-defined"));
        assert!(error(&model(&[], &[0x28, 0])).contains("keeps spaces"));
        assert!(error(&field(3, &[0x28, 1])).contains("no pieces"));
    }
}
