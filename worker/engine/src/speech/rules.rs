//! The tokens that may come next, as rules on a row of logits: what never comes, and when times come.

use super::model::SpeechTokens;

/// The rules for one text.
#[derive(Clone, Copy)]
pub(super) struct TokenRules<'a> {
    pub(super) tokens: &'a SpeechTokens,
    /// Whether times are wanted.
    pub(super) times: bool,
}

const NEVER: f32 = f32::NEG_INFINITY;

impl TokenRules<'_> {
    /// Takes away what may not follow these tokens, the text so far.
    pub(super) fn apply(&self, text: &[u32], logits: &mut [f32]) {
        let forbid = |token: u32, logits: &mut [f32]| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = NEVER;
            }
        };
        if text.is_empty() {
            self.tokens.suppressed_first.iter().for_each(|token| forbid(*token, logits));
        }
        self.tokens.suppressed.iter().for_each(|token| forbid(*token, logits));
        if self.times {
            self.apply_times(text, logits);
        }
    }

    /// Times come in pairs, but for the last before the end, and never go back.
    fn apply_times(&self, text: &[u32], logits: &mut [f32]) {
        let first = self.tokens.first_time();
        let (zero, end) = ((first as usize).min(logits.len()), (self.tokens.end as usize).min(logits.len()));
        if let Some(logit) = logits.get_mut(self.tokens.no_timestamps as usize) {
            *logit = NEVER;
        }
        let is_time = |at: usize| text.len().checked_sub(at).is_some_and(|at| text[at] >= first);
        let last_is_time = is_time(1);
        // A first token counts as if a time were before it.
        let one_before_is_time = text.len() < 2 || is_time(2);
        if last_is_time {
            if one_before_is_time {
                logits[zero..].fill(NEVER);
            } else {
                logits[..end].fill(NEVER);
            }
        }
        if let Some(last) = text.iter().rfind(|token| **token >= first) {
            // The second of a pair may be the same; otherwise a segment has a length.
            let next = if last_is_time && !one_before_is_time { *last } else { *last + 1 };
            let next = (next as usize).min(logits.len());
            logits[zero..next].fill(NEVER);
        }
        if text.is_empty() {
            logits[..zero].fill(NEVER);
            if let Some(latest) = self.tokens.latest_first {
                let behind = (zero + latest as usize + 1).min(logits.len());
                logits[behind..].fill(NEVER);
            }
        }
        // All times together against the likeliest other token.
        let (words, times) = logits.split_at(zero);
        let largest = words.iter().copied().fold(NEVER, f32::max);
        if log_of_sum(times) > largest {
            logits[..zero].fill(NEVER);
        }
    }
}

/// The logarithm of a sum of exponentials.
pub(super) fn log_of_sum(logits: &[f32]) -> f32 {
    let largest = logits.iter().copied().fold(NEVER, f32::max);
    if largest == NEVER {
        return NEVER;
    }
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    largest + sum.ln() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text is 0 to 9, the end 10, no times 11, and times from 12 on.
    fn tokens() -> SpeechTokens {
        SpeechTokens {
            end: 10,
            no_timestamps: 11,
            suppressed: vec![3],
            suppressed_first: vec![1, 10],
            latest_first: Some(2),
            ..SpeechTokens::default()
        }
    }

    fn allowed(times: bool, text: &[u32], logits: &[(usize, f32)]) -> Vec<usize> {
        let mut row = vec![0.0; 20];
        logits.iter().for_each(|(at, logit)| row[*at] = *logit);
        TokenRules { tokens: &tokens(), times }.apply(text, &mut row);
        (0..row.len()).filter(|at| row[*at] > NEVER).collect()
    }

    #[test]
    fn rc_28_some_tokens_never_come() {
        assert_eq!(allowed(false, &[], &[])[..3], [0, 2, 4]);
        assert_eq!(allowed(false, &[5], &[])[..3], [0, 1, 2]);
        assert!(!allowed(false, &[5], &[]).contains(&3));
    }

    #[test]
    fn rc_28_times_come_in_pairs_and_never_go_back() {
        let likely = &[(5, 9.0), (10, 9.0)];
        assert_eq!(allowed(true, &[], likely), [12, 13, 14], "the first is a time, and an early one");
        let behind_first = allowed(true, &[13], likely);
        assert!(behind_first.contains(&5) && behind_first.iter().all(|token| *token < 12), "{behind_first:?}");
        let behind_text = allowed(true, &[13, 5], likely);
        assert!(behind_text.contains(&5) && behind_text.contains(&14) && !behind_text.contains(&13));
        let behind_time = allowed(true, &[13, 5, 15], likely);
        assert_eq!(behind_time, [10, 15, 16, 17, 18, 19], "the end, or the pair's second");
        assert!(allowed(true, &[13, 5, 15, 15], likely).iter().all(|token| *token < 12));
    }

    #[test]
    fn rc_28_a_time_comes_where_all_together_are_likelier_than_any_text() {
        let text = [12, 5];
        assert!(allowed(true, &text, &[(5, 1.0)]).iter().all(|token| *token >= 12), "seven times with 0");
        assert!(allowed(true, &text, &[(5, 3.0)]).contains(&5));
    }
}
