use std::collections::HashMap;
use std::sync::Arc;

use model_boss_weights::store::HostBuffer;
use proptest::prelude::*;

use super::simulated_driver::{LeftOut, Memory, SimulatedDriver};
use super::*;
use crate::residency::schedule::LayerBlockId;
use crate::residency::streamer::{BlockSource, Loan, Monitor, ResidencySummary, StreamDevice, StreamFault, Streamer};

const PIECE: usize = 64;

/// Block `b` has `sizes[b]` pieces; all bytes of piece `p` are this.
fn content(block: usize, piece: usize) -> u8 {
    (block * 16 + piece + 1) as u8
}

struct Pattern {
    driver: Arc<SimulatedDriver>,
    sizes: Vec<usize>,
    reads: Arc<std::sync::atomic::AtomicUsize>,
}

fn fill(block: usize, pieces: usize, into: &mut [u8]) {
    for piece in 0..pieces {
        into[piece * PIECE..(piece + 1) * PIECE].fill(content(block, piece));
    }
}

impl BlockSource for Pattern {
    fn read(&mut self, block: LayerBlockId, into: &mut [u8]) -> Result<u64, StreamFault> {
        self.driver.host_writes(into);
        fill(block.0, self.sizes[block.0], into);
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok((self.sizes[block.0] * PIECE) as u64)
    }
}

fn blocks(sizes: &[usize]) -> Vec<Vec<CopyPiece<usize>>> {
    let pieces =
        |count: &usize| (0..*count).map(|at| CopyPiece { class: PIECE, at: at * PIECE..(at + 1) * PIECE }).collect();
    sizes.iter().map(pieces).collect()
}

/// Streams some steps, a layer a block, some of them cut short. Gives what went wrong, and how many blocks were read.
fn stream(
    driver: &Arc<SimulatedDriver>,
    sizes: &[usize],
    slots: usize,
    held: &[usize],
    cuts: &[usize],
) -> (Vec<String>, usize, Arc<Monitor>) {
    let held: HashMap<LayerBlockId, HostBuffer> = held
        .iter()
        .map(|block| {
            let mut bytes = driver.host_buffer(sizes[*block] * PIECE).unwrap();
            fill(*block, sizes[*block], &mut bytes);
            (LayerBlockId(*block), bytes)
        })
        .collect();
    let check: BlockCheck =
        Box::new(|block, bytes| if bytes[0] == content(block.0, 0) { Ok(()) } else { Err("other bytes".to_owned()) });
    let device = CopyDevice::new(Arc::clone(driver), blocks(sizes), slots, held, check).unwrap();
    let reads = Arc::default();
    let source = Pattern { driver: Arc::clone(driver), sizes: sizes.to_vec(), reads: Arc::clone(&reads) };
    let monitor = Arc::new(Monitor::new(ResidencySummary::default()));
    let of_layers = (0..sizes.len()).map(|layer| vec![layer]).collect();
    let buffer = sizes.iter().max().unwrap() * PIECE;
    let watched = Arc::clone(&monitor);
    let mut streamer = Streamer::start(sizes.len(), of_layers, slots, (2, buffer), source, device, watched).unwrap();
    let mut clock = StepClock::new(Arc::clone(driver));
    for cut in cuts {
        streamer.begin_step();
        clock.begin_step();
        for layer in 0..sizes.len().min(*cut) {
            let block = streamer.take(layer, &|| false).unwrap().unwrap();
            block.begin_use().unwrap();
            clock.layer_begins(layer);
            for (piece, memory) in block.pieces().enumerate() {
                let memory: &Memory = memory;
                driver.compute(memory, content(layer, piece));
            }
            clock.layer_ends();
            drop(block);
            streamer.computed(layer);
        }
        if *cut >= sizes.len() {
            streamer.computed_at(&clock.spans().unwrap());
            streamer.end_step();
        }
    }
    drop((streamer, clock));
    let (mut wrong, memories) = driver.end();
    if memories > 0 {
        wrong.push(format!("{memories} pieces of memory are left"));
    }
    (wrong, reads.load(std::sync::atomic::Ordering::Relaxed), monitor)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn rs_2_nothing_computes_before_it_is_there_and_nothing_is_overwritten_before_it_has_computed(
        sizes in proptest::collection::vec(1..4_usize, 1..7), slots in 1..4_usize, seed in any::<u64>(),
        cuts in proptest::collection::vec(0..9_usize, 1..6), keeps in any::<u8>(),
    ) {
        let held: Vec<usize> = (0..sizes.len()).filter(|block| keeps >> block & 1 == 1).collect();
        let driver = SimulatedDriver::new(seed, LeftOut::default());
        let (wrong, reads, _) = stream(&driver, &sizes, slots, &held, &cuts);
        prop_assert!(wrong.is_empty(), "{wrong:?}");
        prop_assert!(held.len() < sizes.len() || reads == 0);
    }
}

/// Whether any of some runs finds something wrong when a caller leaves an order out.
fn found(left_out: LeftOut, said: &str) -> bool {
    (0..40).any(|seed| {
        let (wrong, ..) = stream(&SimulatedDriver::new(seed, left_out), &[2, 1, 3, 2], 2, &[], &[9; 4]);
        wrong.iter().any(|what| what.contains(said))
    })
}

#[test]
fn rs_3_each_order_that_is_left_out_is_noticed() {
    assert!(found(LeftOut { free: true, ..LeftOut::default() }, "in place of"), "overwritten before it has computed");
    assert!(found(LeftOut { ready: true, ..LeftOut::default() }, "in place of"), "computed before it is there");
    assert!(found(LeftOut { finish: true, ..LeftOut::default() }, "host memory"), "host memory used again too early");
    assert!(!found(LeftOut::default(), ""));
}

#[test]
fn rs_7_layers_compute_when_the_device_says_and_not_when_it_is_asked() {
    let driver = SimulatedDriver::new(5, LeftOut::default());
    let (wrong, _, monitor) = stream(&driver, &[3, 3, 3], 2, &[1], &[9, 9]);
    assert!(wrong.is_empty(), "{wrong:?}");
    let last = monitor.last();
    assert_eq!(last.layers.len(), 3);
    // The simulated clock counts operations: three pieces and the mark after them, or more with copies in between.
    assert!(last.layers.iter().all(|layer| layer.compute.seconds() >= 4.0), "{last:?}");
    assert!(last.layers.windows(2).all(|pair| pair[0].compute.end <= pair[1].compute.start));
    assert_eq!(last.copies.iter().map(|copy| copy.bytes).sum::<u64>(), 9 * PIECE as u64);
}

#[test]
fn a_copy_takes_what_it_takes_however_long_it_waited_for_its_slot() {
    const ASKED: usize = 1_000;
    let driver = SimulatedDriver::new(3, LeftOut::default());
    let check: BlockCheck = Box::new(|_, _| Ok(()));
    let mut bytes = driver.host_buffer(2 * PIECE).unwrap();
    fill(0, 2, &mut bytes);
    let held = HashMap::from([(LayerBlockId(0), bytes)]);
    let mut device = CopyDevice::new(Arc::clone(&driver), blocks(&[2]), 1, held, check).unwrap();
    let block = device.place(LayerBlockId(0), Loan::none()).unwrap();
    let memory = block.pieces().next().unwrap();
    (0..ASKED).for_each(|_| driver.compute(memory, content(0, 0)));
    drop(block);
    let again = device.place(LayerBlockId(0), Loan::none()).unwrap();
    // The simulated clock counts operations: two pieces and the mark after them, without the computation before.
    let worked = device.worked().unwrap().as_secs_f64();
    assert!((3.0..50.0).contains(&worked), "{worked}");
    drop((again, device));
    assert_eq!(driver.end(), (Vec::new(), 0));
}

#[test]
fn gp_4_copies_of_held_blocks_follow_each_other_while_there_are_slots() {
    let driver = SimulatedDriver::new(9, LeftOut::default());
    let check: BlockCheck = Box::new(|_, _| Ok(()));
    let held = |block: usize| {
        let mut bytes = driver.host_buffer(2 * PIECE).unwrap();
        fill(block, 2, &mut bytes);
        (LayerBlockId(block), bytes)
    };
    let mut device =
        CopyDevice::new(Arc::clone(&driver), blocks(&[2, 2, 2, 2]), 2, (0..3).map(held).collect(), check).unwrap();
    let begun = [0, 1, 2, 3].map(|block| device.begin(LayerBlockId(block)));
    assert_eq!(begun, [true, true, false, false], "the third has no slot, and the fourth is not held");
    let first = device.place(LayerBlockId(0), Loan::none()).unwrap();
    first.begin_use().unwrap();
    first.pieces().enumerate().for_each(|(piece, memory)| driver.compute(memory, content(0, piece)));
    drop(first);
    assert!(device.begin(LayerBlockId(2)));
    let second = device.place(LayerBlockId(1), Loan::none()).unwrap();
    second.begin_use().unwrap();
    second.pieces().enumerate().for_each(|(piece, memory)| driver.compute(memory, content(1, piece)));
    drop(second);
    // The third is under way when the device goes.
    drop(device);
    assert_eq!(driver.end(), (Vec::new(), 0));
}

#[test]
fn rs_2_a_slot_has_room_for_every_class_as_often_as_a_block_has_it() {
    let needs = SlotNeeds::of([vec!["a", "b", "a"], vec!["b", "c"], vec!["b", "b"]]);
    assert_eq!(needs.bytes(|class| if *class == "c" { 100 } else { 1 }), 2 + 2 + 100);
}

#[test]
fn what_is_wrong_with_the_first_coming_fails_the_step_and_gives_the_slot_back() {
    let driver = SimulatedDriver::new(1, LeftOut::default());
    let check: BlockCheck = Box::new(|_, _| Err("holds NaN".to_owned()));
    let mut device = CopyDevice::new(Arc::clone(&driver), blocks(&[1]), 1, HashMap::new(), check).unwrap();
    let held = driver.host_buffer(PIECE).unwrap();
    device.held.insert(LayerBlockId(0), held);
    assert_eq!(device.holds(LayerBlockId(0)), Some(PIECE as u64));
    for _ in 0..3 {
        let loan = Loan::none();
        assert_eq!(device.place(LayerBlockId(0), loan).err(), Some(StreamFault::Step("holds NaN".to_owned())));
    }
    // Too few bytes for the pieces is a fault too, and not the end of the slot.
    device.check = Box::new(|_, _| Ok(()));
    device.held.clear();
    for _ in 0..3 {
        assert!(
            matches!(device.place(LayerBlockId(0), Loan::none()), Err(StreamFault::Step(what)) if what.contains("fewer"))
        );
    }
}
