//! Models whose tower takes tiles of one size: LLaVA 1.5 (Liu et al., 2023, arXiv 2310.03744), Gemma 3 (2025, arXiv
//! 2503.19786), Idefics3 (Laurençon et al., 2024, arXiv 2408.12637) and SmolVLM. Their towers are CLIP's or SigLIP's.

mod described;
mod model;
mod positions;
mod tower;

use model_boss_images::SightFacts;

use super::config::{SightConfig, prefix};
use super::projectors::ProjectorSize;
use crate::decoder::tower::SeeingTower;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::matrix::target::WeightTarget;
use crate::plan::tower_plan::TowerPlan;
use crate::read::reader::WeightReader;
use crate::spec::part_names::Needed;
use crate::vision::tower_spec::ImageTowerSpec;
use model::{TilesModel, TowerRows};
use tower::TilesTower;

/// A tower of this kind that was found in a model's files.
struct TilesPlan {
    model: TilesModel,
    size: ProjectorSize,
    tower: String,
    projector: String,
}

/// The tower of a model whose decoder has this width; none where the files have none.
pub(super) fn plan(
    config: &SightConfig,
    files: &ModelFiles,
    width: usize,
) -> Result<Option<Box<dyn TowerPlan>>, ModelError> {
    const TOWERS: [&str; 6] = [
        "vision_tower.vision_model.",
        "model.vision_tower.vision_model.",
        "model.vision_tower.",
        "vision_tower.",
        "model.vision_model.",
        "vision_model.",
    ];
    let Some(tower) = prefix(files, &TOWERS, "embeddings.patch_embedding.weight") else { return Ok(None) };
    let model = TilesModel::read(config)?;
    let size = ProjectorSize { ins: model.width(), outs: width, grid: model.tower.grid };
    let first = model.projector.parts("", size).into_iter().next().map(|(name, _)| name).unwrap_or_default();
    let projectors = ["multi_modal_projector.", "model.multi_modal_projector.", "model.connector.", "connector."];
    let projector = prefix(files, &projectors, &first).unwrap_or_else(|| projectors[0].to_owned());
    Ok(Some(Box::new(TilesPlan { model, size, tower, projector })))
}

impl TowerPlan for TilesPlan {
    fn facts(&self) -> SightFacts {
        self.model.facts.clone()
    }

    fn needed(&self) -> Vec<Needed> {
        // The table of positions may be for another size of images.
        let stored = ImageTowerSpec { grid: self.model.table.unwrap_or(self.model.tower.grid), ..self.model.tower };
        let mut parts = stored.parts(&self.tower);
        if let TowerRows::Behind { .. } = self.model.rows {
            // The last norm is not used.
            parts.retain(|(name, _)| !name.contains("post_layernorm"));
        }
        parts.extend(self.model.projector.parts(&self.projector, self.size));
        parts.into_iter().map(|(name, shape)| Needed { name, shape }).collect()
    }

    fn read(&self, reader: &mut WeightReader<'_>, target: &WeightTarget) -> Result<Box<dyn SeeingTower>, ModelError> {
        Ok(Box::new(TilesTower::read(reader, &self.model, [&self.tower, &self.projector], target)?))
    }
}
