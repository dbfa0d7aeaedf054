//! GroupNorm of pictures (Wu and He, 2018, arXiv 1803.08494): the numbers of some channels of all pixels have the mean
//! 0 and the variance 1 together. Pixels lie one behind the other, each with all its channels.

use pulp::NullaryFnOnce;
use rayon::prelude::*;

use crate::cores::{WORTH_SHARING, cores};
use crate::exp::exp;
use crate::rows::vectorized;

/// Pixels whose sums are added in f32 before they are added in f64.
const SUMMED: usize = 64;

/// A norm with its weights.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a> {
    /// The groups of channels, which divide them.
    pub groups: usize,
    /// The factor on each channel.
    pub weight: &'a [f32],
    /// The number that is added to each channel.
    pub bias: &'a [f32],
    /// Epsilon.
    pub eps: f32,
    /// Whether each result is multiplied with its logistic function (SiLU).
    pub silu: bool,
}

impl GroupNorm<'_> {
    /// Puts the norm of one picture's pixels in their place.
    pub fn in_place(&self, pixels: &mut [f32]) {
        let width = self.weight.len();
        if pixels.is_empty() || self.groups == 0 {
            return;
        }
        let group = width / self.groups;
        let count = (pixels.len() / width * group) as f64;
        let of_groups =
            |sums: Vec<f64>| -> Vec<f64> { sums.chunks(group).map(|sums| sums.iter().sum::<f64>() / count).collect() };
        let means = of_groups(sums(pixels, &vec![0.0; width], Power::First));
        let spread = |of_groups: &[f64]| -> Vec<f32> {
            of_groups.iter().flat_map(|number| std::iter::repeat_n(*number as f32, group)).collect()
        };
        let from = spread(&means);
        let variances = of_groups(sums(pixels, &from, Power::Second));
        let factors: Vec<f64> =
            variances.iter().map(|variance| 1.0 / (variance + f64::from(self.eps)).sqrt()).collect();
        let factors = spread(&factors);
        let factors: Vec<f32> = factors.iter().zip(self.weight).map(|(factor, weight)| factor * weight).collect();
        let apply = |pixels: &mut [f32]| {
            vectorized(Apply { pixels, from: &from, factors: &factors, bias: self.bias, silu: self.silu });
        };
        in_pieces(pixels, width, apply);
    }
}

/// The power of differences that is summed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    First,
    Second,
}

/// Pixels that one core works on.
fn piece_of(width: usize) -> usize {
    ((WORTH_SHARING / 16) / width.max(1)).max(1).next_multiple_of(SUMMED) * width
}

fn in_pieces(pixels: &mut [f32], width: usize, work: impl Fn(&mut [f32]) + Send + Sync) {
    let piece = piece_of(width);
    if pixels.len() <= piece || cores() == 1 {
        work(pixels);
    } else {
        pixels.par_chunks_mut(piece).for_each(work);
    }
}

/// The sums of each channel's differences from a number.
fn sums(pixels: &[f32], from: &[f32], power: Power) -> Vec<f64> {
    let width = from.len();
    let of_piece = |pixels: &[f32]| {
        let mut sums = vec![0.0_f64; width];
        for pixels in pixels.chunks(SUMMED * width) {
            let mut near = vec![0.0_f32; width];
            vectorized(AddPixels { pixels, from, power, sums: &mut near });
            sums.iter_mut().zip(&near).for_each(|(sum, near)| *sum += f64::from(*near));
        }
        sums
    };
    let piece = piece_of(width);
    if pixels.len() <= piece || cores() == 1 {
        return of_piece(pixels);
    }
    let pieces: Vec<Vec<f64>> = pixels.par_chunks(piece).map(of_piece).collect();
    let mut all = vec![0.0; width];
    for piece in pieces {
        all.iter_mut().zip(piece).for_each(|(all, sum)| *all += sum);
    }
    all
}

struct AddPixels<'a> {
    pixels: &'a [f32],
    from: &'a [f32],
    power: Power,
    sums: &'a mut [f32],
}

impl NullaryFnOnce for AddPixels<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { pixels, from, power, sums } = self;
        let squared = power == Power::Second;
        for pixel in pixels.chunks_exact(sums.len()) {
            for ((sum, number), from) in sums.iter_mut().zip(pixel).zip(from) {
                let away = number - from;
                *sum += if squared { away * away } else { away };
            }
        }
    }
}

struct Apply<'a> {
    pixels: &'a mut [f32],
    from: &'a [f32],
    factors: &'a [f32],
    bias: &'a [f32],
    silu: bool,
}

impl NullaryFnOnce for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { pixels, from, factors, bias, silu } = self;
        for pixel in pixels.chunks_exact_mut(factors.len()) {
            let channels = pixel.iter_mut().zip(from).zip(factors).zip(bias);
            if silu {
                for (((number, from), factor), bias) in channels {
                    let normed = (*number - from) * factor + bias;
                    *number = normed / (1.0 + exp(-normed));
                }
            } else {
                for (((number, from), factor), bias) in channels {
                    *number = (*number - from) * factor + bias;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_25_groups_have_their_mean_and_variance_taken_away() {
        for (pixels, width, groups) in [(1, 4, 2), (35, 12, 3), (2000, 32, 8), (700, 96, 96)] {
            let x: Vec<f32> = (0..pixels * width).map(|at| ((at * 37) % 101) as f32 / 16.0 + 90.0).collect();
            let weight: Vec<f32> = (0..width).map(|at| at as f32 / 7.0 - 0.5).collect();
            let bias: Vec<f32> = (0..width).map(|at| 0.3 - at as f32 / 9.0).collect();
            let group = width / groups;
            for silu in [false, true] {
                let mut ours = x.clone();
                GroupNorm { groups, weight: &weight, bias: &bias, eps: 1e-5, silu }.in_place(&mut ours);
                for at in 0..groups {
                    let of = |number: usize| x[number / group * width + at * group + number % group];
                    let count = (pixels * group) as f64;
                    let all = || (0..pixels * group).map(|number| f64::from(of(number)));
                    let mean = all().sum::<f64>() / count;
                    let variance = all().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                    for number in 0..pixels * group {
                        let channel = at * group + number % group;
                        let normed = (f64::from(of(number)) - mean) / (variance + 1e-5).sqrt();
                        let exact = normed * f64::from(weight[channel]) + f64::from(bias[channel]);
                        let exact = if silu { exact / (1.0 + (-exact).exp()) } else { exact };
                        let ours = f64::from(ours[number / group * width + channel]);
                        assert!((ours - exact).abs() < 2e-4 * exact.abs().max(1.0), "{ours} {exact}");
                    }
                }
            }
        }
    }
}
