//! Byte pairs listed by rank, as `tekken.json` has them (Mistral's models). The rule is `tiktoken`'s: of all neighbours
//! that are a token together, those of the lowest rank merge first, the leftmost first.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;

use super::cutter::Cutter;
use super::encoder::Encoder;
use super::error::VocabularyError;
use super::merging::{MergeTable, MergeUnits, ScoredToken};
use super::piece_vocabulary::{PieceToken, PieceVocabulary, SpellingWay};
use super::special::Special;

/// The special tokens of files from before the format listed them.
const FIRST_SPECIAL_TOKENS: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Ids are below this (`MOST_TOKENS` of the table that answers become text by).
const MOST_TOKENS: usize = 1 << 22;

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    #[serde(default)]
    special_tokens: Option<Vec<TekkenSpecialToken>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecialToken {
    rank: usize,
    token_str: String,
}

/// The vocabulary of a `tekken.json`, with the bytes of its longest spelling. Special tokens have the first ids.
pub(in crate::text) fn tekken(json: &[u8]) -> Result<(Encoder, Special, usize), VocabularyError> {
    let malformed = |what: String| VocabularyError::Tekken(what);
    let file: Tekken = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
    let specials = file.config.default_num_special_tokens;
    let ordinary = file.config.default_vocab_size.checked_sub(specials).filter(|_| specials <= MOST_TOKENS);
    let Some(ordinary) = ordinary.filter(|ordinary| *ordinary <= file.vocab.len()) else {
        return Err(malformed(format!(
            "{} tokens, {specials} of them special, cannot be made from the {} listed",
            file.config.default_vocab_size,
            file.vocab.len()
        )));
    };
    let id = |at: usize| u32::try_from(at).map_err(|_| VocabularyError::TooMany(at));

    let mut tokens: Vec<PieceToken> = special_spellings(file.special_tokens, specials)?
        .into_iter()
        .map(|spelling| PieceToken { spelling, bytes: None, hidden: true })
        .collect();
    let mut ranked: HashMap<Vec<u8>, ScoredToken> = HashMap::with_capacity(ordinary);
    let mut bytes = vec![None; 256];
    for (place, token) in file.vocab.into_iter().take(ordinary).enumerate() {
        if token.rank != place {
            return Err(malformed(format!("token {place} has the rank {}", token.rank)));
        }
        let spelled = base64(&token.token_bytes)
            .ok_or_else(|| malformed(format!("the bytes of token {place} are not base64")))?;
        let id = id(tokens.len())?;
        if let [byte] = spelled.as_slice()
            && let Some(entry) = bytes.get_mut(usize::from(*byte))
        {
            *entry = Some(id);
        }
        // Ranks are far below 2^24, so each has a number of its own.
        #[allow(clippy::cast_precision_loss)]
        let score = -(place as f32);
        if ranked.insert(spelled.clone(), ScoredToken { id, score }).is_some() {
            return Err(malformed(format!("token {place} has the bytes of another one")));
        }
        let spelling = String::from_utf8_lossy(&spelled).into_owned();
        tokens.push(PieceToken { bytes: (spelling.as_bytes() != spelled).then_some(spelled), spelling, hidden: false });
    }
    if let Some(missing) = bytes.iter().position(Option::is_none) {
        return Err(VocabularyError::NoByte(missing));
    }

    let control: BTreeSet<u32> = (0..id(specials)?).collect();
    let named = |spelling: &str| tokens.iter().take(specials).position(|token| token.spelling == spelling);
    let find = |spelling: &str| named(spelling).and_then(|at| u32::try_from(at).ok());
    let (bos, eos) = (find("<s>"), find("</s>"));
    let special = Special {
        bos,
        eos,
        unknown: find("<unk>"),
        padding: find("<pad>"),
        end: eos.into_iter().collect(),
        add_bos: bos.is_some(),
        control,
        ..Special::default()
    };
    let cutter = Cutter::new([file.config.pattern.as_str()])?;
    let table = MergeTable::new(ranked, bytes, None, MergeUnits::Bytes);
    let vocabulary = PieceVocabulary::new(tokens, &special, SpellingWay::Ranked { cutter, table }, false)?;
    let longest = vocabulary.longest();
    Ok((Encoder::Pieces(Box::new(vocabulary)), special, longest))
}

/// The spellings of the special tokens by id; those without a name are numbered.
fn special_spellings(listed: Option<Vec<TekkenSpecialToken>>, count: usize) -> Result<Vec<String>, VocabularyError> {
    let mut spellings: Vec<String> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
    let named: Vec<(usize, String)> = match listed {
        Some(listed) => listed.into_iter().map(|token| (token.rank, token.token_str)).collect(),
        None => FIRST_SPECIAL_TOKENS.iter().map(|name| (*name).to_owned()).enumerate().collect(),
    };
    for (rank, name) in named {
        let Some(entry) = spellings.get_mut(rank) else {
            return Err(VocabularyError::Tekken(format!(
                "the special token `{}` has the rank {rank} of {count}",
                name.escape_debug()
            )));
        };
        *entry = name;
    }
    Ok(spellings)
}

/// The bytes of standard base64; padding may be absent.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Base64 of a few bytes.
    fn spelled(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
        let digit = |bits: &[u8]| {
            let bits = format!("{:0<6}", String::from_utf8_lossy(bits));
            char::from(DIGITS[usize::from_str_radix(&bits, 2).unwrap()])
        };
        bits.as_bytes().chunks(6).map(digit).collect()
    }

    fn file(words: &[&[u8]]) -> serde_json::Value {
        let bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let all = bytes.iter().map(Vec::as_slice).chain(words.iter().copied());
        let vocab: Vec<_> =
            all.enumerate().map(|(rank, bytes)| json!({"rank": rank, "token_bytes": spelled(bytes)})).collect();
        json!({
            "config": {"pattern": r"\s+|\S+", "default_vocab_size": vocab.len() + 4, "default_num_special_tokens": 4},
            "vocab": vocab,
            "special_tokens": [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"},
                               {"rank": 2, "token_str": "</s>"}],
        })
    }

    fn read(file: &serde_json::Value) -> Result<(Encoder, Special, usize), VocabularyError> {
        tekken(file.to_string().as_bytes())
    }

    #[test]
    fn base64_comes_back() {
        for text in [&b""[..], b"a", b"ab", b"abc", b"\x00\xff\xfe\xfd", b"hello world"] {
            assert_eq!(base64(&spelled(text)).as_deref(), Some(text));
        }
        assert_eq!(base64("YQ==").as_deref(), Some(&b"a"[..]));
        assert_eq!(base64("Y Q"), None);
    }

    #[test]
    fn fa_3_the_lowest_rank_merges_first_and_the_leftmost_of_one_rank() {
        let (encoder, special, _) = read(&file(&[b"ab", b"ba", b"aba", "é".as_bytes(), b"whole"])).unwrap();
        let id = |rank: u32| rank + 4;
        assert_eq!(encoder.encode("aba").unwrap(), [id(258)], "a word that is a token is taken whole");
        assert_eq!(encoder.encode("xbab").unwrap(), [id(120), id(98), id(256)], "ab before ba");
        assert_eq!(encoder.encode("xababa").unwrap(), [id(120), id(256), id(258)]);
        assert_eq!(encoder.encode("é</s>\n").unwrap(), [id(259), 2, id(10)]);
        assert_eq!(encoder.decode(&[id(0xc3), id(0xa9), 1], true).unwrap(), "é");
        assert_eq!(encoder.spelling(3).as_deref(), Some("<SPECIAL_3>"));
        assert_eq!((special.bos, special.eos, special.add_bos), (Some(1), Some(2), true));
    }

    #[test]
    fn what_is_wrong_with_a_tekken_file_is_named() {
        let error = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut file = file(&[b"ab"]);
            change(&mut file);
            read(&file).unwrap_err().to_string()
        };
        assert!(error(&|file| file["config"]["default_vocab_size"] = json!(900)).contains("cannot be made from"));
        assert!(error(&|file| file["vocab"][7]["rank"] = json!(8)).contains("token 7 has the rank 8"));
        assert!(error(&|file| file["vocab"][7]["token_bytes"] = json!("?")).contains("token 7 are not base64"));
        assert!(error(&|file| file["vocab"][7]["token_bytes"] = json!("YWI=")).contains("bytes of another one"));
        assert!(error(&|file| file["special_tokens"][1]["rank"] = json!(9)).contains("`<s>` has the rank 9 of 4"));
        assert!(error(&|file| file["config"]["pattern"] = json!("(")).contains("cannot be built"));
        assert!(error(&|file| drop(file.as_object_mut().unwrap().remove("vocab"))).contains("missing field `vocab`"));
    }
}
