//! The times of streaming, per layer and in all (RS-9). Knows spans of time, no clock: spans are seconds since the step
//! began, and a copy that began before it has a negative start.

use serde::Serialize;

use super::predict::overlap;

/// From one moment to another, in seconds since the step began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeSpan {
    /// The start, in seconds.
    pub start: f64,
    /// The end, in seconds.
    pub end: f64,
}

impl TimeSpan {
    /// The duration in seconds.
    pub fn seconds(&self) -> f64 {
        (self.end - self.start).max(0.0)
    }
}

/// A block's way to the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Copy {
    /// The layers that came with it.
    pub layers: Vec<usize>,
    /// Bytes that came.
    pub bytes: u64,
    /// From storage into host memory.
    pub read: TimeSpan,
    /// From there to where it computes.
    pub place: TimeSpan,
}

/// A layer's part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Compute {
    /// The index of the layer.
    pub layer: usize,
    /// Waiting for its weights.
    pub stall: TimeSpan,
    /// Computing with them.
    pub compute: TimeSpan,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepTimeline {
    /// The blocks that were used, in order.
    pub copies: Vec<Copy>,
    /// All layers, in order.
    pub layers: Vec<Compute>,
    /// Seconds from the step's begin to its end.
    pub wall: f64,
    /// Seconds from the end of the step before to this one's begin; 0 for the first.
    pub gap: f64,
}

/// One layer, in the words of RS-9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LayerReport {
    /// The index of the layer.
    pub layer: usize,
    /// Bytes that were brought for it; 0 if it is resident.
    pub bytes: u64,
    /// Milliseconds of bringing them: its share of its block's.
    pub h2d_ms: f64,
    /// Milliseconds of computing.
    pub compute_ms: f64,
    /// Milliseconds of waiting for its weights.
    pub stall_ms: f64,
}

impl StepTimeline {
    /// One row for each layer.
    pub fn layers(&self) -> Vec<LayerReport> {
        let of_layer = |compute: &Compute| {
            // A block has several layers, and a layer with experts has several copies.
            let copies = self.copies.iter().filter(|copy| copy.layers.contains(&compute.layer));
            let (mut bytes, mut seconds) = (0.0, 0.0);
            for copy in copies {
                let share = 1.0 / copy.layers.len().max(1) as f64;
                bytes += copy.bytes as f64 * share;
                seconds += (copy.read.seconds() + copy.place.seconds()) * share;
            }
            LayerReport {
                layer: compute.layer,
                bytes: bytes as u64,
                h2d_ms: 1e3 * seconds,
                compute_ms: 1e3 * compute.compute.seconds(),
                stall_ms: 1e3 * compute.stall.seconds(),
            }
        };
        self.layers.iter().map(of_layer).collect()
    }

    /// Adds the same step on another device, whose layers follow.
    pub fn beside(&mut self, other: Self) {
        self.copies.extend(other.copies);
        self.layers.extend(other.layers);
        self.wall = self.wall.max(other.wall);
    }

    /// Seconds of computing before the first layer and behind the last: embedding and head.
    pub fn ends(&self) -> f64 {
        let layers = self.layers.iter().map(|layer| layer.stall.seconds() + layer.compute.seconds());
        (self.wall - layers.sum::<f64>()).max(0.0)
    }

    /// The step's sums.
    pub fn totals(&self) -> StreamTotals {
        let sum = |seconds: &dyn Fn(&Copy) -> f64| self.copies.iter().map(seconds).sum();
        StreamTotals {
            steps: 1,
            bytes: self.copies.iter().map(|copy| copy.bytes).sum(),
            read_seconds: sum(&|copy| copy.read.seconds()),
            place_seconds: sum(&|copy| copy.place.seconds()),
            compute_seconds: self.layers.iter().map(|layer| layer.compute.seconds()).sum(),
            ends_seconds: self.ends(),
            stall_seconds: self.layers.iter().map(|layer| layer.stall.seconds()).sum(),
            wall_seconds: self.wall,
        }
    }
}

/// Sums over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StreamTotals {
    /// Steps.
    pub steps: u64,
    /// Bytes brought.
    pub bytes: u64,
    /// Seconds of reading from storage.
    pub read_seconds: f64,
    /// Seconds of placing what was read.
    pub place_seconds: f64,
    /// Seconds of computing in layers.
    pub compute_seconds: f64,
    /// Seconds of computing before the first layer and behind the last.
    pub ends_seconds: f64,
    /// Seconds in which computing waited for weights.
    pub stall_seconds: f64,
    /// Seconds of the steps.
    pub wall_seconds: f64,
}

impl StreamTotals {
    /// Adds a step's sums.
    pub fn add(&mut self, step: &Self) {
        self.steps += step.steps;
        self.bytes += step.bytes;
        self.read_seconds += step.read_seconds;
        self.place_seconds += step.place_seconds;
        self.compute_seconds += step.compute_seconds;
        self.ends_seconds += step.ends_seconds;
        self.stall_seconds += step.stall_seconds;
        self.wall_seconds += step.wall_seconds;
    }

    /// Adds the sums of the same steps on another device: time passes once for both.
    pub fn beside(&mut self, other: &Self) {
        let (steps, wall) = (self.steps.max(other.steps), self.wall_seconds.max(other.wall_seconds));
        self.add(other);
        (self.steps, self.wall_seconds) = (steps, wall);
        // Time outside of one device's layers may be inside of another's.
        self.ends_seconds = (wall - self.compute_seconds - self.stall_seconds).max(0.0);
    }

    /// The sums added since.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            steps: self.steps - before.steps,
            bytes: self.bytes - before.bytes,
            read_seconds: self.read_seconds - before.read_seconds,
            place_seconds: self.place_seconds - before.place_seconds,
            compute_seconds: self.compute_seconds - before.compute_seconds,
            ends_seconds: self.ends_seconds - before.ends_seconds,
            stall_seconds: self.stall_seconds - before.stall_seconds,
            wall_seconds: self.wall_seconds - before.wall_seconds,
        }
    }

    /// Bytes per second of the steps' time.
    pub fn bandwidth(&self) -> f64 {
        if self.wall_seconds > 0.0 { self.bytes as f64 / self.wall_seconds } else { 0.0 }
    }

    /// See [`overlap`]. Reading and placing overlap too, so the slower of the two counts.
    pub fn overlap(&self) -> f64 {
        let computing = self.compute_seconds + self.ends_seconds;
        overlap(self.read_seconds.max(self.place_seconds), computing, self.wall_seconds)
    }
}
