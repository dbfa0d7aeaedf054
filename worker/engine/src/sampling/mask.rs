//! The tokens that may be sampled, as bits.

/// A set of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    /// A bit for each token, the lowest first. Tokens behind the last word are not in the set.
    words: Vec<u32>,
}

impl TokenMask {
    /// A mask from its bits, 32 tokens to a word, the lowest first.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Whether a token is in the set.
    pub fn allows(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Makes every other token impossible, but for `also`.
    pub fn apply(&self, logits: &mut [f32], also: Option<u32>) {
        let kept = also.and_then(|token| Some((token as usize, *logits.get(token as usize)?)));
        let mut rows = logits.chunks_mut(32);
        for (word, logits) in self.words.iter().zip(rows.by_ref()) {
            match *word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        rows.for_each(|logits| logits.fill(f32::NEG_INFINITY));
        if let Some((token, logit)) = kept
            && let Some(place) = logits.get_mut(token)
        {
            *place = logit;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn en_6_a_mask_leaves_its_tokens_and_no_other(
            bits in proptest::collection::vec(any::<bool>(), 0..200), tokens in 0_u32..250, also in proptest::option::of(0_u32..300),
        ) {
            let mut words = vec![0_u32; bits.len().div_ceil(32)];
            for (token, bit) in bits.iter().enumerate() {
                words[token / 32] |= u32::from(*bit) << (token % 32);
            }
            let mask = TokenMask::from_words(words);
            let mut logits: Vec<f32> = (0..tokens).map(|token| token as f32).collect();
            mask.apply(&mut logits, also);
            for token in 0..tokens {
                let allowed = bits.get(token as usize).copied().unwrap_or(false);
                prop_assert_eq!(mask.allows(token), allowed);
                let left = logits[token as usize] == token as f32;
                prop_assert_eq!(left, allowed || also == Some(token), "{}", token);
            }
        }
    }
}
