//! Faults of streaming as a step reports them, also through candle's errors.

use std::fmt;

use candle_core::Error;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::StreamFault;

/// A fault of streaming that ends a step.
#[derive(Debug)]
pub(crate) struct StepFault(pub(crate) StreamFault);

impl StepFault {
    /// The fault as the engine classifies it.
    pub(crate) fn of_step(&self) -> DecoderError {
        match self.0.clone() {
            StreamFault::Step(what) => DecoderError::Step(what),
            StreamFault::Fatal(what) => DecoderError::Fatal(what),
            StreamFault::Interrupted => DecoderError::Interrupted,
        }
    }
}

impl fmt::Display for StepFault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            StreamFault::Step(what) | StreamFault::Fatal(what) => to.write_str(what),
            StreamFault::Interrupted => to.write_str("the step was cancelled"),
        }
    }
}

impl std::error::Error for StepFault {}

impl From<StepFault> for Error {
    fn from(fault: StepFault) -> Self {
        // Of candle's errors, this one keeps the type of what it wraps.
        Self::WrappedContext { wrapped: Box::new(fault), context: "streaming".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    #[test]
    fn a_fault_keeps_its_class_on_its_way_through_layers() {
        for fault in [StreamFault::Step("a".to_owned()), StreamFault::Fatal("b".to_owned()), StreamFault::Interrupted] {
            let expected = StepFault(fault.clone()).of_step();
            let through = device::failure(&Error::from(StepFault(fault)).bt());
            assert_eq!(format!("{through:?}"), format!("{expected:?}"));
        }
    }
}
