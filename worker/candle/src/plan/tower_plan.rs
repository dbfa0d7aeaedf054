//! The tower of a model that sees, before its weights are read.

use model_boss_images::SightFacts;

use crate::decoder::tower::SeeingTower;
use crate::error::ModelError;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::part_names::Needed;

/// A tower that a model's files have.
pub(crate) trait TowerPlan {
    /// How the model gets images.
    fn facts(&self) -> SightFacts;

    /// All tensors, by the names that they have in the files.
    fn needed(&self) -> Vec<Needed>;

    /// Reads them.
    fn read(&self, reader: &mut WeightReader<'_>, target: &WeightTarget) -> Result<Box<dyn SeeingTower>, ModelError>;
}
