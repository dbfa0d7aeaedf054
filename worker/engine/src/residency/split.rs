//! The split of a model's layers over devices when it is larger than one of them (RC-22). It works with sizes only.

use std::ops::Range;

use super::plan::MemoryNeeds;

/// The layers that one device gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStretch {
    /// The index of the budget.
    pub device: usize,
    /// Its layers; never none.
    pub layers: Range<usize>,
    /// Memory for these layers with their keys and values, and for the weights before the first layer or behind the
    /// last.
    pub needs: MemoryNeeds,
}

/// Bytes of the weights before the first layer and behind the last, where these are on different devices. One tensor
/// that serves as both is counted in both. Where they are on one device, [`MemoryNeeds::ends`] counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndBytes {
    /// The embedding.
    pub first: u64,
    /// The last norm and the head.
    pub last: u64,
}

/// Gives each device consecutive layers in proportion to its bytes, in the order of the devices. There are as few
/// borders as possible, because activations are copied at each. A device that is too small for a layer gets none.
///
/// In proportion is not always what fits: with few large layers the rounding can overfill a device while another has
/// room. Then each device is filled in turn, if everything fits that way. If it does not, the proportion stands, and
/// what each device cannot hold has to be streamed.
pub fn split(needs: &MemoryNeeds, ends: EndBytes, budgets: &[u64]) -> Vec<DeviceStretch> {
    let mut devices: Vec<usize> = (0..budgets.len()).collect();
    loop {
        let cut = LayerCut::new(needs, ends, budgets, &devices);
        let proportional = cut.proportional();
        let filled = if cut.fits(&proportional) { None } else { cut.filled() };
        let borders = filled.unwrap_or(proportional);
        let without: Vec<usize> = (0..devices.len()).filter(|at| borders[*at].is_empty()).collect();
        if without.is_empty() || devices.len() <= 1 {
            return cut.stretches(borders);
        }
        // Its share of the ends goes to another device; so all layers are cut anew without it.
        devices.retain({
            let mut at = 0;
            move |_| {
                at += 1;
                !without.contains(&(at - 1))
            }
        });
        if devices.is_empty() {
            devices.push(0);
        }
    }
}

/// Some devices, and what is to be cut for them.
struct LayerCut<'a> {
    needs: &'a MemoryNeeds,
    ends: EndBytes,
    devices: &'a [usize],
    /// By device: bytes for layers with their keys and values.
    room: Vec<u64>,
    kv_of_layer: u64,
}

impl<'a> LayerCut<'a> {
    fn new(needs: &'a MemoryNeeds, ends: EndBytes, budgets: &[u64], devices: &'a [usize]) -> Self {
        let mut cut =
            Self { needs, ends, devices, room: Vec::new(), kv_of_layer: needs.kv / needs.layers.len().max(1) as u64 };
        let room = devices.iter().enumerate().map(|(at, device)| {
            let budget = budgets.get(*device).copied().unwrap_or(0);
            budget.saturating_sub(needs.workspace.saturating_add(cut.ends_at(at)))
        });
        cut.room = room.collect();
        cut
    }

    /// Bytes of embedding and head on a device.
    fn ends_at(&self, at: usize) -> u64 {
        if self.devices.len() <= 1 {
            return self.needs.ends;
        }
        let first = if at == 0 { self.ends.first } else { 0 };
        let last = if at + 1 == self.devices.len() { self.ends.last } else { 0 };
        first + last
    }

    fn bytes(&self, layer: usize) -> u64 {
        self.needs.layers[layer].saturating_add(self.kv_of_layer)
    }

    /// A layer goes where the larger part of it lies.
    fn proportional(&self) -> Vec<Range<usize>> {
        let layers = self.needs.layers.len();
        let all: u128 = (0..layers).map(|layer| u128::from(self.bytes(layer))).sum();
        let total = self.room.iter().map(|room| u128::from(*room)).sum::<u128>().max(1);
        let (mut start, mut given, mut wanted) = (0, 0_u128, 0_u128);
        let mut borders = Vec::new();
        for (at, room) in self.room.iter().enumerate() {
            wanted += u128::from(*room) * all / total;
            let mut end = start;
            while end < layers {
                let next = u128::from(self.bytes(end));
                if at + 1 < self.room.len() && given + next / 2 >= wanted {
                    break;
                }
                given += next;
                end += 1;
            }
            borders.push(start..end);
            start = end;
        }
        borders
    }

    /// Each device is filled before the next; none if that does not do either.
    fn filled(&self) -> Option<Vec<Range<usize>>> {
        let mut start = 0;
        let mut borders = Vec::new();
        for room in &self.room {
            let (mut end, mut left) = (start, *room);
            while end < self.needs.layers.len() && self.bytes(end) <= left {
                left -= self.bytes(end);
                end += 1;
            }
            borders.push(start..end);
            start = end;
        }
        (start == self.needs.layers.len()).then_some(borders)
    }

    fn fits(&self, borders: &[Range<usize>]) -> bool {
        let bytes = |layers: &Range<usize>| layers.clone().map(|layer| self.bytes(layer)).sum::<u64>();
        borders.iter().zip(&self.room).all(|(layers, room)| bytes(layers) <= *room)
    }

    fn stretches(&self, borders: Vec<Range<usize>>) -> Vec<DeviceStretch> {
        let stretch = |(at, layers): (usize, Range<usize>)| DeviceStretch {
            device: self.devices[at],
            needs: MemoryNeeds {
                layers: self.needs.layers[layers.clone()].to_vec(),
                ends: self.ends_at(at),
                kv: self.kv_of_layer * layers.len() as u64,
                workspace: self.needs.workspace,
            },
            layers,
        };
        borders.into_iter().enumerate().map(stretch).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn even(layers: usize, each: u64) -> MemoryNeeds {
        MemoryNeeds { layers: vec![each; layers], ends: 300 * MIB, kv: 36 * MIB, workspace: 10 * MIB }
    }

    const ENDS: EndBytes = EndBytes { first: 200 * MIB, last: 100 * MIB };

    #[test]
    fn rc_22_layers_are_split_in_proportion_and_the_ends_go_to_the_ends() {
        let needs = even(36, 100 * MIB);
        let parts = split(&needs, ENDS, &[3 << 30, 1 << 30]);
        assert_eq!((parts[0].layers.start, parts[0].layers.end, parts[1].layers.end), (0, parts[1].layers.start, 36));
        assert!((26..=28).contains(&parts[0].layers.len()), "{:?}", parts[0].layers);
        assert_eq!(parts[0].needs.kv + parts[1].needs.kv, needs.kv);
        assert_eq!((parts[0].needs.ends, parts[1].needs.ends), (ENDS.first, ENDS.last));
        let alone = split(&needs, ENDS, &[8 << 30]);
        assert_eq!((alone.len(), alone[0].needs.clone()), (1, needs));
    }

    #[test]
    fn a_device_without_room_for_a_layer_gets_nothing_and_the_ends_move_on() {
        let parts = split(&even(8, 500 * MIB), ENDS, &[100 * MIB, 3 << 30, 3 << 30]);
        assert_eq!(parts.iter().map(|part| part.device).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((parts[0].needs.ends, parts[1].needs.ends), (ENDS.first, ENDS.last));
        let hopeless = split(&even(2, 500 * MIB), ENDS, &[1, 1, 1]);
        assert_eq!((hopeless.len(), hopeless[0].layers.clone()), (1, 0..2));
    }

    #[test]
    fn a_proportion_that_overfills_gives_way_to_one_that_fits() {
        // Three layers over room for one and two: half of the second is nearer to the first device by bytes alone.
        let needs = MemoryNeeds { layers: vec![100 * MIB; 3], ..MemoryNeeds::default() };
        let parts = split(&needs, EndBytes::default(), &[199 * MIB, 200 * MIB]);
        assert_eq!(parts.iter().map(|part| part.layers.clone()).collect::<Vec<_>>(), [0..1, 1..3]);
    }

    proptest! {
        #[test]
        fn rc_22_every_layer_goes_to_one_device_in_order(
            layers in proptest::collection::vec(1..200 * MIB, 1..60),
            budgets in proptest::collection::vec(1..4_000 * MIB, 1..5),
            ends in 0..300 * MIB,
        ) {
            let needs = MemoryNeeds { layers, ends, kv: 11, workspace: 3 * MIB };
            let parts = split(&needs, EndBytes { first: ends, last: ends }, &budgets);
            prop_assert!(!parts.is_empty());
            prop_assert!(parts.windows(2).all(|pair| pair[0].device < pair[1].device));
            let mut next = 0;
            for part in &parts {
                prop_assert_eq!(part.layers.start, next);
                prop_assert!(!part.layers.is_empty());
                prop_assert_eq!(&part.needs.layers[..], &needs.layers[part.layers.clone()]);
                next = part.layers.end;
            }
            prop_assert_eq!(next, needs.layers.len());
        }

        #[test]
        fn what_fits_in_proportion_or_one_after_the_other_is_never_overfilled(
            layers in proptest::collection::vec(1..50 * MIB, 4..40), cut in 0.2..0.8_f64,
        ) {
            // Budgets that are exactly right for some border.
            let border = ((layers.len() as f64 * cut) as usize).max(1);
            let budgets = [layers[..border].iter().sum(), layers[border..].iter().sum::<u64>()];
            let needs = MemoryNeeds { layers, ..MemoryNeeds::default() };
            for part in split(&needs, EndBytes::default(), &budgets) {
                prop_assert!(part.needs.layers.iter().sum::<u64>() <= budgets[part.device]);
            }
        }
    }
}
