//! Models that see: the part of their files that turns images into rows of the decoder, and how images become tiles and
//! text for it. Each family is a description read from `config.json` and the processor's files, and a tower.

mod config;
mod patches;
mod projectors;
mod qwen;
mod tiles;

use std::path::Path;

use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::plan::tower_plan::TowerPlan;
use crate::spec::DecoderSpec;
use config::SightConfig;

/// The tower of a model; none for a model that reads text only, or whose files have no tower.
pub(crate) fn plan(
    source: &Path,
    files: &ModelFiles,
    spec: &DecoderSpec,
) -> Result<Option<Box<dyn TowerPlan>>, ModelError> {
    if files.is_gguf() {
        return Ok(None);
    }
    let Some(config) = SightConfig::read(source)? else { return Ok(None) };
    match config.model_type.as_str() {
        "qwen2_5_vl" | "qwen3_vl" => qwen::plan(&config, files, spec.hidden),
        "gemma3" | "idefics3" | "smolvlm" | "llava" => tiles::plan(&config, files, spec.hidden),
        _ => Ok(None),
    }
}
