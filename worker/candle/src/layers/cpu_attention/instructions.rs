//! The instructions that attention's inner loops use on this machine.

use pulp::Arch;

use super::kernel::{Panel, Product, SoftmaxBlock};
use super::{avx512, widen};
use crate::matrix::kv_element::KvElement;

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

    /// Whether products with `rows` rows take panels of other elements than floats. With more rows, widening those once
    /// is less work.
    pub(super) fn widen_as_they_go(self, rows: usize) -> bool {
        matches!(self, Self::Avx512(_)) && rows <= avx512::MOST_ROWS
    }

    /// Whether products with `rows` rows take keys and values page by page, as they are stored. With more rows it is
    /// less work to make one piece of a block's pages first.
    pub(super) fn takes_as_stored(self, rows: usize, kept: KvElement) -> bool {
        match kept {
            KvElement::F32 => rows <= avx512::MOST_ROWS,
            KvElement::F16 | KvElement::Bf16 | KvElement::Q8_0 => self.widen_as_they_go(rows),
        }
    }

    /// Rows of `width` as f32, into the beginnings of rows of `stride`; exact.
    pub(super) fn spread(self, rows: Panel<'_>, width: usize, wide: &mut [f32], stride: usize) {
        let spread = widen::PanelSpread { rows, width, wide, stride };
        match self {
            Self::Avx512(instructions) => avx512::spread(instructions, spread),
            Self::Other(arch) => arch.dispatch(spread),
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
