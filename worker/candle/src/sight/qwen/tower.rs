//! The towers of Qwen2.5-VL and Qwen3-VL: their layers over the patches of one image.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use model_boss_engine::{DecoderError, ImageTiles, SeenRows};
use model_boss_images::RgbImage;

use super::vision::{QwenKind, QwenVision};
use super::windows::Windows;
use crate::decoder::tower::SeeingTower;
use crate::device;
use crate::encoder::attend::{Sight, attend};
use crate::error::ModelError;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::layers::rope::Angles;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::{NormKind, NormSpec, RopePlanes};

/// The epsilon of all norms.
const EPS: f64 = 1e-6;

/// A tower with its weights.
pub(super) struct QwenTower {
    vision: QwenVision,
    device: Device,
    dtype: DType,
    patches: Linear,
    /// `[side * side, hidden]`.
    positions: Option<Tensor>,
    layers: Vec<QwenLayer>,
    merger: Merger,
    deep: Vec<Merger>,
}

struct QwenLayer {
    norms: [Norm; 2],
    qkv: Linear,
    out: Linear,
    mlp: QwenMlp,
}

enum QwenMlp {
    Gated { gate: Linear, up: Linear, down: Linear },
    Plain { up: Linear, down: Linear },
}

/// Makes one row of each square of patches.
struct Merger {
    norm: Norm,
    /// Whether the norm is over squares, not over patches.
    of_squares: bool,
    up: Linear,
    down: Linear,
}

impl QwenTower {
    pub(super) fn read(
        parts: &mut WeightReader<'_>,
        vision: &QwenVision,
        target: &WeightTarget,
    ) -> std::result::Result<Self, ModelError> {
        let prefix = &vision.prefix;
        let path = |part: &str| format!("{prefix}{part}");
        let failed = |error: candle_core::Error| ModelError::Device(device::failure(&error));
        // Each frame of a patch is the same image, so the sum of their weights is one product.
        let weight = parts.tensor(&path("patch_embed.proj.weight"))?;
        let numbers = 3 * vision.order.patch * vision.order.patch;
        let weight = weight.sum(2).and_then(|sum| sum.reshape((vision.hidden, numbers))).map_err(failed)?;
        let is_windows = matches!(vision.kind, QwenKind::Windows { .. });
        let bias = if is_windows { None } else { Some(parts.tensor(&path("patch_embed.proj.bias"))?) };
        let positions = if is_windows { None } else { Some(parts.tensor(&path("pos_embed.weight"))?) };
        let kind = if is_windows { NormKind::Rms } else { NormKind::LayerWithBias };
        let norm = NormSpec { kind, eps: EPS };
        let layers = (0..vision.layers).map(|layer| QwenLayer::read(parts, &path(&format!("blocks.{layer}")), norm));
        let layers = layers.collect::<std::result::Result<_, _>>()?;
        let (merger, deep) = match &vision.kind {
            QwenKind::Windows { .. } => {
                let names = ["ln_q", "mlp.0", "mlp.2"];
                (Merger::read(parts, &path("merger"), names, norm, false)?, Vec::new())
            }
            QwenKind::Positions { deep, .. } => {
                let names = ["norm", "linear_fc1", "linear_fc2"];
                let lists = (0..deep.len()).map(|index| {
                    Merger::read(parts, &path(&format!("deepstack_merger_list.{index}")), names, norm, true)
                });
                let deep = lists.collect::<std::result::Result<_, _>>()?;
                (Merger::read(parts, &path("merger"), names, norm, false)?, deep)
            }
        };
        Ok(Self {
            vision: vision.clone(),
            device: target.device.clone(),
            dtype: target.dtype,
            patches: Linear::new(Matrix::Tensor(weight), bias),
            positions,
            layers,
            merger,
            deep,
        })
    }

    /// `[patches, hidden]` of a tile.
    fn embedded(&self, tile: &RgbImage) -> Result<Tensor> {
        let numbers = self.vision.order.numbers(tile, &self.vision.scale);
        let width = 3 * self.vision.order.patch * self.vision.order.patch;
        let numbers = Tensor::from_vec(numbers, ((), width), &self.device)?;
        let x = self.patches.forward(&numbers.to_dtype(self.dtype)?)?;
        match (&self.positions, &self.vision.kind) {
            (Some(table), QwenKind::Positions { side, .. }) => x + self.interpolated(tile, table, *side)?,
            _ => Ok(x),
        }
    }

    /// The table of positions resampled to a tile's patches, with the corners of both on each other.
    fn interpolated(&self, tile: &RgbImage, table: &Tensor, side: usize) -> Result<Tensor> {
        let grid = self.vision.order.grid(tile);
        let places = self.vision.order.places(grid);
        let tap = |place: usize, count: usize| {
            let at = place as f32 * (side - 1) as f32 / (count - 1).max(1) as f32;
            let floor = at.floor();
            let first = floor as usize;
            [(first.min(side - 1), 1.0 - (at - floor)), ((first + 1).min(side - 1), at - floor)]
        };
        let mut sum: Option<Tensor> = None;
        for corner in 0..4 {
            let of = |[row, column]: &[usize; 2]| {
                let (row, column) = (tap(*row, grid[0])[corner / 2], tap(*column, grid[1])[corner % 2]);
                ((row.0 * side + column.0) as u32, row.1 * column.1)
            };
            let (indices, weights): (Vec<u32>, Vec<f32>) = places.iter().map(of).unzip();
            let rows = table.index_select(&Tensor::new(indices, &self.device)?, 0)?;
            let weights = Tensor::new(weights, &self.device)?.to_dtype(self.dtype)?.unsqueeze(1)?;
            let part = rows.broadcast_mul(&weights)?;
            sum = Some(match sum {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
        sum.ok_or_else(|| candle_core::Error::msg("a tile without patches"))
    }

    /// Angles of patches at these rows and columns: half of a head turns by each.
    fn angles(&self, places: &[[usize; 2]]) -> Result<Angles> {
        let quarter = self.vision.hidden / self.vision.heads / 4;
        let half = (2 * quarter) as f64;
        let frequencies: Vec<f32> =
            (0..quarter).map(|plane| (1.0 / self.vision.theta.powf((2 * plane) as f64 / half)) as f32).collect();
        let turns = |of: fn(f32) -> f32| {
            let numbers = places.iter().flat_map(|place| {
                place.iter().flat_map(|at| frequencies.iter().map(|frequency| of(*at as f32 * frequency)))
            });
            let shape = (places.len(), 2 * quarter);
            Tensor::from_vec(numbers.collect::<Vec<f32>>(), shape, &self.device)?.to_dtype(self.dtype)
        };
        Ok(Angles { planes: RopePlanes::Halves, cos: turns(f32::cos)?, sin: turns(f32::sin)? })
    }

    /// The rows of a tile, and those that are added behind layers of the decoder.
    fn see(&self, tile: &RgbImage, stop: &dyn Fn() -> bool) -> std::result::Result<SeenRows, DecoderError> {
        let fail = |error: candle_core::Error| device::failure(&error);
        let (vision, order) = (&self.vision, self.vision.order);
        let grid = order.grid(tile);
        let mut places = order.places(grid);
        let mut x = self.embedded(tile).map_err(fail)?;
        let all = 0..places.len();
        let windows = match &vision.kind {
            QwenKind::Windows { side, .. } => Some(Windows::of(grid.map(|count| count / order.merge), *side)),
            QwenKind::Positions { .. } => None,
        };
        let squares = order.merge * order.merge;
        if let Some(windows) = &windows {
            places = windows.order.iter().flat_map(|at| places[at * squares..(at + 1) * squares].to_vec()).collect();
            x = self.in_squares(&x, &windows.order).map_err(fail)?;
        }
        let angles = self.angles(&places).map_err(fail)?;
        let seen: Vec<Range<usize>> = windows.as_ref().map_or_else(Vec::new, |windows| {
            windows.ranges.iter().map(|range| range.start * squares..range.end * squares).collect()
        });
        let mut behind_layers = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            if stop() {
                return Err(DecoderError::Interrupted);
            }
            let ranges = match &vision.kind {
                QwenKind::Windows { full, .. } if !full.contains(&index) => &seen[..],
                _ => std::slice::from_ref(&all),
            };
            x = layer.forward(&x, vision, ranges, &angles).map_err(fail)?;
            if let QwenKind::Positions { deep, .. } = &vision.kind
                && let Some(at) = deep.iter().position(|layer| *layer == index)
                && let Some(merger) = self.deep.get(at)
            {
                // In the order of the tower's layers, whatever that of the list.
                behind_layers.push(merger.forward(&x, vision).and_then(|rows| numbers(&rows)).map_err(fail)?);
            }
        }
        let mut rows = self.merger.forward(&x, vision).map_err(fail)?;
        if let Some(windows) = &windows {
            let back = Tensor::new(windows.back(), &self.device).map_err(fail)?;
            rows = rows.index_select(&back, 0).map_err(fail)?;
        }
        Ok(SeenRows { embedded: numbers(&rows).map_err(fail)?, behind_layers })
    }

    /// Rows in another order of their squares.
    fn in_squares(&self, x: &Tensor, order: &[usize]) -> Result<Tensor> {
        let squares = self.vision.order.merge * self.vision.order.merge;
        let rows: Vec<u32> =
            order.iter().flat_map(|at| at * squares..(at + 1) * squares).map(|row| row as u32).collect();
        x.index_select(&Tensor::new(rows, &self.device)?, 0)
    }
}

/// All numbers of a tensor in the host's memory.
fn numbers(rows: &Tensor) -> Result<Vec<f32>> {
    rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

impl SeeingTower for QwenTower {
    fn rows(
        &self,
        picture: &ImageTiles,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<SeenRows, DecoderError> {
        let [tile] = picture.tiles.as_slice() else {
            return Err(DecoderError::Step("the tower takes one tile for an image".to_owned()));
        };
        let side = self.vision.order.patch * self.vision.order.merge;
        if !tile.height.is_multiple_of(side) || !tile.width.is_multiple_of(side) {
            return Err(DecoderError::Step(format!("a tile of {}x{} pixels", tile.width, tile.height)));
        }
        // On one of the threads that share the products.
        if self.device.is_cpu() { rayon::scope(|_| self.see(tile, &stop)) } else { self.see(tile, &stop) }
    }
}

impl QwenLayer {
    fn read(parts: &mut WeightReader<'_>, path: &str, norm: NormSpec) -> std::result::Result<Self, ModelError> {
        let norms = [1, 2].map(|number| Norm::read(parts, &format!("{path}.norm{number}"), norm));
        let [before, behind] = norms;
        let gated = norm.kind == NormKind::Rms;
        let mut linear = |part: &str| Linear::read(parts, &format!("{path}.{part}"), Bias::With);
        Ok(Self {
            norms: [before?, behind?],
            qkv: linear("attn.qkv")?,
            out: linear("attn.proj")?,
            mlp: if gated {
                let (gate, up) = (linear("mlp.gate_proj")?, linear("mlp.up_proj")?);
                QwenMlp::Gated { gate, up, down: linear("mlp.down_proj")? }
            } else {
                QwenMlp::Plain { up: linear("mlp.linear_fc1")?, down: linear("mlp.linear_fc2")? }
            },
        })
    }

    /// `[patches, hidden]` → `[patches, hidden]`.
    fn forward(&self, x: &Tensor, vision: &QwenVision, seen: &[Range<usize>], angles: &Angles) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.norms[0].forward(x)?)?;
        let (rows, hidden) = x.dims2()?;
        let part = |at: usize| qkv.narrow(1, at * hidden, hidden)?.contiguous();
        let turned = |x: Tensor| angles.rotate(&x, vision.heads, 0)?.contiguous()?.reshape((rows, hidden));
        let (query, key) = (turned(part(0)?)?, turned(part(1)?)?);
        let sight = Sight { heads: vision.heads, biases: None, slopes: None, farthest: None };
        let x = (x + self.out.forward(&attend([&query, &key, &part(2)?], seen, &sight)?)?)?;
        let input = self.norms[1].forward(&x)?;
        let fed = match &self.mlp {
            QwenMlp::Gated { gate, up, down } => {
                let [gate, up] = Linear::forward_all([gate, up], &input)?;
                down.forward(&vision.activation.gated(&gate, &up)?)?
            }
            QwenMlp::Plain { up, down } => down.forward(&vision.activation.in_place(up.forward(&input)?)?)?,
        };
        x + fed
    }
}

impl Merger {
    fn read(
        parts: &mut WeightReader<'_>,
        path: &str,
        [norm, up, down]: [&str; 3],
        spec: NormSpec,
        of_squares: bool,
    ) -> std::result::Result<Self, ModelError> {
        let norm = Norm::read(parts, &format!("{path}.{norm}"), spec)?;
        let mut linear = |part: &str| Linear::read(parts, &format!("{path}.{part}"), Bias::With);
        Ok(Self { norm, of_squares, up: linear(up)?, down: linear(down)? })
    }

    /// `[patches, hidden]` → `[squares, out]`.
    fn forward(&self, x: &Tensor, vision: &QwenVision) -> Result<Tensor> {
        let squares = |x: &Tensor| x.reshape(((), vision.merged()));
        let x = if self.of_squares { self.norm.forward(&squares(x)?)? } else { squares(&self.norm.forward(x)?)? };
        self.down.forward(&crate::spec::Activation::GeluErf.in_place(self.up.forward(&x)?)?)
    }
}
