//! Adapters in GGUF, as llama.cpp's converter writes them: tensors with the names of the model's own, and `.lora_a` or
//! `.lora_b` behind them.

use std::collections::BTreeMap;

use model_boss_engine::AdapterError;
use model_boss_weights::gguf::{Header, TensorInfo};

use super::stored::{HostMatrix, StoredAdapter, StoredLowRank, StoredModule};

/// The module whose tensors have other shapes: rows are looked up in the first.
const EMBEDDING: &str = "token_embd";

fn malformed(what: String) -> AdapterError {
    AdapterError::Malformed { file: "the GGUF file", what }
}

/// Reads a file that is wholly in memory.
pub(crate) fn read(file: &[u8]) -> Result<StoredAdapter, AdapterError> {
    let header = Header::parse(file).map_err(|error| malformed(error.to_string()))?;
    let text = |key: &str| header.find::<&str>(key).map_err(|error| malformed(error.to_string()));
    let general = text("general.type")?;
    if general != Some("adapter") {
        return Err(malformed(format!(
            "general.type is '{}', not 'adapter': it is no adapter",
            general.unwrap_or("not there")
        )));
    }
    let kind = text("adapter.type")?.unwrap_or("lora");
    if kind != "lora" {
        let what = format!("adapter.type '{kind}'");
        return Err(AdapterError::Unsupported { what, remedy: "convert a LoRA" });
    }
    if header.get("adapter.alora.invocation_tokens").is_some() {
        let what = "adapter.alora.invocation_tokens".to_owned();
        return Err(AdapterError::Unsupported { what, remedy: "convert a LoRA that is always active" });
    }
    let alpha = header.find::<f32>("adapter.lora.alpha").map_err(|error| malformed(error.to_string()))?.unwrap_or(0.0);
    let architecture = text("general.architecture")?.map(str::to_owned);
    let mut pairs: BTreeMap<&str, [Option<&TensorInfo<'_>>; 2]> = BTreeMap::new();
    for tensor in header.tensors() {
        let found = [".weight.lora_a", ".weight.lora_b"]
            .iter()
            .enumerate()
            .find_map(|(at, ending)| Some((tensor.name.strip_suffix(ending)?, at)));
        let Some((module, at)) = found else {
            let what = format!("tensor '{}'", tensor.name);
            return Err(AdapterError::Unsupported { what, remedy: "convert an adapter without it" });
        };
        pairs.entry(module).or_default()[at] = Some(tensor);
    }
    let matrix = |tensor: &TensorInfo<'_>| {
        let shape: Vec<usize> =
            tensor.shape().iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
        let range = usize::try_from(tensor.offset).ok().zip(usize::try_from(tensor.bytes).ok());
        let bytes = range.and_then(|(start, len)| file.get(start..start.checked_add(len)?)).unwrap_or_default();
        HostMatrix::of(tensor.name, tensor.kind, &shape, bytes)
    };
    let mut modules = BTreeMap::new();
    for (module, pair) in pairs {
        let [Some(down), Some(up)] = pair else {
            let ending = if pair[0].is_none() { "lora_a" } else { "lora_b" };
            let what = "is missing, and the other of the module is there".to_owned();
            return Err(AdapterError::Tensor { name: format!("{module}.weight.{ending}"), what });
        };
        let (name, down, up) = (down.name, matrix(down)?, matrix(up)?);
        let rank = up.columns;
        let of_down = if module == EMBEDDING { down.columns } else { down.rows };
        if of_down != rank {
            let what =
                format!("has the shape {:?}, beside {:?}: they have no rank in common", down.shape(), up.shape());
            return Err(AdapterError::Tensor { name: name.to_owned(), what });
        }
        // Without a number the product is added as it is.
        let scale = if alpha == 0.0 { 1.0 } else { f64::from(alpha) / rank as f64 };
        let low = StoredLowRank { down, up, scale, lengths: None, bias: None };
        let stored = if module == EMBEDDING { StoredModule::Embedding(low) } else { StoredModule::Projection(low) };
        modules.insert(module.to_owned(), stored);
    }
    if modules.is_empty() {
        return Err(malformed("it has no tensors".to_owned()));
    }
    Ok(StoredAdapter { modules, architecture, warnings: Vec::new() })
}
