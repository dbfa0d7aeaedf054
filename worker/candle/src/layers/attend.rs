//! Attention of projected queries, keys and values, on the CPU and on other devices: heads' norms, rotations, scores
//! and what they mix. Knows no weights but those of norms.

use std::ops::Deref;

use candle_core::{DType, Layout, Result, Storage, Tensor, bail};
use model_boss_kernels::{
    AttentionHeads, AttentionRows, HeadNorm, HostKv, KvValues, NormOrder, RopePlanes, Rotation, SequenceRows,
};

use crate::device::kernels;
use crate::device::rows::{self, AttendedHeads, NewRowAngles, NewRowNorms, NewRows, StepTables};
use crate::layers::kv::{DeviceKv, LayerKv};
use crate::layers::norm::RmsNorm;
use crate::layers::step::{RowSight, ScoreTile, SequenceSpan, StepContext};
use crate::matrix::tensor_products::contiguous;

/// The form of a layer's attention.
pub(crate) struct Attended {
    pub(crate) heads: AttentionHeads,
    /// The place of values.
    pub(crate) values: KvValues,
    /// The number of the rope; none where positions are not encoded.
    pub(crate) rope: Option<usize>,
    /// The first element of a head that is rotated.
    pub(crate) first: usize,
}

/// Norms over each head, `[head_dim]`.
#[derive(Clone)]
pub(crate) struct HeadNorms {
    pub(crate) query: RmsNorm,
    pub(crate) key: RmsNorm,
    pub(crate) order: NormOrder,
}

/// A step's rows as they come from the projections, and the weights beside them.
pub(crate) struct ProjectedRows<'a> {
    /// `[rows, heads * head_dim]`.
    pub(crate) query: Tensor,
    /// `[rows, kv_heads * head_dim]`.
    pub(crate) key: Tensor,
    /// `[rows, kv_heads * value_dim]`; none where values are in the keys.
    pub(crate) value: Option<Tensor>,
    pub(crate) norms: Option<&'a HeadNorms>,
    /// `[heads]`: scores for no value.
    pub(crate) sinks: Option<&'a Tensor>,
}

impl Attended {
    /// `[rows, heads * value_dim]`. Writes each sequence's new keys and values behind its past; `kv` has one entry per
    /// span.
    pub(crate) fn forward(&self, rows: &ProjectedRows<'_>, kv: Vec<LayerKv<'_>>, step: &StepContext) -> Result<Tensor> {
        let (mut on_host, mut on_device) = (Vec::new(), Vec::new());
        for kv in kv {
            match kv {
                LayerKv::Host(kv) => on_host.push(kv),
                LayerKv::Device(kv) => on_device.push(kv),
            }
        }
        match on_host.len() {
            0 => self.on_device(rows, &on_device, step),
            _ => self.on_host(rows, &mut on_host, step),
        }
    }

    /// Of projections in the host's memory.
    fn on_host(&self, rows: &ProjectedRows<'_>, kv: &mut [HostKv<'_>], step: &StepContext) -> Result<Tensor> {
        let [q, k] = [&rows.query, &rows.key].map(Tensor::storage_and_layout);
        let v = rows.value.as_ref().map(Tensor::storage_and_layout);
        let sinks = rows.sinks.map(Tensor::storage_and_layout);
        let angles = self.rope.and_then(|rope| step.angles.get(rope));
        let turns = angles.map(|angles| [&angles.cos, &angles.sin].map(Tensor::storage_and_layout));
        let norms = rows.norms.map(|norms| ([norms.query.parts(), norms.key.parts()], norms.order));
        let weights =
            norms.map(|(norms, order)| (norms.map(|(weight, eps)| (weight.storage_and_layout(), eps)), order));
        let norm = |index: usize| -> Result<Option<HeadNorm<'_>>> {
            let Some((weights, order)) = &weights else { return Ok(None) };
            let (weight, eps) = &weights[index];
            Ok(Some(HeadNorm { weight: floats(weight)?, eps: *eps, order: *order }))
        };
        let rotation = match (angles, &turns) {
            (Some(angles), Some([cos, sin])) => Rotation {
                planes: angles.planes,
                first: self.first,
                width: 2 * angles.cos.dim(1)?,
                cos: floats(cos)?,
                sin: floats(sin)?,
            },
            _ => Rotation { planes: RopePlanes::Halves, first: 0, width: 0, cos: &[], sin: &[] },
        };
        let prepared = AttentionRows {
            query: floats(&q)?,
            key: floats(&k)?,
            value: v.as_ref().map_or(Ok(&[][..]), floats)?,
            sinks: sinks.as_ref().map(floats).transpose()?,
            query_norm: norm(0)?,
            key_norm: norm(1)?,
            rotation,
        };
        let places: Vec<SequenceRows> = step.spans.iter().map(SequenceSpan::as_rows).collect();
        let attended = self.heads.attend(&prepared, &places, kv);
        let shape = (rows.query.dim(0)?, self.heads.heads * self.heads.value_dim);
        Tensor::from_vec(attended, shape, rows.query.device())
    }

    /// Attention on other devices than the CPU.
    fn on_device(&self, rows: &ProjectedRows<'_>, kv: &[DeviceKv<'_>], step: &StepContext) -> Result<Tensor> {
        if let Some((caches, tables)) = kv.first().and_then(DeviceKv::for_kernels) {
            return self.by_kernels(rows, kv, (caches, tables), step);
        }
        let AttentionHeads { heads, kv_heads, scale, .. } = self.heads;
        let count = rows.query.dim(0)?;
        // Scores are products with the query, so scaling it costs `head_dim` per row in place of one per key.
        let query =
            (self.turned(&rows.query, heads, rows.norms.map(|n| (&n.query, n.order)), step)? * f64::from(scale))?;
        let key = self.turned(&rows.key, kv_heads, rows.norms.map(|n| (&n.key, n.order)), step)?;
        let value = rows.value.as_ref().map(|value| value.reshape((count, kv_heads, self.heads.value_dim)));
        let value = match value {
            Some(value) => value?,
            None => key.narrow(2, 0, self.heads.value_dim)?,
        };
        let attended = kv
            .iter()
            .zip(&step.spans)
            .map(|(kv, span)| {
                let of_span = |all: &Tensor| heads_first(&all.narrow(0, span.rows.start, span.rows.len())?);
                let values = matches!(self.values, KvValues::Apart(_)).then(|| of_span(&value)).transpose()?;
                kv.write(&of_span(&key)?, values.as_ref(), span.past)?;
                self.attend(&of_span(&query)?, kv, span, step, rows.sinks)
            })
            .collect::<Result<Vec<_>>>()?;
        joined(&attended)
    }

    /// Attention by this project's kernels: all sequences with few rows at once, and pieces of prompts one by one.
    fn by_kernels(
        &self,
        rows: &ProjectedRows<'_>,
        kv: &[DeviceKv<'_>],
        ((keys, values), tables): ((&Tensor, &Tensor), &StepTables),
        step: &StepContext,
    ) -> Result<Tensor> {
        let shape = self.shape();
        let sinks = rows.sinks.map(|sinks| sinks.to_dtype(DType::F32)).transpose()?;
        let contiguous = |x: &Tensor| x.contiguous();
        let (query, key) = (contiguous(&rows.query)?, contiguous(&rows.key)?);
        let value = rows.value.as_ref().map(contiguous).transpose()?;
        let new = NewRows {
            query: &query,
            key: &key,
            value: value.as_ref(),
            norms: rows.norms.map(|norms| NewRowNorms {
                query: norms.query.parts(),
                key: norms.key.parts(),
                behind_rotation: norms.order == NormOrder::AfterRotation,
            }),
            angles: self.rope.and_then(|rope| step.angles.get(rope)).map(|angles| NewRowAngles {
                cos: &angles.cos,
                sin: &angles.sin,
                first: self.first,
                halves: angles.planes == RopePlanes::Halves,
            }),
        };
        let values = if matches!(self.values, KvValues::InKeys(_)) { keys } else { values };
        let query = kernels::place(&new, &shape, (keys, values), tables)?;
        let out = kernels::unwritten(&query, &shape)?;
        // Kernels know rows that see what is before them.
        let by_kernels = !self.heads.both_ways;
        if tables.most_seen > 0 && by_kernels {
            kernels::attend(&query, &shape, (keys, values), tables, sinks.as_ref(), &out)?;
        }
        for (index, (kv, span)) in kv.iter().zip(&step.spans).enumerate() {
            let of_span = (span.rows.clone(), span.past);
            let attend_piece = || {
                let of_step = (tables, index);
                kernels::attend_piece(&query, &shape, (keys, values), of_step, of_span, sinks.as_ref(), &out)
            };
            // Kernels know rows that see what is before them.
            let by_kernels = by_kernels && span.whole.is_empty();
            if by_kernels && (rows::is_short(span.rows.len()) || attend_piece()?) {
                continue;
            }
            let query = heads_first(&query.narrow(0, span.rows.start, span.rows.len())?)?;
            out.slice_set(&self.attend(&query, kv, span, step, sinks.as_ref())?, 0, span.rows.start)?;
        }
        Ok(out)
    }

    fn shape(&self) -> AttendedHeads {
        let AttentionHeads { heads, kv_heads, head_dim, value_dim, scale, window, softcap, .. } = self.heads;
        let (window, softcap) = (window.unwrap_or(0), softcap.unwrap_or(0.0));
        AttendedHeads { heads, kv_heads, head_dim, value_dim, window, softcap, scale }
    }

    /// `[rows, heads * head_dim]` → `[rows, heads, head_dim]`, behind its norm and rotated.
    fn turned(
        &self,
        x: &Tensor,
        heads: usize,
        norm: Option<(&RmsNorm, NormOrder)>,
        step: &StepContext,
    ) -> Result<Tensor> {
        let normed = |x: Tensor, at: NormOrder| match norm {
            Some((norm, order)) if order == at => per_head(norm, &x, heads),
            _ => Ok(x),
        };
        let x = normed(x.clone(), NormOrder::BeforeRotation)?;
        let (rows, width) = x.dims2()?;
        let x = match self.rope.and_then(|rope| step.angles.get(rope)) {
            Some(angles) => angles.rotate(&x, heads, self.first)?,
            None => x.reshape((rows, heads, width / heads.max(1)))?,
        };
        let x = x.reshape((rows, width))?;
        normed(x, NormOrder::AfterRotation)?.reshape((rows, heads, width / heads.max(1)))
    }

    /// One sequence: `[heads, rows, head_dim]` → `[rows, heads * value_dim]`.
    fn attend(
        &self,
        query: &Tensor,
        kv: &DeviceKv<'_>,
        span: &SequenceSpan,
        step: &StepContext,
        sinks: Option<&Tensor>,
    ) -> Result<Tensor> {
        let AttentionHeads { window, both_ways, .. } = self.heads;
        let tiles = step.tiles(span, RowSight { window, both_ways });
        let mixed = tiles
            .iter()
            .map(|tile| {
                let query = match tiles.len() {
                    1 => query.clone(),
                    _ => query.narrow(1, tile.rows.start, tile.rows.len())?.contiguous()?,
                };
                self.attend_tile(&query, kv, (tile, span.past + tile.rows.start), sinks)
            })
            .collect::<Result<Vec<_>>>()?;
        joined(&mixed)
    }

    fn attend_tile(
        &self,
        query: &Tensor,
        kv: &DeviceKv<'_>,
        (tile, past): (&ScoreTile, usize),
        sinks: Option<&Tensor>,
    ) -> Result<Tensor> {
        let AttentionHeads { heads, kv_heads, head_dim, softcap, .. } = self.heads;
        let (rows, group) = (tile.rows.len(), heads / kv_heads);
        let (keys, values) = kv.first(tile.keys, query.dtype(), self.values)?;
        // The query heads that share a key head lie behind one another: as rows of one product they need no copy of it.
        let query = query.reshape((kv_heads, group * rows, head_dim))?;
        let scores = query.matmul(&keys.t()?)?;
        if kv.for_kernels().is_some() && !self.heads.both_ways && tile.mask.is_none() {
            kernels::soften(&scores, rows, past, &self.shape(), sinks)?;
            return mixed_rows(&scores, &values, (heads, rows));
        }
        // Softmax in f32, whatever the products are in: a free clone where they are f32 anyway.
        let mut scores = scores.to_dtype(DType::F32)?;
        if let Some(bound) = softcap.map(f64::from) {
            scores = ((scores / bound)?.tanh()? * bound)?;
        }
        if let Some(mask) = &tile.mask {
            scores = scores.reshape((heads, rows, tile.keys))?.broadcast_add(mask)?;
            scores = scores.reshape((kv_heads, group * rows, tile.keys))?;
        }
        let weights = match sinks {
            None => candle_nn::ops::softmax_last_dim(&scores)?,
            Some(sinks) => {
                // One more score for each head, which mixes nothing.
                let sinks = sinks.to_dtype(DType::F32)?.reshape((heads, 1, 1))?.broadcast_as((heads, rows, 1))?;
                let sinks = sinks.contiguous()?.reshape((kv_heads, group * rows, 1))?;
                let scores = Tensor::cat(&[&scores, &sinks], 2)?;
                candle_nn::ops::softmax_last_dim(&scores)?.narrow(2, 0, tile.keys)?.contiguous()?
            }
        };
        mixed_rows(&weights.to_dtype(values.dtype())?, &values, (heads, rows))
    }
}

/// The sums of values by weight: `[kv_heads, group * rows, keys]` and `[kv_heads, keys, value_dim]` → `[rows, heads *
/// value_dim]`.
fn mixed_rows(weights: &Tensor, values: &Tensor, (heads, rows): (usize, usize)) -> Result<Tensor> {
    let width = values.dim(2)?;
    let mixed = weights.matmul(values)?.reshape((heads, rows, width))?;
    let mixed = if rows == 1 { mixed } else { mixed.transpose(0, 1)?.contiguous()? };
    mixed.reshape((rows, heads * width))
}

/// A tensor's numbers where they lie in the host's memory.
fn floats<'a>((storage, layout): &'a (impl Deref<Target = Storage>, &Layout)) -> Result<&'a [f32]> {
    match &**storage {
        Storage::Cpu(storage) => contiguous(storage, layout),
        _ => bail!("keys and values in the host's memory need rows that lie there too"),
    }
}

/// `[rows, heads * head_dim]`, each head by itself.
fn per_head(norm: &RmsNorm, x: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    norm.forward(&x.reshape((rows * heads, width / heads.max(1)))?)?.reshape((rows, width))
}

/// `[rows, heads, head_dim]` → `[heads, rows, head_dim]`, contiguous; free for a single row.
fn heads_first(x: &Tensor) -> Result<Tensor> {
    let (rows, heads, head_dim) = x.dims3()?;
    if rows == 1 { x.contiguous()?.reshape((heads, 1, head_dim)) } else { x.transpose(0, 1)?.contiguous() }
}

/// Rows behind rows; free for a single part.
fn joined(parts: &[Tensor]) -> Result<Tensor> {
    match parts {
        [only] => Ok(only.clone()),
        parts => Tensor::cat(parts, 0),
    }
}
