//! The failures of a model: their number in a row, the backoff before the next load, and the errors for waiting
//! requests.

use std::time::Duration;

use model_boss_protocol::{ModelId, WorkerExit};

use crate::refusal::{Refusal, RefusalReason};
use crate::{ExitReport, Moment, Settings};

/// The failures of one model since its last completed request.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    in_a_row: u32,
    until: Moment,
    last: Option<Failure>,
    /// Whether the files or the settings are at fault: no load is tried before they change.
    hopeless: bool,
}

#[derive(Clone, Debug)]
struct Failure {
    when: FailedWhen,
    text: String,
}

/// The stage at which a worker died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedWhen {
    /// The failure happened during the load.
    Loading,
    /// The worker failed after it was ready, and before it completed a request.
    BeforeFirstAnswer,
}

/// The consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailurePolicy {
    /// Waiting requests wait for the next try.
    TryAgain,
    /// Waiting requests are refused.
    GiveUp,
}

impl Failures {
    /// Counts a failure and returns its consequence.
    pub(crate) fn record(
        &mut self,
        now: Moment,
        when: FailedWhen,
        exit: &ExitReport,
        settings: &Settings,
    ) -> FailurePolicy {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.last = Some(Failure { when, text: describe(exit) });
        self.until = now + back_off(self.in_a_row, settings);
        let at_fault = matches!(exit.reason, Some(WorkerExit::BadModel | WorkerExit::BadSpec));
        self.hopeless = at_fault && when == FailedWhen::Loading;
        if self.hopeless || self.in_a_row >= settings.max_load_attempts {
            FailurePolicy::GiveUp
        } else {
            FailurePolicy::TryAgain
        }
    }

    /// Refuses waiting requests, and new ones until the next try, because the same load would fail the same way.
    pub(crate) fn give_up(&mut self, now: Moment, settings: &Settings) -> FailurePolicy {
        self.in_a_row = self.in_a_row.max(settings.max_load_attempts);
        self.until = now + back_off(self.in_a_row, settings);
        FailurePolicy::GiveUp
    }

    /// Forgets all failures: a request was completed, the files changed, or an operator wants another try.
    pub(crate) fn forget(&mut self) {
        if self.in_a_row > 0 {
            *self = Self::default();
        }
    }

    /// Ends the backoff, because a change makes an attempt worthwhile at once.
    pub(crate) fn try_at_once(&mut self) {
        self.until = Moment::START;
    }

    /// The moment of the next permitted load, if that is in the future. Hopeless models are not loaded at all.
    pub(crate) fn waits_until(&self, now: Moment) -> Option<Moment> {
        (self.in_a_row > 0 && self.until > now).then_some(self.until)
    }

    /// The error for a request that arrives now and may not wait.
    pub(crate) fn refusal(&self, model: &ModelId, now: Moment, settings: &Settings) -> Option<Refusal> {
        if self.hopeless {
            return Some(self.error(model));
        }
        let until = self.waits_until(now).filter(|_| self.in_a_row >= settings.max_load_attempts)?;
        let wait = until.since(now);
        let text = self.text().unwrap_or_default();
        let message = format!(
            "model '{model}' failed {} times in a row and is tried again in {:.0} s; the last time: {text}",
            self.in_a_row,
            wait.as_secs_f64().ceil(),
        );
        Some(Refusal::new(RefusalReason::BackingOff, message).retry_after(wait))
    }

    /// The error for the waiting requests after [`FailurePolicy::GiveUp`].
    pub(crate) fn error(&self, model: &ModelId) -> Refusal {
        let text = self.text().unwrap_or("its worker went away");
        match self.last.as_ref().map(|failure| failure.when) {
            Some(FailedWhen::BeforeFirstAnswer) => Refusal::new(
                RefusalReason::WorkerCrashed,
                format!("the worker of model '{model}' went away before it answered: {text}"),
            ),
            _ => Refusal::new(RefusalReason::LoadFailed, format!("model '{model}' could not be loaded: {text}")),
        }
    }

    pub(crate) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    pub(crate) fn text(&self) -> Option<&str> {
        self.last.as_ref().map(|failure| failure.text.as_str())
    }
}

/// The exit in one line: how it ended, and the worker's last line of output.
pub(crate) fn describe(exit: &ExitReport) -> String {
    match exit.last_lines.iter().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{}: {}", exit.description, line.trim()),
        None => exit.description.clone(),
    }
}

/// The first pause, doubled for each further failure, at most the limit.
fn back_off(in_a_row: u32, settings: &Settings) -> Duration {
    let doublings = in_a_row.saturating_sub(1).min(31);
    settings.back_off_first.saturating_mul(1 << doublings).min(settings.back_off_limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(reason: Option<WorkerExit>) -> ExitReport {
        ExitReport {
            reason,
            description: "exit code 1".into(),
            last_lines: vec!["first".into(), "no such file: model.safetensors".into(), " ".into()],
        }
    }

    #[test]
    fn the_wait_doubles_to_five_minutes() {
        let settings = Settings::default();
        let waits: Vec<u64> = (1..=11).map(|n| back_off(n, &settings).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(back_off(u32::MAX, &settings).as_secs(), 300);
    }

    #[test]
    fn three_failures_give_up_and_then_newcomers_are_told_at_once() {
        let settings = Settings::default();
        let mut failures = Failures::default();
        let model = ModelId::from("m");
        let now = Moment::START;
        for _ in 0..2 {
            let policy = failures.record(now, FailedWhen::Loading, &exit(None), &settings);
            assert_eq!(policy, FailurePolicy::TryAgain);
            assert_eq!(failures.refusal(&model, now, &settings), None);
        }
        assert_eq!(failures.record(now, FailedWhen::Loading, &exit(None), &settings), FailurePolicy::GiveUp);
        let error = failures.refusal(&model, now, &settings).unwrap();
        assert_eq!(error.reason, RefusalReason::BackingOff);
        assert_eq!(error.retry_after, Some(Duration::from_secs(4)));
        assert!(error.message.contains("exit code 1: no such file: model.safetensors"), "{}", error.message);
        assert_eq!(failures.refusal(&model, now + Duration::from_secs(4), &settings), None);
        failures.forget();
        assert_eq!(failures.waits_until(now), None);
    }

    #[test]
    fn a_bad_file_is_told_at_once_until_it_changes() {
        let settings = Settings::default();
        let mut failures = Failures::default();
        let exit = exit(Some(WorkerExit::BadModel));
        assert_eq!(failures.record(Moment::START, FailedWhen::Loading, &exit, &settings), FailurePolicy::GiveUp);
        let much_later = Moment::START + Duration::from_secs(100_000);
        let error = failures.refusal(&"m".into(), much_later, &settings).unwrap();
        assert_eq!(error.reason, RefusalReason::LoadFailed);
        failures.forget();
        assert_eq!(failures.refusal(&"m".into(), much_later, &settings), None);
    }
}
