//! Every instruction set, type and shape against plain code and against the definition.

use half::{bf16, f16};

use model_boss_weights::gguf::{F8_BLOCK, F8_FACTOR, TensorType, dequantise};

use super::kinds::{E4m3, FloatKind};
use super::product::product_of;
use model_boss_protocol::InstructionSet;

use crate::lanes::Instructions;

fn numbers(count: usize, salt: u32) -> Vec<f32> {
    let scramble = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(salt).wrapping_mul(40_503) >> 16;
    (0..count as u32).map(|i| scramble(i) as f32 / 32_768.0 - 1.0).collect()
}

/// Some numbers' bytes in a type, and the same numbers as f32.
fn stored<K: FloatKind>(values: &[f32], round: impl Fn(f32) -> (Vec<u8>, f32)) -> (Vec<u8>, Vec<f32>) {
    let (bytes, rounded): (Vec<Vec<u8>>, Vec<f32>) = values.iter().map(|value| round(*value)).unzip();
    let bytes = bytes.concat();
    assert_eq!(bytes.len(), K::row_bytes(values.len()));
    (bytes, rounded)
}

fn sets() -> Vec<(InstructionSet, Instructions)> {
    InstructionSet::available().into_iter().filter_map(|set| Some((set, Instructions::of(set)?))).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Results are those of plain code for the same numbers as f32, for any type and set.
fn assert_equal_in_all_sets<K: FloatKind>(
    name: &str,
    [rows, outs, depth]: [usize; 3],
    round: impl Fn(f32) -> (Vec<u8>, f32),
) {
    let x = numbers(rows * depth, 1);
    let (w, wide) = stored::<K>(&numbers(outs * depth, 2), round);
    let plain = Instructions::of(InstructionSet::Portable).unwrap();
    let expected = product_of::<f32>(plain, &x, bytes_of(&wide), [rows, outs, depth]);
    for (set, instructions) in sets() {
        let y = product_of::<K>(instructions, &x, &w, [rows, outs, depth]);
        assert_eq!(bits(&y), bits(&expected), "{name} by {set}: {rows} rows, {outs} x {depth}");
    }
}

/// Results are those of plain code for the same numbers as f32.
fn fp8_equals_in_all_sets([rows, outs, depth]: [usize; 3]) {
    let x = numbers(rows * depth, 1);
    let scramble = |i: usize| (i.wrapping_mul(2_654_435_761) >> 9) as u8;
    let mut w = Vec::new();
    for block in 0..outs * depth / F8_BLOCK {
        w.extend((F8_FACTOR * (1.0 + block as f32 / 7.0)).to_le_bytes());
        w.extend(
            (0..F8_BLOCK)
                .map(|i| scramble(block * F8_BLOCK + i))
                .map(|byte| if byte & 0x7f == 0x7f { 1 } else { byte }),
        );
    }
    assert!(E4m3::are_finite(&w));
    let mut wide = vec![0.0; outs * depth];
    dequantise(TensorType::F8_E4M3, &w, &mut wide).unwrap();
    let plain = Instructions::of(InstructionSet::Portable).unwrap();
    let expected = product_of::<f32>(plain, &x, bytes_of(&wide), [rows, outs, depth]);
    for (set, instructions) in sets() {
        let y = product_of::<E4m3>(instructions, &x, &w, [rows, outs, depth]);
        assert_eq!(bits(&y), bits(&expected), "fp8 by {set}: {rows} rows, {outs} x {depth}");
    }
}

fn bytes_of(values: &[f32]) -> &[u8] {
    pulp::bytemuck::cast_slice(values)
}

#[test]
fn fa_4_every_set_type_and_shape_gives_the_same_bits() {
    // Rows below and above the number from which on matrices are packed, matrices with whole tiles and without.
    for rows in [1, 2, 3, 4, 5, 6, 7, 12, 13, 19] {
        for outs in [1, 2, 3, 4, 7, 8, 23, 24, 25, 50] {
            for depth in [1, 15, 16, 17, 40, 64, 192] {
                let shape = [rows, outs, depth];
                assert_equal_in_all_sets::<f32>("f32", shape, |x| (x.to_le_bytes().to_vec(), x));
                assert_equal_in_all_sets::<f16>("f16", shape, |x| {
                    let half = f16::from_f32(x);
                    (half.to_le_bytes().to_vec(), half.to_f32())
                });
                // Each byte's value has another exponent than its neighbours.
                if depth % F8_BLOCK == 0 {
                    fp8_equals_in_all_sets(shape);
                }
                assert_equal_in_all_sets::<bf16>("bf16", shape, |x| {
                    let half = bf16::from_f32(x);
                    (half.to_le_bytes().to_vec(), half.to_f32())
                });
            }
        }
    }
}

#[test]
fn fa_4_a_float_row_comes_out_the_same_to_the_bit_whoever_is_beside_it() {
    // Large enough for several threads, and for several groups of rows that stay in the cache together.
    let (outs, depth) = (101, 4_099);
    let (w, x) = (numbers(outs * depth, 3), numbers(40 * depth, 4));
    for (set, instructions) in sets() {
        if set == InstructionSet::Portable {
            continue;
        }
        let together = product_of::<f32>(instructions, &x, bytes_of(&w), [40, outs, depth]);
        for (first, rows) in [(0, 1), (0, 2), (3, 5), (7, 6), (20, 13), (39, 1), (2, 30)] {
            let part = &x[first * depth..(first + rows) * depth];
            let y = product_of::<f32>(instructions, part, bytes_of(&w), [rows, outs, depth]);
            assert_eq!(bits(&y), bits(&together[first * outs..(first + rows) * outs]), "{set}: {rows} from {first}");
        }
    }
}
