//! What is remembered about a model that fails: how often in a row, when it is tried again, what is told to those who
//! wait. Knows no slots.

use std::time::Duration;

use model_boss_protocol::{ApiError, ErrorCode, ModelId, WorkerExit};

use crate::{ExitReport, Moment, Settings};

/// The failures of one model since its last completed request.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    in_a_row: u32,
    until: Moment,
    last: Option<Failure>,
    /// The files or the settings are at fault: nothing changes before they do.
    hopeless: bool,
}

#[derive(Clone, Debug)]
struct Failure {
    when: FailedWhen,
    text: String,
}

/// When a worker went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedWhen {
    /// While it was loading.
    Loading,
    /// After it was ready, before it completed a request.
    BeforeFirstAnswer,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailurePolicy {
    /// Those who wait keep waiting for the next try.
    TryAgain,
    /// Those who wait are told.
    GiveUp,
}

impl Failures {
    /// Counts a failure and says what follows.
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

    /// The same load would fail the same way: nobody waits for more tries of it, and newcomers are told until the next.
    pub(crate) fn give_up(&mut self, now: Moment, settings: &Settings) -> FailurePolicy {
        self.in_a_row = self.in_a_row.max(settings.max_load_attempts);
        self.until = now + back_off(self.in_a_row, settings);
        FailurePolicy::GiveUp
    }

    /// A request was completed, the files changed, or an operator wants another try: all is forgotten.
    pub(crate) fn forget(&mut self) {
        if self.in_a_row > 0 {
            *self = Self::default();
        }
    }

    /// There is reason to try again without waiting.
    pub(crate) fn try_at_once(&mut self) {
        self.until = Moment::START;
    }

    /// When the model may be loaded again, while that is in the future. Hopeless ones are not tried at all.
    pub(crate) fn waits_until(&self, now: Moment) -> Option<Moment> {
        (self.in_a_row > 0 && self.until > now).then_some(self.until)
    }

    /// What a request that comes now is told at once, if it may not wait.
    pub(crate) fn refusal(&self, model: &ModelId, now: Moment, settings: &Settings) -> Option<ApiError> {
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
        Some(ApiError::new(ErrorCode::ModelBackingOff, message).retry_after(wait))
    }

    /// What those who waited are told after [`FailurePolicy::GiveUp`].
    pub(crate) fn error(&self, model: &ModelId) -> ApiError {
        let text = self.text().unwrap_or("its worker went away");
        match self.last.as_ref().map(|failure| failure.when) {
            Some(FailedWhen::BeforeFirstAnswer) => ApiError::new(
                ErrorCode::WorkerCrashed,
                format!("the worker of model '{model}' went away before it answered: {text}"),
            ),
            _ => ApiError::new(ErrorCode::ModelLoadFailed, format!("model '{model}' could not be loaded: {text}")),
        }
    }

    pub(crate) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    pub(crate) fn text(&self) -> Option<&str> {
        self.last.as_ref().map(|failure| failure.text.as_str())
    }
}

/// The exit in one line: how it ended, and the last thing the worker said.
pub(crate) fn describe(exit: &ExitReport) -> String {
    match exit.last_lines.iter().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{}: {}", exit.description, line.trim()),
        None => exit.description.clone(),
    }
}

/// The first wait doubled per further failure, at most the limit.
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
        assert_eq!(error.code, ErrorCode::ModelBackingOff);
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
        assert_eq!(error.code, ErrorCode::ModelLoadFailed);
        failures.forget();
        assert_eq!(failures.refusal(&"m".into(), much_later, &settings), None);
    }
}
