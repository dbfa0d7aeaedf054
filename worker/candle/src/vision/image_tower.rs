//! A tower that reads images: patches become rows, places are added, layers mix them. Models that write text about
//! images use the rows of any layer; models of two towers use the one vector of an image.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_images::PixelPlanes;

use super::pooling_head::PoolingHead;
use super::positions::resized;
use super::stack::{RowsInSight, TowerPart, TowerStack, norm_parts};
use super::tower_spec::{ImageTowerSpec, TowerKind};
use crate::device;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;

/// A tower with its weights.
pub(crate) struct ImageTower {
    spec: ImageTowerSpec,
    target: WeightTarget,
    patches: Linear,
    /// The row in front of the patches, `[1, hidden]`.
    before: Option<Tensor>,
    /// `[rows, hidden]`.
    positions: Tensor,
    /// The same on the host, where images have any proportions.
    host_positions: Vec<f32>,
    first_norm: Option<Norm>,
    stack: TowerStack,
    /// The norm behind the layers. Of CLIP it is for the row in front of the patches alone.
    last_norm: Norm,
    head: Option<PoolingHead>,
}

/// The rows of some images.
pub(crate) struct ImageRows {
    /// `[rows, hidden]`.
    pub(crate) rows: Tensor,
    /// The rows of each image.
    pub(crate) ranges: Vec<Range<usize>>,
}

impl ImageTowerSpec {
    /// Every tensor of the tower with its shape; names have this prefix, such as `vision_model.`.
    pub(crate) fn parts(&self, prefix: &str) -> Vec<TowerPart> {
        let (hidden, inputs) = (self.stack.hidden, 3 * self.patch * self.patch);
        let named = |name: &str| format!("{prefix}{name}");
        let weight = match self.kind {
            TowerKind::SiglipPatches => vec![hidden, inputs],
            TowerKind::Clip | TowerKind::Siglip => vec![hidden, 3, self.patch, self.patch],
        };
        let mut parts = vec![(named("embeddings.patch_embedding.weight"), weight)];
        if self.kind == TowerKind::Clip {
            parts.push((named("embeddings.class_embedding"), vec![hidden]));
            parts.extend(norm_parts(&named("pre_layrnorm"), hidden));
        } else {
            parts.push((named("embeddings.patch_embedding.bias"), vec![hidden]));
        }
        let positions = self.grid * self.grid + self.rows_before();
        parts.push((named("embeddings.position_embedding.weight"), vec![positions, hidden]));
        parts.extend(self.stack.parts(prefix));
        parts.extend(norm_parts(&named("post_layernorm"), hidden));
        if self.kind != TowerKind::Clip && self.head {
            parts.extend(PoolingHead::parts(&self.stack, &named("head")));
        }
        parts
    }
}

impl ImageTower {
    /// Reads the tensors with this prefix, such as `vision_model.`.
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &ImageTowerSpec,
        target: &WeightTarget,
        prefix: &str,
    ) -> Result<Self, ModelError> {
        let failed = |error: candle_core::Error| ModelError::Device(device::failure(&error));
        let (clip, norm) = (spec.kind == TowerKind::Clip, spec.stack.norm());
        let named = |name: &str| format!("{prefix}{name}");
        let weight = parts.tensor(&named("embeddings.patch_embedding.weight"))?;
        let weight = weight.reshape((spec.stack.hidden, 3 * spec.patch * spec.patch)).map_err(failed)?;
        let bias = if clip { None } else { Some(parts.tensor(&named("embeddings.patch_embedding.bias"))?) };
        let before = if clip {
            let row = parts.tensor(&named("embeddings.class_embedding"))?;
            Some(row.reshape((1, spec.stack.hidden)).map_err(failed)?)
        } else {
            None
        };
        let positions = parts.tensor(&named("embeddings.position_embedding.weight"))?;
        let host_positions = if spec.kind == TowerKind::SiglipPatches {
            let host = positions.to_dtype(candle_core::DType::F32).and_then(|host| host.flatten_all()?.to_vec1());
            host.map_err(failed)?
        } else {
            Vec::new()
        };
        let first_norm = if clip { Some(Norm::read(parts, &named("pre_layrnorm"), norm)?) } else { None };
        let head = if !clip && spec.head { Some(PoolingHead::read(parts, &spec.stack, &named("head"))?) } else { None };
        Ok(Self {
            spec: *spec,
            target: target.clone(),
            patches: Linear::new(Matrix::Tensor(weight), bias),
            before,
            positions,
            host_positions,
            first_norm,
            stack: TowerStack::read(parts, &spec.stack, prefix)?,
            last_norm: Norm::read(parts, &named("post_layernorm"), norm)?,
            head,
        })
    }

    /// The number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.stack.len()
    }

    /// The rows of some images behind so many layers, without the norm behind the last one. `transformers` counts the
    /// rows in front of the first layer as hidden state 0.
    pub(crate) fn rows(&self, images: &[&PixelPlanes], layers: usize) -> CandleResult<ImageRows> {
        let ImageRows { rows, ranges } = self.embedded(images)?;
        let rows = self.stack.forward(&rows, &ranges, RowsInSight::All, layers)?;
        Ok(ImageRows { rows, ranges })
    }

    /// The rows behind all layers and the norm, as `last_hidden_state` of SigLIP's towers.
    pub(crate) fn last_rows(&self, images: &[&PixelPlanes]) -> CandleResult<ImageRows> {
        let ImageRows { rows, ranges } = self.rows(images, self.layers())?;
        Ok(ImageRows { rows: self.last_norm.forward(&rows)?, ranges })
    }

    /// The one row of each image, `[images, hidden]`.
    pub(crate) fn pooled(&self, images: &[&PixelPlanes]) -> CandleResult<Tensor> {
        match &self.head {
            Some(head) => {
                let ImageRows { rows, ranges } = self.last_rows(images)?;
                head.forward(&rows, &ranges)
            }
            None => {
                let ImageRows { rows, ranges } = self.rows(images, self.layers())?;
                let first: Vec<u32> = ranges.iter().map(|range| range.start as u32).collect();
                let first = Tensor::from_vec(first, ranges.len(), &self.target.device)?;
                self.last_norm.forward(&rows.index_select(&first, 0)?)
            }
        }
    }

    /// The rows in front of the layers.
    fn embedded(&self, images: &[&PixelPlanes]) -> CandleResult<ImageRows> {
        let patch = self.spec.patch;
        let (mut values, mut ranges) = (Vec::new(), Vec::with_capacity(images.len()));
        let before = self.spec.rows_before();
        let mut end = 0;
        for image in images {
            match self.spec.kind {
                TowerKind::SiglipPatches => by_pixels(image, patch, &mut values),
                TowerKind::Clip | TowerKind::Siglip => by_colours(image, patch, &mut values),
            }
            let start = end;
            end += before + (image.height / patch) * (image.width / patch);
            ranges.push(start..end);
        }
        let inputs = 3 * patch * patch;
        let patches = Tensor::from_vec(values, (end - before * images.len(), inputs), &self.target.device)?;
        let patches = self.patches.forward(&patches.to_dtype(self.target.dtype)?)?;
        let mut all = Vec::with_capacity(images.len());
        let mut done = 0;
        for (image, range) in images.iter().zip(&ranges) {
            let count = range.len() - before;
            let rows = patches.narrow(0, done, count)?;
            done += count;
            let rows = match &self.before {
                Some(before) => Tensor::cat(&[before, &rows], 0)?,
                None => rows,
            };
            all.push((rows + self.positions_of(image)?)?);
        }
        let rows = Tensor::cat(&all, 0)?;
        let rows = self.first_norm.as_ref().map_or_else(|| Ok(rows.clone()), |norm| norm.forward(&rows))?;
        Ok(ImageRows { rows, ranges })
    }

    /// The places of an image's rows.
    fn positions_of(&self, image: &PixelPlanes) -> CandleResult<Tensor> {
        if self.spec.kind != TowerKind::SiglipPatches {
            return Ok(self.positions.clone());
        }
        let (rows, columns) = (image.height / self.spec.patch, image.width / self.spec.patch);
        let width = self.spec.stack.hidden;
        let values = resized(&self.host_positions, self.spec.grid, width, [rows, columns]);
        Tensor::from_vec(values, (rows * columns, width), &self.target.device)?.to_dtype(self.target.dtype)
    }
}

/// Each patch's pixels, one colour behind the other, as a convolution's weights have them.
fn by_colours(image: &PixelPlanes, patch: usize, out: &mut Vec<f32>) {
    let area = image.height * image.width;
    for_patches(image, patch, |top, left| {
        for plane in image.values.chunks_exact(area) {
            for y in top..top + patch {
                out.extend_from_slice(&plane[y * image.width + left..][..patch]);
            }
        }
    });
}

/// Each patch's pixels, the colours of each side by side.
fn by_pixels(image: &PixelPlanes, patch: usize, out: &mut Vec<f32>) {
    let area = image.height * image.width;
    for_patches(image, patch, |top, left| {
        for y in top..top + patch {
            for x in left..left + patch {
                out.extend((0..3).map(|colour| image.values[colour * area + y * image.width + x]));
            }
        }
    });
}

/// The top and the left of each whole patch.
fn for_patches(image: &PixelPlanes, patch: usize, mut each: impl FnMut(usize, usize)) {
    for row in 0..image.height / patch {
        for column in 0..image.width / patch {
            each(row * patch, column * patch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_3_patches_have_their_pixels_in_the_order_of_the_weights() {
        // 3 x 2 pixels; the third column is no whole patch.
        let image = PixelPlanes { width: 3, height: 2, values: (0..18).map(|at| at as f32).collect() };
        let mut values = Vec::new();
        by_colours(&image, 2, &mut values);
        assert_eq!(values, [0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16].map(|at| at as f32));
        values.clear();
        by_pixels(&image, 2, &mut values);
        assert_eq!(values, [0, 6, 12, 1, 7, 13, 3, 9, 15, 4, 10, 16].map(|at| at as f32));
    }
}
