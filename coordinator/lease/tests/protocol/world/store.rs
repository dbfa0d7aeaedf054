//! The simulated store: a document with its etag, a clock, and ways to lose acknowledged writes.

use model_boss_lease::{Ledger, StoreTime};

use super::{Bug, SECOND, start_time};

/// The number of earlier versions that a loss can restore.
const REMEMBERED: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Register {
    pub(super) document: Option<Ledger>,
    etag: u32,
    /// The next etag. Etags are random and never repeat; a counter would be part of the lost data.
    next: u32,
    earlier: Vec<(Option<Ledger>, u32)>,
    run: u32,
    pub(super) clock: StoreTime,
    pub(super) was_set_back: bool,
    pub(super) lost_something: bool,
    bug: Bug,
}

/// The document as a client read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Loaded {
    pub(super) document: Option<Ledger>,
    etag: u32,
    pub(super) run: u32,
    pub(super) at: StoreTime,
}

pub(super) enum Swapped {
    Done,
    Conflict,
    Stale,
}

impl Register {
    pub(super) fn new(bug: Bug) -> Self {
        let (was_set_back, lost_something) = (false, false);
        let clock = start_time();
        Self { document: None, etag: 0, next: 1, earlier: Vec::new(), run: 1, clock, was_set_back, lost_something, bug }
    }

    pub(super) fn load(&self) -> Loaded {
        Loaded { document: self.document.clone(), etag: self.etag, run: self.run, at: self.clock }
    }

    pub(super) fn swap(&mut self, loaded: &Loaded, ledger: &Ledger) -> Swapped {
        let late = self.clock.0 > loaded.at.0 + SECOND || self.clock < loaded.at;
        if (late && self.bug != Bug::SwapWithAnOldClock) || loaded.run != self.run {
            return Swapped::Stale;
        }
        if loaded.etag != self.etag {
            return Swapped::Conflict;
        }
        let etag = if self.bug == Bug::CounterForEtag { self.etag + 1 } else { self.next };
        self.next += 1;
        self.earlier.push((self.document.take(), self.etag));
        if self.earlier.len() > REMEMBERED {
            self.earlier.remove(0);
        }
        self.document = Some(ledger.clone());
        self.etag = etag;
        Swapped::Done
    }

    pub(super) fn depth(&self) -> usize {
        self.earlier.len()
    }

    pub(super) fn set_back(&mut self) {
        self.clock.0 -= 3_600 * SECOND;
        self.was_set_back = true;
    }

    /// Ends the store's process; the next one has only an earlier version.
    pub(super) fn lose(&mut self, version: usize) {
        let version = version.min(self.earlier.len().saturating_sub(1));
        if !self.earlier.is_empty() {
            (self.document, self.etag) = self.earlier.swap_remove(version);
        }
        self.earlier.clear();
        self.run += 1;
        self.lost_something = true;
    }

    /// All data is deleted and the process stays.
    pub(super) fn flush(&mut self) {
        self.document = None;
        self.etag = 0;
        self.earlier.clear();
        self.lost_something = true;
    }
}
