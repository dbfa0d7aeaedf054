//! Attention on the CPU: causal or over whole texts, with shared key and value heads, over keys and values of any
//! type. Knows slices, no tensors.
//!
//! Keys are taken in blocks with an online softmax (Milakov and Gimelshein, 2018, arXiv 1805.02867; Dao et al., 2022,
//! arXiv 2205.14135), so no row of scores is ever held whole. Beyond the rest of a block nothing is computed that the
//! mask would hide. All query heads that share a key head, and all rows of a tile, pass a block together: it is read
//! once. Few rows over a long past are shared among cores by segments of keys, whose results are merged in the order of
//! the keys. Blocks and segments are counted from a sequence's beginning, so neither the number of rows nor of cores
//! changes a bit.

mod cache;
pub(crate) mod element;
pub(crate) mod heads;
mod kernel;
mod product;
mod segment;
mod tile;
mod whole;
mod widen;

use std::ops::Range;

use pulp::NullaryFnOnce;
use rayon::prelude::*;

pub use cache::{HostKv, KvValues, PageShape};
pub use element::KvElement;
use heads::prepare;
pub use heads::{HeadNorm, NormOrder, RopePlanes, Rotation};
pub(crate) use kernel::{Panel, Product};
pub(crate) use product::multiply;
pub use segment::PAGE;
pub use whole::{TextBiases, WholeTexts};

use cache::HeadWriter;
use tile::{Mixed, QueryTile, Scratch};

use crate::cores::WORTH_SHARING;
use crate::lanes::Instructions;

/// Queries that pass keys together: as many as keep their sums in a core's cache.
const QUERIES: usize = 64;

/// Pieces of work per core, so that one that is late does not make all others wait.
const PIECES: usize = 4;

/// The heads of a layer, and what they see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionHeads {
    /// Query heads.
    pub heads: usize,
    /// Key heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a query and of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// The factor on scores.
    pub scale: f32,
    /// The keys that a row sees, its own included; all before it without a window.
    pub window: Option<usize>,
    /// The bound of scores, which the hyperbolic tangent keeps them within.
    pub softcap: Option<f32>,
    /// Whether a row sees the keys behind it too, by a window as many as before it. A sequence has to come whole then.
    pub both_ways: bool,
}

/// The rows of one step, as they come from the projections.
pub struct AttentionRows<'a> {
    /// `[rows, heads, head_dim]`.
    pub query: &'a [f32],
    /// `[rows, kv_heads, head_dim]`.
    pub key: &'a [f32],
    /// `[rows, kv_heads, value_dim]`; of no use where values are in the keys.
    pub value: &'a [f32],
    /// `[heads]`: each head's score for no value, part of the softmax (Xiao et al., 2023, arXiv 2309.17453).
    pub sinks: Option<&'a [f32]>,
    /// The norm of query heads.
    pub query_norm: Option<HeadNorm<'a>>,
    /// The norm of key heads.
    pub key_norm: Option<HeadNorm<'a>>,
    /// The angles of the rows' positions.
    pub rotation: Rotation<'a>,
}

/// One sequence's rows, and how many tokens it held before.
#[derive(Clone, Debug)]
pub struct SequenceRows {
    /// Its rows in the step.
    pub rows: Range<usize>,
    /// Tokens before them.
    pub past: usize,
    /// Tokens of the sequence that see each other in both directions, in their order and apart from each other. Rows
    /// in them see keys up to the end, which the step has.
    pub whole: Vec<Range<usize>>,
}

impl SequenceRows {
    /// The keys that a token of the sequence sees.
    pub fn seen(&self, token: usize, window: Option<usize>) -> Range<usize> {
        let whole = self.whole.iter().find(|whole| whole.contains(&token));
        let first = (token + 1).saturating_sub(window.unwrap_or(usize::MAX));
        first..whole.map_or(token + 1, |whole| whole.end)
    }
}

impl AttentionHeads {
    /// Heads that see all keys before them, with values as wide as keys and the usual scale.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let scale = (head_dim as f32).sqrt().recip();
        Self { heads, kv_heads, head_dim, value_dim: head_dim, scale, window: None, softcap: None, both_ways: false }
    }

    /// Writes each sequence's new keys and values behind its past and attends: `[rows, heads, value_dim]`. Places cover
    /// the rows in their order; `kv` has one entry per place, with pages for all its tokens.
    pub fn attend(self, rows: &AttentionRows<'_>, places: &[SequenceRows], kv: &mut [HostKv<'_>]) -> Vec<f32> {
        self.keep(rows, places, kv);
        self.attend_kept(rows, places, kv)
    }

    /// Attends to keys and values that were written before ([`Self::keep`]). Of the rows only queries count.
    pub fn attend_kept(self, rows: &AttentionRows<'_>, places: &[SequenceRows], kv: &[HostKv<'_>]) -> Vec<f32> {
        let mut out = vec![0.0; rows.query.len() / self.head_dim.max(1) * self.value_dim];
        let mut pieces = self.pieces(places, &mut out);
        let tile = |piece: &AttentionPiece<'_>| self.tile(rows, piece, &places[piece.sequence]);
        let work = |piece: &AttentionPiece<'_>| {
            let keys = self.seen(piece, &places[piece.sequence], piece.rows.end.saturating_sub(1)).end;
            let keys = keys.min(self.window.map_or(usize::MAX, |keys| 2 * keys.min(usize::MAX / 4) + QUERIES));
            piece.rows.len() * self.group() * self.head_dim * keys
        };
        if pieces.iter().map(work).sum::<usize>() < WORTH_SHARING {
            let mut scratch = Scratch::default();
            pieces.iter_mut().for_each(|piece| self.attend_piece((rows, tile(piece)), piece, kv, &mut scratch));
            return out;
        }
        let wanted = PIECES * rayon::current_num_threads();
        if pieces.len() >= wanted {
            pieces.par_iter_mut().with_max_len(1).for_each_init(Scratch::default, |scratch, piece| {
                self.attend_piece((rows, tile(piece)), piece, kv, scratch);
            });
        } else {
            let tiles = pieces.iter().map(tile).collect();
            self.attend_by_segments((rows, tiles), &mut pieces, kv, wanted);
        }
        out
    }

    /// Query heads for each key head.
    fn group(self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Writes each sequence's new keys and values behind its past.
    pub fn keep(self, rows: &AttentionRows<'_>, places: &[SequenceRows], kv: &mut [HostKv<'_>]) {
        let mut jobs = Vec::new();
        for (place, kv) in places.iter().zip(kv) {
            jobs.extend(kv.writers().into_iter().enumerate().map(|(head, writer)| (place, head, writer)));
        }
        let run = |(place, head, writer): (&SequenceRows, usize, HeadWriter<'_>)| {
            Instructions::current().run_plain(WriteHead { heads: self, rows, place, head, writer });
        };
        if rows.key.len() < WORTH_SHARING / 8 {
            jobs.into_iter().for_each(run);
        } else {
            jobs.into_par_iter().with_max_len(1).for_each(run);
        }
    }

    /// The work, cut by sequence, tile of rows and key head. Each piece has the places of its results.
    fn pieces<'o>(self, places: &[SequenceRows], out: &'o mut [f32]) -> Vec<AttentionPiece<'o>> {
        let height = (QUERIES / self.group().max(1)).max(1);
        let width = self.group() * self.value_dim;
        let mut pieces = Vec::new();
        let mut slices = out.chunks_exact_mut(width.max(1));
        for (sequence, place) in places.iter().enumerate() {
            let count = place.rows.len();
            for first in (0..count).step_by(height) {
                let rows = first..(first + height).min(count);
                let begin = pieces.len();
                pieces.extend((0..self.kv_heads).map(|head| AttentionPiece {
                    sequence,
                    head,
                    first_row: place.rows.start,
                    past: place.past,
                    tokens: place.past + count,
                    rows: rows.clone(),
                    out: Vec::with_capacity(rows.len()),
                }));
                for _ in rows {
                    for (piece, slice) in pieces[begin..].iter_mut().zip(slices.by_ref()) {
                        piece.out.push(slice);
                    }
                }
            }
        }
        pieces
    }

    fn attend_piece(
        self,
        (rows, tile): (&AttentionRows<'_>, QueryTile),
        piece: &mut AttentionPiece<'_>,
        kv: &[HostKv<'_>],
        scratch: &mut Scratch,
    ) {
        let mixed = tile.attend(&kv[piece.sequence], piece.head, scratch);
        self.write_out(rows, piece, &mixed);
    }

    /// Few pieces with many keys each: segments are what is shared among cores.
    fn attend_by_segments(
        self,
        (rows, tiles): (&AttentionRows<'_>, Vec<QueryTile>),
        pieces: &mut [AttentionPiece<'_>],
        kv: &[HostKv<'_>],
        wanted: usize,
    ) {
        let all: usize = tiles.iter().map(|tile| tile.segments().len()).sum();
        let run = all.div_ceil(wanted).max(1);
        let mut jobs = Vec::new();
        for (index, tile) in tiles.iter().enumerate() {
            let segments = tile.segments();
            let end = segments.end;
            jobs.extend(segments.step_by(run).map(|first| (index, first..(first + run).min(end))));
        }
        let parts: Vec<Vec<Mixed>> = jobs
            .par_iter()
            .with_max_len(1)
            .map_init(Scratch::default, |scratch, (index, segments)| {
                let (tile, piece) = (&tiles[*index], &pieces[*index]);
                let of_segment = |segment| {
                    let mut mixed = Mixed::nothing(tile.seen.len(), self.value_dim);
                    tile.attend_segment(&kv[piece.sequence], piece.head, segment, &mut mixed, scratch);
                    mixed
                };
                segments.clone().map(of_segment).collect()
            })
            .collect();
        let mut totals: Vec<Mixed> = tiles.iter().map(|tile| Mixed::nothing(tile.seen.len(), self.value_dim)).collect();
        for ((index, _), parts) in jobs.iter().zip(&parts) {
            parts.iter().for_each(|part| totals[*index].merge(part, Instructions::current()));
        }
        for (piece, total) in pieces.iter_mut().zip(&totals) {
            self.write_out(rows, piece, total);
        }
    }

    fn write_out(self, rows: &AttentionRows<'_>, piece: &mut AttentionPiece<'_>, mixed: &Mixed) {
        let sinks = rows.sinks.map(|sinks| &sinks[piece.head * self.group()..][..self.group()]);
        for (row, out) in piece.out.iter_mut().enumerate() {
            mixed.write(row * self.group(), self.value_dim, sinks, out);
        }
    }

    /// The keys that a row of a piece sees.
    fn seen(self, piece: &AttentionPiece<'_>, place: &SequenceRows, row: usize) -> Range<usize> {
        let at = piece.past + row;
        if !self.both_ways {
            return place.seen(at, self.window);
        }
        let window = self.window.unwrap_or(usize::MAX);
        (at + 1).saturating_sub(window)..at.saturating_add(window).min(piece.tokens)
    }

    /// A piece's queries: of each row all heads of its group.
    fn tile(self, rows: &AttentionRows<'_>, piece: &AttentionPiece<'_>, place: &SequenceRows) -> QueryTile {
        let group = self.group();
        let width = group * self.head_dim;
        let mut queries = vec![0.0; piece.rows.len() * width];
        let first = piece.first_row + piece.rows.start;
        Instructions::current().run_plain(Queries {
            heads: self,
            rows,
            first,
            head: piece.head,
            queries: &mut queries,
        });
        let seen = |row: usize| self.seen(piece, place, row);
        let seen = piece.rows.clone().flat_map(|row| std::iter::repeat_n(seen(row), group)).collect();
        QueryTile { queries, seen, softcap: self.softcap }
    }
}

/// Rows of one sequence and one key head.
struct AttentionPiece<'o> {
    sequence: usize,
    head: usize,
    /// The sequence's first row in the step.
    first_row: usize,
    past: usize,
    /// Tokens of the sequence behind the step.
    tokens: usize,
    /// Counted within the sequence's rows.
    rows: Range<usize>,
    /// For each row `[group, head_dim]`.
    out: Vec<&'o mut [f32]>,
}

/// One head's new keys and values.
struct WriteHead<'a, 'w> {
    heads: AttentionHeads,
    rows: &'a AttentionRows<'a>,
    place: &'a SequenceRows,
    head: usize,
    writer: HeadWriter<'w>,
}

impl NullaryFnOnce for WriteHead<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let AttentionHeads { kv_heads, head_dim, value_dim, .. } = self.heads;
        let in_keys = self.rows.value.is_empty();
        let mut key = vec![0.0; head_dim];
        for (number, row) in self.place.rows.clone().enumerate() {
            let at = (row * kv_heads + self.head) * head_dim;
            key.copy_from_slice(&self.rows.key[at..][..head_dim]);
            prepare(self.rows.key_norm, self.rows.rotation, row, &mut key);
            let at = (row * kv_heads + self.head) * value_dim;
            let value = if in_keys { &[] } else { &self.rows.value[at..][..value_dim] };
            self.writer.write(self.place.past + number, &key, value);
        }
    }
}

/// The queries of one key head.
struct Queries<'a> {
    heads: AttentionHeads,
    rows: &'a AttentionRows<'a>,
    first: usize,
    head: usize,
    /// `[rows, group, head_dim]`.
    queries: &'a mut [f32],
}

impl NullaryFnOnce for Queries<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let AttentionHeads { heads, head_dim, .. } = self.heads;
        let width = self.heads.group() * head_dim;
        // Scores are products with the query, so scaling it costs `head_dim` per row in place of one per key.
        let scale = self.heads.scale;
        for (number, queries) in self.queries.chunks_exact_mut(width).enumerate() {
            let row = self.first + number;
            queries.copy_from_slice(&self.rows.query[row * heads * head_dim + self.head * width..][..width]);
            for query in queries.chunks_exact_mut(head_dim) {
                prepare(self.rows.query_norm, self.rows.rotation, row, query);
                query.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::attend_by;
