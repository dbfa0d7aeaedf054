//! The loss curve as a picture.

/// One point of the loss curve.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Point {
    /// The number of finished steps.
    pub step: usize,
    /// Weighted mean over the batch of `-log p` of the answers' tokens, in nats.
    pub loss: f64,
    /// The learning rate of the step.
    pub rate: f64,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 44.0;

/// An SVG of the loss by step: each step in a light line, a running mean in a strong one. The loss axis is logarithmic,
/// since most steps have small losses.
pub fn svg(curve: &[Point]) -> String {
    let steps = curve.last().map_or(1, |p| p.step).max(1) as f64;
    let (low, high) = bounds(curve);
    let place = |step: f64, loss: f64| {
        let across = MARGIN + (WIDTH - 2.0 * MARGIN) * step / steps;
        let share = (loss.max(low).ln() - low.ln()) / (high.ln() - low.ln());
        (across, HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * share.min(1.0))
    };
    let line = |points: &mut dyn Iterator<Item = (f64, f64)>| {
        points
            .map(|(step, loss)| place(step, loss))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let every = (curve.len() / 400).max(1);
    let raw = line(&mut curve.iter().step_by(every).map(|p| (p.step as f64, p.loss)));
    let mean = line(&mut running_mean(curve).into_iter().step_by(every));
    let mut marks = String::new();
    for loss in [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0] {
        if loss >= low && loss <= high {
            let (_, y) = place(0.0, loss);
            marks.push_str(&format!(
                "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{loss}</text>\n",
                WIDTH - MARGIN,
                MARGIN - 6.0,
                y + 4.0
            ));
        }
    }
    for part in 0..=4 {
        let step = steps * f64::from(part) / 4.0;
        let (x, _) = place(step, high);
        let below = HEIGHT - MARGIN + 18.0;
        marks.push_str(&format!("<text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{step:.0}</text>\n"));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#444\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{marks}\
         <polyline points=\"{raw}\" fill=\"none\" stroke=\"#b8cbe8\"/>\n\
         <polyline points=\"{mean}\" fill=\"none\" stroke=\"#1f5fbf\" stroke-width=\"2\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\">loss on answers (nats per token) over steps</text>\n</svg>\n"
    )
}

fn bounds(curve: &[Point]) -> (f64, f64) {
    let losses = || curve.iter().map(|p| p.loss).filter(|loss| *loss > 0.0);
    let low = losses().fold(f64::INFINITY, f64::min).clamp(1e-3, 1.0);
    let high = losses().fold(low * 2.0, f64::max);
    (low, high)
}

fn running_mean(curve: &[Point]) -> Vec<(f64, f64)> {
    let mut mean = None;
    let mut means = Vec::with_capacity(curve.len());
    for point in curve {
        let next = mean.map_or(point.loss, |mean: f64| 0.95 * mean + 0.05 * point.loss);
        means.push((point.step as f64, next));
        mean = Some(next);
    }
    means
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_becomes_a_picture_with_axes() {
        let curve: Vec<Point> = (1..=100).map(|step| Point { step, loss: 5.0 / step as f64, rate: 1e-3 }).collect();
        let picture = svg(&curve);
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert!(picture.contains(">100<") && picture.contains(">0.1<"), "{picture}");
        assert!(!picture.contains("NaN") && !svg(&[]).contains("NaN"));
    }
}
