//! The bytes that expert pages may take: those of the budget that nothing else needs. Knows bytes, no files.

use crate::residency::plan::MemoryNeeds;

/// The pages of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerPages {
    /// Number of experts; 0 for a layer without.
    pub experts: usize,
    /// Experts that compute on one token.
    pub used: usize,
    /// Bytes of one page.
    pub bytes: u64,
}

impl LayerPages {
    fn all(&self) -> u64 {
        self.bytes.saturating_mul(self.experts as u64)
    }
}

/// The bytes for pages within `budget`; `None` if the experts of one token do not fit in one of the layers. `beside`
/// has the bytes of each layer without its experts.
pub fn room(beside: &MemoryNeeds, layers: &[LayerPages], budget: u64) -> Option<u64> {
    let MemoryNeeds { layers: dense, ends, kv, workspace } = beside;
    // Sizes from a file may be any number.
    let always = dense.iter().copied().chain([*ends, *kv, *workspace]).fold(0, u64::saturating_add);
    let room = budget.checked_sub(always)?;
    let least = layers.iter().map(|layer| layer.bytes.saturating_mul(layer.used as u64)).max().unwrap_or(0);
    let all = layers.iter().map(LayerPages::all).fold(0, u64::saturating_add);
    (room >= least).then_some(room.min(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_what_is_left_and_at_least_one_tokens_experts() {
        let beside = MemoryNeeds { layers: vec![10, 20], ends: 5, kv: 3, workspace: 2 };
        let pages = |experts, used, bytes| LayerPages { experts, used, bytes };
        let layers = [LayerPages::default(), pages(8, 2, 7), pages(8, 2, 9)];
        assert_eq!(room(&beside, &layers, 39), None);
        assert_eq!(room(&beside, &layers, 40 + 17), None, "two of nine bytes");
        assert_eq!(room(&beside, &layers, 40 + 18), Some(18));
        assert_eq!(room(&beside, &layers, 10_000), Some(8 * 7 + 8 * 9), "no more than all");
        assert_eq!(room(&beside, &[pages(usize::MAX, 9, u64::MAX)], u64::MAX - 1), None);
    }
}
