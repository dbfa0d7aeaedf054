//! The instruction sets of processors, and the one that this process computes with.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use super::operations::{Lanes, WithLanes};
use super::portable::Portable;

#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// An instruction set that products are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InstructionSet {
    /// Plain code for every processor.
    Portable,
    /// Arm's vectors, without products of bytes.
    Neon,
    /// Arm's vectors with products of four bytes (`sdot`, Armv8.2 and later).
    NeonDotprod,
    /// AVX2 with FMA and F16C: Intel since 2013, AMD since 2015.
    Avx2,
    /// AVX2 with products of four bytes: Intel since Alder Lake.
    AvxVnni,
    /// AVX-512 (F, BW, VL) without products of bytes: Intel's Skylake servers.
    Avx512,
    /// AVX-512 with products of four bytes: Intel since Ice Lake, AMD since Zen 4.
    Avx512Vnni,
}

impl InstructionSet {
    /// All sets, each with the name that operators write.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Portable, "portable"),
        (Self::Neon, "neon"),
        (Self::NeonDotprod, "neon-dotprod"),
        (Self::Avx2, "avx2"),
        (Self::AvxVnni, "avx-vnni"),
        (Self::Avx512, "avx512"),
        (Self::Avx512Vnni, "avx512-vnni"),
    ];

    /// The name that operators write.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(set, _)| *set == self).map_or("portable", |(_, name)| name)
    }

    /// The sets of this machine, the fastest last.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().map(|(set, _)| set).filter(|set| set.is_available()).collect()
    }

    /// The fastest set of this machine.
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Portable)
    }

    /// The set that products of this process use: the best one, or the one of [`Self::choose`].
    pub fn current() -> Self {
        *CHOSEN.get_or_init(Self::best)
    }

    /// Chooses the set for this process. That is possible until the first product.
    pub fn choose(self) -> Result<(), InstructionSetError> {
        if !self.is_available() {
            return Err(InstructionSetError::Absent { set: self, available: Self::available() });
        }
        if *CHOSEN.get_or_init(|| self) == self { Ok(()) } else { Err(InstructionSetError::Late) }
    }

    /// Whether this machine has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => avx2::has_avx2() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::has_avx512(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => avx512::has_avx512() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => {
                std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[allow(unreachable_patterns, reason = "the sets of other architectures")]
            _ => false,
        }
    }

    /// A sentence for operators if products are slow with this set on this machine.
    pub fn warning(self) -> Option<String> {
        (self == Self::Portable).then(|| {
            "products run in plain code: this processor has none of the vector instructions that model-boss has \
             kernels for (avx2 or neon), so expect a tenth of the speed"
                .to_owned()
        })
    }
}

static CHOSEN: OnceLock<InstructionSet> = OnceLock::new();

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for InstructionSet {
    type Err = InstructionSetError;

    fn from_str(name: &str) -> Result<Self, InstructionSetError> {
        let known = Self::ALL.into_iter().find(|(_, known)| known.eq_ignore_ascii_case(name));
        known.map(|(set, _)| set).ok_or_else(|| InstructionSetError::Unknown(name.to_owned()))
    }
}

/// The reason why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstructionSetError {
    /// No set has this name.
    #[error("'{0}' is no instruction set; known are {known}", known = names(InstructionSet::ALL.map(|(set, _)| set)))]
    Unknown(String),
    /// The machine does not have the set.
    #[error("this machine has no {set}; it has {present}", present = names(available.iter().copied()))]
    Absent {
        /// The set that was asked for.
        set: InstructionSet,
        /// The sets that could be.
        available: Vec<InstructionSet>,
    },
    /// Products were computed before.
    #[error("the instruction set was chosen before")]
    Late,
}

fn names(sets: impl IntoIterator<Item = InstructionSet>) -> String {
    sets.into_iter().map(InstructionSet::name).collect::<Vec<_>>().join(", ")
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instructions(InstructionSet);

impl Instructions {
    /// Those of this process.
    pub(crate) fn current() -> Self {
        Self(InstructionSet::current())
    }

    /// Those of a set, if this machine has it.
    #[cfg(test)]
    pub(crate) fn of(set: InstructionSet) -> Option<Self> {
        set.is_available().then_some(Self(set))
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
            #[cfg(target_arch = "x86_64")]
            InstructionSet::AvxVnni => work.call(avx2::Avx2::<{ avx2::VNNI }>::new()),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => work.call(avx512::Avx512::<false>::new()),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Vnni => work.call(avx512::Avx512::<true>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => work.call(super::neon::Neon::<false>::new()),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::NeonDotprod => work.call(super::neon::Neon::<true>::new()),
            _ => work.call(Portable),
        }
    }

    /// Runs work that multiplies no bytes: sets that differ in that only share its code.
    pub(crate) fn run_floats<W: WithLanes>(self, work: W) -> W::Output {
        match self.0 {
            InstructionSet::AvxVnni => Self(InstructionSet::Avx2).run(work),
            InstructionSet::Avx512Vnni => Self(InstructionSet::Avx512).run(work),
            InstructionSet::NeonDotprod => Self(InstructionSet::Neon).run(work),
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
