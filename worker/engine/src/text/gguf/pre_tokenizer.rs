//! The division of texts into words before pairs are merged, by the name in `tokenizer.ggml.pre`. Only patterns are
//! known here.
//!
//! The patterns are those of the models' own `tokenizer.json`; the mapping of names to patterns is llama.cpp's. A
//! model with several patterns applies them in turn. Each divides the pieces that the one before left; the text
//! between two matches is a piece too.

/// The rules behind a pre-tokenizer's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) struct Rules {
    /// Applied in turn.
    pub(in crate::text) patterns: &'static [&'static str],
    /// A word that is a token as a whole is taken whole, whatever the merges say.
    pub(in crate::text) ignore_merges: bool,
    /// Whether a text begins with `bos` where the file does not say.
    pub(in crate::text) add_bos: bool,
    /// Whether a text begins with `bos` even where the file denies it.
    pub(in crate::text) always_bos: bool,
    /// The encoding of bytes in a token's spelling.
    pub(in crate::text) alphabet: Alphabet,
}

/// The encoding of bytes in a token's spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum Alphabet {
    /// Each character is one byte (GPT-2's table).
    Bytes,
    /// Characters as they are, `▁` for a space, `<0x0A>` for bytes of unknown characters.
    Characters,
    /// Characters as they are; white space only separates words.
    Words,
}

const PLAIN: Rules =
    Rules { patterns: &[], ignore_merges: false, add_bos: false, always_bos: false, alphabet: Alphabet::Bytes };

const fn plain(patterns: &'static [&'static str]) -> Option<Rules> {
    Some(Rules { patterns, ..PLAIN })
}

const fn whole_words(patterns: &'static [&'static str]) -> Option<Rules> {
    Some(Rules { patterns, ignore_merges: true, ..PLAIN })
}

/// GPT-2's pattern, which the library has built in.
pub(in crate::text) const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like [`LLAMA_3`], but long runs of white space are cut into powers of two.
const JAIS_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";

/// Runs of Han, then words of other scripts.
const KIMI_K2: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Digits by threes, counted from the right. The text behind them is no word character, as Oniguruma counts those.
const DIGITS_FROM_RIGHT: &str =
    r"\d{1,3}(?=(?:\d{3})*+(?![\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u{b2}\u{b3}\u{b9}\u{bc}-\u{be}]))";

const HAN_AND_KANA: &str = r"[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";

/// Digits by threes, then runs of Han and kana, then words with punctuation and symbols apart.
const DEEPSEEK_3: &[&str] = &[r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK_3_WORDS];

const DEEPSEEK_3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Letters with case, as DeepSeek's first tokenizer lists them.
const CASED_LETTERS: &str = r"\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+";

/// As [`DEEPSEEK_3_WORDS`], but newlines are words of their own.
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;

/// As [`GPT_4O`], but digits one by one.
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const BETWEEN_NEWLINES: Rules = Rules { patterns: &[r"[^\n]+|[\n]+"], alphabet: Alphabet::Characters, ..PLAIN };

const BLOOM: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+";

/// Used for files without a known name: the oldest converters wrote them.
pub(in crate::text) const DEFAULT: Rules =
    Rules { patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN };

/// The rules of a name; `None` for names not known here.
pub(in crate::text) fn rules(name: &str) -> Option<Rules> {
    match name {
        "default" => Some(DEFAULT),
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v1-en" | "jina-v2-es" | "jina-v2-de" | "jina-v2-code"
        | "roberta-bpe" | "modern-bert" | "gigachat" | "a.x-4.0" | "mellum" | "exaone4" | "mpt" | "olmo" | "jais"
        | "trillion" | "granite-docling" => plain(&[GPT_2]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => Some(Rules { patterns: &[LLAMA_3], ignore_merges: true, add_bos: true, ..PLAIN }),
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => plain(&[LLAMA_3]),
        "jais-2" => plain(&[JAIS_2]),
        "kimi-k2" => plain(&[KIMI_K2]),
        "glm4" | "glm5" => whole_words(&[LLAMA_3]),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan" | "solar-open"
        | "grok-2" => plain(&[QWEN_2]),
        "ufakzeka" => plain(&[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]),
        "laguna" => plain(&[r"[^\n]+|[\n]+", QWEN_2]),
        "qwen35" => plain(&[QWEN_3_5]),
        "gpt-4o" | "o200k" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => plain(&[GPT_4O]),
        "tiny_aya" | "cohere2moe" => plain(&[DIGITS_FROM_RIGHT, GPT_4O]),
        "granite-embed-multi-97m" => whole_words(&[GPT_4O]),
        "youtu" => whole_words(&[
            r"[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
            YOUTU,
        ]),
        "superbpe" => plain(&[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
        "afmoe" => plain(&[
            r"\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))",
            r"[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+",
            DEEPSEEK_3_WORDS,
        ]),
        "chameleon" => Some(Rules {
            patterns: &[
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT_2,
            ],
            add_bos: true,
            ..PLAIN
        }),
        "tekken" => Some(Rules { patterns: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN }),
        // Single digits first.
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            plain(&[r"\p{N}", GPT_2])
        }
        "falcon" => plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"]),
        "deepseek-llm" => plain(&[
            r"[\r\n]",
            CASED_LETTERS,
            r"\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
            r"\s+$",
            r"[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+",
            r"\p{N}+",
        ]),
        "deepseek-coder" => plain(&[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+",
            r"\p{N}",
        ]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => plain(DEEPSEEK_3),
        "spark2_5" => plain(&[r"\p{N}{1,3}", HAN_AND_KANA, SPARK, r"\p{N}"]),
        "bloom" | "gpt3-finnish" | "poro-chat" => plain(&[BLOOM]),
        "viking" => plain(&[BLOOM, r"\p{N}"]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => plain(&[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ]),
        "seed-coder" => plain(&[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ]),
        "exaone-moe" => plain(&[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ]),
        "minicpm5" => whole_words(&[
            r"\p{N}{1,3}",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ]),
        "gemma4" | "granite-embed-multi-311m" => Some(Rules { always_bos: true, ..BETWEEN_NEWLINES }),
        "sarvam-moe" => Some(BETWEEN_NEWLINES),
        "whitespace" => Some(Rules { alphabet: Alphabet::Words, ..PLAIN }),
        _ => None,
    }
}
