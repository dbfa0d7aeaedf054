//! A tower of tiles with its projector.

use candle_core::{DType, Result, Tensor};
use model_boss_engine::{DecoderError, ImageTiles, SeenRows};
use model_boss_images::{PixelPlanes, RgbImage};

use super::model::{TilesModel, TowerRows};
use super::positions::places;
use crate::decoder::tower::SeeingTower;
use crate::device;
use crate::error::ModelError;
use crate::layers::named_weights::NamedWeights;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::sight::projectors::Projector;
use crate::vision::image_tower::ImageTower;

/// A tower with its weights.
pub(super) struct TilesTower {
    model: TilesModel,
    tower: ImageTower,
    projector: Projector,
    on_cpu: bool,
}

/// A model's weights with the positions of another size of images.
struct Repositioned<'a, 'r> {
    parts: &'a mut WeightReader<'r>,
    /// As in [`TilesModel`].
    table: Option<usize>,
    /// Patches of a side of a tile.
    grid: usize,
}

impl NamedWeights for Repositioned<'_, '_> {
    fn matrix(&mut self, name: &str) -> std::result::Result<Matrix, ModelError> {
        self.parts.matrix(name)
    }

    fn tensor(&mut self, name: &str) -> std::result::Result<Tensor, ModelError> {
        let tensor = self.parts.tensor(name)?;
        let Some(table) = self.table.filter(|_| name.ends_with("position_embedding.weight")) else {
            return Ok(tensor);
        };
        let places = places(table, self.grid);
        // Each patch has the row of the table at its place.
        let row = |row: &usize| places.iter().map(|column| (row * table + column) as u32).collect::<Vec<u32>>();
        let rows: Vec<u32> = places.iter().flat_map(row).collect();
        let rows = Tensor::new(rows, tensor.device()).and_then(|rows| tensor.index_select(&rows, 0));
        rows.map_err(|error| ModelError::Device(device::failure(&error)))
    }
}

impl TilesTower {
    pub(super) fn read(
        reader: &mut WeightReader<'_>,
        model: &TilesModel,
        [tower, projector]: [&str; 2],
        target: &WeightTarget,
    ) -> std::result::Result<Self, ModelError> {
        let mut parts = Repositioned { parts: reader, table: model.table, grid: model.tower.grid };
        let read = ImageTower::read(&mut parts, &model.tower, target, tower)?;
        Ok(Self {
            tower: read,
            projector: model.projector.read(reader, projector)?,
            model: model.clone(),
            on_cpu: target.device.is_cpu(),
        })
    }

    fn see(&self, tile: &RgbImage) -> Result<Vec<f32>> {
        let planes = self.model.scale.planes(tile);
        let x = self.of_tower(&planes)?;
        self.projector.forward(&x, self.model.tower.grid)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    /// The rows of the tower that are projected.
    fn of_tower(&self, planes: &PixelPlanes) -> Result<Tensor> {
        let TowerRows::Behind { layers, first } = &self.model.rows else {
            return Ok(self.tower.last_rows(&[planes])?.rows);
        };
        let of_layer = |layers: &usize| {
            let rows = self.tower.rows(&[planes], *layers)?.rows;
            if *first { Ok(rows) } else { rows.narrow(0, 1, rows.dim(0)? - 1)?.contiguous() }
        };
        let all = layers.iter().map(of_layer).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&all, 1)
    }
}

impl SeeingTower for TilesTower {
    fn rows(
        &self,
        picture: &ImageTiles,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<SeenRows, DecoderError> {
        let mut embedded = Vec::new();
        for tile in &picture.tiles {
            if stop() {
                return Err(DecoderError::Interrupted);
            }
            let side = self.model.tower.side;
            if [tile.height, tile.width] != [side; 2] {
                return Err(DecoderError::Step(format!("a tile of {}x{} pixels", tile.width, tile.height)));
            }
            // On one of the threads that share the products.
            let rows = if self.on_cpu { rayon::scope(|_| self.see(tile)) } else { self.see(tile) };
            embedded.extend(rows.map_err(|error| device::failure(&error))?);
        }
        Ok(SeenRows { embedded, behind_layers: Vec::new() })
    }
}
