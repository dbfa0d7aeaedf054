//! Running plain code compiled for the vector instructions of this machine.

use pulp::NullaryFnOnce;

/// Runs a closure compiled for the machine's vector instructions, chosen at run time.
pub(super) fn with_best_instructions<F: NullaryFnOnce>(work: F) -> F::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return simd.vectorize(work);
    }
    work.call()
}
