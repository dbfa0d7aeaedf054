//! Tests of the pager, over a source whose reads are held back and fail on command.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::residency::{ExpertSummary, ExpertTotals, Monitor, ResidencySummary, StreamFault};

const EXPERTS: usize = 8;
const BYTES: u64 = 10;

#[derive(Default)]
struct Disk {
    /// Whether reads wait.
    held: Mutex<bool>,
    go: Condvar,
    /// Pages that cannot be read.
    bad: Mutex<HashSet<ExpertPage>>,
    changed: AtomicBool,
    /// Pages in memory now, and the most at one time.
    pages: AtomicUsize,
    most: AtomicUsize,
    reads: AtomicUsize,
}

impl Disk {
    fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.go.notify_all();
    }
}

struct Source(Arc<Disk>);

struct Content(ExpertPage, Arc<Disk>);

impl Drop for Content {
    fn drop(&mut self) {
        self.1.pages.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PageSource for Source {
    type Page = Content;

    fn read(&self, page: ExpertPage) -> Result<PageRead<Content>, StreamFault> {
        let held = self.0.held.lock().unwrap();
        drop(self.0.go.wait_while(held, |held| *held).unwrap());
        self.0.reads.fetch_add(1, Ordering::SeqCst);
        if self.0.changed.load(Ordering::SeqCst) {
            return Err(StreamFault::Fatal("the file was changed".to_owned()));
        }
        if self.0.bad.lock().unwrap().contains(&page) {
            return Err(StreamFault::Step(format!("a bad sector at expert {}", page.expert)));
        }
        let pages = self.0.pages.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(pages, Ordering::SeqCst);
        Ok(PageRead { page: Content(page, Arc::clone(&self.0)), bytes: BYTES, arranging: Duration::ZERO })
    }

    fn place(&self, page: ExpertPage) -> u64 {
        page.expert as u64
    }
}

struct Rig {
    disk: Arc<Disk>,
    pager: ExpertPager<Source>,
    monitor: Arc<Monitor>,
}

/// Two layers of eight experts, and room for some of them.
fn rig(pages: u64) -> Rig {
    let disk = Arc::new(Disk::default());
    let layers = [LayerPages { experts: EXPERTS, used: 2, bytes: BYTES }; 2];
    let summary = ResidencySummary { experts: Some(ExpertSummary::default()), ..ResidencySummary::default() };
    let monitor = Arc::new(Monitor::new(summary));
    let source = Source(Arc::clone(&disk));
    let pager = ExpertPager::start(source, &layers, pages * BYTES, 2, Arc::clone(&monitor)).unwrap();
    Rig { disk, pager, monitor }
}

impl Rig {
    fn ask(&self, layer: usize, experts: &[usize]) -> Asked {
        let chosen = experts.iter().map(|expert| ChosenExpert { expert: *expert, rows: 1 });
        self.pager.ask(layer, &chosen.collect::<Vec<_>>())
    }

    /// Computes with some experts of a layer; returns them in the order in which they computed.
    fn compute(&self, layer: usize, experts: &[usize]) -> Result<Vec<usize>, PageServeError<()>> {
        let asked = self.ask(layer, experts);
        let mut computed = Vec::new();
        self.pager.serve(asked, &|| false, |expert, content| {
            assert_eq!(content.0, ExpertPage { layer, expert });
            computed.push(expert);
            Ok(())
        })?;
        Ok(computed)
    }

    fn totals(&self) -> ExpertTotals {
        self.pager.end_step();
        self.monitor.experts().unwrap()
    }
}

#[test]
fn every_expert_computes_once_in_whatever_memory() {
    for pages in [2, 3, 5, 16] {
        let rig = rig(pages);
        for experts in [&[0, 1, 2, 3, 4, 5, 6, 7][..], &[1, 6], &[5], &[0, 1, 2, 3, 4, 5, 6, 7]] {
            for layer in [0, 1] {
                let mut computed = rig.compute(layer, experts).unwrap();
                computed.sort_unstable();
                assert_eq!(computed, experts);
                assert!(rig.disk.pages.load(Ordering::SeqCst) as u64 <= pages);
            }
        }
        assert!(rig.disk.most.load(Ordering::SeqCst) as u64 <= pages, "{pages}");
        let totals = rig.totals();
        assert_eq!((totals.uses, totals.bytes), (38, totals.reads * BYTES));
        if pages == 16 {
            assert_eq!((totals.reads, totals.hits), (16, 22));
        }
    }
}

#[test]
fn pages_that_are_there_compute_while_others_are_read() {
    let rig = rig(8);
    rig.compute(0, &[2, 3]).unwrap();
    rig.disk.hold(true);
    let asked = rig.ask(0, &[1, 2, 3]);
    let mut computed = Vec::new();
    let served = rig.pager.serve(asked, &|| false, |expert, _| {
        computed.push(expert);
        if computed.len() == 2 {
            rig.disk.hold(false);
        }
        Ok::<_, ()>(())
    });
    served.unwrap();
    assert_eq!(computed, [2, 3, 1]);
}

#[test]
fn a_right_guess_is_read_ahead_and_a_wrong_one_takes_no_part() {
    let rig = rig(16);
    rig.compute(0, &[0, 1]).unwrap();
    rig.pager.expect(1, &[4, 5]);
    assert_eq!(rig.compute(1, &[4, 6]).unwrap().len(), 2);
    let totals = rig.totals();
    assert_eq!((totals.uses, totals.reads_ahead), (4, 2));
    assert!(totals.hits + totals.late == 1 && totals.hits == totals.foreseen, "{totals:?}");
}

#[test]
fn a_read_that_fails_fails_the_step_and_the_next_one_reads_again() {
    let rig = rig(4);
    rig.disk.bad.lock().unwrap().insert(ExpertPage { layer: 0, expert: 3 });
    // A guess that fails fails no step.
    rig.pager.expect(0, &[3]);
    for _ in 0..2 {
        match rig.compute(0, &[2, 3, 4]) {
            Err(PageServeError::Fault(StreamFault::Step(what))) => assert!(what.contains("expert 3"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
    rig.disk.bad.lock().unwrap().clear();
    assert_eq!(rig.compute(0, &[2, 3, 4]).unwrap().len(), 3);
    assert_eq!(rig.compute(1, &[0, 1, 2, 3, 4]).unwrap().len(), 5, "no page is pinned any more");
    rig.disk.changed.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert!(matches!(rig.compute(0, &[7]), Err(PageServeError::Fault(StreamFault::Fatal(_)))));
    }
}

#[test]
fn a_cancelled_step_does_not_wait_for_the_disk() {
    let rig = rig(3);
    rig.disk.hold(true);
    let asked = rig.ask(0, &[0, 1, 2, 3]);
    let lookups = AtomicUsize::new(0);
    let stop = || lookups.fetch_add(1, Ordering::SeqCst) > 0;
    let served = rig.pager.serve(asked, &stop, |_, _| Ok::<_, ()>(()));
    assert!(matches!(served, Err(PageServeError::Fault(StreamFault::Interrupted))), "{served:?}");
    rig.disk.hold(false);
    assert_eq!(rig.compute(1, &[0, 1, 2, 3]).unwrap().len(), 4);
    assert_eq!(rig.compute(0, &[0, 1, 2, 3]).unwrap().len(), 4);
}

#[test]
fn a_computation_that_fails_releases_all_pages() {
    let rig = rig(2);
    let asked = rig.ask(0, &[0, 1, 2]);
    assert!(matches!(rig.pager.serve(asked, &|| false, |_, _| Err("no")), Err(PageServeError::Compute("no"))));
    assert_eq!(rig.compute(1, &[0, 1, 2]).unwrap().len(), 3);
}

#[test]
fn a_step_is_reported_with_its_waits_and_reads() {
    let rig = rig(16);
    rig.pager.begin_step();
    let begun = std::time::Instant::now();
    rig.compute(0, &[0, 1]).unwrap();
    rig.pager.layer_ends(0, begun);
    rig.pager.end_step();
    let (last, totals) = (rig.monitor.last(), rig.monitor.totals());
    assert_eq!((last.layers.len(), last.copies.len(), totals.bytes), (1, 2, 2 * BYTES));
    assert_eq!(rig.monitor.layers()[0].bytes, 2 * BYTES, "of both experts");
    assert!(last.copies.iter().all(|copy| copy.read.seconds() <= totals.wall_seconds));
}
