//! Calls into the `tokenizers` library: its panics become errors. Vocabularies are not known here.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls the library. A `tokenizer.json` is a stranger's file. The library loads some files only to panic, at once or
/// at a user's text: it slices strings by lengths that the file gives. Such a file must cost one model or one request
/// an error, not the worker its life.
pub(super) fn call<T>(library: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    // A panic leaves nothing half done behind. The library's calls used here change only caches, behind locks that
    // handle poisoning, and a tokenizer that was being made is gone.
    catch_unwind(AssertUnwindSafe(library)).unwrap_or_else(|panic| Err(words(panic.as_ref()).into()))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the tokenizers library failed: {}", message.unwrap_or("it did not say why"))
}

/// Has the library start no threads: a process that forks must have one only.
pub fn keep_to_one_thread() {
    tokenizers::utils::parallelism::set_parallelism(false);
}
