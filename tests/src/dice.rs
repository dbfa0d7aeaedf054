//! A seeded random generator, for tests with random steps that must be repeatable.

/// Steele, Lea and Flood's splitmix64. The generator is small, and good enough for choices.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// A generator; the same seed gives the same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below `n`; 0 when `n` is 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % if n == 0 { 1 } else { n }
    }

    /// A random element of `choices`.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let last = u64::try_from(choices.len()).expect("a slice's length");
        &choices[usize::try_from(self.below(last)).expect("less than a slice's length")]
    }
}

/// The amount of work of a test: a number from the environment, or a default.
pub fn amount(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}
