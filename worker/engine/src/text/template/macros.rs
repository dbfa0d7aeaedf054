//! Macros as values: their names, parameters and special names, without their bodies.

use std::sync::Arc;

/// A macro, which the rendering keeps under a number.
#[derive(Debug)]
pub(super) struct MacroHandle {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<Arc<str>>,
    pub(super) reads: SpecialReads,
}

/// The special names that a macro's body reads. Only then may a caller give them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpecialReads {
    pub(super) varargs: bool,
    pub(super) kwargs: bool,
    pub(super) caller: bool,
}
