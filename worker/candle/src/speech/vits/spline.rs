//! The inverse of a rising spline of rational quadratic pieces (Durkan et al., 2019, arXiv 1906.04032).

/// The least width and height of a piece, and the least slope at its ends.
const LEAST: f64 = 1e-3;

/// Beyond the last place, so that the end itself is in the last piece.
const BEYOND: f64 = 1e-6;

/// The number that the spline takes to `y`. Outside of the bound on both sides it is `y` itself. The numbers are those
/// of the network: widths and heights of the pieces, and slopes between them.
pub(super) fn inverse(y: f32, [widths, heights]: [&[f32]; 2], slopes: &[f32], bound: f32) -> f32 {
    if !(-bound..=bound).contains(&y) {
        return y;
    }
    let (y, bound) = (f64::from(y), f64::from(bound));
    let (widths, heights) = (places(widths, bound), places(heights, bound));
    let pieces = widths.len() - 1;
    let is_behind = |at: &usize| y >= if *at == pieces { heights[*at] + BEYOND } else { heights[*at] };
    let piece = (0..=pieces).filter(is_behind).count().clamp(1, pieces) - 1;
    // The slope at both ends of the spline is 1.
    let slope = |at: usize| if at == 0 || at == pieces { 1.0 } else { LEAST + softplus(f64::from(slopes[at - 1])) };
    let (width, height) = (widths[piece + 1] - widths[piece], heights[piece + 1] - heights[piece]);
    let (even, left, right) = (height / width, slope(piece), slope(piece + 1));
    let bend = left + right - 2.0 * even;
    let above = y - heights[piece];
    let a = height * (even - left) + above * bend;
    let b = height * left - above * bend;
    let c = -even * above;
    let root = 2.0 * c / (-b - (b * b - 4.0 * a * c).max(0.0).sqrt());
    (root * width + widths[piece]) as f32
}

/// Where pieces begin and end: shares by softmax, none too small, of the range within the bound.
fn places(numbers: &[f32], bound: f64) -> Vec<f64> {
    let largest = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = numbers.iter().map(|number| f64::from(number - largest).exp()).collect();
    let (sum, left) = (powers.iter().sum::<f64>(), 1.0 - LEAST * numbers.len() as f64);
    let mut places = vec![-bound];
    let mut share = 0.0;
    for power in powers {
        share += LEAST + left * power / sum;
        places.push(2.0 * bound * share - bound);
    }
    if let Some(last) = places.last_mut() {
        *last = bound;
    }
    places
}

fn softplus(x: f64) -> f64 {
    // Above this PyTorch takes the number itself.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_the_inverse_rises_from_bound_to_bound_and_is_the_number_itself_outside() {
        let (widths, heights, slopes) = ([0.3, -1.0, 2.0, 0.1], [1.0, 0.5, -0.7, 0.2], [0.4, -2.0, 3.0]);
        let at = |y: f32| inverse(y, [&widths, &heights], &slopes, 5.0);
        let line: Vec<f32> = (-60..=60).map(|y| at(y as f32 / 10.0)).collect();
        assert!(line.windows(2).all(|pair| pair[0] < pair[1]), "{line:?}");
        assert_eq!((at(-5.5), at(7.0)), (-5.5, 7.0));
        assert!((at(-5.0) + 5.0).abs() < 1e-4 && (at(5.0) - 5.0).abs() < 1e-4);
        assert_eq!(at(f32::NAN).to_bits(), f32::NAN.to_bits());
    }
}
