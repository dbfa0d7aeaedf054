//! Facts that a model's files state about it: family, number of parameters, quantisation, context, chat template. The
//! facts are shown to operators and clients; no decision depends on them.

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_host::plain_file::{CONFIG, TEMPLATE, TOKENIZER_CONFIG, text_beside_weights};
use model_boss_protocol::{ByteCount, SEEING_TYPES};
use model_boss_weights::gguf::{Fact, Outline};
use model_boss_weights::{Dtype, HeaderBudget, outline_safetensors};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value as Json, json};

use super::files::ModelFile;
use super::headers::gguf_outline;
use super::json_beside::{Short, Template, number};

/// The longest text of a header that is kept, in bytes.
const MAX_TEXT: usize = 4_096;
/// The longest name that is kept, in bytes.
const MAX_NAME: usize = 256;
/// The most keys of a header that are shown: real ones have under a hundred.
const MAX_INFO: usize = 512;

/// The names of `general.file_type` in GGUF files: how most of the tensors are stored (llama.cpp, `llama_ftype`).
const FILE_TYPES: [(i64, &str); 31] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (38, "MXFP4"),
];

/// Facts about a model. Facts that the files do not state are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// `gguf` or `safetensors`; empty where there are no weights.
    pub format: &'static str,
    /// The architecture, such as `qwen3`.
    pub family: Option<String>,
    /// The number of values in the model's tensors.
    pub parameters: Option<u64>,
    /// The type of most tensors, such as `Q4_K_M` or `BF16`.
    pub quantization: Option<String>,
    /// The size of the weight files.
    pub bytes: ByteCount,
    /// The context in tokens that the model was trained for.
    pub context_length: Option<u64>,
    /// The chat template in the model's files.
    pub template: Option<String>,
    /// Whether it is a language model with a tower for images that the candle worker knows.
    pub sees: bool,
    /// Keys under GGUF's names, with their values; lists are `null`.
    pub info: Map<String, Json>,
}

impl About {
    /// Reads the facts from the headers of these files.
    pub(super) fn read(source: &Path, files: &[ModelFile]) -> Self {
        let weights: Vec<&ModelFile> = files.iter().filter(|file| file.is_weights()).collect();
        let bytes = ByteCount(weights.iter().map(|file| file.bytes()).fold(0, u64::saturating_add));
        let about = match weights.first() {
            None => return Self::default(),
            Some(first) if first.is_gguf() => Self::of_gguf(&weights),
            Some(_) => Self::of_safetensors(source, &weights),
        };
        let mut about = Self { bytes, ..about };
        if let Some(count) = about.parameters {
            about.info.insert("general.parameter_count".to_owned(), json!(count));
        }
        about
    }

    /// The number of parameters in short form, such as `751.63M` or `8B`.
    pub fn parameter_size(&self) -> String {
        let Some(count) = self.parameters else { return String::new() };
        let whole = |unit: u64| count.is_multiple_of(unit);
        match count {
            1_000_000_000.. if whole(1_000_000_000) => format!("{}B", count / 1_000_000_000),
            1_000_000_000.. => format!("{:.1}B", count as f64 / 1e9),
            1_000_000.. if whole(1_000_000) => format!("{}M", count / 1_000_000),
            1_000_000.. => format!("{:.2}M", count as f64 / 1e6),
            1_000.. => format!("{:.0}K", count as f64 / 1e3),
            _ => count.to_string(),
        }
    }

    /// Whether the model's template reads the variable `tools`.
    pub fn knows_tools(&self) -> bool {
        self.template.as_deref().is_some_and(|template| reads_variable(template, "tools"))
    }

    /// Whether the model's template mentions thinking.
    pub fn knows_thinking(&self) -> bool {
        let words = ["enable_thinking", "reasoning_content", "<think>", "thinking"];
        self.template.as_deref().is_some_and(|template| words.iter().any(|word| template.contains(word)))
    }

    /// Reads a model in GGUF parts. The first part describes the model; each part has its own tensors.
    fn of_gguf(parts: &[&ModelFile]) -> Self {
        let mut about = Self { format: "gguf", ..Self::default() };
        let (mut stored, mut budget) = (BTreeMap::new(), HeaderBudget::default());
        for (index, part) in parts.iter().enumerate() {
            let (mut parameters, mut of_part) = (0_u64, BTreeMap::new());
            let read = gguf_outline(part.path(), &mut budget, |tensor| {
                parameters = parameters.saturating_add(tensor.elements());
                add(&mut of_part, tensor.kind.name(), tensor.bytes);
            });
            let Ok(outline) = read else { return about };
            if index == 0 {
                about = Self::described(&outline);
            }
            about.parameters = Some(about.parameters.unwrap_or(0).saturating_add(parameters));
            of_part.into_iter().for_each(|(kind, bytes)| add(&mut stored, kind, bytes));
        }
        about.quantization = about.quantization.take().or_else(|| most(&stored));
        about
    }

    fn described(outline: &Outline) -> Self {
        let text = |key: &str| outline.text(key).map(str::to_owned);
        let family = text("general.architecture").filter(|family| family.len() <= MAX_NAME);
        let file_type = outline.number("general.file_type").and_then(|number| i64::try_from(number).ok());
        let named = FILE_TYPES.iter().find(|(id, _)| Some(*id) == file_type).map(|(_, name)| (*name).to_owned());
        let told = outline.facts().filter(|(key, _)| {
            // Template and name have fields of their own.
            !matches!(*key, "tokenizer.chat_template" | "general.name") && !key.starts_with("tokenizer.chat_template.")
        });
        Self {
            format: "gguf",
            context_length: family.as_ref().and_then(|family| outline.number(&format!("{family}.context_length"))),
            family,
            quantization: named,
            template: text("tokenizer.chat_template"),
            info: told.take(MAX_INFO).map(|(key, fact)| (key.to_owned(), as_json(fact))).collect(),
            ..Self::default()
        }
    }

    fn of_safetensors(source: &Path, files: &[&ModelFile]) -> Self {
        let mut about = Self { format: "safetensors", ..Self::default() };
        let (mut stored, mut budget) = (BTreeMap::new(), HeaderBudget::default());
        let mut has_tower = false;
        for file in files {
            let (mut parameters, mut of_file) = (0_u64, BTreeMap::new());
            let read = outline_safetensors(file.path(), &mut budget, |tensor| {
                parameters = parameters.saturating_add(tensor.shape.iter().copied().fold(1, u64::saturating_mul));
                add(&mut of_file, tensor.dtype.map_or("other", Dtype::as_str), tensor.bytes);
                has_tower |=
                    ["visual.", "vision_tower.", "vision_model."].iter().any(|part| tensor.name.contains(part));
            });
            if read.is_ok() {
                about.parameters = Some(about.parameters.unwrap_or(0).saturating_add(parameters));
                of_file.into_iter().for_each(|(kind, bytes)| add(&mut stored, kind, bytes));
            }
        }
        about.quantization = most(&stored);
        let folder = if source.is_dir() { Some(source) } else { source.parent() };
        if let Some(folder) = folder {
            about.configured(folder);
        }
        about.sees &= has_tower;
        about
    }

    /// Adds the facts from small files beside the weights, under GGUF's names.
    fn configured(&mut self, folder: &Path) {
        let text = text_beside_weights(&folder.join("config.json"), CONFIG).unwrap_or_default();
        let config: ModelConfig = serde_json::from_str(&text).unwrap_or_default();
        self.family = config.model_type.map(|Short(family)| family).filter(|family| !family.is_empty());
        self.sees = config.vision_config.is_some()
            && self.family.as_deref().is_some_and(|family| SEEING_TYPES.contains(&family));
        self.context_length = config.max_position_embeddings;
        if let Some(Quantization { quant_method: Some(Short(method)), bits }) = config.quantization_config {
            self.quantization = Some(bits.map_or_else(|| method.clone(), |bits| format!("{method} {bits} bit")));
        }
        let family = self.family.clone().unwrap_or_default();
        self.info.insert("general.architecture".to_owned(), json!(family));
        for (value, key) in [
            (config.max_position_embeddings, "context_length"),
            (config.hidden_size, "embedding_length"),
            (config.num_hidden_layers, "block_count"),
            (config.intermediate_size, "feed_forward_length"),
            (config.num_attention_heads, "attention.head_count"),
            (config.num_key_value_heads, "attention.head_count_kv"),
            (config.vocab_size, "vocab_size"),
        ] {
            if let Some(value) = value {
                self.info.insert(format!("{family}.{key}"), json!(value));
            }
        }
        let alone = text_beside_weights(&folder.join("chat_template.jinja"), TEMPLATE);
        self.template = alone.or_else(|| {
            let text = text_beside_weights(&folder.join("tokenizer_config.json"), TOKENIZER_CONFIG)?;
            let TokenizerConfig { chat_template: Template(template) } = serde_json::from_str(&text).ok()?;
            template.filter(|template| template.len() as u64 <= TEMPLATE)
        });
    }
}

/// The fields of `config.json` that are read. A value of another type counts as absent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelConfig {
    model_type: Option<Short>,
    #[serde(deserialize_with = "number")]
    max_position_embeddings: Option<u64>,
    #[serde(deserialize_with = "number")]
    hidden_size: Option<u64>,
    #[serde(deserialize_with = "number")]
    num_hidden_layers: Option<u64>,
    #[serde(deserialize_with = "number")]
    intermediate_size: Option<u64>,
    #[serde(deserialize_with = "number")]
    num_attention_heads: Option<u64>,
    #[serde(deserialize_with = "number")]
    num_key_value_heads: Option<u64>,
    #[serde(deserialize_with = "number")]
    vocab_size: Option<u64>,
    quantization_config: Option<Quantization>,
    vision_config: Option<IgnoredAny>,
}

/// The quantisation of a model, as `config.json` has it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Quantization {
    quant_method: Option<Short>,
    #[serde(deserialize_with = "number")]
    bits: Option<u64>,
}

#[derive(Deserialize)]
struct TokenizerConfig {
    chat_template: Template,
}

fn add(stored: &mut BTreeMap<&'static str, u64>, kind: &'static str, bytes: u64) {
    let of_kind = stored.entry(kind).or_default();
    *of_kind = of_kind.saturating_add(bytes);
}

/// The type that most bytes are stored as.
fn most(stored: &BTreeMap<&'static str, u64>) -> Option<String> {
    stored.iter().max_by_key(|(_, bytes)| **bytes).map(|(kind, _)| (*kind).to_owned())
}

fn as_json(fact: &Fact) -> Json {
    match fact {
        Fact::Bool(value) => json!(value),
        Fact::F32(value) => json!(value),
        Fact::F64(value) => json!(value),
        Fact::Large(value) => json!(value),
        Fact::Integer(value) => json!(value),
        Fact::Text(text) if text.len() <= MAX_TEXT => json!(text),
        Fact::Text(_) | Fact::PassedOver => Json::Null,
    }
}

/// Whether an expression or a statement of a Jinja template names this variable. Texts, comments and attributes do not
/// count.
fn reads_variable(template: &str, name: &str) -> bool {
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        let end = match rest.as_bytes().first() {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => {
                rest = rest.find("#}").map_or("", |end| &rest[end..]);
                continue;
            }
            _ => continue,
        };
        rest = &rest[1..];
        let (mut quote, mut before) = (None, ' ');
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let mut length = first.len_utf8();
            match quote {
                Some(_) if first == '\\' => length += rest[length..].chars().next().map_or(0, char::len_utf8),
                Some(open) if first == open => quote = None,
                Some(_) => {}
                None if rest.starts_with(end) => break,
                None if is_word(first) => {
                    length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                    if &rest[..length] == name && before != '.' {
                        return true;
                    }
                }
                None if first == '\'' || first == '"' => quote = Some(first),
                None => {}
            }
            before = if first.is_whitespace() { before } else { first };
            rest = &rest[length..];
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use model_boss_weights::gguf::{HeaderWriter, TensorType};

    use super::super::files::model_files;
    use super::*;

    #[test]
    fn a_gguf_file_tells_its_family_size_and_template() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let mut writer = HeaderWriter::new();
        writer.set("general.architecture", "qwen3").unwrap();
        writer.set("general.file_type", &15_u32).unwrap();
        writer.set("qwen3.context_length", &40_960_u32).unwrap();
        writer.set("qwen3.rope.freq_base", &1e6_f32).unwrap();
        writer.set("tokenizer.ggml.tokens", ["a", "b"].map(str::to_owned).as_slice()).unwrap();
        writer.set("tokenizer.chat_template", "{% if tools %}{% endif %}{% if enable_thinking %}{% endif %}").unwrap();
        writer.tensor("output.weight", TensorType::F32, &[4, 256]).unwrap();
        writer.tensor("blk.0.w", TensorType::Q4_K, &[32, 256]).unwrap();
        let mut body = writer.begin(std::fs::File::create(&path).unwrap()).unwrap();
        body.write(&[0; 4 * 256 * 4]).unwrap();
        body.write(&vec![0; usize::try_from(TensorType::Q4_K.bytes_of(32 * 256).unwrap()).unwrap()]).unwrap();
        body.finish().unwrap().flush().unwrap();

        let about = About::read(&path, &model_files(&path));
        assert_eq!(
            (about.format, about.family.as_deref(), about.context_length),
            ("gguf", Some("qwen3"), Some(40_960))
        );
        assert_eq!((about.quantization.as_deref(), about.parameters), (Some("Q4_K_M"), Some(36 * 256)));
        assert_eq!(about.parameter_size(), "9K");
        assert!(about.knows_tools() && about.knows_thinking());
        assert_eq!(about.bytes.0, std::fs::metadata(&path).unwrap().len());
        let told = |key: &str| about.info.get(key).cloned();
        assert_eq!(told("qwen3.rope.freq_base"), Some(json!(1e6_f32)));
        assert_eq!(told("tokenizer.ggml.tokens"), Some(Json::Null));
        assert_eq!(told("general.parameter_count"), Some(json!(9_216)));
        assert_eq!(told("tokenizer.chat_template"), None, "the chat template is in another field");
    }

    #[test]
    fn safetensors_are_described_by_the_files_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[1000,1500],"data_offsets":[0,3000000]},
            "b":{"dtype":"F32","shape":[2],"data_offsets":[3000000,3000008]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + 3_000_008, 0);
        std::fs::write(at("model.safetensors"), bytes).unwrap();
        let about = About::read(folder.path(), &model_files(folder.path()));
        assert_eq!(
            (about.family, about.parameters, about.quantization.as_deref()),
            (None, Some(1_500_002), Some("BF16"))
        );

        let config = r#"{"model_type":"llama","max_position_embeddings":2048,"hidden_size":64,
            "quantization_config":{"quant_method":"awq","bits":4}}"#;
        std::fs::write(at("config.json"), config).unwrap();
        std::fs::write(at("tokenizer_config.json"), r#"{"chat_template":[{"name":"default","template":"plain"}]}"#)
            .unwrap();
        let about = About::read(folder.path(), &model_files(folder.path()));
        assert_eq!((about.family.as_deref(), about.parameter_size().as_str()), (Some("llama"), "1.50M"));
        assert_eq!((about.quantization.as_deref(), about.template.as_deref()), (Some("awq 4 bit"), Some("plain")));
        assert_eq!(about.info["llama.context_length"], 2048);
        assert!(!about.knows_tools() && !about.knows_thinking());
        std::fs::write(at("chat_template.jinja"), "{{ tools }}").unwrap();
        assert!(About::read(folder.path(), &model_files(folder.path())).knows_tools());
    }

    #[test]
    fn a_template_knows_tools_if_it_reads_them() {
        for (template, knows) in [
            ("{% if tools %}x{% endif %}", true),
            ("{%- for tool in tools -%}{{ tool | tojson }}{%- endfor %}", true),
            ("{{ '}}' + (tools | tojson) }}", true),
            ("{{ \"a \\\" b\" }}{{tools}}", true),
            ("Use tools. {{ messages }}", false),
            ("{# tools #}{{ messages }}", false),
            ("{{ '[AVAILABLE_TOOLS] tools' }}", false),
            ("{{ message.tools }}{{ message['tools'] }}{{ builtin_tools }}{{ tools_text }}", false),
            ("{{ 'tools", false),
            ("{", false),
        ] {
            assert_eq!(reads_variable(template, "tools"), knows, "{template}");
        }
    }

    #[test]
    fn what_cannot_be_read_tells_nothing_and_harms_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let none = About::read(&folder.path().join("absent"), &[]);
        assert_eq!((none.format, none.parameter_size().as_str()), ("", ""));
        for name in ["m.gguf", "m.safetensors"] {
            let path = folder.path().join(name);
            std::fs::write(&path, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}").unwrap();
            let about = About::read(&path, &model_files(&path));
            assert_eq!((about.bytes, about.parameters, about.family), (ByteCount(10), None, None), "{name}");
        }
    }
}
