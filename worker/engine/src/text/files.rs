//! The text side of a model: which file says what. Reads the formats Hugging Face's tools write, and GGUF files, which
//! say it all themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use model_boss_weights::gguf::{GgufModel, GgufModelError};
use model_boss_weights::{LAYER_SETTINGS, SmallFileError, WeightsError, read_small_file};
use serde_json::Value;

use super::added_tokens::TokenSettings;
use super::gguf::{GgufVocabulary, VocabularyError, ranks, sentence_piece_model};
use super::template::{ChatTemplate, Conversation, TemplateError};
use super::thoughts::{ThinkingTags, answer_begun};
use super::tokenizer::{Tokenizer, TokenizerError};
use super::vocabulary::{SpecialTokens, Vocabulary};

/// Most bytes of a `tokenizer.json`; the largest in use have 35 MiB.
const LARGEST_TOKENIZER: u64 = 128 << 20;

/// Most bytes of any other file of the text side.
const LARGEST_FILE: u64 = 16 << 20;

/// The vocabulary of a model's folder.
const TOKENIZER: &str = "tokenizer.json";

/// The vocabulary of folders with Mistral's own files.
const TEKKEN: &str = "tekken.json";

/// The chat template to read.
#[derive(Clone, Copy, Debug)]
enum TemplateChoice<'t> {
    /// The model's own.
    Own,
    /// This text.
    Given(&'t str),
    /// None.
    Without,
}

/// The parts of a model that read and write text.
#[derive(Debug)]
pub struct Text {
    /// Text to tokens, by the rules of the model's files.
    pub tokenizer: Tokenizer,
    /// Tokens to text, by a table.
    pub vocabulary: Vocabulary,
    /// The tokens between which it thinks aloud, in models that do.
    pub thinking: Option<ThinkingTags>,
    /// The template that turns a conversation into a prompt. Absent in models that were not trained to chat.
    pub template: Option<ChatTemplate>,
    /// Warnings for the operator: an oddity of the files that was worked around.
    pub warnings: Vec<String>,
}

/// A prompt, and how its special tokens are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// By the model's template, which spells them.
    Rendered(String),
    /// As base models have seen it in transcripts: `role: content` lines and the start of the assistant's.
    Transcript(String),
}

impl Prompt {
    /// The text.
    pub fn as_str(&self) -> &str {
        let (Self::Rendered(text) | Self::Transcript(text)) = self;
        text
    }

    /// The same kind of prompt with another text.
    #[must_use]
    pub fn with_text(self, text: String) -> Self {
        match self {
            Self::Rendered(_) => Self::Rendered(text),
            Self::Transcript(_) => Self::Transcript(text),
        }
    }
}

/// The text side of a model folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// No model there.
    #[error("there is no model at {0}")]
    NoModel(PathBuf),
    /// No vocabulary.
    #[error("{0} is missing; a model folder needs one (Hugging Face's tools write it with save_pretrained)")]
    Missing(PathBuf),
    /// No template there.
    #[error("there is no chat template at {0}")]
    NoTemplate(PathBuf),
    /// A template is no text.
    #[error("{0} is not UTF-8 text, so it is no chat template")]
    NotUtf8(PathBuf),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] SmallFileError),
    /// A file is not JSON.
    #[error("{path} is not JSON")]
    Json {
        /// The path of the file.
        path: PathBuf,
        /// The position and the kind of the fault.
        source: serde_json::Error,
    },
    /// The vocabulary cannot be used.
    #[error("{path} cannot be used")]
    Tokenizer {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: TokenizerError,
    },
    /// The path does not identify one file.
    #[error(transparent)]
    Source(#[from] WeightsError),
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufModelError),
    /// The vocabulary in a GGUF file cannot be used.
    #[error("{path}: {source}")]
    Vocabulary {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: VocabularyError,
    },
    /// The chat template cannot be used.
    #[error("the chat template of {origin} cannot be used")]
    Template {
        /// The origin of the value.
        origin: String,
        /// The cause.
        source: TemplateError,
    },
}

impl Text {
    /// Reads a model's text side. The path `source` is the model's folder, a weight file in it, or a GGUF file. The
    /// text `template` takes the place of the model's own chat template.
    pub fn load(source: &Path, template: Option<&str>) -> Result<Self, TextError> {
        let choice = template.map_or(TemplateChoice::Own, TemplateChoice::Given);
        if let Some(file) = model_boss_weights::gguf_file(source)? {
            return Self::from_gguf(&file, choice);
        }
        if !source.exists() {
            return Err(TextError::NoModel(source.to_owned()));
        }
        let folder = if source.is_dir() { source } else { source.parent().unwrap_or(source) };
        Self::from_json(&vocabulary_of(folder), choice)
    }

    /// Reads the vocabulary of a `tokenizer.json`, a `tekken.json`, a SentencePiece model or a GGUF file, and no chat
    /// template.
    pub fn vocabulary_alone(path: &Path) -> Result<Self, TextError> {
        if let Some(file) = model_boss_weights::gguf_file(path)? {
            return Self::from_gguf(&file, TemplateChoice::Without);
        }
        if !path.exists() {
            return Err(TextError::NoModel(path.to_owned()));
        }
        let file = if path.is_dir() { vocabulary_of(path) } else { path.to_owned() };
        Self::from_json(&file, TemplateChoice::Without)
    }

    /// Reads a chat template that belongs to no vocabulary: it renders prompts, but texts have no tokens.
    pub fn template_alone(path: &Path) -> Result<Self, TextError> {
        let Some(bytes) = read_small_file(path, LARGEST_FILE)? else {
            return Err(TextError::NoTemplate(path.to_owned()));
        };
        let origin = path.display().to_string();
        let source = String::from_utf8(bytes).map_err(|_| TextError::NotUtf8(path.to_owned()))?;
        let template = ChatTemplate::new(default_template(&source), BTreeMap::new())
            .map_err(|source| TextError::Template { origin, source })?;
        Self::new(Tokenizer::without_tokens(), path, Some(template), Vec::new())
    }

    /// Reads a `tokenizer.json`, a `tekken.json` or a SentencePiece model, with the settings in its folder.
    fn from_json(file: &Path, choice: TemplateChoice<'_>) -> Result<Self, TextError> {
        let folder = file.parent().unwrap_or(file);
        let json = vocabulary_file(file)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let others = if is_tekken(&name) {
            Some(ranks::tekken(&json))
        } else if is_sentence_piece_model(&name) {
            Some(sentence_piece_model::sentence_piece_model(&json))
        } else {
            None
        };
        let tokenizer = match others {
            Some(read) => {
                let read = read.map_err(|source| TextError::Vocabulary { path: file.to_owned(), source });
                let (encoder, special, longest) = read?;
                Tokenizer::from_pieces(encoder, &special, longest)
            }
            None => Tokenizer::from_json(&json, SpecialTokens::default())
                .map_err(|source| TextError::Tokenizer { path: file.to_owned(), source })?,
        };
        let configs = Configs::read(folder)?;
        let tokenizer =
            configs.added_to(tokenizer).map_err(|source| TextError::Tokenizer { path: file.to_owned(), source })?;
        let tokenizer = match lower_cases(folder)? {
            true => tokenizer.lower_cased().map_err(|source| TextError::Tokenizer { path: file.to_owned(), source })?,
            false => tokenizer,
        };
        let mut special = configs.special_tokens(&tokenizer);
        special.bos = special.bos.or(tokenizer.special().bos);
        special.end.extend(&tokenizer.special().end);
        special.add_bos = special.add_bos.or(tokenizer.special().add_bos);
        let template = configs.chat_template(folder, choice)?;
        Self::new(tokenizer.with_special(special), file, template, Vec::new())
    }

    fn new(
        tokenizer: Tokenizer,
        path: &Path,
        template: Option<ChatTemplate>,
        warnings: Vec<String>,
    ) -> Result<Self, TextError> {
        let vocabulary =
            tokenizer.vocabulary().map_err(|source| TextError::Tokenizer { path: path.to_owned(), source })?;
        Ok(Self { thinking: ThinkingTags::of(&tokenizer), tokenizer, vocabulary, template, warnings })
    }

    /// The prompt for a conversation: by the model's template, or as a transcript where it has none.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Prompt, TemplateError> {
        if let Some(template) = &self.template {
            let prompt = template.render(conversation)?;
            return Ok(Prompt::Rendered(match &conversation.begun {
                Some(begun) => answer_begun(&prompt) + begun,
                None => prompt,
            }));
        }
        let mut transcript = String::new();
        for message in &conversation.messages {
            transcript.push_str(&format!("{}: {}\n", message.field("role"), message.field("content")));
        }
        transcript.push_str("assistant:");
        if let Some(begun) = &conversation.begun {
            transcript.push_str(&format!(" {begun}"));
        }
        Ok(Prompt::Transcript(transcript))
    }

    /// The tokens of a prompt.
    pub fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>, TokenizerError> {
        match prompt {
            Prompt::Rendered(text) => self.tokenizer.encode_rendered(text),
            Prompt::Transcript(text) => self.tokenizer.encode_prompt(text),
        }
    }

    /// Reads the text side of a GGUF file. Of a split model, any part will do.
    fn from_gguf(path: &Path, choice: TemplateChoice<'_>) -> Result<Self, TextError> {
        let model = GgufModel::open(path)?;
        let header = model.header()?;
        let vocabulary =
            GgufVocabulary::read(&header).map_err(|source| TextError::Vocabulary { path: path.to_owned(), source })?;
        let GgufVocabulary { encoder, special, templates, longest_spelling, warnings } = vocabulary;
        let roles = [
            ("bos_token", special.bos),
            ("eos_token", special.eos),
            ("unk_token", special.unknown),
            ("sep_token", special.separator),
            ("pad_token", special.padding),
            ("mask_token", special.mask),
        ];
        let variables =
            roles.into_iter().filter_map(|(name, id)| Some((name.to_owned(), encoder.spelling(id?)?))).collect();
        let (origin, sources) = match choice {
            TemplateChoice::Given(source) => ("the manifest".to_owned(), default_template(source)),
            TemplateChoice::Own => (path.display().to_string(), templates),
            TemplateChoice::Without => (String::new(), BTreeMap::new()),
        };
        let template = if sources.is_empty() {
            None
        } else {
            let template = ChatTemplate::new(sources, variables);
            Some(template.map_err(|source| TextError::Template { origin, source })?)
        };
        Self::new(Tokenizer::from_pieces(encoder, &special, longest_spelling), path, template, warnings)
    }
}

/// Whether the settings of `sentence-transformers` want texts in lower case.
fn lower_cases(folder: &Path) -> Result<bool, TextError> {
    for name in LAYER_SETTINGS {
        if let Some(settings) = read_json(&folder.join(name))? {
            return Ok(settings.get("do_lower_case").and_then(Value::as_bool) == Some(true));
        }
    }
    Ok(false)
}

/// The JSON files beside the vocabulary; each may be absent.
pub(super) struct Configs {
    tokenizer: Value,
    special: Value,
    added: Value,
    generation: Value,
    model: Value,
}

/// Classes of tokenizers that have their settings say whether texts get a space in front.
const WITH_PREFIX_SPACE: [&str; 8] =
    ["Bart", "Blenderbot", "CodeGen", "GPT2", "LED", "Longformer", "Roberta", "Whisper"];

impl Configs {
    pub(super) fn read(folder: &Path) -> Result<Self, TextError> {
        let json = |name: &str| read_json(&folder.join(name)).map(Option::unwrap_or_default);
        Ok(Self {
            tokenizer: json("tokenizer_config.json")?,
            special: json("special_tokens_map.json")?,
            added: json("added_tokens.json")?,
            generation: json("generation_config.json")?,
            model: json("config.json")?,
        })
    }

    /// A tokenizer with what these files add to a `tokenizer.json`.
    pub(super) fn added_to(&self, tokenizer: Tokenizer) -> Result<Tokenizer, TokenizerError> {
        let settings = TokenSettings { settings: &self.tokenizer, special: &self.special, added: &self.added };
        let tokenizer = tokenizer.with_added(|is_known| settings.tokens(is_known))?;
        let class = self.tokenizer.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        let class = class.trim_end_matches("Fast").trim_end_matches("Tokenizer");
        let prefix = self.tokenizer.get("add_prefix_space").and_then(Value::as_bool);
        Ok(match prefix.filter(|_| WITH_PREFIX_SPACE.contains(&class)) {
            Some(prefix) => tokenizer.with_prefix_space(prefix),
            None => tokenizer,
        })
    }

    /// The token that the settings give a role such as `eos_token`.
    pub(super) fn spelled(&self, name: &str, tokenizer: &Tokenizer) -> Option<u32> {
        tokenizer.id(self.spelling(name)?)
    }

    /// The spelling of a special token such as `bos_token`: a text, or an object with `content`.
    fn spelling(&self, name: &str) -> Option<&str> {
        [&self.tokenizer, &self.special].into_iter().find_map(|file| {
            let token = file.get(name)?;
            token.as_str().or_else(|| token.get("content")?.as_str())
        })
    }

    pub(super) fn special_tokens(&self, tokenizer: &Tokenizer) -> SpecialTokens {
        // Chat models end a turn with another token than the one that ends a document. Files do not agree which of
        // the two `eos` means. So each token that any of them names ends the answer.
        let mut end: BTreeSet<u32> = BTreeSet::new();
        for file in [Some(&self.generation), Some(&self.model), self.model.get("text_config")].into_iter().flatten() {
            match file.get("eos_token_id") {
                Some(Value::Array(ids)) => end.extend(ids.iter().filter_map(token_id)),
                Some(id) => end.extend(token_id(id)),
                None => {}
            }
        }
        end.extend(self.spelling("eos_token").and_then(|spelling| tokenizer.id(spelling)));
        let named = self.spelling("bos_token").and_then(|spelling| tokenizer.id(spelling));
        let bos =
            named.or_else(|| [&self.generation, &self.model].iter().find_map(|f| token_id(f.get("bos_token_id")?)));
        SpecialTokens { bos, end, add_bos: self.tokenizer.get("add_bos_token").and_then(Value::as_bool) }
    }

    /// The template in force: the caller's, else the file beside the vocabulary, else the one inside its settings.
    fn chat_template(&self, folder: &Path, choice: TemplateChoice<'_>) -> Result<Option<ChatTemplate>, TextError> {
        let (origin, sources) = match choice {
            TemplateChoice::Given(source) => ("the manifest".to_owned(), default_template(source)),
            TemplateChoice::Own => self.templates_and_origin(folder)?,
            TemplateChoice::Without => return Ok(None),
        };
        if sources.is_empty() {
            return Ok(None);
        }
        let variables = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), self.spelling(name)?.to_owned())))
            .collect();
        ChatTemplate::new(sources, variables).map(Some).map_err(|source| TextError::Template { origin, source })
    }

    /// The model's own templates, by name; the usual one is `default`.
    pub(super) fn chat_templates(&self, folder: &Path) -> Result<BTreeMap<String, String>, TextError> {
        Ok(self.templates_and_origin(folder)?.1)
    }

    fn templates_and_origin(&self, folder: &Path) -> Result<(String, BTreeMap<String, String>), TextError> {
        if let Some(sources) = template_files(folder)? {
            return Ok((folder.join("chat_template.jinja").display().to_string(), sources));
        }
        let path = folder.join("tokenizer_config.json");
        let processor = read_json(&folder.join("chat_template.json"))?.unwrap_or_default();
        let found = [&self.tokenizer, &processor].into_iter().find_map(|file| file.get("chat_template"));
        Ok((path.display().to_string(), found.map(named_templates).unwrap_or_default()))
    }
}

/// The vocabulary's own file, which must be there.
pub(super) fn tokenizer_json(folder: &Path) -> Result<Vec<u8>, TextError> {
    vocabulary_file(&folder.join(TOKENIZER))
}

/// The file of a folder's vocabulary: Hugging Face's where there is one, else Mistral's own.
fn vocabulary_of(folder: &Path) -> PathBuf {
    let (usual, tekken) = (folder.join(TOKENIZER), folder.join(TEKKEN));
    if !usual.exists() && tekken.exists() { tekken } else { usual }
}

/// Whether a file is named as SentencePiece's are: `tokenizer.model`, `spiece.model`, `tokenizer.model.v3`.
fn is_sentence_piece_model(name: &str) -> bool {
    name.ends_with(".model") || name.contains(".model.v")
}

/// Whether a file is named as Mistral's tools expect it of a `tekken.json`.
fn is_tekken(name: &str) -> bool {
    name.contains("tekken") && name.ends_with(".json")
}

fn vocabulary_file(path: &Path) -> Result<Vec<u8>, TextError> {
    read_small_file(path, LARGEST_TOKENIZER)?.ok_or_else(|| TextError::Missing(path.to_owned()))
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn default_template(source: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("default".to_owned(), source.to_owned())])
}

/// `chat_template` in JSON: one text, or a list of `{name, template}`.
fn named_templates(value: &Value) -> BTreeMap<String, String> {
    let named =
        |entry: &Value| Some((entry.get("name")?.as_str()?.to_owned(), entry.get("template")?.as_str()?.to_owned()));
    match value {
        Value::String(source) => default_template(source),
        Value::Array(entries) => entries.iter().filter_map(named).collect(),
        _ => BTreeMap::new(),
    }
}

/// `chat_template.jinja`, with `additional_chat_templates/NAME.jinja` beside it.
fn template_files(folder: &Path) -> Result<Option<BTreeMap<String, String>>, TextError> {
    let text = |path: &Path| {
        let bytes = read_small_file(path, LARGEST_FILE)?;
        Ok::<_, TextError>(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    let Some(source) = text(&folder.join("chat_template.jinja"))? else { return Ok(None) };
    let mut sources = default_template(&source);
    if let Some(source) = text(&folder.join("additional_chat_templates").join("tool_use.jinja"))? {
        sources.insert("tool_use".to_owned(), source);
    }
    Ok(Some(sources))
}

fn read_json(path: &Path) -> Result<Option<Value>, TextError> {
    let Some(bytes) = read_small_file(path, LARGEST_FILE)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| TextError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::text::{Detokenizer, fixture};
    use model_boss_weights::gguf::HeaderWriter;
    use serde_json::json;

    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), fixture::byte_level_json()).unwrap();
        for (name, value) in files {
            fs::write(folder.path().join(name), value.to_string()).unwrap();
        }
        folder
    }

    fn render(text: &Text, tools: Option<&str>) -> String {
        let messages = serde_json::from_str(r#"[{"role":"user","content":"hi"}]"#).unwrap();
        let tools = tools.map(|tools| serde_json::from_str(tools).unwrap());
        let conversation = Conversation { messages, tools, ..Conversation::default() };
        text.template.as_ref().unwrap().render(&conversation).unwrap()
    }

    #[test]
    fn old_settings_of_layers_want_texts_in_lower_case() {
        let tokens = |files: &[(&str, Value)], text: &str| {
            let folder = folder(files);
            Text::load(folder.path(), None).unwrap().tokenizer.encode_rendered(text).unwrap()
        };
        let lower = tokens(&[("sentence_bert_config.json", json!({"do_lower_case": true}))], "<s>AbÄ");
        assert_eq!(lower, tokens(&[], "<s>abä"), "special tokens are found before");
        let usual = tokens(&[("sentence_bert_config.json", json!({"do_lower_case": false}))], "AB");
        assert_eq!(usual, tokens(&[], "AB"));
    }

    #[test]
    fn fa_3_tokens_of_the_settings_are_found_in_texts() {
        let decoder = json!({"300": {"content": "<|tool|>", "special": true}});
        let settings = json!({"added_tokens_decoder": decoder, "mask_token": {"content": "<mask>", "lstrip": true}});
        let text = Text::load(folder(&[("tokenizer_config.json", settings)]).path(), None).unwrap();
        let plain = Text::load(folder(&[]).path(), None).unwrap().tokenizer;
        let [tool, mask] = ["<|tool|>", "<mask>"].map(|token| text.tokenizer.id(token).unwrap());
        assert_eq!((tool as usize, mask as usize), (plain.vocab_size(), plain.vocab_size() + 1));
        assert_eq!(text.tokenizer.encode_rendered("a <mask><|tool|>").unwrap(), [97, mask, tool]);
        assert_eq!(text.vocabulary.bytes(tool), b"<|tool|>");
        assert!(text.tokenizer.is_special(tool) && plain.encode_rendered("<|tool|>").unwrap().len() > 1);
    }

    #[test]
    fn fa_3_the_class_of_a_tokenizer_has_settings_say_whether_texts_get_a_space() {
        let begins = |class: &str| {
            let settings = json!({"tokenizer_class": class, "add_prefix_space": true});
            let text = Text::load(folder(&[("tokenizer_config.json", settings)]).path(), None).unwrap();
            text.tokenizer.encode_rendered("ab").unwrap().len()
        };
        assert_eq!((begins("GPT2TokenizerFast"), begins("PreTrainedTokenizerFast")), (3, 2));
    }

    #[test]
    fn every_file_may_name_the_end() {
        let folder = folder(&[
            ("generation_config.json", json!({"eos_token_id": [257, 7]})),
            ("config.json", json!({"eos_token_id": 8, "bos_token_id": 1})),
            (
                "tokenizer_config.json",
                json!({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<s>", "add_bos_token": true}),
            ),
        ]);
        let text = Text::load(folder.path(), None).unwrap();
        let special = SpecialTokens { bos: Some(256), end: [7, 8, 257, 259].into(), add_bos: Some(true) };
        assert_eq!(text.tokenizer.special(), &special);
        assert!(text.template.is_none());
        let by_weight_file = Text::load(&folder.path().join("config.json"), None).unwrap();
        assert_eq!(by_weight_file.tokenizer.special(), &special);
    }

    #[test]
    fn rc_23_the_template_comes_from_manifest_then_file_then_settings() {
        let folder = folder(&[(
            "tokenizer_config.json",
            json!({
            "eos_token": "</s>",
            "chat_template": [{"name": "default", "template": "settings{{ eos_token }}"},
                              {"name": "tool_use", "template": "tools"}]}),
        )]);
        let load = |given| Text::load(folder.path(), given).unwrap();
        assert_eq!(render(&load(None), None), "settings</s>");
        assert_eq!(render(&load(None), Some("[{}]")), "tools");
        fs::write(folder.path().join("chat_template.jinja"), "file").unwrap();
        assert_eq!(render(&load(None), Some("[{}]")), "file");
        assert_eq!(render(&load(Some("manifest")), None), "manifest");
    }

    #[test]
    fn rc_23_a_gguf_file_says_it_all_itself() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = HeaderWriter::new();
        writer.set("tokenizer.ggml.model", "llama").unwrap();
        let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "h", "i", "\u{2581}h", "\u{2581}hi"];
        writer.set("tokenizer.ggml.tokens", &tokens[..]).unwrap();
        writer.set("tokenizer.ggml.token_type", &[2_i32, 3, 3, 1, 1, 1, 1, 1][..]).unwrap();
        writer.set("tokenizer.ggml.scores", &[0_f32, 0., 0., -4., -3., -3., -2., -1.][..]).unwrap();
        writer.set("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}").unwrap();
        let file = folder.path().join("m.gguf");
        writer.begin(fs::File::create(&file).unwrap()).unwrap().finish().unwrap();
        for source in [&file, &folder.path().to_owned()] {
            let text = Text::load(source, None).unwrap();
            let special = SpecialTokens { bos: Some(1), end: [2].into(), add_bos: Some(true) };
            assert_eq!(text.tokenizer.special(), &special);
            assert_eq!(text.tokenizer.encode_prompt("hi").unwrap(), [1, 7]);
            assert_eq!(render(&text, None), "<s>hi");
            let pieces = |prompt: &[u32], answer: &[u32]| -> Vec<String> {
                let mut stream = Detokenizer::new(Arc::new(text.vocabulary.clone()), prompt);
                answer.iter().map(|token| stream.push(*token)).collect()
            };
            assert_eq!(pieces(&[], &[1, 7, 3, 4]), ["", "hi", " ", "h"], "the space in front is not part of a text");
            assert_eq!(pieces(&[1], &[7, 7]), [" hi", " hi"], "an answer's first space is, as in llama.cpp");
        }
        assert_eq!(render(&Text::load(&file, Some("manifest")).unwrap(), None), "manifest");
        fs::copy(&file, folder.path().join("n.gguf")).unwrap();
        let words = Text::load(folder.path(), None).unwrap_err().to_string();
        assert!(words.contains("m.gguf, n.gguf"), "{words}");
    }

    #[test]
    fn a_model_without_a_template_gets_a_transcript() {
        let text = Text::load(folder(&[]).path(), None).unwrap();
        let messages = serde_json::from_str(r#"[{"role":"user","content":"hi"}]"#).unwrap();
        let prompt = text.prompt(&Conversation { messages, ..Conversation::default() }).unwrap();
        assert_eq!(prompt, Prompt::Transcript("user: hi\nassistant:".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let error = Text::load(&empty.path().join("gone"), None).unwrap_err();
        assert!(error.to_string().contains("there is no model at"), "{error}");
        let error = Text::load(empty.path(), None).unwrap_err();
        assert!(error.to_string().contains("tokenizer.json is missing"), "{error}");
        let broken = folder(&[]);
        fs::write(broken.path().join("config.json"), "{").unwrap();
        let error = Text::load(broken.path(), None).unwrap_err();
        assert!(error.to_string().contains("config.json is not JSON"), "{error}");
        let error = Text::load(folder(&[]).path(), Some("{% if %}")).unwrap_err();
        assert!(error.to_string().contains("the chat template of the manifest"), "{error}");
        fs::write(broken.path().join("tokenizer.json"), "[]").unwrap();
        assert!(matches!(Text::load(broken.path(), None), Err(TextError::Tokenizer { .. })));
    }
}
