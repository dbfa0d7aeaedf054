//! The current `tasks.yaml`. A valid edit takes effect while requests run (TR-5); an invalid one changes nothing and is
//! reported. The meaning of names is decided in `model-boss-tasks`; this module knows the file.

mod live;

pub(crate) use live::{LiveTasks, UnusableTasks};
