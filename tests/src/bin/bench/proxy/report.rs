//! The figures of all rounds, as a human-readable table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::gateway::{DIRECT, NGINX, OURS, VLLM_ROUTER};

/// A figure, with the unit of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    CpuPerRequest,
    CpuPerRequestAnyCpu,
    RequestsPerSecond,
    AddedP50,
    AddedP99,
    FortyMs,
    FirstTokenP50,
    FirstTokenP99,
    FramesLost,
    Stalls,
    TransitP50,
    TransitP99,
    CpuPerFrame,
    ResidentMib,
}

impl Figure {
    const ALL: [(Self, &str); 14] = [
        (Self::CpuPerRequest, "CPU µs per request, 32 connections, gateway on a CPU of its own"),
        (Self::CpuPerRequestAnyCpu, "CPU µs per request, 32 connections, on any CPU"),
        (Self::RequestsPerSecond, "requests/s, gateway on a CPU of its own"),
        (Self::AddedP50, "added latency, 1 connection, all on one CPU, p50 µs (direct: the round trip)"),
        (Self::AddedP99, "the same, p99 µs"),
        (Self::FortyMs, "answers that took 35 to 45 ms"),
        (Self::FirstTokenP50, "added to the first token of a stream, 1 connection, all on one CPU, p50 µs"),
        (Self::FirstTokenP99, "the same, p99 µs"),
        (Self::FramesLost, "streams: frames lost"),
        (Self::Stalls, "streams: gaps over 10 times the pace"),
        (Self::TransitP50, "streams: write of a frame to its arrival, p50 µs"),
        (Self::TransitP99, "the same, p99 µs"),
        (Self::CpuPerFrame, "streams: CPU µs per frame"),
        (Self::ResidentMib, "resident memory in the end, MiB"),
    ];
}

/// All results: one value for each round.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The machine and the settings.
    pub(super) about: BTreeMap<&'static str, String>,
    /// Values by gateway and figure.
    values: BTreeMap<&'static str, BTreeMap<Figure, Vec<f64>>>,
    /// Gateways that are absent, with the reasons.
    pub(super) absent: BTreeMap<&'static str, String>,
}

impl Report {
    pub(super) fn new(about: BTreeMap<&'static str, String>) -> Self {
        Self { about, values: BTreeMap::new(), absent: BTreeMap::new() }
    }

    /// Adds the value of one round.
    pub(super) fn add(&mut self, gateway: &'static str, figure: Figure, value: f64) {
        self.values.entry(gateway).or_default().entry(figure).or_default().push(value);
    }

    /// The value of the last round.
    pub(super) fn last(&self, gateway: &'static str, figure: Figure) -> Option<f64> {
        self.of(gateway, figure).last().copied()
    }

    fn of(&self, gateway: &str, figure: Figure) -> &[f64] {
        self.values.get(gateway).and_then(|figures| figures.get(&figure)).map_or(&[], Vec::as_slice)
    }

    /// Medians, and medians of each round's ratios with their ranges.
    pub(super) fn markdown(&self) -> String {
        let mut text = String::new();
        for (what, value) in &self.about {
            text += &format!("- {what}: {value}\n");
        }
        for (name, why) in &self.absent {
            text += &format!("- {name}: {why}\n");
        }
        text += "\n| figure (median of the rounds, range) | direct | model-boss | nginx | vllm-router | ours / vllm-router | \
                 ours / nginx |\n|---|---|---|---|---|---|---|\n";
        for (figure, words) in Figure::ALL {
            let cell = |gateway| summary(self.of(gateway, figure).to_vec());
            text += &format!(
                "| {words} | {} | {} | {} | {} | {} | {} |\n",
                cell(DIRECT),
                cell(OURS),
                cell(NGINX),
                cell(VLLM_ROUTER),
                self.ratio(VLLM_ROUTER, figure),
                self.ratio(NGINX, figure),
            );
        }
        text
    }

    fn ratio(&self, peer: &str, figure: Figure) -> String {
        let pairs = self.of(OURS, figure).iter().zip(self.of(peer, figure));
        let ratios: Vec<f64> = pairs.filter(|(_, theirs)| **theirs > 0.0).map(|(ours, theirs)| ours / theirs).collect();
        summary(ratios)
    }
}

/// The text `median (least–most)` of values.
pub(crate) fn summary(mut values: Vec<f64>) -> String {
    if values.is_empty() {
        return "–".to_owned();
    }
    values.sort_by(f64::total_cmp);
    let (first, last) = (values[0], values[values.len() - 1]);
    let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    if first == last { shown(first) } else { format!("{} ({}–{})", shown(middle), shown(first), shown(last)) }
}

fn shown(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_ranges_and_ratios_of_rounds() {
        let mut report = Report::new(BTreeMap::new());
        for (ours, theirs) in [(10.0, 20.0), (30.0, 40.0), (10.0, 100.0)] {
            report.add(OURS, Figure::CpuPerRequest, ours);
            report.add(VLLM_ROUTER, Figure::CpuPerRequest, theirs);
        }
        let table = report.markdown();
        let row = table.lines().find(|line| line.contains("CPU of its own |")).unwrap();
        assert!(row.contains("| 10.0 (10.0–30.0) | – | 40.0 (20.0–100.0) | 0.50 (0.10–0.75) | – |"), "{row}");
    }
}
