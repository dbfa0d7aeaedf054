//! The meaning of an engine's exit. Exit codes differ between engines, so its last output decides.

use model_boss_protocol::WorkerExit;

/// The exit codes of shells and of model-boss's guard for a program that does not exist, or cannot be run.
const CANNOT_RUN: [i32; 2] = [126, 127];

/// Texts that report a lack of memory: llama.cpp and ggml, CUDA, PyTorch, the C++ library, Python.
const OUT_OF_MEMORY: [&str; 8] = [
    "out of memory",
    "cudamalloc failed",
    "unable to allocate",
    "failed to allocate",
    "not enough memory",
    "insufficient memory",
    "std::bad_alloc",
    "memoryerror",
];

/// Texts that report unusable model files.
const BAD_MODEL: [&str; 8] = [
    "unknown model architecture",
    "unsupported model architecture",
    "invalid magic characters",
    "failed to read magic",
    "unknown (new) tensor type",
    "has invalid ggml type",
    "error loading model hyperparameters",
    "is corrupted or incomplete",
];

/// Texts that report an invalid command line.
const BAD_ARGUMENTS: [&str; 4] =
    ["error: invalid argument", "unrecognized arguments", "error while handling argument", "unknown argument"];

/// The reason why an engine exited by itself during a load, if its exit shows one.
pub fn exit_reason(code: Option<i32>, last_lines: &[String]) -> Option<WorkerExit> {
    let said = |words: &[&str]| {
        last_lines.iter().map(|line| line.to_ascii_lowercase()).any(|line| words.iter().any(|word| line.contains(word)))
    };
    match () {
        () if code.is_some_and(|code| CANNOT_RUN.contains(&code)) => Some(WorkerExit::BadSpec),
        () if said(&OUT_OF_MEMORY) => Some(WorkerExit::OutOfMemory),
        () if said(&BAD_MODEL) => Some(WorkerExit::BadModel),
        () if said(&BAD_ARGUMENTS) => Some(WorkerExit::BadSpec),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mm_4_an_end_that_another_try_cannot_change_is_told_from_one_it_can() {
        for (code, line, expected) in [
            (
                1,
                "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory",
                Some(WorkerExit::OutOfMemory),
            ),
            (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", Some(WorkerExit::OutOfMemory)),
            (1, "llama_model_load: error loading model: unknown model architecture: 'x'", Some(WorkerExit::BadModel)),
            (1, "error: invalid argument: --foo", Some(WorkerExit::BadSpec)),
            (127, "", Some(WorkerExit::BadSpec)),
            (1, "something else", None),
            // The exit codes of model-boss's workers mean nothing from another program.
            (65, "", None),
        ] {
            assert_eq!(exit_reason(Some(code), &[line.to_owned()]), expected, "{line}");
        }
        assert_eq!(exit_reason(None, &[]), None);
    }
}
