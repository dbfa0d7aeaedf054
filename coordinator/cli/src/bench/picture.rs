//! The picture of a measurement: three diagrams over the number of streams, as SVG.

use std::fmt::Write as _;

use super::figures::LevelFigures;
use super::report::BenchReport;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 380.0;
/// The place of the diagrams' bottom, and their height.
const BOTTOM: f64 = 320.0;
const TALL: f64 = 230.0;
const WIDE: f64 = 240.0;
/// A colour for each server that is told apart by people who see no red or green.
const COLOURS: [&str; 2] = ["#0072b2", "#d55e00"];

/// One diagram: its title, and what it shows of a level.
struct Diagram {
    title: &'static str,
    value: fn(&LevelFigures) -> Option<f64>,
}

const DIAGRAMS: [Diagram; 3] = [
    Diagram { title: "all streams, tokens/s", value: |level| Some(level.total?.median) },
    Diagram { title: "one stream, tokens/s", value: |level| Some(level.decode?.median) },
    Diagram { title: "first token p95, ms", value: |level| Some(level.first_token_p95? * 1_000.0) },
];

/// The picture.
pub(crate) fn svg(report: &BenchReport) -> String {
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let args = &report.args;
    let head =
        format!("prompts of about {} tokens, answers of {}, {} rounds", args.prompt_tokens, args.tokens, args.rounds);
    let _ = writeln!(picture, "<text x=\"20\" y=\"22\" font-size=\"14\">{}</text>", escaped(&head));
    let servers: Vec<Vec<LevelFigures>> = (0..report.servers.len()).map(|server| report.figures(server)).collect();
    for (index, server) in report.servers.iter().enumerate() {
        let (x, colour) = (20.0 + 470.0 * index as f64, colour(index));
        let name = escaped(&format!("{} at {}", server.model, server.url));
        let _ = writeln!(
            picture,
            "<rect x=\"{x}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"45\">{name}</text>",
            x + 18.0
        );
    }
    for (index, diagram) in DIAGRAMS.iter().enumerate() {
        draw(&mut picture, 60.0 + 310.0 * index as f64, diagram, &servers);
    }
    picture.push_str("</svg>\n");
    picture
}

fn draw(picture: &mut String, left: f64, diagram: &Diagram, servers: &[Vec<LevelFigures>]) {
    let streams: Vec<u32> = servers.first().into_iter().flatten().map(|level| level.streams).collect();
    let values = servers.iter().flatten().filter_map(diagram.value);
    let top = rounded_up(values.fold(0.0, f64::max));
    let _ = writeln!(picture, "<text x=\"{left}\" y=\"{}\">{}</text>", BOTTOM - TALL - 12.0, diagram.title);
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let (y, value) = (BOTTOM - TALL * share, top * share);
        let _ = writeln!(
            picture,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"end\">{}</text>",
            left + WIDE,
            left - 6.0,
            y + 4.0,
            short(value)
        );
    }
    let x = |index: usize| left + WIDE * (index as f64 + 0.5) / streams.len().max(1) as f64;
    for (index, count) in streams.iter().enumerate() {
        let _ =
            writeln!(picture, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{count}</text>", x(index), BOTTOM + 18.0);
    }
    let _ = writeln!(picture, "<text x=\"{left}\" y=\"{}\" fill=\"#555\">streams</text>", BOTTOM + 38.0);
    for (server, levels) in servers.iter().enumerate() {
        let place =
            |(index, level): (usize, &LevelFigures)| Some((x(index), BOTTOM - TALL * (diagram.value)(level)? / top));
        let points: Vec<(f64, f64)> = levels.iter().enumerate().filter_map(place).collect();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let colour = colour(server);
        let _ = writeln!(
            picture,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(picture, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
}

fn colour(server: usize) -> &'static str {
    COLOURS.get(server).copied().unwrap_or("black")
}

/// The next number of the form 1, 2 or 5 times a power of ten; 1 for nothing.
fn rounded_up(number: f64) -> f64 {
    if number <= 0.0 || !number.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(number.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= number).unwrap_or(10.0 * power)
}

fn short(number: f64) -> String {
    if number >= 10.0 || number == 0.0 { format!("{number:.0}") } else { format!("{number:.2}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn op_1_the_picture_has_a_point_for_each_figure_and_no_text_of_strangers_as_markup() {
        let mut report = report(2);
        report.servers[1].url = "http://<x>&\"".into();
        let svg = svg(&report);
        assert_eq!(svg.matches("<circle").count(), 2 * 2 * DIAGRAMS.len());
        assert_eq!(svg.matches("<polyline").count(), 2 * DIAGRAMS.len());
        assert!(svg.contains("http://&lt;x&gt;&amp;&quot;") && !svg.contains("<x>"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn op_1_a_measurement_without_figures_still_has_a_picture() {
        let mut report = report(1);
        report.levels.clear();
        assert!(svg(&report).ends_with("</svg>\n"));
        assert_eq!((rounded_up(0.0), rounded_up(3.0), rounded_up(100.0), rounded_up(0.07)), (1.0, 5.0, 100.0, 0.1));
    }
}
