//! The compute times of layers on an asynchronous device. Marks are set around each layer and read when the step has
//! ended. Without them only the time of submitting a layer's work would be measured.

use std::sync::Arc;

use super::driver::{CopyDriver, Queue};
use crate::residency::streamer::StreamFault;
use crate::residency::timeline::TimeSpan;

/// The marks of one step after another.
pub struct StepClock<D: CopyDriver> {
    driver: Arc<D>,
    /// One mark for the begin of the step, then two for each layer. They are created once and recorded anew in each
    /// step.
    marks: Vec<D::Event>,
    /// The layers of this step, in order.
    layers: Vec<usize>,
    /// Whether all marks of this step were recorded.
    whole: bool,
}

impl<D: CopyDriver> StepClock<D> {
    /// A clock without marks.
    pub fn new(driver: Arc<D>) -> Self {
        Self { driver, marks: Vec::new(), layers: Vec::new(), whole: false }
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        self.layers.clear();
        self.whole = true;
        self.mark(0);
    }

    /// A layer is asked for behind this.
    pub fn layer_begins(&mut self, layer: usize) {
        self.layers.push(layer);
        self.mark(2 * self.layers.len() - 1);
    }

    /// The layer was asked for.
    pub fn layer_ends(&mut self) {
        self.mark(2 * self.layers.len());
    }

    /// The compute time of each layer, in seconds since the step began; waits until they have computed. `None` if a
    /// mark could not be set: a failed measurement must not fail the step.
    pub fn spans(&mut self) -> Option<Vec<(usize, TimeSpan)>> {
        let (begin, marks) = self.marks.split_first().filter(|_| self.whole)?;
        let span = |(layer, pair): (&usize, &[D::Event])| -> Result<(usize, TimeSpan), StreamFault> {
            let [start, end] = pair else { return Err(StreamFault::Step("half a layer".to_owned())) };
            let (start, end) = (self.driver.seconds(begin, start)?, self.driver.seconds(begin, end)?);
            Ok((*layer, TimeSpan { start, end }))
        };
        self.layers.iter().zip(marks.chunks(2)).map(span).collect::<Result<_, _>>().ok()
    }

    fn mark(&mut self, at: usize) {
        while self.marks.len() <= at {
            match self.driver.event(true) {
                Ok(event) => self.marks.push(event),
                Err(_) => {
                    self.whole = false;
                    return;
                }
            }
        }
        self.whole &= self.driver.record(&self.marks[at], Queue::Compute).is_ok();
    }
}
