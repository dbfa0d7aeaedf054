//! A table with one row for each figure, model-boss's and a peer's in every round: as Markdown and as JSON.

use std::time::Duration;

use serde::Serialize;

use crate::proxy::report::summary;

/// All rows, in the order of their first measurement.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

/// The values of all rounds.
#[derive(Debug, Serialize)]
struct Row {
    figure: String,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Table {
    /// Adds one round of a figure; an absent peer has no value.
    pub(crate) fn add(&mut self, figure: &str, ours: Option<f64>, theirs: Option<f64>) {
        let at = self.rows.iter().position(|row| row.figure == figure).unwrap_or_else(|| {
            self.rows.push(Row { figure: figure.to_owned(), ours: Vec::new(), theirs: Vec::new() });
            self.rows.len() - 1
        });
        self.rows[at].ours.extend(ours);
        self.rows[at].theirs.extend(theirs);
    }

    /// Medians with their ranges. The ratio is the median of the rounds' ratios, where both sides were measured in each
    /// round.
    pub(crate) fn markdown(&self, peer: &str) -> String {
        let mut text = format!(
            "\n| figure (median of the rounds, range) | model-boss | {peer} | ours / theirs |\n|---|---|---|---|\n"
        );
        for Row { figure, ours, theirs } in &self.rows {
            let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
            let ratios = if ours.len() == theirs.len() { ratios } else { Vec::new() };
            text += &format!(
                "| {figure} | {} | {} | {} |\n",
                summary(ours.clone()),
                summary(theirs.clone()),
                summary(ratios)
            );
        }
        text
    }
}

/// A time as tables show it.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_compared_with_their_own() {
        let mut table = Table::default();
        for (ours, theirs) in [(10.0, 20.0), (30.0, 40.0), (10.0, 100.0)] {
            table.add("swap, ms", Some(ours), Some(theirs));
        }
        table.add("memory", Some(1.0), None);
        let text = table.markdown("llama-server");
        assert!(text.contains("| swap, ms | 10.0 (10.0–30.0) | 40.0 (20.0–100.0) | 0.50 (0.10–0.75) |"), "{text}");
        assert!(text.contains("| memory | 1.00 | – | – |"), "{text}");
    }
}
