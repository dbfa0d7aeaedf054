use proptest::prelude::*;

use super::super::predict::{BlockCost, LayerCost, StepCost, step_seconds};
use super::super::simulated::{CutShort, SimulatedDevice};
use super::*;

/// Blocks of `size` among the streamed layers.
fn blocks(streamed: &[bool], size: usize) -> Vec<Vec<usize>> {
    let coming: Vec<usize> =
        streamed.iter().enumerate().filter(|(_, streams)| **streams).map(|(layer, _)| layer).collect();
    coming.chunks(size).map(<[usize]>::to_vec).collect()
}

fn device(streamed: &[bool], size: usize, compute: f64, cost: BlockCost) -> (SimulatedDevice, Vec<Vec<usize>>) {
    let blocks = blocks(streamed, size);
    let block_of = |layer: usize| blocks.iter().position(|block| block.contains(&layer)).map(LayerBlockId);
    let layers = (0..streamed.len()).map(|layer| LayerCost { compute, block: block_of(layer) }).collect();
    let device = SimulatedDevice {
        cost: StepCost { layers, blocks: vec![cost; blocks.len()], ..StepCost::default() },
        block_bytes: vec![1; blocks.len()],
        memory: u64::MAX,
        unsteadiness: 0.0,
        fails_every: None,
        seed: 1,
    };
    (device, blocks)
}

#[test]
fn rs_6_the_next_step_begins_while_the_last_layers_compute() {
    let mut schedule = Schedule::new(3, &[vec![0], vec![1], vec![2]], 2);
    let read = |schedule: &mut Schedule| {
        let fetch = schedule.next_read().unwrap();
        schedule.was_read(fetch.id);
        assert_eq!(schedule.next_place(), Some(fetch));
        schedule.was_placed(fetch.id);
        fetch.block.0
    };
    assert_eq!((read(&mut schedule), read(&mut schedule)), (0, 1));
    assert_eq!(schedule.next_read(), None, "two slots");
    for layer in 0..3 {
        assert!(matches!(schedule.need(layer), LayerNeed::Ready(_)));
        assert!(schedule.computed(layer).is_some());
        assert_eq!(read(&mut schedule), (layer + 2) % 3);
    }
}

#[test]
fn a_step_that_ended_early_leaves_nothing_behind() {
    let mut schedule = Schedule::new(4, &[vec![0], vec![1], vec![2], vec![3]], 2);
    let first = schedule.next_read().unwrap();
    let second = schedule.next_read().unwrap();
    schedule.was_read(first.id);
    schedule.next_place().unwrap();
    schedule.was_placed(first.id);
    assert!(matches!(schedule.need(0), LayerNeed::Ready(_)));
    schedule.computed(0);
    // The step ends here; the next begins at layer 0, for which block 1 comes too soon.
    assert_eq!(schedule.need(0), LayerNeed::Wait);
    assert_eq!(schedule.next_read().map(|fetch| fetch.block), Some(LayerBlockId(0)));
    assert_eq!(schedule.next_read(), None, "the unwanted read still holds its place");
    assert_eq!(schedule.was_read(second.id), FetchArrival::Unwanted);
    assert_eq!(schedule.next_read().map(|fetch| fetch.block), Some(LayerBlockId(1)));
}

#[test]
fn a_failed_fetch_comes_again() {
    let mut schedule = Schedule::new(2, &[vec![0], vec![1]], 2);
    let (first, second) = (schedule.next_read().unwrap(), schedule.next_read().unwrap());
    schedule.failed(first.id);
    assert_eq!(schedule.was_read(second.id), FetchArrival::Unwanted);
    assert_eq!(schedule.held(), 0);
    assert_eq!(schedule.next_read().map(|fetch| fetch.block), Some(LayerBlockId(0)));
}

#[test]
fn blocks_that_stay_are_read_once_and_can_be_let_go() {
    let (device, blocks) = device(&[true; 6], 1, 1.0, BlockCost { read: 1.0, place: 0.5 });
    let mut schedule = Schedule::new(6, &blocks, 4);
    schedule.keep(&[LayerBlockId(1), LayerBlockId(4)]);
    let played = device.play(schedule.clone(), &[None; 5]).unwrap();
    let came = |step: usize| -> Vec<usize> {
        played.timelines[step].copies.iter().flat_map(|copy| copy.layers.iter().copied()).collect()
    };
    assert_eq!(came(0), [0, 1, 2, 3, 4, 5]);
    assert_eq!((came(1), came(4)), (vec![0, 2, 3, 5], vec![0, 2, 3, 5]));
    assert!(played.most_bytes <= 4);
    // However many are to stay, one place is left.
    schedule.keep(&(0..6).map(LayerBlockId).collect::<Vec<_>>());
    let played = device.play(schedule, &[None; 5]).unwrap();
    assert_eq!(played.timelines[4].copies.len(), 3);
}

#[test]
fn balanced_copy_and_compute_hide_each_other() {
    for (place, size) in [(0.0, 1), (0.0, 3), (1.0, 1)] {
        let (device, blocks) = device(&[true; 36], size, 1.0 / size as f64, BlockCost { read: 1.0, place });
        let played = device.play(Schedule::new(36, &blocks, 3), &[None; 8]).unwrap();
        let overlap = played.overlap(&device, 4);
        assert!(overlap >= 0.95, "place {place}, {size} layers each: {overlap}");
    }
    // Two slots are enough where nothing is placed; with one there is nothing to hide behind.
    let (device, blocks) = device(&[true; 36], 1, 1.0, BlockCost { read: 1.0, place: 0.0 });
    assert!(device.play(Schedule::new(36, &blocks, 2), &[None; 8]).unwrap().overlap(&device, 4) >= 0.95);
    assert!(device.play(Schedule::new(36, &blocks, 1), &[None; 8]).unwrap().overlap(&device, 4) <= 0.55);
}

proptest! {
    #[test]
    fn rs_6_never_computes_an_absent_layer_never_exceeds_memory_in_order_all_returned(
        streamed in proptest::collection::vec(any::<bool>(), 1..40), size in 1..5_usize, slots in 1..5_usize,
        steps in proptest::collection::vec(proptest::option::of(0..40_usize), 1..8),
        (read, place, compute) in (0.1..3.0, 0.0..3.0, 0.1..3.0),
        fails_every in proptest::option::of(2..20_u64), seed in any::<u64>(),
        keep in proptest::collection::vec(0..40_usize, 0..4),
    ) {
        let (mut device, blocks) = device(&streamed, size, compute, BlockCost { read, place });
        device.unsteadiness = 0.9;
        device.fails_every = fails_every;
        device.seed = seed;
        device.memory = slots as u64;
        let steps: Vec<CutShort> = steps;
        let layers = streamed.len();
        let mut schedule = Schedule::new(layers, &blocks, slots);
        schedule.keep(&keep.into_iter().map(LayerBlockId).collect::<Vec<_>>());
        let played = device.play(schedule, &steps).map_err(|broken| TestCaseError::fail(broken.to_string()))?;
        // In order, each layer of each step.
        let expected: Vec<usize> = steps.iter().flat_map(|cut| 0..cut.unwrap_or(layers).min(layers)).collect();
        prop_assert_eq!(played.computed, expected);
        prop_assert_eq!(played.left_over, 0);
        prop_assert!(played.most_bytes <= slots as u64);
    }

    #[test]
    fn rs_6_the_prediction_is_within_five_percent_of_what_is_played(
        streamed in proptest::collection::vec(any::<bool>(), 8..60), size in 1..5_usize, slots in 2..6_usize,
        (read, place, compute) in (0.05..4.0, 0.0..4.0, 0.05..4.0), seed in any::<u64>(),
    ) {
        let (mut device, blocks) = device(&streamed, size, compute, BlockCost { read, place });
        prop_assume!(!blocks.is_empty());
        device.unsteadiness = 0.05;
        device.seed = seed;
        let played = device.play(Schedule::new(streamed.len(), &blocks, slots), &[None; 12]).unwrap();
        let mean = played.steps[4..].iter().sum::<f64>() / 8.0;
        let predicted = step_seconds(&device.cost, slots);
        prop_assert!((predicted / mean - 1.0).abs() < 0.05, "predicted {} played {}", predicted, mean);
    }

    /// Any mix of resident and streamed blocks is predicted, for any balance of layers, blocks and placing.
    #[test]
    fn rs_2_balanced_copy_and_compute_overlap_by_ninety_five_percent(
        layers in 24..80_usize, share in 0.3..1.0_f64, size in 1..4_usize, placing in 0.0..0.5_f64,
        look_ahead in 2..5_usize, ends in 0.0..1.0_f64,
    ) {
        let coming = ((layers as f64 * share) as usize).max(4 * size);
        prop_assume!(coming <= layers);
        let streamed: Vec<bool> =
            (0..layers).map(|layer| (layer + 1) * coming / layers > layer * coming / layers).collect();
        let (mut device, blocks) = device(&streamed, size, 1.0, BlockCost::default());
        device.cost.ends = ends;
        let read = (layers as f64 + ends) / blocks.len() as f64;
        device.cost.blocks = vec![BlockCost { read, place: read * placing }; blocks.len()];
        let played = device.play(Schedule::new(layers, &blocks, look_ahead + 1), &[None; 12]).unwrap();
        let overlap = played.overlap(&device, 6);
        prop_assert!(overlap >= 0.95, "{}", overlap);
    }
}
