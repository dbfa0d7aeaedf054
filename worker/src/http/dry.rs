//! The fields of the sampler DRY, and its sequence breakers as tokens.

use std::collections::BTreeSet;
use std::sync::Arc;

use model_boss_engine::sampling::{DryBreakers, DryParams};
use model_boss_engine::text::Vocabulary;
use model_boss_protocol::ApiError;

use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use crate::state::Serving;
use crate::text::{AddSpecials, EncodeQuestion};

/// The breakers of requests that name none, as in llama.cpp.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
const MOST_BREAKERS: usize = 64;
/// The longest breaker in bytes.
const LONGEST_BREAKER: usize = 40;
/// The most tokens of a breaker behind its first.
const LONGEST_TAIL: usize = 20;

/// A request's parameters of DRY, whose breakers wait for the tokenizer.
#[derive(Clone, Debug)]
pub(super) struct DryWish {
    params: DryParams,
    breakers: Vec<String>,
}

impl DryWish {
    /// The wish of a request; `None` where it is off.
    pub(super) fn read(fields: &RequestFields<'_>) -> Result<Option<Self>, ApiError> {
        let multiplier = fields.number(&["dry_multiplier"], -1e6..=1e6)?.unwrap_or(0.0);
        let base = fields.number(&["dry_base"], -1e6..=1e6)?.unwrap_or(1.75);
        let allowed = fields.whole(&["dry_allowed_length"], 0..=i64::from(u32::MAX))?.unwrap_or(2);
        let last_n = fields.whole(&["dry_penalty_last_n"], -1..=i64::from(u32::MAX))?.unwrap_or(-1);
        let breakers = fields.get::<Vec<String>>("dry_sequence_breakers")?;
        if let Some(given) = &breakers {
            let wrong = given.len() > MOST_BREAKERS
                || given.iter().any(|breaker| breaker.is_empty() || breaker.len() > LONGEST_BREAKER);
            if wrong {
                let message =
                    format!("'dry_sequence_breakers' may have {MOST_BREAKERS} texts of 1 to {LONGEST_BREAKER} bytes");
                return Err(ApiError::invalid("dry_sequence_breakers", message));
            }
        }
        if multiplier <= 0.0 || last_n == 0 {
            return Ok(None);
        }
        let params = DryParams {
            multiplier,
            // Smaller ones mean the usual one, as in llama-server.
            base: if base < 1.0 { 1.75 } else { base },
            allowed_length: usize::try_from(allowed).unwrap_or(usize::MAX),
            last_n: usize::try_from(last_n).ok(),
            breakers: Arc::default(),
        };
        let usual = || BREAKERS.map(str::to_owned).to_vec();
        Ok(Some(Self { params, breakers: breakers.unwrap_or_else(usual) }))
    }

    /// The parameters for the engine.
    pub(super) async fn params(self, serving: &Serving) -> Result<DryParams, ErrorAnswer> {
        let Self { params, breakers } = self;
        let vocabulary = Arc::clone(&serving.text.vocabulary);
        let look = move || heads(&vocabulary, &breakers);
        // A panic on a blocking thread has already been reported on stderr.
        let (alone, cut) = tokio::task::spawn_blocking(look).await.unwrap_or_default();
        let texts: BTreeSet<String> = cut.iter().map(|(_, rest)| rest.clone()).collect();
        let texts: Vec<String> = texts.into_iter().collect();
        let tails = match texts.is_empty() {
            true => Vec::new(),
            false => {
                let failed = |error| text_error(error, "dry_sequence_breakers", serving.info.context_length);
                let question = EncodeQuestion::new(texts.clone(), AddSpecials::No, None).map_err(failed)?;
                serving.text.encode(question).await.map_err(failed)?
            }
        };
        let with_tail = cut.into_iter().filter_map(|(head, rest)| {
            let at = texts.binary_search(&rest).ok()?;
            let mut tail = tails.get(at)?.clone();
            tail.truncate(LONGEST_TAIL);
            Some((head, tail))
        });
        let sequences = alone.into_iter().map(|head| (head, Vec::new())).chain(with_tail);
        Ok(DryParams { breakers: Arc::new(DryBreakers::new(sequences)), ..params })
    }
}

/// The tokens that contain a breaker, and those that end with the beginning of one, each with the rest of it. Source:
/// llama.cpp's `get_overlapping_token_sequences`.
fn heads(vocabulary: &Vocabulary, breakers: &[String]) -> (Vec<u32>, Vec<(u32, String)>) {
    let (mut alone, mut cut) = (Vec::new(), Vec::new());
    for token in 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX) {
        let bytes = vocabulary.bytes(token);
        for breaker in breakers {
            let wanted = breaker.as_bytes();
            if bytes.windows(wanted.len()).any(|window| window == wanted) {
                alone.push(token);
                continue;
            }
            for length in 1..wanted.len().min(bytes.len() + 1) {
                if breaker.is_char_boundary(length) && bytes.ends_with(&wanted[..length]) {
                    cut.push((token, breaker[length..].to_owned()));
                }
            }
        }
    }
    (alone, cut)
}
