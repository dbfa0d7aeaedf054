//! Qwen2.5-VL (Bai et al., 2025, arXiv 2502.13923) and Qwen3-VL (2025): images in their own shape, positions of rows
//! and columns, and squares of patches that become one row of the decoder.

mod tower;
mod vision;
mod windows;

use model_boss_images::{GridLayout, ImageLayout, Resample, SightFacts};

use super::config::{SightConfig, prefix, unsupported};
use super::patches::PatchOrder;
use crate::decoder::tower::SeeingTower;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::matrix::target::WeightTarget;
use crate::plan::tower_plan::TowerPlan;
use crate::read::reader::WeightReader;
use crate::spec::part_names::Needed;
use tower::QwenTower;
use vision::QwenVision;

/// A tower that was found in a model's files.
struct QwenPlan {
    vision: QwenVision,
    facts: SightFacts,
}

/// The tower of a model whose decoder has this width; none where the files have none.
pub(super) fn plan(
    config: &SightConfig,
    files: &ModelFiles,
    width: usize,
) -> Result<Option<Box<dyn TowerPlan>>, ModelError> {
    let Some(prefix) = prefix(files, &["model.visual.", "visual."], "patch_embed.proj.weight") else {
        return Ok(None);
    };
    let vision = QwenVision::read(config, prefix)?;
    if vision.out != width {
        let what = format!("a tower whose rows have {} numbers, for a decoder of {width}", vision.out);
        return Err(unsupported(what));
    }
    let facts = facts(config, &vision)?;
    Ok(Some(Box::new(QwenPlan { vision, facts })))
}

fn facts(config: &SightConfig, vision: &QwenVision) -> Result<SightFacts, ModelError> {
    let PatchOrder { patch, merge } = vision.order;
    // Those of the processor are the model's too, or patches would not fit.
    for (field, own) in [("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", vision.frames)] {
        if let Some(other) = config.image_number(field)?.filter(|other| *other != own) {
            return Err(unsupported(format!("an image processor with '{field}' {other}, for a tower with {own}")));
        }
    }
    let side = patch * merge;
    let size = config.images.get("size").filter(|size| !size.is_null());
    let pixels = |field: &str, key: &str, default: usize| -> Result<usize, ModelError> {
        if let Some(pixels) = config.image_number(field)? {
            return Ok(pixels);
        }
        let Some(size) = size else { return Ok(default) };
        let edge = size.get(key).and_then(|edge| usize::try_from(edge.as_u64()?).ok());
        edge.ok_or_else(|| unsupported(format!("an image processor whose 'size' lacks '{key}', a bound of pixels")))
    };
    let layout = GridLayout {
        side,
        min_pixels: pixels("min_pixels", "shortest_edge", 56 * 56)?,
        max_pixels: pixels("max_pixels", "longest_edge", 28 * 28 * 1280)?,
        resizes: config.image_flag("do_resize", true)?,
        resample: config.resample(Resample::Bicubic)?,
    };
    let place = "<|image_pad|>".to_owned();
    Ok(SightFacts {
        both_ways: false,
        mark: place.clone(),
        token: config.image_token(151_655)?,
        place,
        layout: ImageLayout::Grid(layout),
    })
}

impl TowerPlan for QwenPlan {
    fn facts(&self) -> SightFacts {
        self.facts.clone()
    }

    fn needed(&self) -> Vec<Needed> {
        let named =
            |(name, shape): (String, Vec<usize>)| Needed { name: format!("{}{name}", self.vision.prefix), shape };
        self.vision.shapes().into_iter().map(named).collect()
    }

    fn read(&self, reader: &mut WeightReader<'_>, target: &WeightTarget) -> Result<Box<dyn SeeingTower>, ModelError> {
        Ok(Box::new(QwenTower::read(reader, &self.vision, target)?))
    }
}
