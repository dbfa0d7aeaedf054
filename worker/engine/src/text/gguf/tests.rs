//! Vocabularies made in code, and real ones where they lie beside the repository.

use std::path::{Path, PathBuf};
use std::time::Instant;

use model_boss_weights::gguf::{GgufFile, Header, HeaderWriter};
use proptest::prelude::*;

use super::*;
use crate::text::{Specials, Text, Vocabulary};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// A vocabulary from spellings, types and scores, and whatever else `more` sets.
fn file(model: &str, tokens: &[(&str, i32, f32)], more: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let mut writer = HeaderWriter::new();
    writer.set("tokenizer.ggml.model", model).unwrap();
    writer.set("tokenizer.ggml.tokens", &tokens.iter().map(|t| t.0).collect::<Vec<_>>()[..]).unwrap();
    writer.set("tokenizer.ggml.token_type", &tokens.iter().map(|t| t.1).collect::<Vec<_>>()[..]).unwrap();
    writer.set("tokenizer.ggml.scores", &tokens.iter().map(|t| t.2).collect::<Vec<_>>()[..]).unwrap();
    more(&mut writer);
    writer.begin(Vec::new()).unwrap().finish().unwrap()
}

fn read(file: &[u8]) -> Result<GgufVocabulary, VocabularyError> {
    GgufVocabulary::read(&Header::parse(file).unwrap())
}

fn spelled(vocabulary: &GgufVocabulary, text: &str) -> Vec<String> {
    let tokens = vocabulary.encoder.encode(text).unwrap();
    tokens.iter().map(|id| vocabulary.encoder.spelling(*id).unwrap()).collect()
}

/// `<unk> <s> </s>`, the bytes of `é`, and some pieces of "hello world".
fn sentence_pieces(more: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let tokens = [
        ("<unk>", UNKNOWN, 0.0),
        ("<s>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<0xC3>", BYTE, 0.0),
        ("<0xA9>", BYTE, 0.0),
        ("▁", NORMAL, -9.0),
        ("h", NORMAL, -8.0),
        ("e", NORMAL, -7.0),
        ("l", NORMAL, -6.0),
        ("o", NORMAL, -5.0),
        ("he", NORMAL, -4.0),
        ("ll", NORMAL, -3.0),
        ("el", NORMAL, -2.0),
        ("lo", NORMAL, -1.0),
        ("hel", NORMAL, -1.5),
        ("▁hel", NORMAL, -0.5),
        ("<|user|>", CONTROL, 0.0),
        ("<think>", USER_DEFINED, 0.0),
    ];
    file("llama", &tokens, more)
}

#[test]
fn pieces_merge_by_score_then_from_the_left() {
    let vocabulary = read(&sentence_pieces(|_| {})).unwrap();
    assert_eq!(spelled(&vocabulary, "hello"), ["▁hel", "lo"], "lo before el before ll");
    assert_eq!(spelled(&vocabulary, "lll"), ["▁", "ll", "l"], "equal scores: leftmost first");
    assert_eq!(spelled(&vocabulary, "oé"), ["▁", "o", "<0xC3>", "<0xA9>"]);
    assert_eq!(spelled(&vocabulary, "x"), ["▁", "<unk>"], "bytes the vocabulary lacks");
    assert_eq!(spelled(&vocabulary, ""), [""; 0]);
    assert_eq!(spelled(&vocabulary, " o"), ["▁", "▁", "o"]);
}

#[test]
fn special_tokens_are_found_and_spaced() {
    let vocabulary = read(&sentence_pieces(|_| {})).unwrap();
    assert_eq!(spelled(&vocabulary, "o<s>o</s>"), ["▁", "o", "<s>", "▁", "o", "</s>"]);
    assert_eq!(spelled(&vocabulary, "<think><think>o"), ["<think>", "<think>", "▁", "o"]);
    let special = &vocabulary.special;
    assert_eq!((special.bos, special.eos, special.unknown), (Some(1), Some(2), Some(0)));
    assert!(special.add_bos && !special.add_eos);
    assert_eq!(special.end, [2].into());
    let encoder = &vocabulary.encoder;
    assert!(encoder.is_special(16) && !encoder.is_special(17) && !encoder.is_special(6) && !encoder.is_special(99));
    let tokens = encoder.encode("<|user|>hello é<think>").unwrap();
    assert_eq!(encoder.decode(&tokens, true).unwrap(), "hello é<think>");
    assert_eq!(encoder.decode(&tokens, false).unwrap(), "<|user|> hello é<think>");
}

#[test]
fn the_space_in_front_can_be_switched_off() {
    let vocabulary = read(&sentence_pieces(|w| w.set("tokenizer.ggml.add_space_prefix", &false).unwrap())).unwrap();
    assert_eq!(spelled(&vocabulary, "hello hel"), ["hel", "lo", "▁hel"]);
    assert_eq!(vocabulary.encoder.decode(&[15], true).unwrap(), " hel");
}

#[test]
fn phi_3_swallows_white_space_behind_its_tokens() {
    let vocabulary = read(&sentence_pieces(|w| w.set("general.name", "Phi-3 mini").unwrap())).unwrap();
    assert_eq!(spelled(&vocabulary, "<|user|>\n\t o<s> o"), ["<|user|>", "▁", "o", "<s>", "▁", "▁", "o"]);
}

/// All bytes of the byte-level alphabet that the tests need, two merges, and two special tokens.
fn byte_pairs(more: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let tokens = [
        ("a", NORMAL, 0.0),
        ("b", NORMAL, 0.0),
        ("Ġ", NORMAL, 0.0),
        ("Ã", NORMAL, 0.0),
        ("©", NORMAL, 0.0),
        ("ab", NORMAL, 0.0),
        ("Ġab", NORMAL, 0.0),
        ("<|endoftext|>", CONTROL, 0.0),
        ("<think>", USER_DEFINED, 0.0),
        ("", NORMAL, 0.0),
        ("aba", NORMAL, 0.0),
    ];
    file("gpt2", &tokens, |writer| {
        // A pair with an unknown side, one without a space, and a repetition are harmless.
        let merges = ["a b", "Ġ ab", "a z", "nonsense", "a b", "ab aba"];
        writer.set("tokenizer.ggml.merges", &merges[..]).unwrap();
        more(writer);
    })
}

#[test]
fn pairs_merge_by_rank() {
    let vocabulary = read(&byte_pairs(|w| w.set("tokenizer.ggml.pre", "gpt-2").unwrap())).unwrap();
    assert_eq!(spelled(&vocabulary, "ab ab"), ["ab", "Ġab"]);
    assert_eq!(spelled(&vocabulary, "aba"), ["ab", "a"]);
    assert_eq!(spelled(&vocabulary, "aé<|endoftext|>a<think>"), ["a", "Ã", "©", "<|endoftext|>", "a", "<think>"]);
    assert_eq!(vocabulary.special.end, [7].into(), "known by its spelling");
    assert_eq!((vocabulary.special.bos, vocabulary.special.add_bos), (None, false));
    assert!(vocabulary.warnings.is_empty(), "{:?}", vocabulary.warnings);
    let tokens = vocabulary.encoder.encode("ab é<think><|endoftext|>").unwrap();
    assert_eq!(vocabulary.encoder.decode(&tokens, true).unwrap(), "ab é<think>");
    assert_eq!(vocabulary.encoder.vocab_size(), 11);
    assert_eq!(vocabulary.encoder.spelling(9).as_deref(), Some("[EMPTY_9]"));
}

#[test]
fn some_pre_tokenizers_take_whole_words_and_want_bos() {
    let with_bos = |pre: &'static str| {
        read(&byte_pairs(|writer| {
            writer.set("tokenizer.ggml.pre", pre).unwrap();
            writer.set("tokenizer.ggml.bos_token_id", &7_u32).unwrap();
        }))
        .unwrap()
    };
    assert_eq!(spelled(&with_bos("llama-bpe"), "aba"), ["aba"]);
    assert!(with_bos("llama-bpe").special.add_bos);
    assert_eq!(spelled(&with_bos("qwen2"), "aba"), ["ab", "a"]);
    assert!(!with_bos("qwen2").special.add_bos);
}

#[test]
fn fa_3_unknown_pre_tokenizers_are_refused_by_name() {
    let error = read(&byte_pairs(|w| w.set("tokenizer.ggml.pre", "brand-new").unwrap())).unwrap_err().to_string();
    assert!(error.contains("`brand-new` is not known") && error.contains("llama-server"), "{error}");
    let unnamed = read(&byte_pairs(|_| {})).unwrap();
    assert!(unnamed.warnings[0].contains("names no pre-tokenizer"), "{:?}", unnamed.warnings);
    assert_eq!(spelled(&unnamed, "ab"), ["ab"], "the oldest converters wrote no name");
}

#[test]
fn every_pattern_compiles_and_loses_nothing() {
    let text = "I'LL don't ab  ab\t\n\n  12345 x1 é日本語かな 한국 ...!? \u{10ffff}";
    for name in include_str!("pre_tokenizer.rs").split('"').filter_map(|word| pre_tokenizer::rules(word).map(|_| word))
    {
        if pre_tokenizer::rules(name).is_some_and(|rules| rules.alphabet != pre_tokenizer::Alphabet::Bytes) {
            continue;
        }
        let vocabulary = read(&byte_pairs(|w| w.set("tokenizer.ggml.pre", name).unwrap())).unwrap();
        let Encoder::Library(library) = &vocabulary.encoder else { panic!("{name}") };
        let mut pieces = tokenizers::PreTokenizedString::from(text);
        let pre_tokenizer = library.get_pre_tokenizer().unwrap();
        tokenizers::PreTokenizer::pre_tokenize(pre_tokenizer, &mut pieces).unwrap();
        let splits = pieces.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        let joined: String = splits.iter().map(|(_, (start, end), _)| &text[*start..*end]).collect();
        assert_eq!(joined, text, "{name}");
        assert!(splits.len() > 5, "{name}");
    }
}

#[test]
fn gemma_4_merges_characters() {
    let tokens = [
        ("<bos>", CONTROL, 0.0),
        ("▁", NORMAL, 0.0),
        ("a", NORMAL, 0.0),
        ("▁a", NORMAL, 0.0),
        ("<0xC3>", BYTE, 0.0),
        ("<0xA9>", BYTE, 0.0),
        ("\n", NORMAL, 0.0),
    ];
    let file = file("gemma4", &tokens, |writer| {
        writer.set("tokenizer.ggml.merges", &["▁ a"][..]).unwrap();
        writer.set("tokenizer.ggml.bos_token_id", &0_u32).unwrap();
        writer.set("tokenizer.ggml.add_bos_token", &false).unwrap();
    });
    let vocabulary = read(&file).unwrap();
    assert_eq!(spelled(&vocabulary, "a a\né"), ["a", "▁a", "\n", "<0xC3>", "<0xA9>"]);
    assert!(vocabulary.special.add_bos, "needed whatever the file says");
    let tokens = vocabulary.encoder.encode("a a\né").unwrap();
    assert_eq!(vocabulary.encoder.decode(&tokens, true).unwrap(), "a a\né");
}

fn word_pieces(more: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let tokens = [
        ("[PAD]", CONTROL, 0.0),
        ("[UNK]", CONTROL, 0.0),
        ("[CLS]", CONTROL, 0.0),
        ("[SEP]", CONTROL, 0.0),
        ("▁play", NORMAL, 0.0),
        ("ing", NORMAL, 0.0),
        ("▁.", NORMAL, 0.0),
        ("▁a", NORMAL, 0.0),
    ];
    file("bert", &tokens, |writer| {
        writer.set("tokenizer.ggml.unknown_token_id", &1_u32).unwrap();
        writer.set("tokenizer.ggml.cls_token_id", &2_u32).unwrap();
        writer.set("tokenizer.ggml.seperator_token_id", &3_u32).unwrap();
        more(writer);
    })
}

#[test]
fn word_pieces_are_the_longest_that_fit() {
    let vocabulary = read(&word_pieces(|_| {})).unwrap();
    assert_eq!(vocabulary.encoder.encode("Playing. À zzz[CLS]").unwrap(), [4, 5, 6, 7, 1, 2]);
    assert_eq!(vocabulary.encoder.decode(&[4, 5, 6, 7], true).unwrap(), "playing. a");
    let cased = read(&word_pieces(|w| w.set("tokenizer.ggml.normalizer.lowercase", &false).unwrap())).unwrap();
    assert_eq!(cased.encoder.encode("Playing playing").unwrap(), [1, 4, 5]);
    let Encoder::Library(library) = &vocabulary.encoder else { panic!() };
    assert_eq!(library.encode("play", true).unwrap().get_ids(), [2, 4, 3], "embeddings want the frame");
}

#[test]
fn templates_are_found_by_name() {
    let vocabulary = read(&sentence_pieces(|writer| {
        writer.set("tokenizer.chat_template", "usual").unwrap();
        writer.set("tokenizer.chat_template.tool_use", "tools").unwrap();
        writer.set("tokenizer.chat_templates", &["tool_use"][..]).unwrap();
    }))
    .unwrap();
    let templates: Vec<_> = vocabulary.templates.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    assert_eq!(templates, [("default", "usual"), ("tool_use", "tools")]);
}

#[test]
fn ends_of_the_harmony_format_leave_messages_alone() {
    let tokens = [
        ("a", NORMAL, 0.0),
        ("<|end|>", CONTROL, 0.0),
        ("<|return|>", CONTROL, 0.0),
        ("<|call|>", CONTROL, 0.0),
        ("<|im_end|>", NORMAL, 0.0),
    ];
    let vocabulary = read(&file("gpt2", &tokens, |writer| {
        writer.set("tokenizer.ggml.merges", &Vec::<&str>::new()[..]).unwrap();
        writer.set("tokenizer.ggml.eot_token_id", &0_u32).unwrap();
        writer.set("tokenizer.ggml.padding_token_id", &99_u32).unwrap();
    }))
    .unwrap();
    assert_eq!(vocabulary.special.end, [0, 2, 3, 4].into());
    assert!(vocabulary.encoder.is_special(4), "hidden, though the file calls it an ordinary token");
    assert_eq!(vocabulary.special.padding, None);
    assert!(vocabulary.warnings.iter().any(|w| w.contains("padding_token_id` is 99")), "{:?}", vocabulary.warnings);
}

#[test]
fn what_is_wrong_is_named() {
    let error = |file: &[u8]| read(file).unwrap_err().to_string();
    let mut empty = HeaderWriter::new();
    empty.set("general.architecture", "llama").unwrap();
    let empty = empty.begin(Vec::new()).unwrap().finish().unwrap();
    assert_eq!(error(&empty), "the GGUF file lacks the metadata key `tokenizer.ggml.model`");
    assert!(error(&file("hybriddna", &[("a", NORMAL, 0.0)], |_| {})).contains("kind `hybriddna` are not supported"));
    assert_eq!(
        error(&file("llama", &[("a", NORMAL, 0.0), ("b", NORMAL, 0.0), ("a", NORMAL, 0.0)], |_| {})),
        "tokens 0 and 2 are both spelled `a`"
    );
    assert_eq!(
        error(&file("gpt2", &[("a", NORMAL, 0.0)], |_| {})),
        "the GGUF file lacks the metadata key `tokenizer.ggml.merges`"
    );
    let short = |key: &'static str| {
        let mut writer = HeaderWriter::new();
        writer.set("tokenizer.ggml.model", "llama").unwrap();
        writer.set("tokenizer.ggml.tokens", &["a", "b"][..]).unwrap();
        writer.set(key, &[1_i32][..]).unwrap();
        writer.begin(Vec::new()).unwrap().finish().unwrap()
    };
    for key in ["tokenizer.ggml.token_type", "tokenizer.ggml.scores"] {
        assert_eq!(error(&short(key)), format!("GGUF metadata key `{key}` has 1 entries for 2 tokens"));
    }
    assert!(error(&short("other")).contains("no scores"));
    assert!(error(&file("bert", &[("a", NORMAL, 0.0)], |_| {})).contains("no token for unknown words"));
}

/// The vocabularies beside the repository, each with texts and the ids that the model's own tokenizer gives.
fn real_vocabularies() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/vocab");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: no ../shared/data/vocab beside the repository");
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    paths
}

fn beside(path: &Path, extension: &str) -> String {
    std::fs::read_to_string(format!("{}.{extension}", path.display())).unwrap()
}

#[test]
fn fa_3_real_vocabularies_give_the_reference_ids() {
    let mut failures = Vec::new();
    for path in real_vocabularies() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let started = Instant::now();
        let file = GgufFile::open(&path).unwrap();
        let vocabulary = GgufVocabulary::read(&file.header().unwrap()).unwrap();
        eprintln!("{name}: {} tokens read in {:?}", vocabulary.encoder.vocab_size(), started.elapsed());
        assert!(vocabulary.warnings.is_empty(), "{name}: {:?}", vocabulary.warnings);
        let input = beside(&path, "inp");
        let table = Text::load(&path, None).unwrap().vocabulary;
        assert_eq!(Vocabulary::from_wire(&table.to_wire()).unwrap(), table, "{name}");
        let texts: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
        let output = beside(&path, "out");
        let expected: Vec<Vec<u32>> =
            output.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect();
        // The last separator ends the file.
        assert_eq!(texts.len(), expected.len() + 1, "{name}");
        for (text, ids) in texts.iter().zip(&expected) {
            let ours = vocabulary.encoder.encode(text).unwrap();
            if ours != *ids {
                failures.push(format!("{name}: {text:?}\n  ours     {ours:?}\n  expected {ids:?}"));
            }
            let decoded = vocabulary.encoder.decode(&ours, false).unwrap();
            assert_eq!(table.text(&ours, Specials::Spelled), decoded, "{name}: {text:?}");
            if !name.contains("bert") {
                assert_eq!(decoded, *text, "{name}");
            }
        }
    }
    assert!(failures.is_empty(), "{} texts differ:\n{}", failures.len(), failures.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_vocabularies_never_panic(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        which in 0..3,
        text in "[a-b é]{0,12}(hello|<s>|<\\|endoftext\\|>|playing)?",
    ) {
        let mut file = match which {
            0 => sentence_pieces(|_| {}),
            1 => byte_pairs(|w| w.set("tokenizer.ggml.pre", "gpt-2").unwrap()),
            _ => word_pieces(|_| {}),
        };
        for (at, byte) in hits {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Ok(header) = Header::parse(&file)
            && let Ok(vocabulary) = GgufVocabulary::read(&header)
        {
            let tokens = vocabulary.encoder.encode(&text).unwrap();
            vocabulary.encoder.decode(&tokens, true).unwrap();
        }
    }

    #[test]
    fn sentence_pieces_lose_nothing_they_can_spell(text in "[helo é]{0,40}") {
        let vocabulary = read(&sentence_pieces(|_| {})).unwrap();
        let tokens = vocabulary.encoder.encode(&text).unwrap();
        prop_assert_eq!(vocabulary.encoder.decode(&tokens, false).unwrap(), text.as_str());
        let Encoder::Pieces(pieces) = &vocabulary.encoder else { panic!() };
        let bytes: Vec<u8> = tokens.iter().flat_map(|id| pieces.token_bytes(*id)).copied().collect();
        let spaced = if text.is_empty() { text } else { format!(" {text}") };
        prop_assert_eq!(String::from_utf8(bytes).unwrap(), spaced, "token by token it is the same text");
    }
}

/// A unigram vocabulary of a few words, with `Ｈ` replaced by `H`, and unused and user-defined tokens.
fn unigram(more: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let tokens = [
        ("<pad>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<unk>", UNKNOWN, 0.0),
        ("▁", NORMAL, -2.0),
        ("▁he", NORMAL, -3.0),
        ("l", NORMAL, -2.5),
        ("lo", NORMAL, -3.5),
        ("ll", NORMAL, -5.0),
        ("o", NORMAL, -2.0),
        ("▁hello", NORMAL, -9.5),
        ("h", NORMAL, -4.0),
        ("e", NORMAL, -4.0),
        ("<x>", USER_DEFINED, 0.0),
    ];
    file("t5", &tokens, more)
}

#[test]
fn fa_3_the_likeliest_spelling_wins() {
    let merging = |writer: &mut HeaderWriter| {
        writer.set("tokenizer.ggml.add_space_prefix", &true).unwrap();
        writer.set("tokenizer.ggml.remove_extra_whitespaces", &true).unwrap();
    };
    let vocabulary = read(&unigram(merging)).unwrap();
    assert_eq!(spelled(&vocabulary, "hello"), ["▁he", "l", "lo"], "-9 is likelier than -9.5");
    assert_eq!(spelled(&vocabulary, "  o   hello "), ["▁", "o", "▁he", "l", "lo"], "spaces are merged");
    assert_eq!(spelled(&vocabulary, "oxyo"), ["▁", "o", "<unk>", "o"], "unknown characters in a row are one token");
    assert_eq!(spelled(&vocabulary, "o<x>o</s>"), ["▁", "o", "<x>", "▁", "o", "</s>"]);
    assert_eq!(spelled(&vocabulary, ""), [""; 0]);
    let tokens = vocabulary.encoder.encode("hello o").unwrap();
    assert_eq!(vocabulary.encoder.decode(&tokens, true).unwrap(), "hello o");
    let keeping = read(&unigram(|_| {})).unwrap();
    assert_eq!(spelled(&keeping, " o  o"), ["▁", "o", "▁", "▁", "o"]);
    assert!(keeping.special.add_eos && !keeping.special.add_bos);
    let tokenizer = crate::text::Tokenizer::from_pieces(keeping.encoder, &keeping.special, 6);
    assert_eq!(tokenizer.encode_prompt("o").unwrap(), [8, 1], "a text ends with `</s>`");
}

/// A map of `Ａ` to `a` and of `ﬀ` to `ff`, as SentencePiece 0.2.3 compiles it.
fn two_replacements() -> Vec<u8> {
    let named = [
        (0, 0x0003_b800_u32),
        (1, 0x0002_bcef),
        (2, 0x0002_04ac),
        (3, 0x0000_1d80),
        (4, 0x8000_0002),
        (5, 0x0000_0da1),
        (6, 0x8000_0000),
        (18, 0x0002_d8bc),
    ];
    let unit = |at: u32| named.iter().find(|(named, _)| *named == at).map_or(at ^ 1, |(_, unit)| *unit);
    let trie = (0..256).flat_map(|at| unit(at).to_le_bytes());
    1024_u32.to_le_bytes().into_iter().chain(trie).chain(*b"a\0ff\0").collect()
}

#[test]
fn a_precompiled_map_replaces_prefixes() {
    let map = charsmap::Charsmap::read(&two_replacements()).unwrap();
    assert_eq!(map.longest("\u{ff21}x".as_bytes()), Some((3, &b"a"[..])));
    assert_eq!(map.longest("\u{fb00}".as_bytes()), Some((3, &b"ff"[..])));
    assert_eq!(map.longest("\u{ff22}".as_bytes()), None);
    assert_eq!(map.longest(b""), None);
    let vocabulary = read(&unigram(|writer| {
        let bytes: Vec<u8> = two_replacements();
        writer.set("tokenizer.ggml.precompiled_charsmap", &bytes[..]).unwrap();
    }));
    assert_eq!(spelled(&vocabulary.unwrap(), "\u{ff21}o"), ["<unk>", "o"], "an `a`, which is no token");
    for (cut, word) in [(2, "cut short"), (9, "cut short")] {
        let error = charsmap::Charsmap::read(&two_replacements()[..cut]).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn fa_3_rwkv_takes_the_longest_token_at_each_place() {
    let tokens = [
        ("<s>", CONTROL, 0.0),
        ("a", NORMAL, 0.0),
        (r"\n", NORMAL, 0.0),
        (r"a\n", NORMAL, 0.0),
        ("abc", NORMAL, 0.0),
        (r"\xc3", NORMAL, 0.0),
        (r"\xa9", NORMAL, 0.0),
        ("b", NORMAL, 0.0),
    ];
    let vocabulary = read(&file("rwkv", &tokens, |_| {})).unwrap();
    assert_eq!(vocabulary.encoder.encode("aba\nabc<s>é").unwrap(), [1, 7, 3, 4, 0, 5, 6]);
    assert_eq!(vocabulary.encoder.decode(&[3, 5, 6], true).unwrap(), "a\né");
    assert_eq!(vocabulary.encoder.encode("azb").unwrap(), [1, 7], "without an unknown token nothing stands for it");
}

#[test]
fn fa_3_plamo_spells_by_the_best_sum_of_scores() {
    let bytes: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec![("<|plamo:unk|>", UNKNOWN, 0.0), ("<|plamo:bos|>", CONTROL, 0.0)];
    tokens.extend(bytes.iter().map(|byte| (byte.as_str(), BYTE, 0.0)));
    tokens.extend([("a", NORMAL, -1.0), ("ab", NORMAL, -4.0), ("b", NORMAL, -2.0), ("aa", NORMAL, -2.0)]);
    let vocabulary = read(&file("plamo2", &tokens, |_| {})).unwrap();
    assert_eq!(spelled(&vocabulary, "abaa"), ["a", "b", "aa"], "of equal sums the longest token in front");
    assert_eq!(spelled(&vocabulary, "\u{feff}é"), ["<0xC3>", "<0xA9>"]);
    let without: Vec<_> = tokens.iter().copied().filter(|token| token.0 != "<0x41>").collect();
    assert!(read(&file("plamo2", &without, |_| {})).unwrap_err().to_string().contains("no token for the byte 65"));
}

#[test]
fn words_between_white_space_merge_characters() {
    let tokens =
        [("<0xC3>", BYTE, 0.0), ("<0xA9>", BYTE, 0.0), ("a", NORMAL, 0.0), ("b", NORMAL, 0.0), ("ab", NORMAL, 0.0)];
    let vocabulary = read(&file("whitespace", &tokens, |writer| {
        writer.set("tokenizer.ggml.merges", &["a b"][..]).unwrap();
        writer.set("tokenizer.ggml.normalizer.lowercase", &true).unwrap();
    }));
    assert_eq!(vocabulary.unwrap().encoder.encode(" AB \n abé").unwrap(), [4, 4, 0, 1]);
}

#[test]
fn a_file_without_a_vocabulary_says_so() {
    let mut writer = HeaderWriter::new();
    writer.set("tokenizer.ggml.model", "none").unwrap();
    let error = read(&writer.begin(Vec::new()).unwrap().finish().unwrap()).unwrap_err().to_string();
    assert!(error.contains("has no vocabulary"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_spelling_is_likelier_than_the_one_found(
        text in "[ab]{1,9}",
        scores in prop::collection::vec(-8.0_f32..-0.5, 6),
    ) {
        let words = ["a", "b", "ab", "ba", "aab", "bba"];
        let mut tokens = vec![("<pad>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("<unk>", UNKNOWN, 0.0)];
        tokens.extend(words.iter().zip(&scores).map(|(word, score)| (*word, NORMAL, *score)));
        let vocabulary = read(&file("t5", &tokens, |_| {})).unwrap();
        let found = vocabulary.encoder.encode(&text).unwrap();
        let sum: f64 = found.iter().map(|id| f64::from(tokens[*id as usize].2)).sum();
        prop_assert_eq!(vocabulary.encoder.decode(&found, false).unwrap(), text.as_str());
        prop_assert!((sum - best_sum(&text, &words, &scores)).abs() < 1e-9);
    }
}

fn best_sum(text: &str, words: &[&str], scores: &[f32]) -> f64 {
    if text.is_empty() {
        return 0.0;
    }
    let sums = words
        .iter()
        .zip(scores)
        .filter_map(|(word, score)| Some(f64::from(*score) + best_sum(text.strip_prefix(word)?, words, scores)));
    sums.fold(f64::NEG_INFINITY, f64::max)
}
