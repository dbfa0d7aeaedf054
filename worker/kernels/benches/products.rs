//! Measures products of one core for each type of weights: how fast one row of activations reads the matrix from
//! memory, and what many rows compute.
//!
//! `RAYON_NUM_THREADS=1 cargo bench --package model-boss-kernels --bench products -- [--set avx2] [--shape 3072x1024]
//! [TYPE …]`

#![allow(clippy::arithmetic_side_effects, reason = "sizes and rates")]

use std::sync::Arc;
use std::time::Instant;

use model_boss_kernels::{MatrixKernel, MatrixLayout, choose_instructions};
use model_boss_weights::gguf::TensorType;

type Failure = Box<dyn std::error::Error>;

/// Rows of a matrix and their length.
type Shape = [usize; 2];

const SHAPE: Shape = [3072, 1024];

/// Together larger than the caches of a core.
const MATRICES: usize = 24;

const TYPES: [TensorType; 19] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::MXFP4,
    TensorType::TQ1_0,
    TensorType::TQ2_0,
    TensorType::F8_E4M3,
    TensorType::F16,
    TensorType::BF16,
    TensorType::F32,
];

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|argument| argument == "--set") {
        let set = arguments.get(1).ok_or("name an instruction set behind --set")?.parse()?;
        choose_instructions(set)?;
        arguments.drain(..2);
    }
    let mut shape = SHAPE;
    if arguments.first().is_some_and(|argument| argument == "--shape") {
        let sizes = arguments.get(1).and_then(|sizes| sizes.split_once('x')).ok_or("name a shape behind --shape")?;
        shape = [sizes.0.parse()?, sizes.1.parse()?];
        arguments.drain(..2);
    }
    println!("{}; matrices of {shape:?}", model_boss_kernels::current_instructions());
    println!("{:<8} {:>12} {:>12} {:>12} {:>12}", "type", "1 row, GB/s", "4 rows", "8 rows", "256: GFLOP/s");
    for kind in TYPES {
        let named = |argument: &String| argument.eq_ignore_ascii_case(kind.name());
        if arguments.is_empty() || arguments.iter().any(named) {
            measure(kind, shape)?;
        }
    }
    Ok(())
}

fn measure(kind: TensorType, shape: Shape) -> Result<(), Failure> {
    let elements = shape[0] * shape[1];
    let bytes = kind.bytes_of(elements as u64).ok_or("no such size")? as usize;
    let matrix = |salt: usize| -> Result<Arc<dyn MatrixKernel>, Failure> {
        // No exponent has all bits set.
        let byte = |at: usize| ((at + salt).wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b;
        let blocks: Vec<u8> = (0..bytes).map(byte).collect();
        Ok(MatrixLayout { kind, shape }.kernel(blocks.into())?)
    };
    let matrices = (0..MATRICES).map(matrix).collect::<Result<Vec<_>, _>>()?;
    let x: Vec<f32> = (0..256 * shape[1]).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    // The fastest of some passes: other programs only make one slower.
    let seconds = |rows: usize, matrices: &[Arc<dyn MatrixKernel>]| {
        let pass = || {
            let begun = Instant::now();
            for matrix in matrices {
                std::hint::black_box(matrix.product(&x[..rows * shape[1]], rows));
            }
            begun.elapsed().as_secs_f64() / matrices.len() as f64
        };
        (0..8).map(|_| pass()).fold(f64::INFINITY, f64::min)
    };
    let read = |rows| bytes as f64 / seconds(rows, &matrices) / 1e9;
    let computed = 2.0 * 256.0 * elements as f64 / seconds(256, &matrices[..4]) / 1e9;
    println!("{:<8} {:>12.1} {:>12.1} {:>12.1} {computed:>12.0}", kind.name(), read(1), read(4), read(8));
    Ok(())
}
