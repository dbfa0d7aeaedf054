//! The instruction set that this process computes with.

use std::sync::OnceLock;

use model_boss_protocol::{InstructionSet, InstructionSetError};

use super::operations::{Lanes, WithLanes};
use super::portable::Portable;

#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

static CHOSEN: OnceLock<InstructionSet> = OnceLock::new();

/// The set that products of this process use: the machine's best one, or the one of [`choose_instructions`].
pub fn current_instructions() -> InstructionSet {
    *CHOSEN.get_or_init(InstructionSet::best)
}

/// Chooses the set for this process. It counts if no product was computed and none was chosen before; the one that
/// counts is returned.
pub fn choose_instructions(set: InstructionSet) -> Result<InstructionSet, InstructionSetError> {
    let set = set.checked()?;
    Ok(*CHOSEN.get_or_init(|| set))
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instructions(InstructionSet);

impl Instructions {
    /// Those of this process.
    pub(crate) fn current() -> Self {
        Self(current_instructions())
    }

    /// Those of a set, if this machine has it, or if it has AVX-VNNI's instructions in the encoding of AVX-512.
    #[cfg(test)]
    pub(crate) fn of(set: InstructionSet) -> Option<Self> {
        let recoded = set == InstructionSet::AvxVnni && InstructionSet::Avx512Vnni.is_available();
        (set.is_available() || recoded).then_some(Self(set))
    }

    #[cfg(any(test, target_arch = "x86_64"))]
    pub(crate) fn set(self) -> InstructionSet {
        self.0
    }

    /// Runs work with the lanes of the set.
    pub(crate) fn run<W: WithLanes>(self, work: W) -> W::Output {
        // Lanes of a set are made here only. An `Instructions` exists only for a set that the machine has.
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => work.call(avx2::Avx2::<{ avx2::MULTIPLIED }>::new()),
            #[cfg(all(test, target_arch = "x86_64"))]
            InstructionSet::AvxVnni if !self.0.is_available() => work.call(avx2::Avx2::<{ avx2::VNNI_OF_512 }>::new()),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::AvxVnni => work.call(avx2::Avx2::<{ avx2::VNNI }>::new()),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => work.call(avx512::Avx512::<false>::new()),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Vnni => work.call(avx512::Avx512::<true>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => work.call(super::neon::Neon::<{ super::neon::PLAIN }>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::NeonDotprod => work.call(super::neon::Neon::<{ super::neon::DOTPROD }>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::NeonI8mm => work.call(super::neon::Neon::<{ super::neon::I8MM }>::new()),
            _ => work.call(Portable),
        }
    }

    /// Runs work that multiplies no bytes: sets that differ in that only share its code.
    pub(crate) fn run_floats<W: WithLanes>(self, work: W) -> W::Output {
        match self.0 {
            InstructionSet::AvxVnni => Self(InstructionSet::Avx2).run(work),
            InstructionSet::Avx512Vnni => Self(InstructionSet::Avx512).run(work),
            InstructionSet::NeonDotprod | InstructionSet::NeonI8mm => Self(InstructionSet::Neon).run(work),
            _ => self.run(work),
        }
    }

    /// Runs plain code compiled for the set.
    pub(crate) fn run_plain<F: pulp::NullaryFnOnce>(self, work: F) -> F::Output {
        self.run_floats(Plain(work))
    }
}

struct Plain<F>(F);

impl<F: pulp::NullaryFnOnce> WithLanes for Plain<F> {
    type Output = F::Output;

    fn call<L: Lanes>(self, lanes: L) -> F::Output {
        lanes.vectorize(self.0)
    }
}
