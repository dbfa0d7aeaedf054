//! Reports about pages of experts: the memory planned for them, and counts.

use serde::Serialize;

/// The memory of expert pages, as it was planned at load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertSummary {
    /// Pages of the model: the experts of all layers.
    pub pages: usize,
    /// Bytes of all pages together.
    pub bytes: u64,
    /// Bytes that pages may take in memory.
    pub memory: u64,
}

/// Counts of expert pages since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertTotals {
    /// Pages that layers computed with.
    pub uses: u64,
    /// Those of the uses that were in memory when the router chose them.
    pub hits: u64,
    /// Those of the hits that had been read ahead.
    pub foreseen: u64,
    /// Those of the uses that were still being read ahead.
    pub late: u64,
    /// Pages that were read.
    pub reads: u64,
    /// Those of the reads that a guess had asked for.
    pub reads_ahead: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

impl ExpertTotals {
    /// The share of uses that found their page in memory.
    pub fn hit_share(&self) -> f64 {
        if self.uses > 0 { self.hits as f64 / self.uses as f64 } else { 0.0 }
    }

    /// The counts added since.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            uses: self.uses - before.uses,
            hits: self.hits - before.hits,
            foreseen: self.foreseen - before.foreseen,
            late: self.late - before.late,
            reads: self.reads - before.reads,
            reads_ahead: self.reads_ahead - before.reads_ahead,
            bytes: self.bytes - before.bytes,
        }
    }

    /// Adds the counts of another device.
    pub(crate) fn add(&mut self, other: &Self) {
        self.uses += other.uses;
        self.hits += other.hits;
        self.foreseen += other.foreseen;
        self.late += other.late;
        self.reads += other.reads;
        self.reads_ahead += other.reads_ahead;
        self.bytes += other.bytes;
    }
}
