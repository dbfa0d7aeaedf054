use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::*;
use crate::residency::adapt::Adapter;
use crate::residency::schedule::LayerBlockId;

/// Bytes that identify their block.
struct Pattern;

impl BlockSource for Pattern {
    fn read(&mut self, block: LayerBlockId, into: &mut [u8]) -> Result<u64, StreamFault> {
        into.fill(block.0 as u8 + 1);
        Ok(into.len() as u64)
    }
}

/// A block that cannot be read for the time being.
#[derive(Default)]
struct BadSector(Mutex<Option<usize>>);

impl BadSector {
    fn is_at(&self, block: Option<usize>) {
        *self.0.lock().unwrap() = block;
    }
}

/// As [`Pattern`], from a disk with a bad sector.
struct Failing(Arc<BadSector>);

impl BlockSource for Failing {
    fn read(&mut self, block: LayerBlockId, into: &mut [u8]) -> Result<u64, StreamFault> {
        if *self.0.0.lock().unwrap() == Some(block.0) {
            return Err(a_bad_sector());
        }
        Pattern.read(block, into)
    }
}

/// Keeps what was read, and counts.
struct Counting(Arc<Counts>);

#[derive(Default)]
struct Counts {
    held: AtomicUsize,
    most: AtomicUsize,
}

struct Counted {
    bytes: Loan,
    counts: Arc<Counts>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl StreamDevice for Counting {
    type Block = Counted;

    fn capabilities(&self) -> Capabilities {
        Capabilities { host_memory: true, ..Capabilities::default() }
    }

    fn place(&mut self, _block: LayerBlockId, from: Loan) -> Result<Counted, StreamFault> {
        let held = self.0.held.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(held, Ordering::SeqCst);
        Ok(Counted { bytes: from, counts: Arc::clone(&self.0) })
    }
}

const LAYERS: usize = 12;

/// Layers 1, 4, 7 and 10 stay.
fn blocks() -> Vec<Vec<usize>> {
    let coming: Vec<usize> = (0..LAYERS).filter(|layer| layer % 3 != 1).collect();
    coming.chunks(2).map(<[usize]>::to_vec).collect()
}

fn streamer(slots: usize, source: impl BlockSource) -> (Streamer<Counting>, Arc<Counts>, Arc<Monitor>) {
    let counts = Arc::new(Counts::default());
    let monitor = Arc::new(Monitor::new(ResidencySummary::default()));
    let device = Counting(Arc::clone(&counts));
    let streamer = Streamer::start(LAYERS, blocks(), slots, (slots, 4_096), source, device, Arc::clone(&monitor));
    (streamer.unwrap(), counts, monitor)
}

fn step(streamer: &mut Streamer<Counting>, until: usize) -> Result<(), StreamFault> {
    streamer.begin_step();
    for layer in 0..until {
        let block = streamer.take(layer, &|| false)?;
        let expected = blocks().iter().position(|block| block.contains(&layer));
        let got = block.as_ref().map(|block| usize::from(block.bytes[7]) - 1);
        assert_eq!(got, expected, "layer {layer}");
        drop(block);
        streamer.computed(layer);
    }
    streamer.end_step();
    Ok(())
}

#[test]
fn rs_1_every_layer_gets_its_own_weights_within_the_slots() {
    for slots in 1..5 {
        let (mut streamer, counts, monitor) = streamer(slots, Pattern);
        for _ in 0..50 {
            step(&mut streamer, LAYERS).unwrap();
        }
        assert!(counts.most.load(Ordering::SeqCst) <= slots);
        let (totals, last) = (monitor.totals(), monitor.layers());
        assert_eq!((totals.steps, totals.bytes), (50, 50 * 4 * 4_096));
        assert_eq!(last.iter().map(|layer| layer.bytes).sum::<u64>(), 4 * 4_096);
        drop(streamer);
        assert_eq!(counts.held.load(Ordering::SeqCst), 0, "all buffers are given back");
    }
}

#[test]
fn rs_7_a_step_that_ends_early_does_not_disturb_the_next() {
    let (mut streamer, counts, _) = streamer(3, Pattern);
    for until in [5, LAYERS, 1, 7, 0, LAYERS, 2, LAYERS] {
        step(&mut streamer, until).unwrap();
    }
    drop(streamer);
    assert_eq!(counts.held.load(Ordering::SeqCst), 0);
}

fn bad_sector() -> (Arc<BadSector>, Failing) {
    let bad = Arc::new(BadSector::default());
    (Arc::clone(&bad), Failing(bad))
}

/// Waits until a read has failed whose error was not reported yet.
fn met<D: StreamDevice>(streamer: &Streamer<D>) {
    let state = streamer.shared.lock();
    drop(streamer.shared.changed.wait_while(state, |state| state.failure.is_none()).unwrap());
}

fn a_bad_sector() -> StreamFault {
    StreamFault::Step("a bad sector".to_owned())
}

#[test]
fn rs_7_a_read_error_fails_every_step_that_meets_it_and_no_other() {
    let (bad, source) = bad_sector();
    let (mut streamer, counts, _) = streamer(2, source);
    for _ in 0..5 {
        step(&mut streamer, LAYERS).unwrap();
        bad.is_at(Some(2));
        assert_eq!(step(&mut streamer, LAYERS), Err(a_bad_sector()));
        // A step that does not come so far is none the worse.
        step(&mut streamer, 6).unwrap();
        met(&streamer);
        bad.is_at(None);
    }
    drop(streamer);
    assert_eq!(counts.held.load(Ordering::SeqCst), 0);
}

#[test]
fn a_read_ahead_that_failed_is_tried_again_when_it_is_needed() {
    let (bad, source) = bad_sector();
    let (mut streamer, ..) = streamer(2, source);
    for _ in 0..20 {
        streamer.begin_step();
        for layer in 0..LAYERS {
            let block = streamer.take(layer, &|| false).unwrap_or_else(|fault| panic!("layer {layer}: {fault:?}"));
            drop(block);
            streamer.computed(layer);
            // From now on the first block is one of the next step.
            bad.is_at(Some(0));
        }
        streamer.end_step();
        met(&streamer);
        bad.is_at(None);
    }
}

/// A device that places a block only on command.
struct Gated(mpsc::Receiver<()>);

impl StreamDevice for Gated {
    type Block = Loan;

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn place(&mut self, _block: LayerBlockId, from: Loan) -> Result<Loan, StreamFault> {
        let _ = self.0.recv();
        Ok(from)
    }
}

#[test]
fn a_read_error_is_told_to_the_layer_it_met_not_to_one_that_is_still_placed() {
    let (bad, source) = bad_sector();
    bad.is_at(Some(1));
    let (go_on, told) = mpsc::channel();
    let monitor = Arc::new(Monitor::new(ResidencySummary::default()));
    let mut streamer = Streamer::start(LAYERS, blocks(), 3, (3, 4_096), source, Gated(told), monitor).unwrap();
    met(&streamer);
    streamer.begin_step();
    met(&streamer);
    let stop = || {
        go_on.send(()).unwrap();
        false
    };
    assert!(streamer.take(0, &stop).unwrap().is_some());
    streamer.computed(2);
    assert_eq!(streamer.take(3, &|| false).err(), Some(a_bad_sector()));
    drop(go_on);
}

#[test]
fn it_ends_while_everybody_waits() {
    let (streamer, counts, _) = streamer(2, Pattern);
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        drop(streamer);
        done.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
    assert_eq!(counts.held.load(Ordering::SeqCst), 0);
}

/// A source that reads a block only on command.
struct Hanging {
    begun: mpsc::Sender<()>,
    told: mpsc::Receiver<()>,
}

impl BlockSource for Hanging {
    fn read(&mut self, _: LayerBlockId, into: &mut [u8]) -> Result<u64, StreamFault> {
        let _ = self.begun.send(());
        let _ = self.told.recv();
        Ok(into.len() as u64)
    }
}

/// A streamer whose first read has begun, and what lets it end.
fn hanging() -> (Streamer<Counting>, mpsc::Sender<()>) {
    let ((go_on, told), (begun, has_begun)) = (mpsc::channel(), mpsc::channel());
    let device = Counting(Arc::new(Counts::default()));
    let monitor = Arc::new(Monitor::new(ResidencySummary::default()));
    let source = Hanging { begun, told };
    let streamer = Streamer::start(LAYERS, blocks(), 2, (2, 4_096), source, device, monitor).unwrap();
    has_begun.recv().unwrap();
    (streamer, go_on)
}

#[test]
fn a_read_that_never_ends_can_be_waited_for_no_longer() {
    let (mut streamer, go_on) = hanging();
    let asked = AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, Ordering::SeqCst) >= 2;
    streamer.begin_step();
    assert_eq!(streamer.take(0, &stop).err(), Some(StreamFault::Interrupted));
    // When the disk recovers, the layer arrives.
    go_on.send(()).unwrap();
    assert!(streamer.take(0, &|| false).unwrap().is_some());
    drop(go_on);
}

#[test]
fn a_read_that_never_ends_does_not_keep_the_process_from_ending() {
    let (mut streamer, go_on) = hanging();
    streamer.patience = Duration::ZERO;
    drop(streamer);
    // Still there, still waiting: the thread was left behind.
    go_on.send(()).unwrap();
}

/// Ends its thread.
struct Panicking;

impl BlockSource for Panicking {
    fn read(&mut self, _: LayerBlockId, _: &mut [u8]) -> Result<u64, StreamFault> {
        panic!("a fault in the program")
    }
}

#[test]
fn a_thread_that_is_gone_is_not_waited_for() {
    let device = Counting(Arc::new(Counts::default()));
    let monitor = Arc::new(Monitor::new(ResidencySummary::default()));
    let mut streamer = Streamer::start(LAYERS, blocks(), 2, (2, 4_096), Panicking, device, monitor).unwrap();
    for _ in 0..2 {
        streamer.begin_step();
        let fault = streamer.take(0, &|| false).err();
        assert!(matches!(&fault, Some(StreamFault::Fatal(what)) if what.contains("load the model again")), "{fault:?}");
    }
}

/// A device that reports a placing time of zero.
struct Waiting(Counting);

impl StreamDevice for Waiting {
    type Block = Counted;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn holds(&self, block: LayerBlockId) -> Option<u64> {
        (block == LayerBlockId(0)).then_some(9)
    }

    fn place(&mut self, block: LayerBlockId, from: Loan) -> Result<Counted, StreamFault> {
        self.0.place(block, from)
    }

    fn worked(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

#[test]
fn only_what_reads_and_places_counts_as_that() {
    let monitor = Arc::new(Monitor::new(ResidencySummary::default()));
    let device = Waiting(Counting(Arc::new(Counts::default())));
    let blocks = blocks();
    let count = blocks.len();
    let mut streamer =
        Streamer::start(LAYERS, blocks, count, (count, 4_096), Pattern, device, Arc::clone(&monitor)).unwrap();
    streamer.begin_step();
    for layer in 0..LAYERS {
        drop(streamer.take(layer, &|| false).unwrap());
        streamer.computed(layer);
    }
    streamer.end_step();
    let copies = monitor.last().copies;
    assert_eq!((copies.len(), copies[0].bytes), (count, 9));
    assert!(copies.iter().all(|copy| copy.place.seconds() == 0.0), "waiting is no placing: {copies:?}");
    assert_eq!(copies[0].read.seconds(), 0.0, "what is held is not read");
    assert!(copies[1..].iter().all(|copy| copy.read.seconds() > 0.0), "{copies:?}");
}

#[test]
fn a_chosen_look_ahead_is_kept_to_and_reported() {
    let needs = super::super::plan::MemoryNeeds { layers: vec![4_096; LAYERS], ..Default::default() };
    let rates = super::super::plan::Rates { read: 1e6, place: f64::INFINITY, latency: 0.0, compute: 1e9 };
    let wish = super::super::plan::ResidencyOptions { block: Some(1), ..Default::default() };
    let plan = super::super::plan::plan(&needs, 9 * 4_096, &wish, Some(&rates)).unwrap();
    let super::super::plan::ResidencyPlan::Stream(plan) = plan else { panic!("it fits") };
    assert!(plan.slots > plan.look_ahead + 1, "{plan:?}");
    let counts = Arc::new(Counts::default());
    let device = Counting(Arc::clone(&counts));
    let monitor =
        Arc::new(Monitor::new(ResidencySummary { look_ahead: plan.look_ahead, ..ResidencySummary::default() }));
    let (blocks, slots) = (plan.blocks.clone(), plan.slots);
    let streamer =
        Streamer::start(LAYERS, blocks, slots, (slots, 4_096), Pattern, device, Arc::clone(&monitor)).unwrap();
    let mut streamer = streamer.adapting(Adapter::new(&plan, &needs.layers, None));
    for _ in 0..4 {
        streamer.begin_step();
        for layer in 0..LAYERS {
            let block = streamer.take(layer, &|| false).unwrap();
            assert_eq!(block.is_some(), plan.streams(layer));
            drop(block);
            streamer.computed(layer);
        }
        streamer.end_step();
    }
    let kept = slots - 1 - plan.look_ahead;
    assert_eq!(monitor.last().copies.len(), plan.blocks.len() - kept, "blocks that stay are not read again");
    assert_eq!(monitor.adapted().look_ahead, plan.look_ahead);
    drop(streamer);
    assert_eq!(counts.held.load(Ordering::SeqCst), 0);
}
