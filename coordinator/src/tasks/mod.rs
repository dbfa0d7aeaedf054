//! The current `tasks.yaml`. A valid edit takes effect while requests run (TR-5); an invalid one changes nothing and is
//! reported. `model-boss-tasks` resolves names; this module reads the file.

mod live;

pub(crate) use live::{LiveTasks, UnusableTasks};
