//! How far a delivery came. It is kept with the job, so that a restart delays no delivery for long and drops none.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::target::HookTarget;
use crate::time::WallTime;

/// The pauses behind failed deliveries, as Standard Webhooks proposes them. After the last one the delivery has failed.
const PAUSES: [u64; 8] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000];

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// The job has not ended.
    Waiting,
    /// The delivery is due at a time.
    Pending,
    /// The receiver took it.
    Delivered,
    /// The receiver did not take it in all tries.
    Failed,
}

/// A webhook of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookState {
    /// The place.
    pub target: HookTarget,
    /// The state of the delivery.
    pub state: DeliveryState,
    /// The tries so far.
    #[serde(default)]
    pub tries: u32,
    /// The time of the next try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<WallTime>,
    /// Why the last try failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl WebhookState {
    /// A webhook of a job that has not ended.
    pub const fn waiting(target: HookTarget) -> Self {
        Self { target, state: DeliveryState::Waiting, tries: 0, due: None, problem: None }
    }

    /// The job has ended: the delivery is due now.
    pub fn begin(&mut self, now: WallTime) {
        self.state = DeliveryState::Pending;
        self.due = Some(now);
    }

    /// Records a try. The error is the reason why the receiver did not take it.
    pub fn tried(&mut self, result: Result<(), String>, now: WallTime) {
        self.tries = self.tries.saturating_add(1);
        match result {
            Ok(()) => (self.state, self.due, self.problem) = (DeliveryState::Delivered, None, None),
            Err(problem) => {
                self.due = delivery_pause(self.tries).map(|pause| now.after(pause));
                if self.due.is_none() {
                    self.state = DeliveryState::Failed;
                }
                self.problem = Some(problem);
            }
        }
    }
}

/// The pause behind this many failed tries; `None`: there is no further one.
pub fn delivery_pause(tries: u32) -> Option<Duration> {
    let index = usize::try_from(tries).ok()?.checked_sub(1)?;
    PAUSES.get(index).map(|seconds| Duration::from_secs(*seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_a_delivery_is_tried_for_two_days_and_then_given_up() {
        let mut hook = WebhookState::waiting(HookTarget { url: "https://h/".to_owned() });
        let mut now = WallTime(0);
        hook.begin(now);
        let mut tries = 0;
        while let Some(due) = hook.due {
            now = due;
            hook.tried(Err("no".to_owned()), now);
            tries += 1;
        }
        assert_eq!((hook.state, tries), (DeliveryState::Failed, 9));
        assert!(now.since(WallTime(0)) > Duration::from_secs(2 * 86_400));
        hook.begin(now);
        hook.tried(Ok(()), now);
        assert_eq!((hook.state, hook.due, hook.problem), (DeliveryState::Delivered, None, None));
    }
}
