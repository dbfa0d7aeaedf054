//! Numbers for each head by the distance between two tokens, which are added to scores (T5: Raffel et al., 2019, arXiv
//! 1910.10683).

use candle_core::{Device, Result, Tensor};

/// The buckets of distances: near ones have their own, far ones share some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DistanceBuckets {
    /// Buckets in each direction.
    pub(crate) side: usize,
    /// The distance from which on all are in one bucket.
    pub(crate) farthest: usize,
}

impl DistanceBuckets {
    /// Those of T5 and of MPNet.
    pub(crate) const USUAL: Self = Self { side: 16, farthest: 128 };

    /// Buckets of both directions.
    pub(crate) const fn all(self) -> usize {
        2 * self.side
    }

    /// Biases for texts of up to `longest` tokens, `[heads, 2 * longest - 1]`, from a token that is far in front to one
    /// that is far behind. The table has the shape `[buckets, heads]`.
    pub(crate) fn biases(self, table: &Tensor, longest: usize, device: &Device) -> Result<Tensor> {
        let farthest = longest as i64 - 1;
        let buckets: Vec<u32> = (-farthest..=farthest).map(|ahead| self.bucket(-ahead)).collect();
        let count = buckets.len();
        table.index_select(&Tensor::from_vec(buckets, count, device)?, 0)?.t()?.contiguous()
    }

    /// The bucket of a distance: far ones share some by their logarithm.
    fn bucket(self, behind: i64) -> u32 {
        let side = if behind < 0 { self.side } else { 0 };
        let (distance, near) = (behind.unsigned_abs() as usize, self.side / 2);
        let place = if distance < near {
            distance
        } else {
            let share = (distance as f32 / near as f32).ln() / (self.farthest as f32 / near as f32).ln();
            (near + (share * (self.side - near) as f32) as usize).min(self.side - 1)
        };
        (side + place) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_far_tokens_share_buckets() {
        let of = |behind: &[i64]| behind.iter().map(|at| DistanceBuckets::USUAL.bucket(*at)).collect::<Vec<_>>();
        assert_eq!(of(&[0, 1, 7, 8, 11, 12, 16, 64, 127, 5_000]), [0, 1, 7, 8, 8, 9, 10, 14, 15, 15]);
        assert_eq!(of(&[-1, -7, -8, -200]), [17, 23, 24, 31]);
    }
}
