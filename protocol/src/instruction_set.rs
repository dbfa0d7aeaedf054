//! The instruction sets of processors, as operators name them, and those that this machine has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An instruction set that products on the CPU are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum InstructionSet {
    /// Plain code for every processor.
    Portable,
    /// Arm's vectors, without products of bytes.
    Neon,
    /// Arm's vectors with products of four bytes (`sdot`, Armv8.2 and later).
    NeonDotprod,
    /// The same with products of matrices of bytes (`smmla`): Armv8.6, and servers since Graviton 3.
    NeonI8mm,
    /// AVX2 with FMA and F16C: Intel since 2013, AMD since 2015.
    Avx2,
    /// AVX2 with products of four bytes: Intel since Alder Lake.
    AvxVnni,
    /// AVX-512 (F, BW, VL) without products of bytes: Intel's Skylake servers.
    Avx512,
    /// AVX-512 with products of four bytes: Intel since Ice Lake, AMD since Zen 4.
    Avx512Vnni,
    /// The same with products of matrices of bytes (AMX): Intel's servers since Sapphire Rapids.
    Amx,
}

impl InstructionSet {
    /// All sets, each with the name that operators write.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Portable, "portable"),
        (Self::Neon, "neon"),
        (Self::NeonDotprod, "neon-dotprod"),
        (Self::NeonI8mm, "neon-i8mm"),
        (Self::Avx2, "avx2"),
        (Self::AvxVnni, "avx-vnni"),
        (Self::Avx512, "avx512"),
        (Self::Avx512Vnni, "avx512-vnni"),
        (Self::Amx, "amx"),
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

    /// The set itself if this machine has it; else an error that lists those it has.
    pub fn checked(self) -> Result<Self, InstructionSetError> {
        if self.is_available() {
            return Ok(self);
        }
        Err(InstructionSetError::Absent { set: self, available: Self::available() })
    }

    /// Whether this machine has the instructions. A process must be granted AMX's registers besides.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => has_avx2() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => has_avx512(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => has_avx512() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512Vnni.is_available() && has_amx(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => has_dotprod(),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => has_dotprod() && std::arch::is_aarch64_feature_detected!("i8mm"),
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
    /// The system refused the set's registers to this process, or they computed something else.
    #[error("the system does not let this process use {0}, or it computes wrong; leave the instruction set out")]
    Refused(InstructionSet),
    /// The machine does not have the set.
    #[error("this machine has no {set}; it has {present}", present = names(available.iter().copied()))]
    Absent {
        /// The set that was asked for.
        set: InstructionSet,
        /// The sets that could be.
        available: Vec<InstructionSet>,
    },
}

fn names(sets: impl IntoIterator<Item = InstructionSet>) -> String {
    sets.into_iter().map(InstructionSet::name).collect::<Vec<_>>().join(", ")
}

impl From<InstructionSet> for String {
    fn from(set: InstructionSet) -> Self {
        set.name().to_owned()
    }
}

impl TryFrom<String> for InstructionSet {
    type Error = InstructionSetError;

    fn try_from(name: String) -> Result<Self, InstructionSetError> {
        name.parse()
    }
}

#[cfg(target_arch = "aarch64")]
fn has_dotprod() -> bool {
    std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod")
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// Whether the processor has AMX's products of bytes and the system knows its registers: Linux lists the two flags
/// only then.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS.get_or_init(|| {
        let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = information.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        ["amx_tile", "amx_int8"].iter().all(|flag| flags.split_whitespace().any(|word| word == *flag))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fa_4_sets_have_names_and_absent_ones_are_refused() {
        for (set, name) in InstructionSet::ALL {
            assert_eq!((set.name(), name.to_uppercase().parse()), (name, Ok(set)));
            assert_eq!(serde_json::to_value(set).unwrap(), name);
            assert_eq!(serde_json::from_value::<InstructionSet>(name.into()).unwrap(), set);
            if !set.is_available() {
                let refusal = set.checked().unwrap_err().to_string();
                assert!(refusal.contains(name) && refusal.contains("portable"), "{refusal}");
            }
        }
        let unknown = "sse9".parse::<InstructionSet>().unwrap_err().to_string();
        assert!(unknown.contains("sse9") && unknown.contains("avx512-vnni"), "{unknown}");
        assert_eq!(InstructionSet::available().last(), Some(&InstructionSet::best()));
        assert!(InstructionSet::Portable.warning().unwrap().contains("plain code"));
        assert_eq!(InstructionSet::best().warning().is_some(), InstructionSet::best() == InstructionSet::Portable);
    }
}
