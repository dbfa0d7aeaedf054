use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

/// Bytes that tell their block.
struct Pattern {
    fails_at: Option<usize>,
    reads: usize,
}

impl Source for Pattern {
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<u64, Fault> {
        self.reads += 1;
        if self.fails_at == Some(self.reads) {
            return Err(Fault::Step("a bad sector".to_owned()));
        }
        into.fill(block.0 as u8 + 1);
        Ok(into.len() as u64)
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

impl Device for Counting {
    type Block = Counted;

    fn capabilities(&self) -> Capabilities {
        Capabilities { host_memory: true, ..Capabilities::default() }
    }

    fn place(&mut self, _block: BlockId, from: Loan) -> Result<Counted, Fault> {
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

fn streamer(slots: usize, fails_at: Option<usize>) -> (Streamer<Counting>, Arc<Counts>, Arc<Monitor>) {
    let counts = Arc::new(Counts::default());
    let monitor = Arc::new(Monitor::new(Residency::default()));
    let device = Counting(Arc::clone(&counts));
    let source = Pattern { fails_at, reads: 0 };
    let streamer = Streamer::start(LAYERS, blocks(), slots, (slots, 4_096), source, device, Arc::clone(&monitor));
    (streamer.unwrap(), counts, monitor)
}

fn step(streamer: &mut Streamer<Counting>, until: usize) -> Result<(), Fault> {
    streamer.begin_step();
    for layer in 0..until {
        let block = streamer.take(layer)?;
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
fn every_layer_gets_its_own_weights_within_the_slots() {
    for slots in 1..5 {
        let (mut streamer, counts, monitor) = streamer(slots, None);
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
fn a_step_that_ends_early_does_not_disturb_the_next() {
    let (mut streamer, counts, _) = streamer(3, None);
    for until in [5, LAYERS, 1, 7, 0, LAYERS, 2, LAYERS] {
        step(&mut streamer, until).unwrap();
    }
    drop(streamer);
    assert_eq!(counts.held.load(Ordering::SeqCst), 0);
}

#[test]
fn a_read_error_fails_one_step() {
    let (mut streamer, counts, _) = streamer(2, Some(6));
    let mut failed = 0;
    for _ in 0..10 {
        if let Err(fault) = step(&mut streamer, LAYERS) {
            assert_eq!(fault, Fault::Step("a bad sector".to_owned()));
            failed += 1;
        }
    }
    assert_eq!(failed, 1);
    drop(streamer);
    assert_eq!(counts.held.load(Ordering::SeqCst), 0);
}

#[test]
fn it_ends_while_everybody_waits() {
    let (streamer, counts, _) = streamer(2, None);
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        drop(streamer);
        done.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
    assert_eq!(counts.held.load(Ordering::SeqCst), 0);
}
