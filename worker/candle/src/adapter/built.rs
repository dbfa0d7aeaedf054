//! From an adapter's modules to parts of the decoder: checked against the model's shapes, cut where the decoder has
//! several matrices in a module's place, and put in the order of the model's own rows.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use model_boss_engine::AdapterError;

use super::dora;
use super::modules::{ModulePart, ModuleTable, inner};
use super::parts::{LowRank, PartTensors};
use super::stored::{HostMatrix, StoredAdapter, StoredLowRank, StoredModule};
use crate::files::ModelFiles;
use crate::spec::DecoderSpec;
use crate::spec::part_names::{EMBEDDING, HEAD};

/// Architectures of GGUF whose files have the rows of queries and keys in pairs, and not in halves as `transformers`.
const IN_PAIRS: [&str; 6] = ["llama", "mistral3", "granite", "granitemoe", "granitehybrid", "smollm3"];

/// A model, as adapters are made for it.
pub(crate) struct AdaptedModel<'a> {
    pub(crate) spec: &'a DecoderSpec,
    pub(crate) files: &'a ModelFiles,
    pub(crate) modules: &'a ModuleTable,
}

/// The order that rows of queries and keys are put into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadOrder {
    AsStored,
    ToPairs,
    ToHalves,
}

impl AdaptedModel<'_> {
    /// The parts of an adapter, by the decoder's paths.
    pub(crate) fn parts(&self, adapter: &StoredAdapter) -> Result<HashMap<String, PartTensors>, AdapterError> {
        let order = self.row_order(adapter);
        let mut parts = HashMap::new();
        for (module, stored) in &adapter.modules {
            let Some(found) = self.modules.get(module) else {
                if self.modules.is_unused(module) {
                    continue;
                }
                return Err(self.unknown(module));
            };
            for part in found {
                parts.insert(part.path.clone(), self.part(module, stored, (found, part), order)?);
            }
        }
        Ok(parts)
    }

    fn row_order(&self, adapter: &StoredAdapter) -> HeadOrder {
        let base = self.files.architecture();
        let in_pairs = |architecture: &Option<String>| {
            architecture.as_deref().is_some_and(|architecture| IN_PAIRS.contains(&architecture))
        };
        match (in_pairs(&base), in_pairs(&adapter.architecture)) {
            (true, false) => HeadOrder::ToPairs,
            (false, true) => HeadOrder::ToHalves,
            _ => HeadOrder::AsStored,
        }
    }

    fn unknown(&self, module: &str) -> AdapterError {
        let of_other = ["vision", "visual", "audio", "multi_modal", "connector"];
        if of_other.iter().any(|part| module.contains(part)) {
            let what = format!("a part for '{module}', which does not read text");
            let remedy = "train the adapter on the language model's modules alone, or merge it into the model";
            return AdapterError::Unsupported { what, remedy };
        }
        let layer = inner(module).split('.').nth(1).and_then(|number| number.parse::<usize>().ok());
        AdapterError::OtherBase(match layer {
            Some(layer) if layer >= self.modules.layers => {
                format!("it has a part for '{module}', and the model has {} layers", self.modules.layers)
            }
            _ => format!("it has a part for '{module}', which the model does not have"),
        })
    }

    fn part(
        &self,
        module: &str,
        stored: &StoredModule,
        (all, part): (&[ModulePart], &ModulePart),
        order: HeadOrder,
    ) -> Result<PartTensors, AdapterError> {
        let is_embedding = part.path == EMBEDDING.trim_end_matches(".weight");
        let outs = all.iter().map(|part| part.rows.end).max().unwrap_or(0);
        let ins = if part.is_turned { part.shape[0] } else { part.shape[1] };
        let fits = |shape: [usize; 2], expected: [usize; 2], what: &str| match shape == expected {
            true => Ok(()),
            false => Err(AdapterError::Tensor {
                name: format!("{module} ({what})"),
                what: format!("has the shape {shape:?}, the model makes it {expected:?}: it is for another base"),
            }),
        };
        match stored {
            StoredModule::Whole(weight) => {
                if !is_embedding && part.path != HEAD.trim_end_matches(".weight") {
                    let what = format!("'modules_to_save' with '{module}'");
                    let remedy = "embed_tokens and lm_head may be replaced; merge the adapter into the model otherwise";
                    return Err(AdapterError::Unsupported { what, remedy });
                }
                fits(weight.shape(), part.shape, "modules_to_save")?;
                Ok(PartTensors::Whole(tensor(weight)?))
            }
            StoredModule::Embedding(low) if is_embedding => {
                let [tokens, hidden] = part.shape;
                fits(low.down.shape(), [tokens, low.up.columns], "lora_embedding_A")?;
                fits(low.up.shape(), [hidden, low.down.columns], "lora_embedding_B")?;
                let magnitude = match &low.lengths {
                    None => None,
                    Some(lengths) => {
                        let columns = dora::column_lengths(self.files, self.embedding(), low)?;
                        Some(lengths.iter().zip(columns).map(|(length, column)| length / column).collect())
                    }
                };
                Ok(PartTensors::Rows(low_rank(low, magnitude)?))
            }
            StoredModule::Projection(low) if !is_embedding => {
                fits(low.down.shape(), [low.up.columns, ins], "lora_A")?;
                fits(low.up.shape(), [outs, low.down.rows], "lora_B")?;
                let own = self.cut(module, low, part, order)?;
                let magnitude = match &own.lengths {
                    None => None,
                    Some(lengths) => {
                        let rows = dora::row_lengths(self.files, &self.stored_name(part), &own)?;
                        Some(lengths.iter().zip(rows).map(|(length, row)| length / row).collect())
                    }
                };
                let own = StoredLowRank { scale: own.scale * self.factor(&part.path), ..own };
                Ok(PartTensors::LowRank(low_rank(&own, magnitude)?))
            }
            StoredModule::Embedding(_) | StoredModule::Projection(_) => {
                let kind = if is_embedding { "an embedding" } else { "a projection" };
                Err(AdapterError::OtherBase(format!(
                    "'{module}' is {kind} of this model, and not what the adapter has"
                )))
            }
        }
    }

    /// The rows of a module's product that are one part's, in the order of the part.
    fn cut(
        &self,
        module: &str,
        low: &StoredLowRank,
        part: &ModulePart,
        order: HeadOrder,
    ) -> Result<StoredLowRank, AdapterError> {
        let rows: Vec<usize> = match (order, part.heads) {
            (HeadOrder::AsStored, _) | (_, None) => part.rows.clone().collect(),
            (order, Some(heads)) => {
                let width = part.rows.len() / heads.max(1);
                let half = width / 2;
                let from = |row: usize| {
                    let (head, at) = (row / width.max(1), row % width.max(1));
                    let at = match order {
                        HeadOrder::ToPairs => at % 2 * half + at / 2,
                        HeadOrder::ToHalves | HeadOrder::AsStored => at % half.max(1) * 2 + at / half.max(1),
                    };
                    part.rows.start + head * width + at
                };
                (0..part.rows.len()).map(from).collect()
            }
        };
        let list = |list: &Vec<f32>| rows.iter().filter_map(|row| list.get(*row).copied()).collect::<Vec<f32>>();
        let up = low.up.picked(rows.iter().copied());
        let (lengths, bias) = (low.lengths.as_ref().map(list), low.bias.as_ref().map(list));
        if !part.is_turned {
            return Ok(StoredLowRank { down: low.down.clone(), up, scale: low.scale, lengths, bias });
        }
        if lengths.is_some() || bias.is_some() {
            let what = format!("DoRA or a bias for '{module}', which the decoder applies turned over");
            return Err(AdapterError::Unsupported { what, remedy: "merge the adapter into the model" });
        }
        Ok(StoredLowRank { down: up.turned(), up: low.down.turned(), scale: low.scale, lengths, bias })
    }

    /// The factor that the family has on a matrix.
    fn factor(&self, path: &str) -> f64 {
        let part = path.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')).map(|(_, part)| part);
        let factor = |part: &str| {
            let name = format!("{part}.weight");
            self.spec.matrix_factors.iter().find(|(of, _)| *of == name).map(|(_, factor)| *factor)
        };
        part.and_then(factor).unwrap_or(1.0)
    }

    /// The name of a part's tensor. A head that is the embedding has none of its own.
    fn stored_name(&self, part: &ModulePart) -> String {
        let name = format!("{}.weight", part.path);
        if name == HEAD && !self.files.has(HEAD) { EMBEDDING.to_owned() } else { name }
    }

    /// The name of the embedding's tensor: of a model that ties it to the head, files may have either.
    fn embedding(&self) -> &'static str {
        if self.files.has(EMBEDDING) { EMBEDDING } else { HEAD }
    }
}

fn low_rank(low: &StoredLowRank, magnitude: Option<Vec<f32>>) -> Result<LowRank, AdapterError> {
    let list = |list: Vec<f32>| {
        let count = list.len();
        Tensor::from_vec(list, count, &Device::Cpu).map_err(|error| AdapterError::NoRoom(error.to_string()))
    };
    Ok(LowRank {
        down: tensor(&low.down)?,
        up: tensor(&low.up)?,
        scale: low.scale,
        magnitude: magnitude.map(list).transpose()?,
        bias: low.bias.clone().map(list).transpose()?,
    })
}

fn tensor(matrix: &HostMatrix) -> Result<Tensor, AdapterError> {
    Tensor::from_vec(matrix.values.clone(), (matrix.rows, matrix.columns), &Device::Cpu)
        .map_err(|error| AdapterError::NoRoom(error.to_string()))
}
