//! Products of every block type, compared with the same weights as floats, and with other numbers of rows.

use super::*;

use model_boss_protocol::InstructionSet;

/// A generator of evenly distributed words.
fn words(salt: u32) -> impl FnMut() -> u32 {
    let mut state = salt.wrapping_mul(2_654_435_761) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    }
}

fn numbers(count: usize, salt: u32) -> Vec<f32> {
    let mut next = words(salt);
    (0..count).map(|_| next() as f32 / (1u64 << 31) as f32 - 1.0).collect()
}

/// Random blocks whose scales are small.
fn blocks(kind: TensorType, outs: usize, depth: usize) -> Vec<u8> {
    let format = Format::of(kind).unwrap();
    let mut next = words(kind as u32 + 1);
    let mut blocks: Vec<u8> =
        (0..kind.bytes_of((outs * depth) as u64).unwrap()).map(|_| (next() >> 11) as u8).collect();
    for block in blocks.chunks_mut(format.block_bytes()) {
        if kind == TensorType::MXFP4 {
            block[0] = 120 + (next() % 3) as u8;
        }
        for at in format.scales() {
            let scale = half::f16::from_f32(0.01 + (next() % 1_000) as f32 / 50_000.0);
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    blocks
}

/// A matrix of random blocks, and its elements.
fn matrix(kind: TensorType, outs: usize, depth: usize) -> (Quantised, Vec<f32>) {
    let blocks = blocks(kind, outs, depth);
    let mut values = vec![0.0; outs * depth];
    dequantise(kind, &blocks, &mut values).unwrap();
    (Quantised::new(kind, [outs, depth], &blocks).unwrap(), values)
}

/// A matrix that is multiplied by an instruction set of this machine.
fn matrix_by(set: InstructionSet, kind: TensorType, outs: usize, depth: usize) -> Quantised {
    let mut blocks = blocks(kind, outs, depth);
    Quantised::arrange(kind, [outs, depth], &mut blocks);
    Quantised::with_instructions(Instructions::of(set).unwrap(), kind, [outs, depth], blocks.into()).unwrap()
}

#[test]
fn fa_4_products_are_those_of_the_dequantised_weights() {
    for kind in Format::kinds() {
        // 48 rows are three whole tiles, 37 are not.
        for (outs, depth) in [(37, 256), (37, 768), (48, 256), (48, 768)] {
            let rows = 15;
            let (w, values) = matrix(kind, outs, depth);
            let x = numbers(rows * depth, 5);
            let y = w.product(&x, rows);
            assert_eq!(y.len(), rows * outs);
            for (r, x) in x.chunks(depth).enumerate() {
                for (o, w) in values.chunks(depth).enumerate() {
                    let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    // The error of each activation is at most half of 1/127 of the largest one, in random directions.
                    let weight = w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
                    let off = (f64::from(y[r * outs + o]) - exact).abs();
                    assert!(off < weight * 4.0 / 127.0 / 12f64.sqrt(), "{kind}: {off} of {weight}");
                }
            }
        }
    }
}

#[test]
fn products_of_exact_activations_are_exact() {
    for (kind, outs) in Format::kinds().into_iter().flat_map(|kind| [(kind, 9), (kind, 16)]) {
        let depth = 512;
        let (w, values) = matrix(kind, outs, depth);
        // Each group has a value of 127, so its scale is 1, and small integers are rounded to themselves.
        let mut next = words(3);
        let x: Vec<f32> = (0..depth).map(|i| if i % 32 == 0 { 127.0 } else { (next() % 255) as f32 - 127.0 }).collect();
        for (y, w) in w.product(&x, 1).into_iter().zip(values.chunks(depth)) {
            let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let size: f64 = x.iter().zip(w).map(|(x, w)| (f64::from(*x) * f64::from(*w)).abs()).sum();
            assert!((f64::from(y) - exact).abs() < size * 1e-6, "{kind}: {y} {exact}");
        }
    }
}

/// Every small shape: tiles and rows that fill none, numbers of activations that fill no strip, chunks that are not
/// whole.
#[test]
fn fa_4_every_instruction_set_multiplies_as_plain_code_does_to_the_bit() {
    for kind in Format::kinds() {
        let len = Format::of(kind).unwrap().block_len();
        for (outs, depth) in [(1, len), (15, len), (16, 2 * len), (33, 3 * len), (32, 9 * len)] {
            let x = numbers(34 * depth, 9);
            let plain = matrix_by(InstructionSet::Portable, kind, outs, depth);
            for set in Instructions::sets() {
                let by_set = matrix_by(set, kind, outs, depth);
                for rows in (1..=11).chain([17, 34]) {
                    let x = &x[..rows * depth];
                    assert_eq!(by_set.product(x, rows), plain.product(x, rows), "{kind} {outs} x {depth} by {set}");
                }
            }
        }
    }
}

#[test]
fn fa_4_a_row_comes_out_the_same_to_the_bit_whoever_is_beside_it() {
    // The matrices are large enough for several threads, and those of 304 rows are whole tiles. The activations have
    // more rows than use a tile together.
    for (kind, outs) in Format::kinds().into_iter().flat_map(|kind| [(kind, 301), (kind, 304)]) {
        let depth = 1_024;
        let (w, _) = matrix(kind, outs, depth);
        let x = numbers(70 * depth, 4);
        let together = w.product(&x, 70);
        for first in [0, 1, 5, 56, 61] {
            for rows in 1..=9 {
                let y = w.product(&x[first * depth..(first + rows) * depth], rows);
                assert_eq!(y, together[first * outs..(first + rows) * outs], "{kind}, rows {first}..{}", first + rows);
            }
        }
    }
}

#[test]
fn depths_that_fill_no_chunk() {
    for kind in Format::kinds().into_iter().filter(|kind| kind.block_len() == 32) {
        for outs in [3, 16] {
            let (w, values) = matrix(kind, outs, 32 * 11);
            let x = numbers(32 * 11, 8);
            for (y, w) in w.product(&x, 1).into_iter().zip(values.chunks(32 * 11)) {
                let exact: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                assert!((y - exact).abs() < 0.5, "{kind}: {y} {exact}");
            }
        }
    }
}

#[test]
fn rows_are_looked_up_as_floats() {
    for (kind, outs) in Format::kinds().into_iter().flat_map(|kind| [(kind, 5), (kind, 32)]) {
        let (w, values) = matrix(kind, outs, 512);
        let row = |row: usize| &values[512 * row..][..512];
        assert_eq!(w.rows(&[3, 0, outs as u32 - 1]), [row(3), row(0), row(outs - 1)].concat(), "{kind}");
        assert_eq!(w.bytes(), kind.bytes_of(512 * outs as u64).unwrap());
    }
}

#[test]
fn what_is_no_number_is_refused_or_reaches_the_result() {
    let (w, _) = matrix(TensorType::Q4_K, 1, 256);
    let mut blocks = w.tiles.row(0);
    blocks[1] = 0x7c;
    assert!(Quantised::new(TensorType::Q4_K, [1, 256], &blocks).err().unwrap().contains("NaN"));
    assert!(Quantised::new(TensorType::Q4_K, [2, 256], &blocks).is_err());
    assert!(Quantised::new(TensorType::Q8_1, [1, 32], &[0; 36]).is_err());
    for (outs, bad) in [1, 16].into_iter().flat_map(|outs| [(outs, f32::NAN), (outs, f32::INFINITY)]) {
        let mut x = vec![0.5; 256];
        x[40] = bad;
        assert!(!matrix(TensorType::Q4_K, outs, 256).0.product(&x, 1)[0].is_finite());
    }
}
