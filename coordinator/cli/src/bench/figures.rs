//! From answers to figures. The functions only compute.

use serde::Serialize;

use super::sample::{AnswerSample, RoundSample};
use super::stats::{RateSpread, median, percentile};

/// The shortest time between the first and the last token that tells a rate: shorter ones are those of the reader, who
/// got the whole answer at once.
const SHORTEST: f64 = 0.01;

/// The figures of one server with one number of streams.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LevelFigures {
    pub(crate) streams: u32,
    /// Answers that were measured, and requests that failed.
    pub(crate) answers: usize,
    pub(crate) failed: usize,
    /// Seconds to the first token.
    pub(crate) first_token_p50: Option<f64>,
    pub(crate) first_token_p95: Option<f64>,
    /// Tokens a second of one stream, after its first token.
    pub(crate) decode: Option<RateSpread>,
    /// Tokens a second of all streams together, from the first request to the last token.
    pub(crate) total: Option<RateSpread>,
    /// Tokens of prompts a second, until every stream has its first token.
    pub(crate) prefill: Option<RateSpread>,
    /// Tokens of an answer.
    pub(crate) tokens: Option<f64>,
    pub(crate) prompt_tokens: Option<f64>,
    /// The share of prompts that came from the server's cache.
    pub(crate) cached: f64,
    /// Whether the server counted the tokens; else pieces of text were counted.
    pub(crate) is_counted_by_server: bool,
}

/// How one server compares with another, each round beside the same round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LevelRatios {
    pub(crate) streams: u32,
    /// Above 1, ours is slower to the first token.
    pub(crate) first_token: Option<RateSpread>,
    /// Above 1, ours has more tokens a second.
    pub(crate) decode: Option<RateSpread>,
    pub(crate) total: Option<RateSpread>,
    pub(crate) prefill: Option<RateSpread>,
}

/// The figures of the rounds with this number of streams.
pub(crate) fn figures(streams: u32, rounds: &[RoundSample]) -> LevelFigures {
    let answers: Vec<&AnswerSample> = rounds.iter().flat_map(|round| &round.answers).collect();
    let waits = || answers.iter().map(|answer| wait(answer));
    let prompts: Vec<f64> =
        answers.iter().filter_map(|answer| answer.prompt_tokens).map(|count| count as f64).collect();
    let cached: u64 = answers.iter().map(|answer| answer.cached_tokens).sum();
    LevelFigures {
        streams,
        answers: answers.len(),
        failed: rounds.iter().map(|round| round.errors.len()).sum(),
        first_token_p50: percentile(waits(), 0.5),
        first_token_p95: percentile(waits(), 0.95),
        decode: RateSpread::of(rounds.iter().filter_map(decode)),
        total: RateSpread::of(rounds.iter().filter_map(total)),
        prefill: RateSpread::of(rounds.iter().filter_map(prefill)),
        tokens: median(answers.iter().map(|answer| answer.tokens() as f64)),
        prompt_tokens: median(prompts.iter().copied()),
        cached: cached as f64 / prompts.iter().sum::<f64>().max(1.0),
        is_counted_by_server: answers.iter().all(|answer| answer.tokens.is_some()),
    }
}

/// Ours against theirs. Only rounds count that both have.
pub(crate) fn ratios(streams: u32, ours: &[RoundSample], theirs: &[RoundSample]) -> LevelRatios {
    let pairs = || ours.iter().zip(theirs);
    let of = |figure: fn(&RoundSample) -> Option<f64>| {
        RateSpread::of(pairs().filter_map(|(ours, theirs)| Some(figure(ours)? / figure(theirs)?)))
    };
    LevelRatios { streams, first_token: of(first_token), decode: of(decode), total: of(total), prefill: of(prefill) }
}

fn wait(answer: &AnswerSample) -> f64 {
    answer.first.saturating_sub(answer.sent).as_secs_f64()
}

fn first_token(round: &RoundSample) -> Option<f64> {
    median(round.answers.iter().map(wait))
}

/// Tokens a second of one stream: the median over the streams.
fn decode(round: &RoundSample) -> Option<f64> {
    let rate = |answer: &AnswerSample| {
        let seconds = answer.last.saturating_sub(answer.first).as_secs_f64();
        let later = answer.tokens().checked_sub(1).filter(|later| *later > 0)?;
        (seconds >= SHORTEST).then(|| later as f64 / seconds)
    };
    median(round.answers.iter().filter_map(rate))
}

fn total(round: &RoundSample) -> Option<f64> {
    let tokens: u64 = round.answers.iter().map(AnswerSample::tokens).sum();
    let end = round.answers.iter().map(|answer| answer.last).max()?.as_secs_f64();
    (end > 0.0).then(|| tokens as f64 / end)
}

/// Tokens of prompts that were not in the cache, a second.
fn prefill(round: &RoundSample) -> Option<f64> {
    let of = |answer: &AnswerSample| Some(answer.prompt_tokens?.saturating_sub(answer.cached_tokens));
    let tokens: u64 = round.answers.iter().map(of).sum::<Option<u64>>()?;
    let end = round.answers.iter().map(|answer| answer.first).max()?.as_secs_f64();
    (end > 0.0 && tokens > 0).then(|| tokens as f64 / end)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(first: u64, last: u64, tokens: u64) -> AnswerSample {
        AnswerSample {
            first: Duration::from_millis(first),
            last: Duration::from_millis(last),
            pieces: 1,
            tokens: Some(tokens),
            prompt_tokens: Some(100),
            ..AnswerSample::default()
        }
    }

    fn round(answers: Vec<AnswerSample>) -> RoundSample {
        RoundSample { answers, errors: Vec::new() }
    }

    #[test]
    fn op_1_rates_come_from_tokens_and_times() {
        let rounds = [round(vec![answer(100, 1_100, 11), answer(200, 2_200, 21)]), round(vec![answer(100, 600, 11)])];
        let figures = figures(2, &rounds);
        assert_eq!((figures.answers, figures.failed, figures.is_counted_by_server), (3, 0, true));
        assert_eq!((figures.first_token_p50, figures.first_token_p95), (Some(0.1), Some(0.2)));
        assert_eq!(figures.decode, Some(RateSpread { median: 15.0, lowest: 10.0, highest: 20.0 }));
        let total = figures.total.unwrap();
        assert!((total.lowest - 32.0 / 2.2).abs() < 1e-9 && (total.highest - 11.0 / 0.6).abs() < 1e-9);
        assert_eq!(figures.prefill, Some(RateSpread { median: 1_000.0, lowest: 1_000.0, highest: 1_000.0 }));
    }

    #[test]
    fn op_1_without_the_servers_count_pieces_are_counted_and_said_so() {
        let uncounted = AnswerSample { tokens: None, prompt_tokens: None, pieces: 5, ..answer(100, 500, 0) };
        let figures = figures(1, &[round(vec![uncounted])]);
        assert_eq!((figures.is_counted_by_server, figures.tokens, figures.prefill), (false, Some(5.0), None));
        assert_eq!(figures.decode.map(|spread| spread.median), Some(10.0));
    }

    #[test]
    fn op_1_an_answer_that_came_at_once_tells_no_rate() {
        let figures = figures(1, &[round(vec![answer(100, 104, 64)])]);
        assert_eq!((figures.decode, figures.total.map(|spread| spread.median.round())), (None, Some(615.0)));
    }

    #[test]
    fn op_1_what_was_cached_is_no_prefill() {
        let cached = AnswerSample { cached_tokens: 50, ..answer(100, 500, 3) };
        let figures = figures(1, &[round(vec![cached])]);
        assert_eq!((figures.cached, figures.prefill.map(|spread| spread.median)), (0.5, Some(500.0)));
    }

    #[test]
    fn op_1_ratios_are_of_rounds_side_by_side() {
        let ours = [round(vec![answer(100, 1_100, 11)]), round(vec![answer(100, 1_100, 21)])];
        let theirs = [round(vec![answer(200, 1_200, 11)]), round(vec![answer(50, 1_050, 11)])];
        let ratios = ratios(1, &ours, &theirs);
        assert_eq!(ratios.first_token, Some(RateSpread { median: 1.25, lowest: 0.5, highest: 2.0 }));
        assert_eq!(ratios.decode, Some(RateSpread { median: 1.5, lowest: 1.0, highest: 2.0 }));
        let failed = [RoundSample { errors: vec!["503".into()], ..RoundSample::default() }];
        assert_eq!(super::ratios(1, &ours, &failed).decode, None);
        assert_eq!(super::figures(1, &failed).failed, 1);
    }
}
