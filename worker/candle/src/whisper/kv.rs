//! Keys and values of a window, and of a text over it: pages in the host's memory, tensors on other devices. Memory is
//! counted for observers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{Result, Tensor};
use model_boss_engine::PlaceUse;
use model_boss_kernels::{
    AttentionHeads, AttentionRows, HostKv, KvElement, KvValues, PAGE, PageShape, RopePlanes, Rotation, SequenceRows,
};
use pulp::bytemuck::{cast_slice, cast_slice_mut};

/// Bytes of keys and values that are held, for [`PlaceUse`], which counts in pieces of this size.
pub(super) const COUNTED: usize = 1024;

/// The use of memory that its owner gives back.
pub(super) struct WindowBytes {
    count: u64,
    total: Arc<AtomicU64>,
    place: Arc<[PlaceUse]>,
}

impl WindowBytes {
    pub(super) fn new(total: &Arc<AtomicU64>, place: &Arc<[PlaceUse]>) -> Self {
        Self { count: 0, total: Arc::clone(total), place: Arc::clone(place) }
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.count += bytes as u64;
        self.report(self.total.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64);
    }

    fn report(&self, total: u64) {
        for place in self.place.iter() {
            place.holds(total as usize / COUNTED, 0);
        }
    }
}

impl Drop for WindowBytes {
    fn drop(&mut self) {
        let before = self.total.fetch_sub(self.count, Ordering::Relaxed);
        self.report(before.saturating_sub(self.count));
    }
}

/// Pages of one layer. Their memory is that of floats, whatever their elements, so that it is aligned.
#[derive(Default)]
pub(super) struct Pages {
    pages: Vec<Vec<f32>>,
}

impl Pages {
    /// Has room for so many tokens. The answer is the bytes that this took.
    pub(super) fn reserve(&mut self, shape: PageShape, tokens: usize) -> usize {
        let mut taken = 0;
        while self.pages.len() * PAGE < tokens {
            self.pages.push(vec![0.0; shape.bytes().div_ceil(size_of::<f32>())]);
            taken += shape.bytes();
        }
        taken
    }

    fn written(&mut self, shape: PageShape) -> HostKv<'_> {
        let written = self.pages.iter_mut().map(|page| &mut cast_slice_mut::<f32, u8>(page)[..shape.bytes()]);
        HostKv::new(shape, Vec::new(), written.collect())
    }

    fn read(&self, shape: PageShape) -> HostKv<'_> {
        let read = self.pages.iter().map(|page| &cast_slice::<f32, u8>(page)[..shape.bytes()]);
        HostKv::new(shape, read.collect(), Vec::new())
    }
}

/// Keys and values of one layer.
pub(super) enum WhisperKv {
    /// In the host's memory.
    Host(Pages),
    /// On another device, `[heads, tokens, head_dim]` each; none before the first token.
    Device(Option<[Tensor; 2]>),
}

/// The heads of the decoder, and how their keys and values are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvShape {
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) kept: KvElement,
}

impl KvShape {
    pub(super) fn page(self) -> PageShape {
        PageShape { kv_heads: self.heads, head_dim: self.dim, values: KvValues::Apart(self.dim), kept: self.kept }
    }

    fn attention(self) -> AttentionHeads {
        AttentionHeads::plain(self.heads, self.heads, self.dim)
    }

    /// Bytes of so many tokens in one layer.
    pub(super) fn bytes(self, tokens: usize) -> u64 {
        self.page().bytes() as u64 * tokens.div_ceil(PAGE) as u64
    }

    /// Writes keys and values `[tokens, width]` of a window.
    pub(super) fn keep(self, pages: &mut Pages, [key, value]: [&[f32]; 2]) {
        let tokens = key.len() / (self.heads * self.dim);
        let place = SequenceRows { rows: 0..tokens, past: 0, whole: Vec::new() };
        self.attention().keep(&rows([&[], key, value]), &[place], &mut [pages.written(self.page())]);
    }

    /// Writes the new keys and values of texts and attends to all of theirs, `[rows, width]`. Each text has its rows
    /// and its past.
    pub(super) fn attend(self, all: [&[f32]; 3], places: &[SequenceRows], texts: &mut [&mut Pages]) -> Vec<f32> {
        let mut kv: Vec<HostKv<'_>> = texts.iter_mut().map(|pages| pages.written(self.page())).collect();
        self.attention().attend(&rows(all), places, &mut kv)
    }

    /// Attends to all `seen` tokens of windows, `[rows, width]`; `texts` are the rows over each window.
    pub(super) fn attend_window(
        self,
        query: &[f32],
        seen: usize,
        texts: &[(std::ops::Range<usize>, &Pages)],
    ) -> Vec<f32> {
        let (mut places, mut kv) = (Vec::new(), Vec::new());
        for (rows, pages) in texts {
            // A row is a token of the window as far as the mask knows, and sees all others.
            for first in rows.clone().step_by(seen) {
                let rows = first..rows.end.min(first + seen);
                places.push(SequenceRows { rows, past: 0, whole: std::iter::once(0..seen).collect() });
                kv.push(pages.read(self.page()));
            }
        }
        self.attention().attend_kept(&rows([query, &[], &[]]), &places, &kv)
    }

    /// The same with tensors: keys and values `[heads, tokens, head_dim]`, one text's query `[rows, width]`. Where rows
    /// are behind each other, each sees only those before it.
    pub(super) fn attend_tensors(
        self,
        query: &Tensor,
        [key, value]: [&Tensor; 2],
        past: Option<usize>,
    ) -> Result<Tensor> {
        let rows = query.dim(0)?;
        let query = self.heads_first(query)?;
        let mut scores = (query.matmul(&key.t()?)? * (1.0 / (self.dim as f64).sqrt()))?;
        if let Some(past) = past.filter(|_| rows > 1) {
            let tokens = key.dim(1)?;
            let hidden = |row: usize| move |token: usize| if token > past + row { f32::NEG_INFINITY } else { 0.0 };
            let mask: Vec<f32> = (0..rows).flat_map(|row| (0..tokens).map(hidden(row))).collect();
            let mask = Tensor::from_vec(mask, (1, rows, tokens), query.device())?.to_dtype(scores.dtype())?;
            scores = scores.broadcast_add(&mask)?;
        }
        let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(value)?;
        mixed.transpose(0, 1)?.reshape((rows, self.heads * self.dim))
    }

    /// `[rows, width]` → `[heads, rows, head_dim]`.
    pub(super) fn heads_first(self, x: &Tensor) -> Result<Tensor> {
        x.reshape((x.dim(0)?, self.heads, self.dim))?.transpose(0, 1)?.contiguous()
    }
}

fn rows([query, key, value]: [&[f32]; 3]) -> AttentionRows<'_> {
    let rotation = Rotation { planes: RopePlanes::Halves, first: 0, width: 0, cos: &[], sin: &[] };
    AttentionRows { query, key, value, sinks: None, query_norm: None, key_norm: None, rotation }
}
