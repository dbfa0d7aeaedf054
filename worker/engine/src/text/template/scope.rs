//! The names that a block of a template knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::tree::TemplateFrame;
use super::value::{PythonValue, lock};

/// The names of a block, over those of the blocks around it.
#[derive(Debug, Default)]
pub(super) struct NameScope {
    names: Mutex<BTreeMap<Arc<str>, PythonValue>>,
    around: Option<Arc<NameScope>>,
}

impl NameScope {
    pub(super) fn inside(around: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { names: Mutex::default(), around: Some(Arc::clone(around)) })
    }

    /// The names of a frame when it begins.
    pub(super) fn of(frame: &TemplateFrame, around: &Arc<Self>) -> Arc<Self> {
        let scope = Self::inside(around);
        scope.set_unset(&frame.unset);
        scope
    }

    /// Takes names their values from outside.
    pub(super) fn set_unset(&self, names: &[Arc<str>]) {
        for name in names {
            self.set(name, PythonValue::undefined(name));
        }
    }

    pub(super) fn set(&self, name: &Arc<str>, value: PythonValue) {
        // The value before may be long: it is dropped outside of the lock.
        let before = lock(&self.names).insert(Arc::clone(name), value);
        drop(before);
    }

    pub(super) fn get(&self, name: &str) -> Option<PythonValue> {
        let mut scope = self;
        loop {
            if let Some(value) = lock(&scope.names).get(name) {
                return Some(value.clone());
            }
            scope = scope.around.as_deref()?;
        }
    }
}
