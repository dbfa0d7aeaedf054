//! A model's files as their headers describe them. No tensor data is read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_boss_protocol::ByteCount;
use model_boss_weights::gguf::{GgufModel, GgufModelError, KeyError, Strings};
use model_boss_weights::quantised::{DescriptionError, QuantisedFormat, add_description};
use model_boss_weights::{Dtype, SmallFileError, TensorIndex, WeightsError, gguf_file, model_folder, read_small_file};
use serde::Serialize;

/// `inspect`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// A GGUF file, or a folder with a model
    model: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The files cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Gguf(#[from] GgufModelError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Config(#[from] SmallFileError),
    #[error(transparent)]
    Description(#[from] DescriptionError),
    #[error("{path} is not JSON: {source}")]
    Json { path: PathBuf, source: serde_json::Error },
}

/// Header facts; `null` where the files do not say.
#[derive(Debug, Serialize)]
struct FileFacts {
    format: &'static str,
    files: Vec<PathBuf>,
    file_bytes: u64,
    architecture: Option<String>,
    name: Option<String>,
    parameters: u64,
    tensors: usize,
    types: BTreeMap<String, TypeFacts>,
    layers: Option<u64>,
    hidden: Option<u64>,
    context_length: Option<u64>,
    vocabulary: Option<u64>,
    chat_template: bool,
    /// The first tensor this worker cannot compute with.
    unsupported: Option<String>,
}

/// Tensors of one type.
#[derive(Debug, Default, Serialize)]
struct TypeFacts {
    tensors: u64,
    parameters: u64,
    bytes: u64,
}

/// Prints what was asked for.
pub(crate) fn run(inspect: &Inspect) -> Result<String, InspectError> {
    let facts = facts(&inspect.model)?;
    Ok(if inspect.json {
        // Numbers, texts and lists always have a spelling in JSON.
        serde_json::to_string_pretty(&facts).unwrap_or_default()
    } else {
        facts.table()
    })
}

fn facts(source: &Path) -> Result<FileFacts, InspectError> {
    match gguf_file(source)? {
        Some(file) => of_gguf(&GgufModel::read(&file)?),
        None => of_safetensors(source),
    }
}

fn of_gguf(model: &GgufModel) -> Result<FileFacts, InspectError> {
    let header = model.header()?;
    let architecture: Option<&str> = header.find("general.architecture")?;
    let number = |key: &str| header.find::<u64>(&format!("{}.{key}", architecture.unwrap_or_default()));
    let mut types: BTreeMap<String, TypeFacts> = BTreeMap::new();
    for (_, tensor) in model.tensors() {
        let parameters = tensor.shape.iter().map(|length| *length as u64).product();
        types.entry(tensor.kind.to_string()).or_default().add(parameters, tensor.bytes);
    }
    let unsupported = model.tensors().find(|(_, tensor)| !tensor.kind.is_supported());
    let tokens = header.find::<Strings<'_>>("tokenizer.ggml.tokens")?;
    Ok(FileFacts {
        format: "gguf",
        files: model.files().iter().map(|file| file.path().to_owned()).collect(),
        file_bytes: model.files().iter().map(|file| file.len()).sum(),
        architecture: architecture.map(str::to_owned),
        name: header.find::<&str>("general.name")?.map(str::to_owned),
        parameters: types.values().map(|facts| facts.parameters).sum(),
        tensors: model.tensors().count(),
        types,
        layers: number("block_count")?,
        hidden: number("embedding_length")?,
        context_length: number("context_length")?,
        vocabulary: tokens.map(|tokens| tokens.len() as u64),
        chat_template: header.get("tokenizer.chat_template").is_some(),
        unsupported: unsupported.map(|(name, tensor)| {
            format!("tensor `{name}` is {}, which this worker cannot compute; llama-server can run it", tensor.kind)
        }),
    })
}

fn of_safetensors(source: &Path) -> Result<FileFacts, InspectError> {
    let index = TensorIndex::open(source)?;
    let folder = model_folder(source);
    let mut config = json(&folder.join("config.json"))?.unwrap_or_default();
    add_description(&mut config, folder)?;
    let tokenizer = json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let number = |key: &str| config.get(key).and_then(serde_json::Value::as_u64);
    let mut types: BTreeMap<String, TypeFacts> = BTreeMap::new();
    for (_, tensor) in index.iter() {
        let parameters = tensor.shape.iter().map(|length| *length as u64).product();
        types.entry(tensor.dtype.to_string()).or_default().add(parameters, tensor.bytes());
    }
    let architecture = config.get("architectures").and_then(|names| names.get(0)).or(config.get("model_type"));
    Ok(FileFacts {
        format: "safetensors",
        files: index.files().iter().map(|file| file.path.clone()).collect(),
        file_bytes: index.files().iter().map(|file| file.len).sum(),
        architecture: architecture.and_then(|name| name.as_str()).map(str::to_owned),
        name: folder.file_name().map(|name| name.to_string_lossy().into_owned()),
        parameters: types.values().map(|facts| facts.parameters).sum(),
        tensors: index.len(),
        types,
        layers: number("num_hidden_layers"),
        hidden: number("hidden_size"),
        context_length: number("max_position_embeddings"),
        vocabulary: number("vocab_size"),
        chat_template: tokenizer.get("chat_template").is_some() || folder.join("chat_template.jinja").exists(),
        unsupported: match QuantisedFormat::read(&config) {
            Ok(Some(_)) => None,
            Ok(None) => index.iter().find(|(_, tensor)| !is_float(tensor.dtype)).map(|(name, tensor)| {
                let dtype = tensor.dtype;
                format!("tensor '{name}' is {dtype}; this worker reads F32, F16, BF16, and what config.json says is quantised")
            }),
            Err(refusal) => Some(refusal.to_string()),
        },
    })
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// A longer file of settings is none.
const LONGEST_JSON: u64 = 16 << 20;

/// A JSON file, if it is there.
fn json(path: &Path) -> Result<Option<serde_json::Value>, InspectError> {
    let Some(bytes) = read_small_file(path, LONGEST_JSON)? else { return Ok(None) };
    let json = serde_json::from_slice(&bytes);
    json.map(Some).map_err(|source| InspectError::Json { path: path.to_owned(), source })
}

impl TypeFacts {
    fn add(&mut self, parameters: u64, bytes: u64) {
        self.tensors += 1;
        self.parameters += parameters;
        self.bytes += bytes;
    }
}

impl FileFacts {
    fn table(&self) -> String {
        let said = |value: Option<u64>| value.map_or_else(|| "not said".to_owned(), |value| value.to_string());
        let mut rows = vec![
            ("format", self.format.to_owned()),
            ("architecture", self.architecture.clone().unwrap_or_else(|| "not said".to_owned())),
            ("name", self.name.clone().unwrap_or_else(|| "not said".to_owned())),
            ("parameters", short(self.parameters)),
            ("size", ByteCount(self.file_bytes).to_string()),
            ("layers", said(self.layers)),
            ("hidden", said(self.hidden)),
            ("context", said(self.context_length)),
            ("vocabulary", said(self.vocabulary)),
            ("chat template", if self.chat_template { "yes" } else { "no" }.to_owned()),
        ];
        if self.files.len() > 1 {
            rows.push(("parts", self.files.len().to_string()));
        }
        for (kind, facts) in &self.types {
            let of_type =
                format!("{kind}: {} in {} tensors, {}", short(facts.parameters), facts.tensors, ByteCount(facts.bytes));
            rows.push(("stored as", of_type));
        }
        rows.extend(self.unsupported.clone().map(|why| ("cannot run", why)));
        // Names and types are words of the file; on a terminal they must not do anything.
        let line = |(title, value): (&str, String)| format!("{title:<14}{}\n", value.escape_debug());
        rows.into_iter().map(line).collect::<String>().trim_end().to_owned()
    }
}

/// 596 M, 1.7 B.
fn short(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{:.1} k", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use model_boss_weights::gguf::{HeaderWriter, TensorType};

    use super::*;

    fn gguf(path: &Path, kind: TensorType) {
        let mut header = HeaderWriter::new();
        header.set("general.architecture", "qwen3").unwrap();
        header.set("qwen3.context_length", &4_096_u32).unwrap();
        header.set("tokenizer.ggml.tokens", &["a", "b"][..]).unwrap();
        header.set("tokenizer.chat_template", "x").unwrap();
        header.tensor("w", kind, &[2, 256]).unwrap();
        header.tensor("n", TensorType::F32, &[2]).unwrap();
        let mut body = header.begin(std::fs::File::create(path).unwrap()).unwrap();
        body.write(&vec![0; kind.bytes_of(512).unwrap() as usize]).unwrap();
        body.write(&[0; 8]).unwrap();
        body.finish().unwrap();
    }

    #[test]
    fn a_gguf_file_in_numbers() {
        let folder = tempfile::tempdir().unwrap();
        gguf(&folder.path().join("m.gguf"), TensorType::Q4_K);
        let facts = facts(folder.path()).unwrap();
        assert_eq!((facts.format, facts.architecture.as_deref()), ("gguf", Some("qwen3")));
        assert_eq!((facts.parameters, facts.tensors), (514, 2));
        assert_eq!((facts.context_length, facts.vocabulary, facts.layers), (Some(4_096), Some(2), None));
        assert!(facts.chat_template && facts.unsupported.is_none());
        assert_eq!((facts.types["Q4_K"].bytes, facts.types["F32"].tensors), (288, 1));
        assert!(facts.table().contains("Q4_K: 512 in 1 tensors"), "{}", facts.table());
    }

    #[test]
    fn a_split_model_is_counted_with_all_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number: u32| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        for (number, tensor) in [(0_u32, "a"), (1, "b")] {
            let mut header = HeaderWriter::new();
            header.set("split.no", &number).unwrap();
            header.set("split.count", &2_u32).unwrap();
            if number == 0 {
                header.set("general.architecture", "qwen3").unwrap();
            }
            header.tensor(tensor, TensorType::F32, &[8]).unwrap();
            let mut body = header.begin(std::fs::File::create(part(number + 1)).unwrap()).unwrap();
            body.write(&[0; 32]).unwrap();
            body.finish().unwrap();
        }
        for named in [part(1), part(2), folder.path().to_owned()] {
            let facts = facts(&named).unwrap();
            assert_eq!((facts.parameters, facts.tensors, facts.files.len()), (16, 2, 2));
            assert_eq!(facts.architecture.as_deref(), Some("qwen3"));
            assert!(facts.table().contains("parts         2"), "{}", facts.table());
        }
    }

    #[test]
    fn what_cannot_run_is_shown_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        gguf(&file, TensorType::IQ2_XS);
        assert!(facts(&file).unwrap().unsupported.unwrap().contains("IQ2_XS"));
        std::fs::write(&file, b"GGUF").unwrap();
        assert!(facts(&file).unwrap_err().to_string().contains("cut short"));
    }

    #[test]
    fn a_folder_of_safetensors_in_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let header = br#"{"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 12]].concat();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"architectures":["Qwen2ForCausalLM"],"vocab_size":7}"#)
            .unwrap();
        let facts = facts(folder.path()).unwrap();
        assert_eq!((facts.parameters, facts.types["F16"].bytes, facts.vocabulary), (6, 12, Some(7)));
        assert_eq!((facts.architecture.as_deref(), facts.chat_template), (Some("Qwen2ForCausalLM"), false));
        std::fs::write(folder.path().join("config.json"), "{").unwrap();
        assert!(super::facts(folder.path()).unwrap_err().to_string().contains("config.json is not JSON"));
    }
}
