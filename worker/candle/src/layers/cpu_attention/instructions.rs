//! The instructions that attention's inner loops use on this machine.

use pulp::Arch;

use super::kernel::{Product, SoftmaxBlock};
use super::{avx512, cache};

/// The instructions to use.
#[derive(Clone, Copy)]
pub(super) enum Instructions {
    Avx512(avx512::Avx512),
    Other(Arch),
}

impl Instructions {
    pub(super) fn detect() -> Self {
        avx512::Avx512::detect().map_or_else(|| Self::Other(Arch::new()), Self::Avx512)
    }

    /// Whether products with `rows` rows take halves as they are. With more rows, widening them once is less work.
    pub(super) fn widen_as_they_go(self, rows: usize) -> bool {
        matches!(self, Self::Avx512(_)) && rows <= avx512::MOST_ROWS
    }

    /// f16 as f32, exactly. Both are of the same length.
    pub(super) fn widen(self, bits: &[u16], wide: &mut [f32]) {
        match self {
            Self::Avx512(instructions) => avx512::widen(instructions, bits, wide),
            Self::Other(_) => cache::widen(bits, wide),
        }
    }

    pub(super) fn product(self, product: Product<'_>) {
        match self {
            Self::Avx512(instructions) => avx512::product(instructions, product),
            Self::Other(arch) => arch.dispatch(product),
        }
    }

    pub(super) fn weigh(self, weigh: SoftmaxBlock<'_>) {
        match self {
            Self::Avx512(instructions) => avx512::weigh(instructions, weigh),
            Self::Other(arch) => arch.dispatch(weigh),
        }
    }
}
