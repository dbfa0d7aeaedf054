//! The description of a model whose tower takes tiles.

use model_boss_images::{PixelScale, SightFacts};

use crate::sight::projectors::ProjectorSpec;
use crate::vision::tower_spec::ImageTowerSpec;

/// A model of this kind.
#[derive(Clone, Debug)]
pub(super) struct TilesModel {
    pub(super) tower: ImageTowerSpec,
    pub(super) projector: ProjectorSpec,
    /// The rows of the tower that are projected.
    pub(super) rows: TowerRows,
    /// Patches of a side of the tower's table of positions, where a tile's patches find theirs by their share of a
    /// side; none where each has its own row.
    pub(super) table: Option<usize>,
    pub(super) scale: PixelScale,
    pub(super) facts: SightFacts,
}

/// The rows of a tower that are projected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TowerRows {
    /// Those behind the last norm.
    Last,
    /// Those behind so many layers, side by side, without the first row or with it.
    Behind { layers: Vec<usize>, first: bool },
}

impl TilesModel {
    /// Width of the projector's input.
    pub(super) fn width(&self) -> usize {
        let hidden = self.tower.stack.hidden;
        match &self.rows {
            TowerRows::Last => hidden,
            TowerRows::Behind { layers, .. } => hidden * layers.len(),
        }
    }
}
