//! Compiles the GPU's kernels, in builds for CUDA, with the `nvcc` that candle's own kernels are compiled with.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "src/device/cuda/kernels";

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
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let compiler = env::var_os("NVCC").unwrap_or_else(|| "nvcc".into());
    for kind in ["f32", "f16", "bf16"] {
        let status = Command::new(&compiler)
            .args(["--ptx", "-O3", "-std=c++17", "-o"])
            .arg(out.join(format!("rows_{kind}.ptx")))
            .arg(format!("-arch=compute_{lowest}"))
            .arg(format!("-DOF_{}", kind.to_uppercase()))
            .arg(Path::new(FOLDER).join("rows.cu"))
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{} ends with {status} on {FOLDER}/rows.cu", compiler.display()),
            Err(error) => panic!("{}: {error}; docs/cuda.md says how to get a compiler", compiler.display()),
        }
    }
}
