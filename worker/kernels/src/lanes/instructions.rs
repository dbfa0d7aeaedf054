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
    *CHOSEN.get_or_init(|| {
        InstructionSet::available().into_iter().rfind(|set| is_granted(*set)).unwrap_or(InstructionSet::Portable)
    })
}

/// Chooses the set for this process. It counts if no product was computed and none was chosen before; the one that
/// counts is returned.
pub fn choose_instructions(set: InstructionSet) -> Result<InstructionSet, InstructionSetError> {
    let set = set.checked()?;
    if !is_granted(set) {
        return Err(InstructionSetError::Refused(set));
    }
    Ok(*CHOSEN.get_or_init(|| set))
}

/// Whether the system lets this process use a set that the machine has. It has to be asked for AMX.
fn is_granted(set: InstructionSet) -> bool {
    #[cfg(target_arch = "x86_64")]
    if set == InstructionSet::Amx {
        return super::amx::is_granted();
    }
    let _ = set;
    true
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instructions(InstructionSet);

impl Instructions {
    /// Those of this process.
    pub(crate) fn current() -> Self {
        Self(current_instructions())
    }

    /// Those of a set, if this machine has it. With AVX-512 VNNI, a machine has AVX-VNNI's instructions in another
    /// encoding, and plain code in place of AMX's.
    #[cfg(test)]
    pub(crate) fn of(set: InstructionSet) -> Option<Self> {
        let recoded = matches!(set, InstructionSet::AvxVnni | InstructionSet::Amx);
        let has = set.is_available() || (recoded && InstructionSet::Avx512Vnni.is_available());
        has.then_some(Self(set))
    }

    /// The sets that [`Self::of`] has.
    #[cfg(test)]
    pub(crate) fn sets() -> impl Iterator<Item = InstructionSet> {
        InstructionSet::ALL.into_iter().map(|(set, _)| set).filter(|set| Self::of(*set).is_some())
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
            InstructionSet::Avx512 => work.call(avx512::Avx512::<{ avx512::MULTIPLIED }>::new()),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Vnni => work.call(avx512::Avx512::<{ avx512::VNNI }>::new()),
            #[cfg(all(test, target_arch = "x86_64"))]
            InstructionSet::Amx if !is_granted(self.0) => {
                work.call(avx512::Avx512::<{ avx512::TILES_IN_SOFTWARE }>::new())
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Amx => work.call(avx512::Avx512::<{ avx512::TILES }>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => work.call(super::neon::Neon::<{ super::neon::PLAIN }>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::NeonDotprod => work.call(super::neon::Neon::<{ super::neon::DOTPROD }>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::NeonI8mm => work.call(super::neon::Neon::<{ super::neon::I8MM }>::new()),
            _ => work.call(Portable),
        }
    }

    /// Runs work that multiplies few rows of activations at a time: AMX has nothing for it.
    pub(crate) fn run_few<W: WithLanes>(self, work: W) -> W::Output {
        match self.0 {
            InstructionSet::Amx => Self(InstructionSet::Avx512Vnni).run(work),
            _ => self.run(work),
        }
    }

    /// Runs work that multiplies no bytes: sets that differ in that only share its code.
    pub(crate) fn run_floats<W: WithLanes>(self, work: W) -> W::Output {
        match self.0 {
            InstructionSet::AvxVnni => Self(InstructionSet::Avx2).run(work),
            InstructionSet::Avx512Vnni | InstructionSet::Amx => Self(InstructionSet::Avx512).run(work),
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
