//! The results of the rounds: a table of medians and ranges.

use serde_json::Value;

/// Sequences that decode together.
pub(super) const STREAMS: [usize; 2] = [1, 8];

/// Prints the tables of all rounds.
pub(super) fn print(rows: &[Value]) {
    println!(
        "| streams | tokens/s | llama.cpp mmap | ratio | GB/s of the disk's | share | overlap | planned / measured step | look-ahead | peak, \
         cache left MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for streams in STREAMS {
        let of: Vec<&Value> = rows.iter().filter(|row| row["streams"] == streams).collect();
        let column = |value: &dyn Fn(&Value) -> Option<f64>| Figures::of(of.iter().filter_map(|row| value(row)));
        let streaming = |row: &Value, name: &str| row["ours"]["streaming"][name].as_f64();
        println!(
            "| {streams} | {} | {} | {} | {} of {} | {} | {} | {} | {} | {}, {} |",
            column(&|row| row["ours"]["tokens_per_second"].as_f64()).show(),
            column(&|row| row["llama"].as_f64()).show(),
            column(&|row| Some(row["ours"]["tokens_per_second"].as_f64()? / row["llama"].as_f64()?)).show(),
            column(&|row| Some(streaming(row, "bytes_per_second")? / 1e9)).show(),
            column(&|row| Some(row["disk_bytes_per_second"].as_f64()? / 1e9)).show(),
            column(&|row| Some(streaming(row, "bytes_per_second")? / row["disk_bytes_per_second"].as_f64()?)).show(),
            column(&|row| streaming(row, "overlap")).show(),
            column(&|row| {
                let planned = row["ours"]["streaming"]["plan"]["predicted_step_seconds"].as_f64()?;
                Some(planned / row["ours"]["seconds_per_step"].as_f64()?)
            })
            .show(),
            column(&|row| row["ours"]["streaming"]["adapted"]["look_ahead"].as_f64()).show(),
            column(&|row| Some(row["memory"]["peak_bytes"].as_f64()? / f64::from(1 << 20))).show(),
            column(&|row| Some(row["memory"]["cache_bytes"].as_f64()? / f64::from(1 << 20))).show(),
        );
    }
    println!("\nwith room for everything, tokens/s of one stream:");
    println!("| residency = auto | resident | auto / resident | stream, all layers, room for all |");
    println!("|---|---|---|---|");
    let room: Vec<&Value> = rows.iter().map(|row| &row["with_room"]).filter(|room| room.is_object()).collect();
    let column = |value: &dyn Fn(&Value) -> Option<f64>| Figures::of(room.iter().filter_map(|room| value(room)));
    println!(
        "| {} | {} | {} | {} |",
        column(&|room| room["auto"].as_f64()).show(),
        column(&|room| room["resident"].as_f64()).show(),
        column(&|room| Some(room["auto"].as_f64()? / room["resident"].as_f64()?)).show(),
        column(&|room| room["stream"].as_f64()).show(),
    );
}

/// A line of progress for one row.
pub(super) fn line(row: &Value) -> String {
    let (ours, streaming) = (&row["ours"], &row["ours"]["streaming"]);
    format!(
        "{} streams: {:.3} tokens/s, overlap {:.3}, {:.2} of {:.2} GB/s; llama.cpp {}",
        row["streams"],
        ours["tokens_per_second"].as_f64().unwrap_or(0.0),
        streaming["overlap"].as_f64().unwrap_or(0.0),
        streaming["bytes_per_second"].as_f64().unwrap_or(0.0) / 1e9,
        row["disk_bytes_per_second"].as_f64().unwrap_or(0.0) / 1e9,
        row["llama"]
    )
}

/// One figure of all rounds, sorted.
pub(crate) struct Figures(Vec<f64>);

impl Figures {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The text of the median, with the range if there is one.
    pub(crate) fn show(&self) -> String {
        let figure = |value: f64| match value.abs() {
            100.0.. => format!("{value:.0}"),
            10.0.. => format!("{value:.1}"),
            _ => format!("{value:.3}"),
        };
        match self.0.as_slice() {
            [] => "pending".to_owned(),
            [one] => figure(*one),
            [least, .., most] => {
                let median = self.0.get(self.0.len() / 2).copied().unwrap_or(0.0);
                format!("{} ({}–{})", figure(median), figure(*least), figure(*most))
            }
        }
    }
}
