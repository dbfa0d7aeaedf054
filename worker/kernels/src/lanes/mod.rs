//! Sixteen lanes of numbers, by each instruction set. Products of block types are written once, generic over [`Lanes`].
//!
//! Every operation gives the same bits in every instruction set: sums of quants are exact integers, and floats are
//! multiplied and added with one rounding, lane by lane. [`portable`] is the plain twin that tests compare the others
//! with.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod instructions;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operations;
mod portable;
#[cfg(test)]
mod tests;

/// AVX-VNNI's products in the encoding of AVX-512, for machines without AVX-VNNI.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) fn vnni_of_512() -> Option<impl Lanes> {
    model_boss_protocol::InstructionSet::Avx512Vnni.is_available().then(avx2::Avx2::<{ avx2::VNNI_OF_512 }>::new)
}

pub(crate) use instructions::Instructions;
pub use instructions::{choose_instructions, current_instructions};
pub(crate) use operations::{LANES, Lanes, SIGNED, WithLanes};
