//! The tokens of a Whisper model that mean something, and how it is asked: from `generation_config.json`, the
//! tokenizer's files, and for files without both from the size of the vocabulary.

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_engine::speech::SpeechTokens;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::spec::WhisperSpec;
use crate::encoder::folder_file::{bad, file};
use crate::error::ModelError;

/// The codes of languages in the order of their tokens. The first 99 are those of all models before large-v3.
const LANGUAGES: &str = "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th \
    ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af \
    oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue";

/// Tokens of all vocabularies but the languages': text, times, and those with a meaning.
const BESIDE_LANGUAGES: usize = 51_765;

/// The number of the token that ends a text, in a vocabulary of English.
const END: usize = 50_256;

/// The usual width of the filter over attention.
const SMOOTHED: usize = 7;

/// How a model is asked, beside its sizes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SpeechFacts {
    pub(super) tokens: SpeechTokens,
    /// Codes and tokens.
    pub(super) languages: Vec<(String, u32)>,
    /// Heads of the decoder that follow the sound: their layers and numbers.
    pub(super) aligned: Vec<[usize; 2]>,
    pub(super) smoothed: usize,
}

#[derive(Default, Deserialize)]
struct WhisperTokenizer {
    #[serde(default)]
    added_tokens: Vec<WhisperToken>,
}

#[derive(Deserialize)]
struct WhisperToken {
    id: u32,
    content: String,
}

impl SpeechFacts {
    /// From the files of a folder.
    pub(super) fn read(folder: &Path, config: &Map<String, Value>, spec: &WhisperSpec) -> Result<Self, ModelError> {
        let generation: Map<String, Value> = file(&folder.join("generation_config.json"))?.unwrap_or_default();
        let named = named_tokens(folder)?;
        Self::of(&generation, config, &named, spec)
    }

    fn of(
        generation: &Map<String, Value>,
        config: &Map<String, Value>,
        named: &BTreeMap<String, u32>,
        spec: &WhisperSpec,
    ) -> Result<Self, ModelError> {
        let field = |key: &str| {
            let set = |from: &'_ Map<String, Value>| from.get(key).filter(|value| !value.is_null()).cloned();
            set(generation).or_else(|| set(config))
        };
        let id = |key: &str| {
            let value = field(key)?;
            let first = value.as_array().and_then(|all| all.first()).unwrap_or(&value);
            first.as_u64().and_then(|id| u32::try_from(id).ok())
        };
        let layout = UsualLayout::of(spec.vocabulary);
        let name = |name: &str| named.get(name).copied();
        let many = field("is_multilingual").and_then(|value| value.as_bool());
        let many = many.unwrap_or_else(|| field("lang_to_id").is_some() || spec.vocabulary > 51_864);
        let missing = |what: &str| {
            bad(format!(
                "generation_config.json has no {what}, and the vocabulary of {} tokens is no usual one",
                spec.vocabulary
            ))
        };
        let usual = |at: fn(&UsualLayout) -> u32| layout.as_ref().map(at);
        let no_timestamps = id("no_timestamps_token_id")
            .or_else(|| name("<|notimestamps|>"))
            .or_else(|| usual(UsualLayout::no_timestamps))
            .ok_or_else(|| missing("no_timestamps_token_id"))?;
        let of_object = |key: &str, inner: &str| {
            let number = field(key)?.get(inner)?.as_u64()?;
            u32::try_from(number).ok()
        };
        let task = |task: &str, usual: Option<u32>| {
            let found = of_object("task_to_id", task).or_else(|| name(&format!("<|{task}|>"))).or(usual);
            found.filter(|_| many)
        };
        let previous =
            id("prev_sot_token_id").or_else(|| name("<|startofprev|>")).or_else(|| usual(UsualLayout::previous));
        let tokens = SpeechTokens {
            start: id("decoder_start_token_id")
                .or_else(|| name("<|startoftranscript|>"))
                .or_else(|| usual(UsualLayout::start))
                .ok_or_else(|| missing("decoder_start_token_id"))?,
            end: id("eos_token_id")
                .or_else(|| name("<|endoftext|>"))
                .or_else(|| usual(UsualLayout::end))
                .ok_or_else(|| missing("eos_token_id"))?,
            transcribe: task("transcribe", usual(UsualLayout::transcribe)),
            translate: task("translate", usual(UsualLayout::translate)),
            previous,
            no_speech: name("<|nospeech|>").or_else(|| name("<|nocaptions|>")).or(no_timestamps.checked_sub(1)),
            no_timestamps,
            suppressed: list(field("suppress_tokens"), "suppress_tokens")?.unwrap_or_else(|| {
                // Without any files all that only people write.
                let is_bare = generation.is_empty() && config.is_empty();
                layout.as_ref().filter(|_| is_bare).map_or_else(Vec::new, UsualLayout::never)
            }),
            suppressed_first: list(field("begin_suppress_tokens"), "begin_suppress_tokens")?.unwrap_or_default(),
            latest_first: id("max_initial_timestamp_index"),
        };
        let languages = if many { languages(&field("lang_to_id"), named, layout.as_ref()) } else { Vec::new() };
        let aligned = match field("alignment_heads") {
            Some(heads) => serde_json::from_value(heads).map_err(|error| bad(format!("alignment_heads: {error}")))?,
            // As OpenAI's program does for models that it knows nothing of.
            None => later_heads(spec),
        };
        let is_wrong = |[layer, head]: &[usize; 2]| *layer >= spec.decoder.layers || *head >= spec.decoder.heads;
        // Those of a distilled model may still be its teacher's.
        let aligned: Vec<[usize; 2]> = aligned;
        let aligned = if aligned.is_empty() || aligned.iter().any(is_wrong) { later_heads(spec) } else { aligned };
        let smoothed = config.get("median_filter_width").and_then(Value::as_u64);
        let smoothed = smoothed.and_then(|width| usize::try_from(width).ok()).unwrap_or(SMOOTHED).clamp(1, 99);
        let all =
            [Some(tokens.start), Some(tokens.end), Some(tokens.no_timestamps), tokens.transcribe, tokens.translate];
        if let Some(id) = all.into_iter().flatten().find(|id| *id as usize >= spec.vocabulary) {
            return Err(bad(format!("token {id} is beyond the vocabulary of {} tokens", spec.vocabulary)));
        }
        Ok(Self { tokens, languages, aligned, smoothed })
    }
}

/// All heads of the second half of the layers.
fn later_heads(spec: &WhisperSpec) -> Vec<[usize; 2]> {
    let layers = spec.decoder.layers / 2..spec.decoder.layers;
    layers.flat_map(|layer| (0..spec.decoder.heads).map(move |head| [layer, head])).collect()
}

fn list(value: Option<Value>, name: &str) -> Result<Option<Vec<u32>>, ModelError> {
    // A negative number stands for nothing in older files.
    let Some(value) = value else { return Ok(None) };
    let all: Vec<i64> = serde_json::from_value(value).map_err(|error| bad(format!("{name}: {error}")))?;
    Ok(Some(all.into_iter().filter_map(|id| u32::try_from(id).ok()).collect()))
}

/// Codes and tokens, in the order of the tokens.
fn languages(told: &Option<Value>, named: &BTreeMap<String, u32>, layout: Option<&UsualLayout>) -> Vec<(String, u32)> {
    let code = |name: &str| name.strip_prefix("<|").and_then(|name| name.strip_suffix("|>")).map(str::to_owned);
    let known = |code: &str| LANGUAGES.split_whitespace().any(|known| known == code);
    let mut all: Vec<(String, u32)> = match told.as_ref().and_then(Value::as_object) {
        Some(told) => {
            let pair = |(name, id): (&String, &Value)| Some((code(name)?, u32::try_from(id.as_u64()?).ok()?));
            told.iter().filter_map(pair).collect()
        }
        None => {
            let pair = |(name, id): (&String, &u32)| Some((code(name).filter(|code| known(code))?, *id));
            named.iter().filter_map(pair).collect()
        }
    };
    if all.is_empty()
        && let Some(layout) = layout
    {
        all =
            LANGUAGES.split_whitespace().take(layout.languages).map(str::to_owned).zip(layout.start() + 1..).collect();
    }
    all.sort_by_key(|(_, id)| *id);
    all
}

/// Tokens that were added to the vocabulary, by their names.
fn named_tokens(folder: &Path) -> Result<BTreeMap<String, u32>, ModelError> {
    if let Some(added) = file::<BTreeMap<String, u32>>(&folder.join("added_tokens.json"))? {
        return Ok(added);
    }
    let tokenizer: WhisperTokenizer = file(&folder.join("tokenizer.json"))?.unwrap_or_default();
    Ok(tokenizer.added_tokens.into_iter().map(|token| (token.content, token.id)).collect())
}

/// The vocabularies that OpenAI published: text, the end, the start, languages, tasks, and times.
struct UsualLayout {
    end: usize,
    languages: usize,
}

impl UsualLayout {
    /// By the size of the vocabulary.
    fn of(vocabulary: usize) -> Option<Self> {
        match vocabulary {
            51_864 => Some(Self { end: END, languages: 99 }),
            51_865 | 51_866 => Some(Self { end: END + 1, languages: vocabulary - BESIDE_LANGUAGES - 1 }),
            _ => None,
        }
    }

    fn end(&self) -> u32 {
        self.end as u32
    }

    fn start(&self) -> u32 {
        self.end() + 1
    }

    fn translate(&self) -> u32 {
        self.start() + self.languages as u32 + 1
    }

    fn transcribe(&self) -> u32 {
        self.translate() + 1
    }

    fn previous(&self) -> u32 {
        self.translate() + 3
    }

    fn no_timestamps(&self) -> u32 {
        self.translate() + 5
    }

    /// Tokens with a meaning that are no text.
    fn never(&self) -> Vec<u32> {
        (self.start()..self.no_timestamps()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(vocabulary: usize) -> WhisperSpec {
        let config = json!({"vocab_size": vocabulary, "decoder_layers": 2, "decoder_attention_heads": 3, "d_model": 24,
            "encoder_attention_heads": 2});
        WhisperSpec::from_config(config.as_object().unwrap()).unwrap()
    }

    #[test]
    fn rc_28_usual_vocabularies_need_no_files() {
        let none = Map::new();
        let of = |size| SpeechFacts::of(&none, &none, &BTreeMap::new(), &spec(size)).unwrap();
        let english = of(51_864);
        assert_eq!((english.tokens.start, english.tokens.end, english.tokens.no_timestamps), (50_257, 50_256, 50_362));
        assert_eq!((english.languages.len(), english.tokens.transcribe), (0, None));
        let many = of(51_865).tokens;
        assert_eq!([many.start, many.end, many.no_timestamps], [50_258, 50_257, 50_363]);
        assert_eq!(
            [many.transcribe, many.translate, many.previous, many.no_speech].map(Option::unwrap),
            [50_359, 50_358, 50_361, 50_362]
        );
        let third = of(51_866);
        assert_eq!((third.tokens.no_timestamps, third.languages.len()), (50_364, 100));
        assert_eq!(third.languages[99], ("yue".to_owned(), 50_358));
        assert_eq!(third.aligned, [[1, 0], [1, 1], [1, 2]], "the second half of the layers");
    }

    #[test]
    fn rc_28_files_count_before_the_usual() {
        let generation = json!({"lang_to_id": {"<|de|>": 5, "<|en|>": 4}, "task_to_id": {"transcribe": 6, "translate": 7},
            "no_timestamps_token_id": 9, "eos_token_id": [2, 3], "decoder_start_token_id": 3, "suppress_tokens": [-1, 8],
            "alignment_heads": [[1, 2]], "max_initial_timestamp_index": 5});
        let none = Map::new();
        let facts = SpeechFacts::of(generation.as_object().unwrap(), &none, &BTreeMap::new(), &spec(40)).unwrap();
        assert_eq!(facts.languages, [("en".to_owned(), 4), ("de".to_owned(), 5)]);
        assert_eq!((facts.tokens.end, facts.tokens.suppressed, facts.aligned), (2, vec![8], vec![[1, 2]]));
        assert_eq!((facts.tokens.latest_first, facts.tokens.no_speech), (Some(5), Some(8)));
        let unknown = SpeechFacts::of(&none, &none, &BTreeMap::new(), &spec(40)).unwrap_err().to_string();
        assert!(unknown.contains("no_timestamps_token_id"), "{unknown}");
    }
}
