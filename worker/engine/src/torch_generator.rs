//! The random numbers of PyTorch's generator on the CPU. With the same seed, models that draw noise give what the
//! reference implementation gives. The generator is the Mersenne Twister (Matsumoto and Nishimura, 1998), and normals
//! are made of its numbers by the method of Box and Muller (1958), in the two ways that `torch.randn` has.

/// The size of the state.
const STATE: usize = 624;

/// The distance of the words that are mixed.
const MIXED: usize = 397;

/// Normals that are made together where many are.
const BLOCK: usize = 16;

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct TorchGenerator {
    state: Vec<u32>,
    next: usize,
    /// The second normal of a pair of which one was taken.
    second: Option<f64>,
}

impl TorchGenerator {
    /// The generator behind `torch.manual_seed(seed)`. It has 32 bits of the seed, as there.
    pub fn seeded(seed: u64) -> Self {
        let mut state = Vec::with_capacity(STATE);
        let mut word = seed as u32;
        state.push(word);
        for at in 1..STATE as u32 {
            word = 1_812_433_253_u32.wrapping_mul(word ^ (word >> 30)).wrapping_add(at);
            state.push(word);
        }
        Self { state, next: STATE, second: None }
    }

    fn word(&mut self) -> u32 {
        if self.next == STATE {
            for at in 0..STATE {
                let joined = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % STATE] & 0x7fff_ffff);
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + MIXED) % STATE] ^ (joined >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// A number of 64 bits.
    pub fn number(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    /// A number from 0 to 1 with 24 bits.
    fn narrow(&mut self) -> f32 {
        (self.word() & ((1 << 24) - 1)) as f32 / (1 << 24) as f32
    }

    /// A number from 0 to 1 with 53 bits.
    fn wide(&mut self) -> f64 {
        let (high, low) = (u64::from(self.word()), u64::from(self.word()));
        ((high << 32 | low) & ((1 << 53) - 1)) as f64 / (1_u64 << 53) as f64
    }

    /// The numbers that `torch.randn` gives for a tensor of so many numbers that lie one behind the other.
    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        if count < BLOCK {
            return self.normals_in_turn(count);
        }
        let mut numbers: Vec<f32> = (0..count).map(|_| self.narrow()).collect();
        let whole = count / BLOCK * BLOCK;
        numbers[..whole].chunks_exact_mut(BLOCK).for_each(pairs);
        if whole < count {
            // The last block overlaps the one before it, and is drawn anew.
            let last = &mut numbers[count - BLOCK..];
            for number in &mut *last {
                *number = self.narrow();
            }
            pairs(last);
        }
        numbers
    }

    /// The numbers that `torch.randn_like` gives for a tensor whose dimensions are turned: one after the other, in the
    /// order in which they lie in memory.
    pub fn normals_in_turn(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal() as f32).collect()
    }

    fn normal(&mut self) -> f64 {
        if let Some(second) = self.second.take() {
            return second;
        }
        let (turn, distance) = (self.wide(), self.wide());
        let radius = (-2.0 * (-distance).ln_1p()).sqrt();
        let angle = std::f64::consts::TAU * turn;
        self.second = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

/// Makes normals of the numbers of a block: each of the first half with one of the second.
fn pairs(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(BLOCK / 2);
    for (one, other) in first.iter_mut().zip(second) {
        let radius = (-2.0 * (1.0 - *one).ln()).sqrt();
        let angle = std::f32::consts::TAU * *other;
        (*one, *other) = (radius * angle.cos(), radius * angle.sin());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_mersenne_twister() {
        // The first numbers of the authors' own generator with their own seed.
        let mut generator = TorchGenerator::seeded(5_489);
        let words: Vec<u32> = (0..3).map(|_| generator.word()).collect();
        assert_eq!(words, [3_499_211_612, 581_869_302, 3_890_346_734]);
        let mut generator = TorchGenerator::seeded(5_489);
        assert_eq!((0..10_000).map(|_| generator.word()).last(), Some(4_123_659_995), "as the C++ standard states it");
    }

    fn near(ours: &[f32], torchs: &[f32]) {
        assert_eq!(ours.len(), torchs.len());
        for (ours, torchs) in ours.iter().zip(torchs) {
            assert!((ours - torchs).abs() < 1e-5, "{ours} {torchs}");
        }
    }

    #[test]
    fn normals_are_those_of_torch_2_15() {
        // torch.manual_seed(42); torch.randn(5), torch.randn(3)
        let mut generator = TorchGenerator::seeded(42);
        near(&generator.normals(5), &[0.336_690_37, 0.128_809_4, 0.234_462_37, 0.230_333_03, -1.122_856_4]);
        near(&generator.normals(3), &[-0.186_328_29, 2.208_201_4, -0.637_997_03]);
        // torch.manual_seed(42); torch.randn(37)
        let all = TorchGenerator::seeded(42).normals(37);
        near(&all[..4], &[1.926_915_3, 1.487_284_1, 0.900_717_2, -2.105_521]);
        near(&all[20..25], &[-0.758_131_15, -0.424_518_97, 0.305_720_93, -0.774_592_5, 0.034_912_344]);
        near(&all[33..], &[0.896_268_3, 0.049_905_386, 2.266_718, 1.178_950_9]);
        // torch.manual_seed(7); torch.randn_like(torch.zeros(1, 9, 4).transpose(1, 2)), in the order of memory
        let turned = TorchGenerator::seeded(7).normals_in_turn(36);
        near(&turned[..5], &[-0.146_795_1, 0.786_141_3, 0.946_821_63, -1.114_344, 1.690_790_2]);
        near(&turned[33..], &[-1.249_353_8, -0.188_271_48, 0.282_687_16]);
    }
}
