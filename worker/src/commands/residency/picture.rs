//! A step as a picture: time from left to right, a row for each layer. Knows spans, no model.

use std::fmt::Write as _;

use model_boss_engine::residency::{StepTimeline, TimeSpan};

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const ROW: f64 = 16.0;

/// An SVG document.
pub(super) fn of(step: &StepTimeline) -> String {
    let starts = step.copies.iter().map(|copy| copy.read.start);
    let first = starts.fold(0.0_f64, f64::min);
    let last = step.wall.max(1e-9);
    let x = |seconds: f64| LEFT + (seconds - first) / (last - first) * WIDTH;
    let row = |layer: usize| step.layers.iter().position(|row| row.layer == layer).unwrap_or(0);
    let height = TOP + ROW * (step.layers.len() as f64 + 2.0);
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <style>.read{{fill:#4477aa}}.place{{fill:#66ccee}}.stall{{fill:#ee6677}}.compute{{fill:#228833}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>",
        LEFT + WIDTH + 20.0
    );
    for (index, kind) in ["read", "place", "stall", "compute"].into_iter().enumerate() {
        let at = LEFT + 110.0 * index as f64;
        let _ = writeln!(svg, "<rect class=\"{kind}\" x=\"{at}\" y=\"8\" width=\"12\" height=\"12\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"18\">{kind}</text>", at + 16.0);
    }
    let mut bar = |kind: &str, layer: usize, upper: bool, span: &TimeSpan| {
        let y = TOP + ROW * row(layer) as f64 + if upper { 0.0 } else { ROW / 2.0 };
        let (from, to) = (x(span.start.max(first)), x(span.end));
        if to > from {
            let _ = writeln!(
                svg,
                "<rect class=\"{kind}\" x=\"{from:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{:.1}\"><title>layer {layer} \
                 {kind} {:.1} ms</title></rect>",
                to - from,
                ROW / 2.0 - 1.0,
                1e3 * span.seconds()
            );
        }
    };
    for copy in &step.copies {
        let layer = copy.layers.first().copied().unwrap_or(0);
        bar("read", layer, true, &copy.read);
        bar("place", layer, true, &copy.place);
    }
    for layer in &step.layers {
        bar("stall", layer.layer, false, &layer.stall);
        bar("compute", layer.layer, false, &layer.compute);
    }
    for layer in &step.layers {
        let y = TOP + ROW * (row(layer.layer) as f64 + 0.75);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>", LEFT - 8.0, layer.layer);
    }
    let y = height - ROW / 2.0;
    let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\">0 ms</text>", x(0.0));
    let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{:.0} ms</text>", x(last), 1e3 * last);
    svg.push_str("</svg>\n");
    svg
}
