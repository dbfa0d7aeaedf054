//! The decoder: it reads tokens of several texts, each over its window. Keys and values of windows are computed once.

use std::ops::Range;

use candle_core::{DType, Result, Storage, Tensor, bail};
use model_boss_kernels::SequenceRows;

use super::encoder::{NORM, failed};
use super::kv::{KvShape, Pages, WhisperKv};
use super::spec::WhisperSpec;
use crate::encoder::family::{Pause, linear};
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::matrix::tensor_products::contiguous;
use crate::read::reader::WeightReader;
use crate::spec::Activation;

pub(super) struct WhisperDecoder {
    words: Matrix,
    /// The last product's matrix, where it is not that of the words.
    head: Option<Matrix>,
    /// `[tokens, hidden]`.
    positions: Tensor,
    layers: Vec<WritingLayer>,
    norm: Norm,
    activation: Activation,
    pub(super) shape: KvShape,
    target: WeightTarget,
}

struct WritingLayer {
    attention_norm: Norm,
    inputs: [Linear; 3],
    out: Linear,
    window_norm: Norm,
    window_query: Linear,
    /// Of the window's rows.
    window_inputs: [Linear; 2],
    window_out: Linear,
    norm: Norm,
    up: Linear,
    down: Linear,
}

/// Keys and values of a window in all layers, and its rows.
pub(super) struct WindowKv {
    pub(super) layers: Vec<WhisperKv>,
    /// `[places, hidden]`.
    pub(super) rows: Tensor,
}

/// New tokens of one text.
pub(super) struct TextRows<'a> {
    pub(super) window: &'a WindowKv,
    /// Keys and values of the text so far, in all layers.
    pub(super) layers: &'a mut Vec<WhisperKv>,
    /// Tokens so far.
    pub(super) past: usize,
    pub(super) tokens: &'a [u32],
}

/// Numbers that are read beside the rows: the attention of these heads (layer and number) to the window.
pub(super) struct Watched<'a> {
    pub(super) heads: &'a [[usize; 2]],
    /// Each head's attention, `[rows, places]`, as it comes.
    pub(super) seen: Vec<([usize; 2], Vec<f32>)>,
}

impl WhisperDecoder {
    pub(super) fn read(
        reader: &mut WeightReader<'_>,
        spec: &WhisperSpec,
        target: &WeightTarget,
    ) -> std::result::Result<Self, ModelError> {
        let words = reader.matrix("decoder.embed_tokens.weight")?.in_panels().map_err(failed)?;
        let head = match spec.tied {
            true => None,
            false => Some(reader.matrix("proj_out.weight")?.in_panels().map_err(failed)?),
        };
        let positions = reader.tensor("decoder.embed_positions.weight")?;
        let layers = (0..spec.decoder.layers).map(|layer| WritingLayer::read(reader, layer));
        let layers = layers.collect::<std::result::Result<_, _>>()?;
        let heads = spec.decoder.heads;
        Ok(Self {
            words,
            head,
            positions,
            layers,
            norm: Norm::read(reader, "decoder.layer_norm", NORM)?,
            activation: spec.activation,
            shape: KvShape { heads, dim: spec.hidden / heads, kept: target.cached },
            target: target.clone(),
        })
    }

    /// Keys and values of a window's rows, `[places, hidden]`, and the bytes that they take.
    pub(super) fn window(&self, rows: Tensor, pause: Pause<'_>) -> Result<(WindowKv, usize)> {
        let (mut layers, mut bytes) = (Vec::with_capacity(self.layers.len()), 0);
        for layer in &self.layers {
            pause();
            let [key, value] = Linear::forward_all(layer.window_inputs.each_ref(), &rows)?;
            let kv = if rows.device().is_cpu() {
                let mut pages = Pages::default();
                bytes += pages.reserve(self.shape.page(), rows.dim(0)?);
                on_host([&key, &value], |[key, value]| self.shape.keep(&mut pages, [key, value]))?;
                WhisperKv::Host(pages)
            } else {
                bytes += 2 * key.elem_count() * key.dtype().size_in_bytes();
                WhisperKv::Device(Some([self.shape.heads_first(&key)?, self.shape.heads_first(&value)?]))
            };
            layers.push(kv);
        }
        bytes += rows.elem_count() * rows.dtype().size_in_bytes();
        Ok((WindowKv { layers, rows }, bytes))
    }

    /// Keys and values of a text without tokens.
    pub(super) fn text(&self) -> Vec<WhisperKv> {
        let one =
            || if self.target.device.is_cpu() { WhisperKv::Host(Pages::default()) } else { WhisperKv::Device(None) };
        self.layers.iter().map(|_| one()).collect()
    }

    /// The rows of all new tokens, `[tokens, hidden]`, and the bytes that were taken for each text.
    pub(super) fn forward(
        &self,
        texts: &mut [TextRows<'_>],
        mut watched: Option<&mut Watched<'_>>,
        pause: Pause<'_>,
    ) -> Result<(Tensor, Vec<usize>)> {
        let tokens: Vec<u32> = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let places = texts.iter().flat_map(|text| (text.past..text.past + text.tokens.len()).map(|at| at as u32));
        let places = Tensor::from_vec(places.collect::<Vec<u32>>(), tokens.len(), &self.target.device)?;
        let mut x = self.words.rows(&tokens, &self.target)?.to_dtype(self.target.dtype)?;
        x = (x + self.positions.index_select(&places, 0)?)?;
        let mut first = 0;
        let ranges: Vec<Range<usize>> = texts
            .iter()
            .map(|text| {
                first += text.tokens.len();
                first - text.tokens.len()..first
            })
            .collect();
        let mut bytes = vec![0; texts.len()];
        for (at, layer) in self.layers.iter().enumerate() {
            pause();
            let [query, key, value] = Linear::forward_all(layer.inputs.each_ref(), &layer.attention_norm.forward(&x)?)?;
            let mixed = self.attend_text(at, [&query, &key, &value], &ranges, texts, &mut bytes)?;
            x = (x + layer.out.forward(&mixed)?)?;
            let query = layer.window_query.forward(&layer.window_norm.forward(&x)?)?;
            if let Some(watched) = watched.as_deref_mut() {
                self.watch(at, layer, &query, texts, watched)?;
            }
            let mixed = self.attend_window(at, &query, &ranges, texts)?;
            x = (x + layer.window_out.forward(&mixed)?)?;
            let inner = self.activation.in_place(layer.up.forward(&layer.norm.forward(&x)?)?)?;
            x = (x + layer.down.forward(&inner)?)?;
        }
        Ok((x, bytes))
    }

    /// The logits behind some rows, one row behind the other.
    pub(super) fn logits(&self, x: &Tensor, rows: &[u32]) -> Result<Vec<f32>> {
        let rows = Tensor::from_slice(rows, rows.len(), x.device())?;
        let x = self.norm.forward(&x.index_select(&rows, 0)?)?;
        let head = self.head.as_ref().unwrap_or(&self.words);
        head.product(&x)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    fn attend_text(
        &self,
        layer: usize,
        [query, key, value]: [&Tensor; 3],
        ranges: &[Range<usize>],
        texts: &mut [TextRows<'_>],
        bytes: &mut [usize],
    ) -> Result<Tensor> {
        if query.device().is_cpu() {
            let (mut places, mut pages) = (Vec::new(), Vec::new());
            for ((text, rows), bytes) in texts.iter_mut().zip(ranges).zip(bytes) {
                let WhisperKv::Host(kv) = &mut text.layers[layer] else { bail!("a text is on another device") };
                *bytes += kv.reserve(self.shape.page(), text.past + rows.len());
                places.push(SequenceRows { rows: rows.clone(), past: text.past, whole: Vec::new() });
                pages.push(kv);
            }
            let mixed = on_host([query, key, value], |rows| self.shape.attend(rows, &places, &mut pages))?;
            return Tensor::from_vec(mixed, query.shape().clone(), query.device());
        }
        let mut all = Vec::with_capacity(texts.len());
        for ((text, rows), bytes) in texts.iter_mut().zip(ranges).zip(bytes) {
            let of_text = |x: &Tensor| x.narrow(0, rows.start, rows.len());
            let WhisperKv::Device(kv) = &mut text.layers[layer] else { bail!("a text is on another device") };
            let new = [key, value].map(|x| self.shape.heads_first(&of_text(x)?));
            let [key, value] = new;
            let [key, value] = match kv.take() {
                None => [key?, value?],
                Some([keys, values]) => [Tensor::cat(&[&keys, &key?], 1)?, Tensor::cat(&[&values, &value?], 1)?],
            };
            *bytes += 2 * rows.len() * self.shape.heads * self.shape.dim * key.dtype().size_in_bytes();
            all.push(self.shape.attend_tensors(&of_text(query)?, [&key, &value], Some(text.past))?);
            *kv = Some([key, value]);
        }
        Tensor::cat(&all, 0)
    }

    fn attend_window(
        &self,
        layer: usize,
        query: &Tensor,
        ranges: &[Range<usize>],
        texts: &[TextRows<'_>],
    ) -> Result<Tensor> {
        if query.device().is_cpu() {
            let mut windows = Vec::with_capacity(texts.len());
            let mut seen = 1;
            for (text, rows) in texts.iter().zip(ranges) {
                let WhisperKv::Host(pages) = &text.window.layers[layer] else { bail!("a window is on another device") };
                seen = text.window.rows.dim(0)?;
                windows.push((rows.clone(), pages));
            }
            let mixed = on_host([query], |[query]| self.shape.attend_window(query, seen, &windows))?;
            return Tensor::from_vec(mixed, query.shape().clone(), query.device());
        }
        let of_text = |(text, rows): (&TextRows<'_>, &Range<usize>)| {
            let WhisperKv::Device(Some([key, value])) = &text.window.layers[layer] else {
                bail!("a window is on another device")
            };
            self.shape.attend_tensors(&query.narrow(0, rows.start, rows.len())?, [key, value], None)
        };
        Tensor::cat(&texts.iter().zip(ranges).map(of_text).collect::<Result<Vec<_>>>()?, 0)
    }

    /// Reads the attention of watched heads of one text to its window.
    fn watch(
        &self,
        at: usize,
        layer: &WritingLayer,
        query: &Tensor,
        texts: &[TextRows<'_>],
        watched: &mut Watched<'_>,
    ) -> Result<()> {
        let heads: Vec<[usize; 2]> = watched.heads.iter().filter(|[layer, _]| *layer == at).copied().collect();
        let (Some(text), false) = (texts.first(), heads.is_empty()) else { return Ok(()) };
        let keys = self.shape.heads_first(&layer.window_inputs[0].forward(&text.window.rows)?)?;
        let queries = self.shape.heads_first(query)?;
        for head in heads {
            let of_head = |x: &Tensor| x.get(head[1]);
            let scores = (of_head(&queries)?.matmul(&of_head(&keys)?.t()?)? * (1.0 / (self.shape.dim as f64).sqrt()))?;
            let shares = candle_nn::ops::softmax_last_dim(&scores.to_dtype(DType::F32)?)?;
            watched.seen.push((head, shares.flatten_all()?.to_vec1()?));
        }
        Ok(())
    }
}

impl WritingLayer {
    fn read(reader: &mut WeightReader<'_>, layer: usize) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| format!("decoder.layers.{layer}.{part}");
        Ok(Self {
            attention_norm: Norm::read(reader, &path("self_attn_layer_norm"), NORM)?,
            inputs: [
                linear(reader, &path("self_attn.q_proj"))?,
                linear(reader, &path("self_attn.k_proj"))?,
                linear(reader, &path("self_attn.v_proj"))?,
            ],
            out: linear(reader, &path("self_attn.out_proj"))?,
            window_norm: Norm::read(reader, &path("encoder_attn_layer_norm"), NORM)?,
            window_query: linear(reader, &path("encoder_attn.q_proj"))?,
            window_inputs: [
                linear(reader, &path("encoder_attn.k_proj"))?,
                linear(reader, &path("encoder_attn.v_proj"))?,
            ],
            window_out: linear(reader, &path("encoder_attn.out_proj"))?,
            norm: Norm::read(reader, &path("final_layer_norm"), NORM)?,
            up: linear(reader, &path("fc1"))?,
            down: linear(reader, &path("fc2"))?,
        })
    }
}

/// Does something with the numbers of tensors in the host's memory.
fn on_host<T, const N: usize>(tensors: [&Tensor; N], work: impl FnOnce([&[f32]; N]) -> T) -> Result<T> {
    let stored = tensors.map(|tensor| tensor.storage_and_layout());
    let mut all: [&[f32]; N] = [&[]; N];
    for (numbers, (storage, layout)) in all.iter_mut().zip(&stored) {
        let Storage::Cpu(storage) = &**storage else { bail!("rows are not in the memory of the CPU") };
        *numbers = contiguous(storage, layout)?;
    }
    Ok(work(all))
}
