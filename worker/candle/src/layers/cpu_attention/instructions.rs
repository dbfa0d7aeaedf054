//! The instructions that attention's inner loops use on this machine.

use pulp::Arch;

use super::cache::KvElement;
use super::kernel::{Panel, Product, SoftmaxBlock};
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

    /// Whether products with `rows` rows take keys and values page by page, as they are stored. With more rows it is
    /// less work to make one piece of a block's pages first.
    pub(super) fn takes_as_stored(self, rows: usize, kept: KvElement) -> bool {
        match kept {
            KvElement::Halves => self.widen_as_they_go(rows),
            KvElement::Floats => rows <= avx512::MOST_ROWS,
        }
    }

    /// Rows of `width` as f32, into the beginnings of rows of `stride`.
    pub(super) fn spread(self, rows: Panel<'_>, width: usize, wide: &mut [f32], stride: usize) {
        for (row, wide) in wide.chunks_mut(stride).enumerate().take(rows.len() / width.max(1)) {
            match rows.part(row * width, width) {
                Panel::Halves(bits) => self.widen(bits, &mut wide[..width]),
                Panel::Floats(floats) => wide[..width].copy_from_slice(floats),
            }
        }
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
