//! Sound by the rule of scripts/reference/whisper.py: whole numbers only, so that both sides have the same.

/// Three sawtooth waves whose lengths change, in noise.
pub(crate) fn sound(seed: u64, samples: usize) -> Vec<i16> {
    let mut value = (seed * 2_654_435_761) % (1 << 32);
    let sample = |at: usize| {
        value = (value * 1_664_525 + 1_013_904_223) % (1 << 32);
        let (at, part) = (at as i64, (at / 1600) as i64 + seed as i64);
        let wave = |step: i64| (at * (40 + 37 * ((part * step) % 11)) % 16_000 - 8_000).div_euclid(2 * step);
        let noise = (value >> 16) as i64 % 1201 - 600;
        ((1..=3).map(wave).sum::<i64>() + noise).clamp(-32_768, 32_767) as i16
    };
    (0..samples).map(sample).collect()
}
