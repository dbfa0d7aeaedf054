//! Attention against its definition in f64; and that neither rows, neighbours nor cores change a bit.

use half::{bf16, f16};
use pulp::bytemuck::{cast_slice, cast_slice_mut};

use super::kernel::{Groups, Panel, Product, ScaledPanel};
use super::product::{multiply, spread, takes_as_stored};
use super::segment::{BLOCK, PAGE, SEGMENT};
use super::widen::{PanelSpread, to_brains, to_scaled};
use super::*;
use crate::attention::element::{GROUP, KvElement};
use crate::attention::heads::RopePlanes;
use model_boss_protocol::InstructionSet;

use crate::lanes::{Instructions, LANES};

/// All types that keys and values are kept in.
const ALL: [KvElement; 4] = [KvElement::F32, KvElement::F16, KvElement::Bf16, KvElement::Q8_0];

fn numbers(count: usize, salt: usize) -> Vec<f32> {
    let scramble = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(salt as u32).wrapping_mul(2_246_822_519) >> 12;
    (0..count as u32).map(|i| (scramble(i) as f32 / (1 << 19) as f32) - 1.0).collect()
}

/// One sequence's queries, keys and values, and the angles of its positions.
struct Example {
    heads: AttentionHeads,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    norm: Option<Vec<f32>>,
    order: NormOrder,
    sinks: Option<Vec<f32>>,
    planes: RopePlanes,
    /// Elements of a head that are rotated, from the first on.
    rotated: Range<usize>,
    in_keys: bool,
    kept: KvElement,
}

impl Example {
    fn new(heads: AttentionHeads, tokens: usize, salt: usize) -> Self {
        let AttentionHeads { heads: q, kv_heads, head_dim, value_dim, .. } = heads;
        let angles = (0..tokens).flat_map(|at| (0..head_dim / 2).map(move |plane| at as f32 / (plane + 1) as f32));
        let (sin, cos) = angles.map(f32::sin_cos).unzip();
        Self {
            heads,
            query: numbers(tokens * q * head_dim, salt).into_iter().map(|x| 6.0 * x).collect(),
            key: numbers(tokens * kv_heads * head_dim, salt + 1),
            value: numbers(tokens * kv_heads * value_dim, salt + 2),
            cos,
            sin,
            norm: None,
            order: NormOrder::BeforeRotation,
            sinks: None,
            planes: RopePlanes::Halves,
            rotated: 0..head_dim,
            in_keys: false,
            kept: KvElement::F16,
        }
    }

    fn part(all: &[f32], heads: usize, head_dim: usize, rows: Range<usize>) -> &[f32] {
        &all[rows.start * heads * head_dim..rows.end * heads * head_dim]
    }

    fn cache(&self) -> Pages {
        let AttentionHeads { kv_heads, head_dim, value_dim, .. } = self.heads;
        let values = if self.in_keys { KvValues::InKeys(value_dim) } else { KvValues::Apart(value_dim) };
        Pages { shape: PageShape { kv_heads, head_dim, values, kept: self.kept }, pages: Vec::new() }
    }

    /// Attends to some tokens behind those that the cache holds.
    fn step(&self, kv: &mut Pages, tokens: Range<usize>) -> Vec<f32> {
        together(&mut [(self, kv, tokens)])
    }

    fn in_pieces(&self, pieces: &[usize]) -> Vec<f32> {
        let (mut kv, mut past, mut out) = (self.cache(), 0, Vec::new());
        for piece in pieces {
            out.extend(self.step(&mut kv, past..past + piece));
            past += piece;
        }
        out
    }

    /// By definition, in f64, with keys and values rounded as the cache does.
    fn exactly(&self, row: usize, head: usize) -> Vec<f64> {
        let AttentionHeads { heads, kv_heads, head_dim, value_dim, scale, window, softcap, both_ways } = self.heads;
        let normed = |x: &mut Vec<f64>, order| {
            let Some(weight) = self.norm.as_ref().filter(|_| self.order == order) else { return };
            let scale = (x.iter().map(|x| x * x).sum::<f64>() / head_dim as f64 + 1e-6).sqrt().recip();
            x.iter_mut().zip(weight).for_each(|(x, weight)| *x *= scale * f64::from(*weight));
        };
        let prepared = |all: &[f32], at: usize, row: usize| -> Vec<f32> {
            let mut x: Vec<f64> = all[at * head_dim..][..head_dim].iter().map(|x| f64::from(*x)).collect();
            normed(&mut x, NormOrder::BeforeRotation);
            let mut turned = x.clone();
            let planes = self.rotated.len() / 2;
            for plane in 0..planes {
                let (a, b) = match self.planes {
                    RopePlanes::Halves => (plane, plane + planes),
                    RopePlanes::Neighbours => (2 * plane, 2 * plane + 1),
                };
                let (a, b) = (a + self.rotated.start, b + self.rotated.start);
                let angle = row * (head_dim / 2) + plane;
                let (cos, sin) = (f64::from(self.cos[angle]), f64::from(self.sin[angle]));
                (turned[a], turned[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
            }
            normed(&mut turned, NormOrder::AfterRotation);
            turned.into_iter().map(|x| x as f32).collect()
        };
        let query = prepared(&self.query, row * heads + head, row);
        let shared = head / (heads / kv_heads);
        let window = window.unwrap_or(usize::MAX);
        let end =
            if both_ways { row.saturating_add(window).min(self.query.len() / (heads * head_dim)) } else { row + 1 };
        let seen = (row + 1).saturating_sub(window)..end;
        let keys: Vec<Vec<f64>> =
            seen.clone().map(|at| self.rounded(&prepared(&self.key, at * kv_heads + shared, at))).collect();
        let score = |key: &Vec<f64>| {
            let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum();
            let score = dot * f64::from(scale);
            softcap.map_or(score, |bound| f64::from(bound) * (score / f64::from(bound)).tanh())
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let sink = self.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let largest = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let whole: f64 = weights.iter().sum::<f64>() + (sink - largest).exp();
        let value = |at: usize| match self.in_keys {
            true => keys[at - seen.start][..value_dim].to_vec(),
            false => self.rounded(&self.value[(at * kv_heads + shared) * value_dim..][..value_dim]),
        };
        let values: Vec<Vec<f64>> = seen.clone().map(value).collect();
        (0..value_dim)
            .map(|i| weights.iter().zip(&values).map(|(w, value)| w * value[i]).sum::<f64>() / whole)
            .collect()
    }

    /// One head of a key or a value as the cache rounds it.
    fn rounded(&self, head: &[f32]) -> Vec<f64> {
        let of_group = |group: &[f32]| -> Vec<f64> {
            let largest = group.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let scale = f16::from_f32(largest / 127.0).to_f32();
            group.iter().map(|x| f64::from((x / scale).round_ties_even().clamp(-127.0, 127.0) * scale)).collect()
        };
        match self.kept {
            KvElement::F32 => head.iter().map(|x| f64::from(*x)).collect(),
            KvElement::F16 => head.iter().map(|x| f64::from(f16::from_f32(*x).to_f32())).collect(),
            KvElement::Bf16 => head.iter().map(|x| f64::from(bf16::from_f32(*x).to_f32())).collect(),
            KvElement::Q8_0 => head.chunks(GROUP).flat_map(of_group).collect(),
        }
    }
}

/// The memory of one sequence, each page apart.
struct Pages {
    shape: PageShape,
    pages: Vec<Vec<f32>>,
}

impl Pages {
    fn reserve(&mut self, tokens: usize) {
        let floats = self.shape.bytes() / size_of::<f32>();
        self.pages.resize_with(tokens.div_ceil(PAGE).max(self.pages.len()), || vec![0.0; floats]);
    }

    /// The sequence, for a step that writes behind `past` tokens.
    fn behind(&mut self, past: usize) -> HostKv<'_> {
        let (read, written) = self.pages.split_at_mut(past / PAGE);
        let read = read.iter().map(|page| cast_slice(page)).collect();
        HostKv::new(self.shape, read, written.iter_mut().map(|page| cast_slice_mut(page)).collect())
    }
}

/// Tokens of several sequences in one step.
fn together(steps: &mut [(&Example, &mut Pages, Range<usize>)]) -> Vec<f32> {
    let first = steps[0].0;
    let AttentionHeads { heads, kv_heads, head_dim, value_dim, .. } = first.heads;
    let (mut query, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cos, mut sin, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let mut row = 0;
    for (example, kv, tokens) in steps.iter_mut() {
        kv.reserve(tokens.end);
        query.extend_from_slice(Example::part(&example.query, heads, head_dim, tokens.clone()));
        key.extend_from_slice(Example::part(&example.key, kv_heads, head_dim, tokens.clone()));
        if !example.in_keys {
            value.extend_from_slice(Example::part(&example.value, kv_heads, value_dim, tokens.clone()));
        }
        for at in tokens.clone() {
            let planes = at * (head_dim / 2)..at * (head_dim / 2) + example.rotated.len() / 2;
            cos.extend_from_slice(&example.cos[planes.clone()]);
            sin.extend_from_slice(&example.sin[planes]);
        }
        places.push(SequenceRows { rows: row..row + tokens.len(), past: tokens.start, whole: Vec::new() });
        row += tokens.len();
    }
    let norm = first.norm.as_ref().map(|weight| HeadNorm { weight, eps: 1e-6, order: first.order });
    let rows = AttentionRows {
        query: &query,
        key: &key,
        value: &value,
        sinks: first.sinks.as_deref(),
        query_norm: norm,
        key_norm: norm,
        rotation: Rotation {
            planes: first.planes,
            first: first.rotated.start,
            width: first.rotated.len(),
            cos: &cos,
            sin: &sin,
        },
    };
    let mut kv: Vec<HostKv<'_>> = steps.iter_mut().map(|(_, kv, tokens)| kv.behind(tokens.start)).collect();
    first.heads.attend(&rows, &places, &mut kv)
}

fn heads(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionHeads {
    AttentionHeads::plain(heads, kv_heads, head_dim)
}

fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

#[test]
fn it_is_attention() {
    let shapes = [
        heads(4, 2, 128),
        heads(3, 1, 64),
        heads(2, 2, 8),
        heads(16, 2, 80),
        heads(7, 1, 96),
        heads(1, 1, 2),
        heads(2, 1, 48),
        heads(12, 2, 32),
    ];
    for (salt, shape) in shapes.into_iter().enumerate() {
        let tokens = SEGMENT + BLOCK + 9;
        let mut example = Example::new(shape, tokens, salt);
        if salt % 2 == 0 {
            example.norm = Some(numbers(shape.head_dim, 99));
        }
        if salt % 3 == 0 {
            example.planes = RopePlanes::Neighbours;
        }
        // Every type meets heads that are no whole groups, and narrow ones.
        example.kept = [KvElement::F16, KvElement::Q8_0, KvElement::Bf16, KvElement::F32][salt / 2];
        let out = example.in_pieces(&[tokens]);
        for row in [0, 1, BLOCK - 1, BLOCK, SEGMENT - 1, SEGMENT, tokens - 1] {
            for head in 0..shape.heads {
                let got = &out[(row * shape.heads + head) * shape.head_dim..][..shape.head_dim];
                for (got, want) in got.iter().zip(example.exactly(row, head)) {
                    // A key that lies between two of the kept numbers may be rounded to either.
                    let bound = match example.kept {
                        KvElement::F32 => 5e-6,
                        KvElement::F16 => 5e-4,
                        KvElement::Bf16 | KvElement::Q8_0 => 4e-3,
                    };
                    assert!((f64::from(*got) - want).abs() < bound, "{salt}: row {row}, head {head}: {got} {want}");
                }
            }
        }
    }
}

/// The families' kinds of heads, one after another and together.
fn kinds() -> Vec<Example> {
    let tokens = 2 * SEGMENT + BLOCK + 9;
    let plain = |shape, salt| Example { kept: KvElement::F32, ..Example::new(shape, tokens, salt) };
    let windowed = |window| plain(AttentionHeads { window: Some(window), ..heads(4, 2, 32) }, window);
    vec![
        windowed(1),
        windowed(BLOCK),
        windowed(SEGMENT + 5),
        plain(AttentionHeads { softcap: Some(5.0), ..heads(4, 2, 32) }, 20),
        plain(AttentionHeads { scale: 0.3, value_dim: 24, ..heads(6, 2, 40) }, 21),
        Example { sinks: Some(vec![3.0, -200.0, 0.0, 200.0]), ..plain(heads(4, 2, 32), 22) },
        Example { rotated: 0..16, ..plain(heads(4, 2, 32), 23) },
        Example { rotated: 0..0, ..plain(heads(4, 2, 32), 24) },
        Example {
            rotated: 40..56,
            planes: RopePlanes::Neighbours,
            in_keys: true,
            ..plain(AttentionHeads { value_dim: 40, ..heads(5, 1, 56) }, 25)
        },
        Example {
            norm: Some(numbers(32, 98)),
            order: NormOrder::AfterRotation,
            sinks: Some(numbers(4, 97)),
            ..plain(AttentionHeads { window: Some(70), softcap: Some(9.0), ..heads(4, 2, 32) }, 26)
        },
    ]
}

#[test]
fn fa_1_windows_bounds_sinks_and_values_in_keys_are_those_of_the_definition() {
    for (kind, example) in kinds().into_iter().enumerate() {
        let AttentionHeads { heads, value_dim, .. } = example.heads;
        let tokens = 2 * SEGMENT + BLOCK + 9;
        let out = example.in_pieces(&[tokens]);
        for row in [0, 1, BLOCK - 1, BLOCK, SEGMENT, SEGMENT + 7, tokens - 1] {
            for head in 0..heads {
                let got = &out[(row * heads + head) * value_dim..][..value_dim];
                for (got, want) in got.iter().zip(example.exactly(row, head)) {
                    let apart = (f64::from(*got) - want).abs();
                    assert!(apart < 2e-5, "{kind}: row {row}, head {head}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn em_1_rows_of_whole_texts_see_keys_on_both_sides() {
    let tokens = SEGMENT + BLOCK + 9;
    for (salt, window) in [None, Some(1), Some(BLOCK), Some(SEGMENT + 5)].into_iter().enumerate() {
        let shape = AttentionHeads { window, both_ways: true, ..heads(4, 2, 32) };
        let example = Example { kept: KvElement::F32, ..Example::new(shape, tokens, salt) };
        let whole = with_threads(1, || example.in_pieces(&[tokens]));
        assert_eq!(with_threads(5, || example.in_pieces(&[tokens])), whole);
        for row in [0, 1, BLOCK, SEGMENT, tokens - 1] {
            for head in 0..shape.heads {
                let got = &whole[(row * shape.heads + head) * shape.head_dim..][..shape.head_dim];
                for (got, want) in got.iter().zip(example.exactly(row, head)) {
                    assert!((f64::from(*got) - want).abs() < 2e-5, "{window:?}: row {row}, head {head}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn fa_1_pieces_and_threads_change_no_bit_of_any_kind() {
    for (kind, example) in kinds().into_iter().enumerate() {
        let tokens = 2 * SEGMENT + BLOCK + 9;
        let whole = with_threads(1, || example.in_pieces(&[tokens]));
        for threads in [1, 5] {
            let out = with_threads(threads, || example.in_pieces(&[tokens - 90, 1, 1, BLOCK, 24]));
            assert!(out == whole, "{kind}, {threads} threads");
        }
    }
}

#[test]
fn neither_pieces_nor_threads_change_a_bit() {
    ALL.into_iter().for_each(neither_pieces_nor_threads_change_a_bit_of);
}

fn neither_pieces_nor_threads_change_a_bit_of(kept: KvElement) {
    let tokens = 5 * SEGMENT + 17;
    let example = Example { kept, ..Example::new(heads(4, 2, 128), tokens, 5) };
    let whole = with_threads(1, || example.in_pieces(&[tokens]));
    for threads in [1, 2, 5, 16] {
        let mut pieces = vec![tokens - 140];
        pieces.extend([1; 3]);
        pieces.extend([BLOCK, 70, 3]);
        let out = with_threads(threads, || example.in_pieces(&pieces));
        assert!(out == whole, "{kept:?}, {threads} threads");
    }
    let mut singles = vec![1; 2 * BLOCK];
    singles.push(tokens - 2 * BLOCK);
    assert!(with_threads(3, || example.in_pieces(&singles)) == whole, "{kept:?}, token by token");
}

#[test]
fn fa_4_neighbours_do_not_change_a_bit() {
    ALL.into_iter().for_each(neighbours_do_not_change_a_bit_of);
}

fn neighbours_do_not_change_a_bit_of(kept: KvElement) {
    let shape = heads(4, 2, 64);
    let examples: Vec<Example> = (0..3).map(|salt| Example { kept, ..Example::new(shape, 900, salt * 10) }).collect();
    let lens = [700, 40, 333];
    let alone: Vec<Vec<f32>> = examples.iter().zip(lens).map(|(one, len)| one.in_pieces(&[len, 1, 5])).collect();
    let mut caches: Vec<Pages> = examples.iter().map(Example::cache).collect();
    let mut answers = vec![Vec::new(); 3];
    for (from, new) in [(0, None), (0, Some(1)), (1, Some(5))] {
        let tokens = |len: usize| new.map_or(0..len, |new| len + from..len + from + new);
        let mut steps: Vec<_> =
            examples.iter().zip(&mut caches).zip(lens).map(|((one, kv), len)| (one, kv, tokens(len))).collect();
        let mut out = together(&mut steps);
        for (answer, len) in answers.iter_mut().zip(lens) {
            let rest = out.split_off(tokens(len).len() * shape.heads * shape.head_dim);
            answer.extend(std::mem::replace(&mut out, rest));
        }
    }
    assert!(answers == alone, "{kept:?}");
}

#[test]
fn what_was_cut_off_is_forgotten() {
    ALL.into_iter().for_each(what_was_cut_off_is_forgotten_of);
}

fn what_was_cut_off_is_forgotten_of(kept: KvElement) {
    let shape = heads(2, 1, 32);
    let (right, wrong) = (Example::new(shape, 400, 1), Example::new(shape, 400, 7));
    let (right, wrong) = (Example { kept, ..right }, Example { kept, ..wrong });
    let mut kv = right.cache();
    right.step(&mut kv, 0..100);
    // Longer than what comes behind, and not even numbers.
    let mut wrong = wrong;
    wrong.value.fill(f32::NAN);
    wrong.key.fill(f32::NAN);
    assert!(wrong.step(&mut kv, 100..400).iter().all(|x| x.is_nan()));
    let again = right.step(&mut kv, 100..130);
    let undisturbed = right.in_pieces(&[130]);
    assert!(again == undisturbed[100 * 64..]);
}

#[test]
fn what_is_no_number_stays_visible() {
    let mut example = Example::new(heads(2, 1, 16), 3, 1);
    example.value[16 + 5] = f32::NAN;
    let out = example.in_pieces(&[3]);
    // Row 0 does not see it, but no number times 0 is none either.
    let row = |row: usize| &out[row * 32..][..32];
    assert!(row(1)[5].is_nan() && row(2)[5].is_nan() && row(1)[4].is_finite());
    example.query[..16].fill(f32::NAN);
    assert!(example.in_pieces(&[3])[..16].iter().all(|x| x.is_nan()));
}

#[test]
fn fa_4_every_set_of_instructions_gives_the_same_product() {
    let (depth, width) = (37, 5 * LANES);
    let halves: Vec<u16> = numbers(depth * width, 2).into_iter().map(|x| f16::from_f32(x).to_bits()).collect();
    let floats: Vec<f32> = halves.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect();
    let numbers_of = numbers(depth * width, 2);
    let mut brains = vec![0; depth * width];
    to_brains(&numbers_of, &mut brains);
    let mut of_rows = (vec![0; depth * width], Vec::new());
    for (row, quants) in numbers_of.chunks(width).zip(of_rows.0.chunks_mut(width)) {
        let groups = row.chunks(GROUP).zip(quants.chunks_mut(GROUP));
        of_rows.1.extend(groups.map(|(row, quants)| to_scaled(row, quants)));
    }
    let scales = numbers(depth.div_ceil(GROUP) * width, 4).into_iter().map(|x| f16::from_f32(x).to_bits());
    let of_columns: Vec<u16> = scales.collect();
    let scaled = |scales, groups| Panel::Scaled(ScaledPanel { quants: &of_rows.0, scales, groups });
    let others = [
        ("brains", Panel::Brains(&brains)),
        ("rows", scaled(&of_rows.1, Groups::Rows)),
        ("columns", scaled(&of_columns, Groups::Columns)),
    ];
    for rows in 1..15 {
        let (a, before) = (numbers(rows * (depth + 3), 1), numbers(rows * (width + 1), 3));
        let run = |instructions: Instructions, b: Panel<'_>| {
            let mut c = before.clone();
            let (a_stride, c_stride) = (depth + 3, width + 1);
            let product = Product { rows, depth, width, a: &a, a_stride, b, b_stride: width, c: &mut c, c_stride };
            multiply(instructions, product);
            c
        };
        let plain = Instructions::of(InstructionSet::Portable).unwrap();
        let portable = run(plain, Panel::Floats(&floats));
        for (row, c) in portable.chunks(width + 1).enumerate() {
            for (column, got) in c.iter().enumerate() {
                let products = (0..depth)
                    .map(|k| if column < width { a[row * (depth + 3) + k] * floats[k * width + column] } else { 0.0 });
                let want = before[row * (width + 1) + column] + products.sum::<f32>();
                assert!((got - want).abs() < 1e-4, "{row} {column}: {got} {want}");
            }
        }
        // All sets have one order of sums and fused multiply-adds: the same bits.
        for instructions in InstructionSet::available().into_iter().map(|set| Instructions::of(set).unwrap()) {
            let set = instructions.set();
            assert!(run(instructions, Panel::Floats(&floats)) == portable, "{rows} rows by {set}");
            if !takes_as_stored(rows) {
                continue;
            }
            assert!(run(instructions, Panel::Halves(&halves)) == portable, "{rows} rows by {set}");
            for (name, panel) in &others {
                let mut wide = vec![0.0; depth * width];
                spread(instructions, PanelSpread { rows: *panel, width, wide: &mut wide, stride: width });
                let mut portable = vec![0.0; depth * width];
                PanelSpread { rows: *panel, width, wide: &mut portable, stride: width }.call();
                assert!(wide == portable, "{name} by {set}");
                let of_floats = run(plain, Panel::Floats(&wide));
                assert!(run(instructions, *panel) == of_floats, "{name}, {rows} rows by {set}");
            }
        }
    }
}

#[test]
fn fa_4_every_set_of_instructions_attends_the_same() {
    ALL.into_iter().for_each(every_set_of_instructions_attends_the_same_over);
}

/// Some queries attend to 300 tokens by these instructions.
pub(crate) fn attend_by(instructions: Instructions, kept: KvElement, rows: usize) {
    let shape = heads(1, 1, 64);
    let example = Example { kept, ..Example::new(shape, 300, 3) };
    let mut kv = example.cache();
    example.step(&mut kv, 0..300);
    let tile = QueryTile { queries: numbers(rows * 64, 8), seen: vec![0..300; rows], softcap: None };
    let mut scratch = Scratch::default();
    scratch.instructions = instructions;
    let mut out = vec![0.0; rows * 64];
    tile.attend(&kv.behind(300), 0, &mut scratch).write(0, 64, None, &mut out);
}

fn every_set_of_instructions_attends_the_same_over(kept: KvElement) {
    let shape = heads(4, 2, 48);
    let example = Example { kept, ..Example::new(shape, 300, 3) };
    let mut kv = example.cache();
    example.step(&mut kv, 0..300);
    let kv = std::cell::RefCell::new(kv);
    let seen = vec![0..1, 3..64, 0..65, 70..256, 299..300];
    let tile = QueryTile { queries: numbers(5 * 48, 8), seen, softcap: Some(3.0) };
    let attend = |instructions: Instructions| {
        let mut scratch = Scratch::default();
        scratch.instructions = instructions;
        let mut out = vec![0.0; 5 * 48];
        tile.attend(&kv.borrow_mut().behind(300), 1, &mut scratch).write(0, 48, Some(&[0.5; 5]), &mut out);
        out
    };
    let of = |set| attend(Instructions::of(set).unwrap());
    let plain = of(InstructionSet::Portable);
    for set in InstructionSet::available() {
        assert!(of(set) == plain, "{kept:?} by {set}");
    }
}
