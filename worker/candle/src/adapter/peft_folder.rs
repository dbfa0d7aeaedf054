//! A folder of PEFT: tensors by the names of modules, with the scales that the configuration gives them.

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_engine::AdapterError;
use model_boss_weights::gguf::TensorType;
use model_boss_weights::{Dtype, TensorEntry, TensorIndex};

use super::peft_config::PeftConfig;
use super::stored::{HostMatrix, StoredAdapter, StoredLowRank, StoredModule, floats};

/// The file's name, for messages.
const FILE: &str = "adapter_model.safetensors";

/// The kinds of tensors that a module may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TensorKind {
    Down,
    Up,
    UpBias,
    EmbeddingDown,
    EmbeddingUp,
    Lengths,
}

/// The endings of names. Files of older versions have the adapter's own name in them.
const ENDINGS: [(&str, TensorKind); 11] = [
    (".lora_A.weight", TensorKind::Down),
    (".lora_A.default.weight", TensorKind::Down),
    (".lora_B.weight", TensorKind::Up),
    (".lora_B.default.weight", TensorKind::Up),
    (".lora_B.bias", TensorKind::UpBias),
    (".lora_embedding_A", TensorKind::EmbeddingDown),
    (".lora_embedding_A.default", TensorKind::EmbeddingDown),
    (".lora_embedding_B", TensorKind::EmbeddingUp),
    (".lora_embedding_B.default", TensorKind::EmbeddingUp),
    (".lora_magnitude_vector", TensorKind::Lengths),
    (".lora_magnitude_vector.weight", TensorKind::Lengths),
];

/// The beginning of every name.
const BEGINNING: &str = "base_model.model.";

/// Reads a folder's two files.
pub(crate) fn read(config: &[u8], weights: &[u8]) -> Result<(StoredAdapter, PeftConfig), AdapterError> {
    let config = PeftConfig::read(config)?;
    let index = TensorIndex::parse(Path::new(FILE), weights)
        .map_err(|error| AdapterError::Malformed { file: FILE, what: error.to_string() })?;
    let mut modules: BTreeMap<&str, BTreeMap<TensorKind, (&str, &TensorEntry)>> = BTreeMap::new();
    let mut adapter = StoredAdapter { modules: BTreeMap::new(), architecture: None, warnings: Vec::new() };
    for (name, entry) in index.iter() {
        let inner = name.strip_prefix(BEGINNING).unwrap_or(name);
        if let Some((module, kind)) =
            ENDINGS.iter().find_map(|(ending, kind)| Some((inner.strip_suffix(ending)?, *kind)))
        {
            modules.entry(module).or_default().insert(kind, (name, entry));
        } else if inner.ends_with(".base_layer.weight") {
            // PEFT saves an adapted embedding beside its adapter. It is the base's own.
            adapter.warnings.push(format!("tensor '{name}' is the base's own, and has no effect"));
        } else if let Some(module) = inner.strip_suffix(".weight").filter(|module| config.replaces(module)) {
            let matrix = matrix(weights, name, entry)?;
            adapter.modules.insert(module.to_owned(), StoredModule::Whole(matrix));
        } else {
            let what = format!("tensor '{name}'");
            let remedy = "merge the adapter into the model (merge_and_unload) and load that";
            return Err(AdapterError::Unsupported { what, remedy });
        }
    }
    for (module, tensors) in modules {
        if !config.rule.has(module) {
            let warning = format!("'{module}' is none of 'target_modules', and its tensors have no effect");
            adapter.warnings.push(warning);
            continue;
        }
        adapter.modules.insert(module.to_owned(), stored(&config, module, &tensors, weights)?);
    }
    if adapter.modules.is_empty() {
        let what = "it has no tensors of an adapter".to_owned();
        return Err(AdapterError::Malformed { file: FILE, what });
    }
    Ok((adapter, config))
}

impl PeftConfig {
    /// Whether the adapter has a weight of its own in place of a module's.
    fn replaces(&self, module: &str) -> bool {
        let last = module.rsplit('.').next().unwrap_or(module);
        self.replaced.iter().any(|name| name == last || name == module)
    }
}

fn stored(
    config: &PeftConfig,
    module: &str,
    tensors: &BTreeMap<TensorKind, (&str, &TensorEntry)>,
    weights: &[u8],
) -> Result<StoredModule, AdapterError> {
    use TensorKind::{Down, EmbeddingDown, EmbeddingUp, Lengths, Up, UpBias};

    let is_embedding = tensors.contains_key(&EmbeddingDown) || tensors.contains_key(&EmbeddingUp);
    let (of_down, of_up) = if is_embedding { (EmbeddingDown, EmbeddingUp) } else { (Down, Up) };
    let needed = |kind: TensorKind, ending: &str| {
        let found = tensors.get(&kind).copied();
        found.ok_or_else(|| AdapterError::Tensor {
            name: format!("{BEGINNING}{module}{ending}"),
            what: "is missing, and others of the module are there".to_owned(),
        })
    };
    let endings =
        if is_embedding { (".lora_embedding_A", ".lora_embedding_B") } else { (".lora_A.weight", ".lora_B.weight") };
    let (down, up) = (needed(of_down, endings.0)?, needed(of_up, endings.1)?);
    let (name, _) = down;
    let (down, up) = (matrix(weights, down.0, down.1)?, matrix(weights, up.0, up.1)?);
    let rank = config.rank(module);
    if down.rows != up.columns || down.rows as f64 != rank {
        let what = format!(
            "has the shape {:?}, beside {:?}; adapter_config.json makes the rank {rank}",
            down.shape(),
            up.shape()
        );
        return Err(AdapterError::Tensor { name: name.to_owned(), what });
    }
    let list = |kind: TensorKind| -> Result<Option<Vec<f32>>, AdapterError> {
        let Some((name, entry)) = tensors.get(&kind) else { return Ok(None) };
        let list = floats(name, kind_of(name, entry)?, entry.shape.iter().product(), bytes(weights, entry))?;
        if list.len() == up.rows {
            return Ok(Some(list));
        }
        let what = format!("has {} numbers, and the module has {} results", list.len(), up.rows);
        Err(AdapterError::Tensor { name: (*name).to_owned(), what })
    };
    let (lengths, bias) = (list(Lengths)?, list(UpBias)?);
    if config.is_dora != lengths.is_some() {
        let name = format!("{BEGINNING}{module}.lora_magnitude_vector");
        let what =
            if config.is_dora { "is missing, and 'use_dora' is true" } else { "is there, and 'use_dora' is not true" };
        return Err(AdapterError::Tensor { name, what: what.to_owned() });
    }
    let scale = config.scale(module);
    let low = StoredLowRank { down, up, scale, lengths, bias };
    Ok(match is_embedding {
        true => StoredModule::Embedding(StoredLowRank { down: low.down.turned(), ..low }),
        false => StoredModule::Projection(low),
    })
}

fn kind_of(name: &str, entry: &TensorEntry) -> Result<TensorType, AdapterError> {
    match entry.dtype {
        Dtype::F32 => Ok(TensorType::F32),
        Dtype::F16 => Ok(TensorType::F16),
        Dtype::BF16 => Ok(TensorType::BF16),
        other => {
            let what = format!("is stored as {other}; adapters are F32, F16 or BF16");
            Err(AdapterError::Tensor { name: name.to_owned(), what })
        }
    }
}

fn bytes<'a>(weights: &'a [u8], entry: &TensorEntry) -> &'a [u8] {
    let range = usize::try_from(entry.range.start).ok().zip(usize::try_from(entry.range.end).ok());
    range.and_then(|(start, end)| weights.get(start..end)).unwrap_or_default()
}

fn matrix(weights: &[u8], name: &str, entry: &TensorEntry) -> Result<HostMatrix, AdapterError> {
    HostMatrix::of(name, kind_of(name, entry)?, &entry.shape, bytes(weights, entry))
}
