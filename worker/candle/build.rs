//! Compiles the GPU's kernels, in builds for CUDA, with the `nvcc` that candle's own kernels are compiled with.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "src/device/cuda/kernels";

/// The types of quantised blocks that have kernels.
const BLOCKS: [&str; 13] =
    ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={FOLDER}");
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    println!("cargo::rerun-if-env-changed=NVCC");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    // The driver translates the text of the oldest architecture of the build for its GPU, and keeps the result.
    let lowest = env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| "80".to_owned());
    println!("cargo::rustc-env=MODEL_BOSS_CUDA_LOWEST={lowest}");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let compiler = env::var_os("NVCC").unwrap_or_else(|| "nvcc".into());
    let floats = ["F32", "F16", "BF16"].map(|kind| ("rows", kind.to_lowercase(), format!("-DOF_{kind}")));
    let blocks = BLOCKS.map(|kind| ("blocks", kind.to_owned(), format!("-DOF_BLOCKS={kind}")));
    let plain = ("blocks", "BF16".to_owned(), "-DOF_BLOCKS=BF16 -DOF_PLAIN".to_owned());
    for (file, kind, define) in floats.into_iter().chain(blocks).chain([plain]) {
        let status = Command::new(&compiler)
            .args(["--ptx", "-O3", "-std=c++17", "-o"])
            .arg(out.join(format!("{file}_{kind}.ptx")))
            .arg(format!("-arch=compute_{lowest}"))
            .args(define.split(' '))
            .arg(Path::new(FOLDER).join(format!("{file}.cu")))
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{} ends with {status} on {FOLDER}/{file}.cu", compiler.display()),
            Err(error) => panic!("{}: {error}; docs/cuda.md says how to get a compiler", compiler.display()),
        }
    }
}
