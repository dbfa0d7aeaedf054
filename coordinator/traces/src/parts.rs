//! The two parts of a worker's work, as times: reading the prompt, and writing the answer.

use std::time::{Duration, SystemTime};

use crate::facts::AnswerFacts;

/// The times of prefill and decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkParts {
    pub(crate) prefill: SystemTime,
    pub(crate) decode: SystemTime,
    pub(crate) end: SystemTime,
}

/// The parts of a call that began at `begun` and ends at `end`. The worker's own durations come first: they end with
/// the answer. Where it tells none, as one that was cancelled, the first byte divides the two.
pub(crate) fn work_parts(begun: SystemTime, end: SystemTime, facts: &AnswerFacts) -> Option<WorkParts> {
    let before = |at: SystemTime, span: Duration| at.checked_sub(span).unwrap_or(begun).max(begun);
    if let Some((prompt, answer)) = facts.worked {
        let decode = before(end, answer);
        return Some(WorkParts { prefill: before(decode, prompt), decode, end });
    }
    let since = facts.since_first_byte?;
    Some(WorkParts { prefill: begun, decode: before(end, since), end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap()
    }

    #[test]
    fn the_parts_lie_within_the_call() {
        let ms = Duration::from_millis;
        let parts = |facts| work_parts(at(1_000), at(1_100), &facts);
        let worked = |prompt, answer| AnswerFacts { worked: Some((ms(prompt), ms(answer))), ..AnswerFacts::default() };
        let is = |prefill, decode| Some(WorkParts { prefill: at(prefill), decode: at(decode), end: at(1_100) });
        assert_eq!(parts(worked(20, 50)), is(1_030, 1_050));
        assert_eq!(parts(worked(80, 50)), is(1_000, 1_050));
        assert_eq!(parts(worked(80, 500)), is(1_000, 1_000));
        let byte = |since| AnswerFacts { since_first_byte: Some(ms(since)), ..AnswerFacts::default() };
        assert_eq!(parts(byte(30)), is(1_000, 1_070));
        assert_eq!(parts(AnswerFacts::default()), None);
    }
}
