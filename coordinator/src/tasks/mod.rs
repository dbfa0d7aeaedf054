//! `tasks.yaml` as it is now: an edit takes effect while requests run (TR-5), one that makes no sense changes nothing and
//! is named. What names mean is decided by `model-boss-tasks`; this knows the file.

mod live;

pub(crate) use live::{LiveTasks, UnusableTasks};
