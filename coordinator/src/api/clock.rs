//! Times of the scheduler, which count from its own start, as seconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

use model_boss_core::Moment;
use model_boss_protocol::Later;
use serde::Deserialize;
use serde_json::Value;

/// The fields of the core's views that hold moments.
const MOMENTS: [&str; 7] = ["at", "last_used", "ready_at", "unload_at", "deadline", "last_seen", "ended"];

/// The time at which the scheduler's time began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(SystemTime);

impl Clock {
    /// A clock whose scheduler time begins now.
    pub(crate) fn start() -> Self {
        Self(SystemTime::now())
    }

    /// A moment in seconds since 1970.
    pub(super) fn seconds(self, moment: Moment) -> f64 {
        let at = self.0.later(moment.since_start());
        at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }

    /// Replaces every moment in a value by seconds since 1970.
    pub(super) fn dated(self, mut value: Value) -> Value {
        self.date(&mut value);
        value
    }

    fn date(self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.date(item)),
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    let moment = MOMENTS.contains(&name.as_str()).then(|| Moment::deserialize(&*field).ok()).flatten();
                    match moment {
                        Some(moment) => *field = self.seconds(moment).into(),
                        None => self.date(field),
                    }
                }
            }
            _ => {}
        }
    }
}
