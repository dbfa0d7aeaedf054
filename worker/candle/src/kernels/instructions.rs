//! Plain code, compiled for the vector instructions that the machine has.

use pulp::NullaryFnOnce;

/// Runs plain code compiled for the machine's vector instructions.
pub(super) fn with_best_instructions<F: NullaryFnOnce>(work: F) -> F::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return simd.vectorize(work);
    }
    work.call()
}
