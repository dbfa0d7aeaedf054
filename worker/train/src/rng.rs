//! The trainer's only source of randomness: a seeded generator, since candle's CPU device cannot be seeded.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for one purpose. The same `seed` and `stream` give the same numbers; another stream gives other
    /// numbers.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        rng.bits();
        rng
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An index below `len`; 0 when `len` is 0.
    pub fn below(&mut self, len: usize) -> usize {
        ((self.unit() * len as f64) as usize).min(len.saturating_sub(1))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number from the standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Shuffles the items (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_streams_are_reproducible_and_apart() {
        let draw = |seed, stream| (0..8).map(|_| 0).scan(Rng::new(seed, stream), |r, _: i32| Some(r.bits())).collect();
        let [a, b, c, d]: [Vec<u64>; 4] = [draw(1, 0), draw(1, 0), draw(1, 1), draw(2, 0)];
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert_ne!(a, d);
    }

    #[test]
    fn the_distributions_have_their_moments() {
        let mut rng = Rng::new(7, 0);
        let normals: Vec<f64> = (0..20_000).map(|_| rng.normal()).collect();
        let mean = normals.iter().sum::<f64>() / 20_000.0;
        let variance = normals.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let mut order: Vec<usize> = (0..100).collect();
        rng.shuffle(&mut order);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
        assert!((0..1_000).all(|_| rng.below(3) < 3));
    }
}
