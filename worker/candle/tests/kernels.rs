//! Tests of the GPU's kernels on the host: `tests/kernels` compiles them as C++, with threads that run in any order,
//! and compares with the definitions in double precision.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use model_boss_kernels::MatrixLayout;
use model_boss_weights::gguf::TensorType;

/// Compiles and runs tests; none without a compiler of C++20.
fn run(source: &str, options: &[&str], files: &[PathBuf]) -> Option<Output> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("rows");
    let compiled = Command::new("c++")
        .args(["-std=c++20", "-O1", "-w", "-o"])
        .arg(&program)
        .arg(format!("-I{}", package.join("tests/kernels").display()))
        .arg(format!("-I{}", package.join("src/device/cuda/kernels").display()))
        .args(options)
        .arg(package.join("tests/kernels").join(source))
        .output();
    match compiled {
        Ok(compiled) if compiled.status.success() => Some(Command::new(&program).args(files).output().unwrap()),
        Ok(compiled) if can_compile(folder.path()) => panic!("{}", String::from_utf8_lossy(&compiled.stderr)),
        Ok(_) => {
            eprintln!("skipped: c++ does not know C++20 or _Float16");
            None
        }
        Err(error) => {
            eprintln!("skipped: no c++ ({error})");
            None
        }
    }
}

/// Whether the compiler has what the tests are written in.
fn can_compile(folder: &Path) -> bool {
    let file = folder.join("probe.cpp");
    std::fs::write(&file, "#include <ucontext.h>\nint main() { _Float16 x = 1; auto f = [](auto y) { return (float)y; }; return f(x) != 1; }")
        .unwrap();
    let probed = Command::new("c++").args(["-std=c++20", "-fsyntax-only"]).arg(file).output();
    probed.is_ok_and(|probed| probed.status.success())
}

#[test]
fn gp_2_kernels_of_gpus_compute_what_is_defined_in_any_order_of_threads() {
    let Some(output) = run("rows.cpp", &[], &[]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The host's threads are strict enough to show what a GPU shows rarely.
#[test]
fn gp_2_without_barriers_the_kernels_are_wrong() {
    let Some(output) = run("rows.cpp", &["-DWITHOUT_BARRIERS"], &[]) else { return };
    assert!(!output.status.success(), "no fault without barriers");
}

/// The types of blocks that GPUs have kernels for, and where in a block their numbers of f16 begin. MXFP4 has an
/// exponent.
const BLOCKS: [(TensorType, &[usize]); 14] = [
    (TensorType::Q4_0, &[0]),
    (TensorType::Q4_1, &[0, 2]),
    (TensorType::Q5_0, &[0]),
    (TensorType::Q5_1, &[0, 2]),
    (TensorType::Q8_0, &[0]),
    (TensorType::IQ4_NL, &[0]),
    (TensorType::MXFP4, &[]),
    (TensorType::Q2_K, &[80, 82]),
    (TensorType::Q3_K, &[108]),
    (TensorType::Q4_K, &[0, 2]),
    (TensorType::Q5_K, &[0, 2]),
    (TensorType::Q6_K, &[208]),
    (TensorType::IQ4_XS, &[0]),
    (TensorType::BF16, &[]),
];

/// A file for the tests of blocks: any bytes, but factors of a usual size, and the floats that the CPU's kernels take
/// them for.
fn blocks_file(kind: TensorType, factors: &[usize]) -> Vec<u8> {
    // A depth that ends within a chunk, where blocks are small enough.
    let shape = [21, if kind.block_len() <= 32 { 672 } else { 768 }];
    let mut state = 5_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut bytes: Vec<u8> = (0..kind.bytes_of((shape[0] * shape[1]) as u64).unwrap()).map(|_| byte()).collect();
    for block in bytes.chunks_mut(kind.block_bytes() as usize) {
        for factor in factors {
            block[factor + 1] = block[factor + 1] & 0x87 | 0x20;
        }
        match kind {
            TensorType::MXFP4 => block[0] = 120 + block[0] % 8,
            // Numbers from 2^-7 to 2^-5 with any sign.
            TensorType::BF16 => block[1] = block[1] & 0x80 | 0x3C,
            _ => {}
        }
    }
    let layout = MatrixLayout { kind, shape };
    let kernel = layout.copied(&bytes, bytes::BytesMut::zeroed(bytes.len())).unwrap();
    let floats = kernel.rows(&(0..shape[0] as u32).collect::<Vec<_>>());
    let mut file = format!("{kind}\n").into_bytes();
    for number in [shape[0], shape[1], bytes.len()] {
        file.extend((number as u32).to_le_bytes());
    }
    file.extend(bytes);
    file.extend(floats.iter().flat_map(|number| number.to_le_bytes()));
    file
}

#[test]
fn gp_2_blocks_are_on_gpus_what_they_are_on_the_cpu_in_any_order_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let files = BLOCKS.map(|(kind, factors)| {
        let path = folder.path().join(kind.name());
        std::fs::write(&path, blocks_file(kind, factors)).unwrap();
        path
    });
    let Some(output) = run("blocks.cpp", &[], &files) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.matches(": 0 faults").count() == BLOCKS.len(), "{said}");
    let Some(output) = run("blocks.cpp", &["-DWITHOUT_BARRIERS"], &files) else { return };
    assert!(!output.status.success(), "no fault without barriers");
}
