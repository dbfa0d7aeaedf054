//! From rows of a tower to rows of the decoder.

use candle_core::{Result, Tensor};

use crate::device;
use crate::error::ModelError;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::RmsNorm;
use crate::matrix::Matrix;
use crate::spec::{Activation, NormKind, NormSpec};

/// A projector's description.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProjectorSpec {
    /// Two products (LLaVA 1.5: Liu et al., 2023, arXiv 2310.03744).
    Mlp { activation: Activation, bias: bool },
    /// The mean of squares of patches, a norm and a product (Gemma 3).
    Pooled {
        /// Patches of a square's side.
        square: usize,
        eps: f64,
    },
    /// Squares of patches side by side, and a product (Idefics3: Laurençon et al., 2024, arXiv 2408.12637).
    Shuffled {
        /// Patches of a square's side.
        square: usize,
    },
}

/// The sizes of a projector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProjectorSize {
    /// Width of the tower's rows.
    pub(crate) ins: usize,
    /// Width of the decoder's.
    pub(crate) outs: usize,
    /// Patches of a tile's side.
    pub(crate) grid: usize,
}

/// A projector with its weights.
pub(crate) enum Projector {
    Mlp { up: Linear, activation: Activation, down: Linear },
    Pooled { square: usize, norm: RmsNorm, product: Linear },
    Shuffled { square: usize, product: Linear },
}

impl ProjectorSpec {
    /// Every tensor with its shape. Names have this prefix.
    pub(crate) fn parts(&self, prefix: &str, size: ProjectorSize) -> Vec<(String, Vec<usize>)> {
        let named = |name: &str| format!("{prefix}{name}");
        let ProjectorSize { ins, outs, .. } = size;
        match self {
            Self::Mlp { bias, .. } => {
                let mut parts =
                    vec![(named("linear_1.weight"), vec![outs, ins]), (named("linear_2.weight"), vec![outs, outs])];
                if *bias {
                    parts.extend(["linear_1.bias", "linear_2.bias"].map(|name| (named(name), vec![outs])));
                }
                parts
            }
            Self::Pooled { .. } => vec![
                (named("mm_input_projection_weight"), vec![ins, outs]),
                (named("mm_soft_emb_norm.weight"), vec![ins]),
            ],
            Self::Shuffled { square } => {
                vec![(named("modality_projection.proj.weight"), vec![outs, ins * square * square])]
            }
        }
    }

    /// Reads the tensors.
    pub(crate) fn read(
        &self,
        parts: &mut dyn NamedWeights,
        prefix: &str,
    ) -> std::result::Result<Projector, ModelError> {
        let named = |name: &str| format!("{prefix}{name}");
        Ok(match self {
            Self::Mlp { activation, bias } => Projector::Mlp {
                up: Linear::read(parts, &named("linear_1"), Bias::from(*bias))?,
                activation: *activation,
                down: Linear::read(parts, &named("linear_2"), Bias::from(*bias))?,
            },
            Self::Pooled { square, eps } => {
                let norm = NormSpec { kind: NormKind::RmsFromOne, eps: *eps };
                let weight = parts.tensor(&named("mm_input_projection_weight"))?;
                let weight = weight.t().and_then(|turned| turned.contiguous());
                let weight = weight.map_err(|error| ModelError::Device(device::failure(&error)))?;
                Projector::Pooled {
                    square: *square,
                    norm: RmsNorm::read(parts, &named("mm_soft_emb_norm.weight"), norm)?,
                    product: Linear::new(Matrix::Tensor(weight), None),
                }
            }
            Self::Shuffled { square } => Projector::Shuffled {
                square: *square,
                product: Linear::read(parts, &named("modality_projection.proj"), Bias::Without)?,
            },
        })
    }

    /// Places of a tile with so many patches on each side, and rows of its tower.
    pub(crate) fn places(&self, grid: usize, rows: usize) -> usize {
        match self {
            Self::Mlp { .. } => rows,
            Self::Pooled { square, .. } | Self::Shuffled { square } => (grid / square) * (grid / square),
        }
    }
}

impl Projector {
    /// `[rows, ins]` of one tile → `[places, outs]`.
    pub(crate) fn forward(&self, x: &Tensor, grid: usize) -> Result<Tensor> {
        match self {
            Self::Mlp { up, activation, down } => down.forward(&activation.in_place(up.forward(x)?)?),
            Self::Pooled { square, norm, product } => {
                let squares = in_squares(x, grid, *square)?;
                let width = x.dim(1)?;
                let mean = squares.reshape(((), square * square, width))?.mean(1)?;
                product.forward(&norm.forward(&mean)?)
            }
            Self::Shuffled { square, product } => product.forward(&in_squares(x, grid, *square)?),
        }
    }
}

/// `[grid * grid, width]` → `[squares, square * square * width]`, each square's patches row by row. Patches that fill
/// no square are left out.
fn in_squares(x: &Tensor, grid: usize, square: usize) -> Result<Tensor> {
    let (width, count) = (x.dim(1)?, grid / square);
    let rows = (0..count * count).flat_map(|at| {
        let (top, left) = (at / count * square, at % count * square);
        (top..top + square).flat_map(move |y| (left..left + square).map(move |x| (y * grid + x) as u32))
    });
    let rows = Tensor::from_vec(rows.collect::<Vec<u32>>(), count * square * count * square, x.device())?;
    x.index_select(&rows, 0)?.reshape((count * count, square * square * width))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn em_4_squares_have_their_patches_row_by_row() {
        let x = Tensor::arange(0_f32, 16.0, &Device::Cpu).unwrap().reshape((16, 1)).unwrap();
        let squares = in_squares(&x, 4, 2).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(
            squares,
            [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0], [8.0, 9.0, 12.0, 13.0], [10.0, 11.0, 14.0, 15.0]]
        );
        let odd = Tensor::arange(0_f32, 9.0, &Device::Cpu).unwrap().reshape((9, 1)).unwrap();
        assert_eq!(in_squares(&odd, 3, 2).unwrap().to_vec2::<f32>().unwrap(), [[0.0, 1.0, 3.0, 4.0]]);
    }
}
