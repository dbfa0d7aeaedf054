//! The speeds of all rounds, as a human-readable table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::proxy::report::summary;

/// The results of all rounds.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    about: BTreeMap<&'static str, String>,
    /// The size of the model's file, which is read whole for each token.
    model_bytes: u64,
    /// Bytes per second, one value for each round.
    read_bandwidth: Vec<f64>,
    /// The rows, in the order of their first measurement.
    rows: Vec<Row>,
}

/// One test: tokens per second of every round.
#[derive(Debug, Serialize)]
struct Row {
    test: String,
    ours: Vec<f64>,
    /// The peer llama.cpp, without and with flash attention.
    theirs: [Vec<f64>; 2],
}

impl Report {
    pub(super) fn new(model_bytes: u64) -> Self {
        Self { about: BTreeMap::new(), model_bytes, read_bandwidth: Vec::new(), rows: Vec::new() }
    }

    pub(super) fn about(&mut self, what: &'static str, value: String) {
        self.about.insert(what, value);
    }

    pub(super) fn bandwidth(&mut self, bytes_per_second: f64) {
        self.read_bandwidth.push(bytes_per_second);
    }

    /// Adds the speeds of one round; an absent peer has none.
    pub(super) fn add(&mut self, test: String, ours: f64, theirs: [Option<f64>; 2]) {
        let at = self.rows.iter().position(|row| row.test == test).unwrap_or_else(|| {
            self.rows.push(Row { test, ours: Vec::new(), theirs: Default::default() });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.ours.push(ours);
        for (all, speed) in row.theirs.iter_mut().zip(theirs) {
            all.extend(speed);
        }
    }

    /// Medians with their ranges. The ratio of each round is taken to the better of the peer's two ways, by their
    /// medians.
    pub(super) fn markdown(&self) -> String {
        let mut text = String::new();
        for (what, value) in &self.about {
            text += &format!("- {what}: {value}\n");
        }
        let ceiling = self.read_bandwidth.iter().map(|bytes| bytes / self.model_bytes as f64).collect();
        let bandwidth = self.read_bandwidth.iter().map(|bytes| bytes / 1e9).collect();
        text += &format!(
            "- memory: read at {} GB/s, which would be the weights {} times a second\n",
            summary(bandwidth),
            summary(ceiling)
        );
        text += "\n| tokens/s (median of the rounds, range) | model-boss | llama.cpp -fa 0 | llama.cpp -fa 1 | \
                 ours / the better of theirs |\n|---|---|---|---|---|\n";
        for row in &self.rows {
            let better =
                row.theirs.iter().max_by(|a, b| median(a).total_cmp(&median(b))).map_or(&[][..], Vec::as_slice);
            let ratios = row.ours.iter().zip(better).map(|(ours, theirs)| ours / theirs).collect();
            let [without, with] = &row.theirs;
            text += &format!(
                "| {} | {} | {} | {} | {} |\n",
                row.test,
                summary(row.ours.clone()),
                summary(without.clone()),
                summary(with.clone()),
                summary(ratios)
            );
        }
        text
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_better_way_of_the_peer() {
        let mut report = Report::new(1 << 30);
        for (ours, theirs) in [(30.0, [20.0, 40.0]), (50.0, [25.0, 50.0]), (40.0, [60.0, 40.0])] {
            report.add("tg64".to_owned(), ours, theirs.map(Some));
        }
        report.add("pp512".to_owned(), 100.0, [None, None]);
        report.bandwidth(2e9);
        let table = report.markdown();
        let row = table.lines().find(|line| line.starts_with("| tg64")).unwrap();
        assert!(row.ends_with("| 25.0 (20.0–60.0) | 40.0 (40.0–50.0) | 1.00 (0.75–1.00) |"), "{row}");
        assert!(table.contains("| pp512 | 100.0 | – | – | – |"), "{table}");
        assert!(table.contains("read at 2.00 GB/s, which would be the weights 1.86 times"), "{table}");
    }
}
