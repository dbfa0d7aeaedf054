//! How codes are drawn, from `generation_config.json`.

use std::path::Path;

use model_boss_engine::sampling::SamplingParams;
use serde::Deserialize;

use crate::encoder::folder_file::file;
use crate::error::ModelError;
use crate::speech::drawing::rules;

/// Frames of a part without a limit in the file: ten seconds.
const USUAL_FRAMES: usize = 125;

/// The most frames of a part, whatever a file says.
const MOST_FRAMES: usize = 4096;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationFile {
    max_new_tokens: Option<usize>,
    do_sample: bool,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    depth_decoder_do_sample: bool,
    depth_decoder_temperature: Option<f32>,
    depth_decoder_top_k: Option<usize>,
    depth_decoder_top_p: Option<f32>,
}

/// The rules of drawing.
#[derive(Clone, Debug)]
pub(super) struct CsmGeneration {
    /// Frames of a part, at the most.
    pub(super) frames: usize,
    /// Of the first codebook.
    pub(super) first: SamplingParams,
    /// Of the others.
    pub(super) others: SamplingParams,
}

impl CsmGeneration {
    /// Reads the file in a folder; without it the most likely codes are taken.
    pub(super) fn read(folder: &Path) -> Result<Self, ModelError> {
        let found: GenerationFile = file(&folder.join("generation_config.json"))?.unwrap_or_default();
        let frames = found.max_new_tokens.filter(|frames| *frames > 0).unwrap_or(USUAL_FRAMES);
        Ok(Self {
            frames: frames.min(MOST_FRAMES),
            first: rules(found.do_sample, found.temperature, found.top_k, found.top_p),
            others: rules(
                found.depth_decoder_do_sample,
                found.depth_decoder_temperature,
                found.depth_decoder_top_k,
                found.depth_decoder_top_p,
            ),
        })
    }
}
