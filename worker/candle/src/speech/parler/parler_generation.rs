//! How codes are drawn, from `generation_config.json`.

use std::path::Path;

use model_boss_engine::sampling::SamplingParams;
use serde::Deserialize;

use super::parler_spec::ParlerDecoderSpec;
use crate::encoder::folder_file::file;
use crate::error::ModelError;
use crate::speech::config::malformed;
use crate::speech::drawing::rules;

/// Columns of a part without a limit in the file: thirty seconds, as long as recordings of the published models were.
const USUAL_LENGTH: usize = 2580;

/// The most columns of a part, whatever a file says.
const MOST_COLUMNS: usize = 8192;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ParlerRulesFile {
    max_length: Option<usize>,
    max_new_tokens: Option<usize>,
    min_length: Option<usize>,
    min_new_tokens: Option<usize>,
    do_sample: bool,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    guidance_scale: Option<f64>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
    pad_token_id: Option<u32>,
}

/// The rules of drawing.
#[derive(Clone, Debug)]
pub(super) struct ParlerGeneration {
    /// Columns of a part at the most, with the first one, which only begins it.
    pub(super) columns: usize,
    /// Columns before which no codebook ends.
    pub(super) least: usize,
    pub(super) rules: SamplingParams,
    /// The code before a codebook's first one.
    pub(super) begin: u32,
    /// The code behind its last one.
    pub(super) end: u32,
    /// The codes behind that.
    pub(super) pad: u32,
}

impl ParlerGeneration {
    /// Reads the file in a folder. Without it the most likely codes are taken.
    pub(super) fn read(folder: &Path, spec: &ParlerDecoderSpec) -> Result<Self, ModelError> {
        let found: ParlerRulesFile = file(&folder.join("generation_config.json"))?.unwrap_or_default();
        if found.guidance_scale.is_some_and(|scale| scale > 1.0) {
            return Err(malformed(
                "generation_config.json: guidance_scale above 1 is not known of these models".to_owned(),
            ));
        }
        let asked = found.max_new_tokens.map(|new| new.saturating_add(1)).or(found.max_length);
        let shortest = 2 * spec.num_codebooks - 1;
        let least = found.min_new_tokens.map(|new| new.saturating_add(1)).or(found.min_length).unwrap_or(0);
        let marks = [
            found.bos_token_id.unwrap_or(spec.bos_token_id),
            found.eos_token_id.unwrap_or(spec.eos_token_id),
            found.pad_token_id.unwrap_or(spec.pad_token_id),
        ];
        let [begin, end, pad] = marks;
        if marks.iter().any(|mark| *mark as usize > spec.codes) {
            return Err(malformed(format!("generation_config.json: its marks {marks:?} are not among the codes")));
        }
        Ok(Self {
            columns: asked.unwrap_or(USUAL_LENGTH).min(MOST_COLUMNS).max(shortest),
            least,
            rules: rules(found.do_sample, found.temperature, found.top_k, found.top_p),
            begin,
            end,
            pad,
        })
    }
}
