//! Tests of the GPU's kernels on the host: `tests/kernels` compiles them as C++, with threads that run in any order,
//! and compares with the definitions in double precision.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::path::Path;
use std::process::{Command, Output};

/// Compiles and runs the tests; none without a compiler of C++20.
fn run(options: &[&str]) -> Option<Output> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("rows");
    let compiled = Command::new("c++")
        .args(["-std=c++20", "-O1", "-w", "-o"])
        .arg(&program)
        .arg(format!("-I{}", package.join("tests/kernels").display()))
        .arg(format!("-I{}", package.join("src/device/cuda/kernels").display()))
        .args(options)
        .arg(package.join("tests/kernels/rows.cpp"))
        .output();
    match compiled {
        Ok(compiled) if compiled.status.success() => Some(Command::new(&program).output().unwrap()),
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
    let Some(output) = run(&[]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The host's threads are strict enough to show what a GPU shows rarely.
#[test]
fn gp_2_without_barriers_the_kernels_are_wrong() {
    let Some(output) = run(&["-DWITHOUT_BARRIERS"]) else { return };
    assert!(!output.status.success(), "no fault without barriers");
}
