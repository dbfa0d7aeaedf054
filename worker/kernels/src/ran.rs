//! The kernels that a test ran, by their names. Outside of tests nothing is recorded, and nothing is computed for it.

#[cfg(test)]
use std::cell::RefCell;

#[cfg(test)]
thread_local! {
    static NAMES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records that a kernel runs on this thread.
#[inline(always)]
pub(crate) fn ran(name: impl FnOnce() -> String) {
    #[cfg(test)]
    NAMES.with_borrow_mut(|names| names.push(name()));
    #[cfg(not(test))]
    let _ = name;
}

/// The names of the kernels that ran on this thread during `work`, each once, sorted.
#[cfg(test)]
pub(crate) fn during(work: impl FnOnce()) -> Vec<String> {
    NAMES.with_borrow_mut(Vec::clear);
    work();
    let mut names = NAMES.take();
    names.sort();
    names.dedup();
    names
}
