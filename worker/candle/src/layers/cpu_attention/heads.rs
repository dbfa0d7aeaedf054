//! Preparing queries and keys for their product: each head's norm, and its rotation. Knows one head of one row.

use crate::spec::RopePlanes;

/// Weights of a norm over one head, `[head_dim]`, and its epsilon.
#[derive(Clone, Copy)]
pub(crate) struct HeadNorm<'a> {
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
}

impl HeadNorm<'_> {
    /// RMSNorm in place.
    #[inline(always)]
    pub(super) fn apply(self, head: &mut [f32]) {
        const LANES: usize = 8;
        let mut lanes = [0.0_f32; LANES];
        let (whole, rest) = head.as_chunks::<LANES>();
        for part in whole {
            for (lane, x) in lanes.iter_mut().zip(part) {
                *lane = x.mul_add(*x, *lane);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane = x.mul_add(*x, *lane);
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        let squares = ((a + e) + (c + g)) + ((b + f) + (d + h));
        let scale = (squares / head.len() as f32 + self.eps).sqrt().recip();
        for (x, weight) in head.iter_mut().zip(self.weight) {
            *x *= scale * weight;
        }
    }
}

/// Cosines and sines of all rows of a step, `[rows, head_dim / 2]` each.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    pub(crate) planes: RopePlanes,
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
}

impl Rotation<'_> {
    /// Turns a head of a row in place.
    #[inline(always)]
    pub(super) fn apply(self, row: usize, head: &mut [f32]) {
        let half = head.len() / 2;
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        match self.planes {
            RopePlanes::Halves => {
                let (firsts, seconds) = head.split_at_mut(half);
                for (((a, b), cos), sin) in firsts.iter_mut().zip(seconds).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
            RopePlanes::Neighbours => {
                for (([a, b], cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}
