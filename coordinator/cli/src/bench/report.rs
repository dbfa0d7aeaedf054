//! The report of a measurement: rounds, figures, and their text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::args::ModelBenchArgs;
use super::endpoint::Endpoint;
use super::figures::{LevelFigures, LevelRatios, figures, ratios};
use super::sample::RoundSample;
use super::stats::RateSpread;
use crate::tables::table;

/// The share of prompts from a cache above which the figures are no longer those of whole prompts.
const CACHED: f64 = 0.05;

/// All rounds of a measurement.
pub(crate) struct BenchReport {
    pub(crate) args: ModelBenchArgs,
    pub(crate) servers: Vec<MeasuredServer>,
    pub(crate) levels: Vec<LevelRounds>,
    /// Whether the measurement ended by itself.
    pub(crate) is_whole: bool,
}

/// A server as the report names it.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredServer {
    pub(crate) url: String,
    pub(crate) model: String,
    /// The fields beyond OpenAI's that it took.
    pub(crate) extras: Vec<&'static str>,
}

/// The rounds with one number of streams, of each server.
pub(crate) struct LevelRounds {
    pub(crate) streams: u32,
    pub(crate) rounds: Vec<Vec<RoundSample>>,
}

impl MeasuredServer {
    pub(crate) fn of(endpoint: &Endpoint) -> Self {
        Self { url: endpoint.url(), model: endpoint.model.clone(), extras: endpoint.extras.names() }
    }
}

impl BenchReport {
    pub(crate) fn new(args: &ModelBenchArgs) -> Self {
        Self { args: args.clone(), servers: Vec::new(), levels: Vec::new(), is_whole: true }
    }

    /// The figures of a server.
    pub(crate) fn figures(&self, server: usize) -> Vec<LevelFigures> {
        let of = |level: &LevelRounds| Some(figures(level.streams, level.rounds.get(server)?));
        self.levels.iter().filter_map(of).filter(|figures| figures.answers + figures.failed > 0).collect()
    }

    /// The first server beside the second.
    fn ratios(&self) -> Vec<LevelRatios> {
        let of = |level: &LevelRounds| match level.rounds.as_slice() {
            [ours, theirs] if !ours.is_empty() && !theirs.is_empty() => Some(ratios(level.streams, ours, theirs)),
            _ => None,
        };
        self.levels.iter().filter_map(of).collect()
    }

    /// Whether each server gave an answer with each number of streams, and no request failed.
    pub(crate) fn has_all_figures(&self) -> bool {
        let mut all = (0..self.servers.len()).flat_map(|server| self.figures(server));
        all.all(|figures| figures.answers > 0 && figures.failed == 0)
    }

    /// The errors of a server, each with how often it came.
    fn errors(&self, server: usize) -> BTreeMap<&str, usize> {
        let mut errors = BTreeMap::new();
        let rounds = self.levels.iter().filter_map(|level| level.rounds.get(server)).flatten();
        for error in rounds.flat_map(|round| &round.errors) {
            *errors.entry(error.as_str()).or_default() += 1;
        }
        errors
    }
}

/// The report as JSON. Times are in seconds.
pub(crate) fn as_json(report: &BenchReport) -> Value {
    let servers = report.servers.iter().enumerate().map(|(index, server)| {
        json!({
            "url": server.url, "model": server.model, "extra_fields": server.extras,
            "levels": report.figures(index), "errors": report.errors(index),
        })
    });
    let args = &report.args;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "prompt_tokens": args.prompt_tokens, "tokens": args.tokens, "rounds": args.rounds, "seed": args.seed,
        "cached": args.cached, "whole": report.is_whole,
        "servers": servers.collect::<Vec<_>>(),
        "ratios": report.ratios(),
    })
}

/// The report as text.
pub(crate) fn as_text(report: &BenchReport) -> String {
    let args = &report.args;
    let caching = if args.cached { "prompts from the cache" } else { "no prompt from a cache" };
    let mut text = format!(
        "prompts of about {} tokens, answers of {}, {} rounds, {caching}, temperature 0\n",
        args.prompt_tokens, args.tokens, args.rounds
    );
    for (index, server) in report.servers.iter().enumerate() {
        let figures = report.figures(index);
        let _ = write!(text, "\n{} at {}\n{}", server.model, server.url, rows(&figures));
        for remark in remarks(server, &figures, args) {
            let _ = writeln!(text, "  {remark}");
        }
        for (error, times) in report.errors(index) {
            let _ = writeln!(text, "  {times} requests failed: {error}");
        }
    }
    let ratios = report.ratios();
    if !ratios.is_empty() {
        let _ = write!(
            text,
            "\nthe first beside the second, round by round: median (lowest–highest)\n{}",
            ratio_rows(&ratios)
        );
    }
    text
}

fn rows(levels: &[LevelFigures]) -> String {
    let rows = levels.iter().map(|level| {
        [
            level.streams.to_string(),
            seconds(level.first_token_p50),
            seconds(level.first_token_p95),
            rate(level.decode),
            rate(level.total),
            rate(level.prefill),
            level.failed.to_string(),
        ]
    });
    let heads = ["STREAMS", "FIRST p50", "FIRST p95", "DECODE tok/s", "ALL tok/s", "PREFILL tok/s", "FAILED"];
    table(heads, rows)
}

fn ratio_rows(levels: &[LevelRatios]) -> String {
    let shown = |spread: Option<RateSpread>| {
        spread.map_or_else(
            || "-".to_owned(),
            |spread| format!("{:.2} ({:.2}–{:.2})", spread.median, spread.lowest, spread.highest),
        )
    };
    let rows = levels.iter().map(|level| {
        [
            level.streams.to_string(),
            shown(level.first_token),
            shown(level.decode),
            shown(level.total),
            shown(level.prefill),
        ]
    });
    table(["STREAMS", "FIRST TOKEN", "DECODE", "ALL", "PREFILL"], rows)
}

fn remarks(server: &MeasuredServer, figures: &[LevelFigures], args: &ModelBenchArgs) -> Vec<String> {
    let mut remarks = Vec::new();
    if figures.iter().any(|level| !level.is_counted_by_server) {
        remarks.push("the server counts no tokens: pieces of text were counted in their place".to_owned());
    }
    let shortest = figures.iter().filter_map(|level| level.tokens).min_by(f64::total_cmp);
    if let Some(shortest) = shortest.filter(|shortest| *shortest < f64::from(args.tokens)) {
        let why = if server.extras.contains(&"ignore_eos") { "" } else { "; it takes no ignore_eos" };
        remarks.push(format!("answers ended after {shortest:.0} tokens{why}"));
    }
    if figures.iter().any(|level| level.answers > 0 && level.decode.is_none()) {
        remarks.push("some answers came as a whole, too fast to tell a decode rate: more --tokens help".to_owned());
    }
    let cached = figures.iter().map(|level| level.cached).fold(0.0, f64::max);
    if !args.cached && cached > CACHED {
        remarks.push(format!("{:.0} % of prompts came from its cache all the same", cached * 100.0));
    }
    if args.cached && cached < CACHED {
        remarks.push("it reports no prompt from its cache".to_owned());
    }
    remarks
}

fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1_000.0),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}

fn rate(spread: Option<RateSpread>) -> String {
    match spread.map(|spread| spread.median) {
        None => "-".to_owned(),
        Some(rate) if rate < 100.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::super::sample::AnswerSample;
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;

    pub(crate) fn report(servers: usize) -> BenchReport {
        let Command::Bench(args) = Cli::try_parse_from(["model-boss", "bench", "m", "--tokens", "11"]).unwrap().command
        else {
            panic!("not bench")
        };
        let mut report = BenchReport::new(&args.model.unwrap());
        let answer = |first: u64| AnswerSample {
            first: Duration::from_millis(first),
            last: Duration::from_millis(first + 1_000),
            pieces: 11,
            tokens: Some(11),
            prompt_tokens: Some(100),
            ..AnswerSample::default()
        };
        for server in 0..servers {
            let extras = if server == 0 { vec!["ignore_eos"] } else { Vec::new() };
            report.servers.push(MeasuredServer { url: format!("http://s{server}"), model: "m".into(), extras });
        }
        for streams in [1, 2] {
            let of = |server| RoundSample { answers: vec![answer(100 * (server + 1))], errors: Vec::new() };
            report
                .levels
                .push(LevelRounds { streams, rounds: (0..servers as u64).map(|server| vec![of(server)]).collect() });
        }
        report
    }

    #[test]
    fn op_1_the_text_has_a_row_for_each_number_of_streams() {
        let text = as_text(&report(1));
        assert!(text.contains("m at http://s0\nSTREAMS  FIRST p50"), "{text}");
        assert!(text.contains("\n1        100 ms     100 ms     10.0"), "{text}");
        assert!(!text.contains("beside"), "{text}");
        assert!(report(1).has_all_figures());
    }

    #[test]
    fn op_1_two_servers_are_compared_with_their_spread() {
        let text = as_text(&report(2));
        assert!(text.contains("0.50 (0.50–0.50)  1.00 (1.00–1.00)"), "{text}");
        let json = as_json(&report(2));
        assert_eq!(json["ratios"][0]["first_token"]["median"], 0.5);
        assert_eq!(json["servers"][1]["levels"][1]["streams"], 2);
    }

    #[test]
    fn op_1_what_is_not_as_asked_is_said() {
        let mut report = report(1);
        report.args.tokens = 64;
        report.servers[0].extras = Vec::new();
        report.levels[0].rounds[0][0].errors = vec!["503: busy".into(), "503: busy".into()];
        report.levels[1].rounds[0][0].answers[0].tokens = None;
        report.levels[1].rounds[0][0].answers[0].cached_tokens = 50;
        let text = as_text(&report);
        for part in ["no ignore_eos", "2 requests failed: 503: busy", "pieces of text", "50 % of prompts"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!report.has_all_figures());
    }
}
