//! The time of day, for what survives a restart.

use std::time::SystemTime;

use model_boss_jobs::WallTime;

/// The present time.
pub(crate) fn now() -> WallTime {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
