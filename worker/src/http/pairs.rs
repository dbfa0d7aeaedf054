//! Pairs of texts for models that judge them: their tokens, and what the model's numbers mean.

use model_boss_engine::{EncoderInfo, LabelShares, PairForm, PairPrompt};
use model_boss_protocol::{ApiError, ErrorCode};
use serde::Serialize;

use super::embeddings::step_error;
use super::error::{ErrorAnswer, text_error};
use crate::encoding::TextTokens;
use crate::state::Serving;
use crate::text::{AddSpecials, EncodeQuestion, PairQuestion};

/// Pairs of one request at most.
pub(super) const MOST_PAIRS: usize = 10_000;

/// The wishes of a request about its pairs.
pub(super) struct PairReading {
    /// The text in front of each first text.
    pub(super) before: String,
    /// The instruction to the judge, if the request has one. Models that are asked in words use it.
    pub(super) instruction: Option<String>,
    /// Whether texts that are too long are cut.
    pub(super) truncate: bool,
    /// The field of the texts, for errors.
    pub(super) field: &'static str,
}

/// Tokens that were read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JudgedUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl JudgedUsage {
    pub(super) fn of(texts: &[TextTokens]) -> Self {
        Self::of_tokens(texts.iter().map(|text| text.tokens.len()).sum())
    }

    pub(super) fn of_tokens(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, completion_tokens: 0, total_tokens: tokens }
    }
}

/// The tokens of pairs.
pub(super) async fn tokens_of(
    serving: &Serving,
    mut pairs: Vec<[String; 2]>,
    reading: &PairReading,
) -> Result<Vec<TextTokens>, ErrorAnswer> {
    let info = serving.encoder()?;
    pairs.iter_mut().for_each(|[first, _]| first.insert_str(0, &reading.before));
    let texts = match &info.pairs {
        PairForm::Joined => joined(serving, info, pairs, reading).await?,
        PairForm::Prompt(prompt) => prompted(serving, info, (prompt, pairs), reading).await?,
    };
    match texts.iter().map(|text| text.tokens.len()).find(|tokens| *tokens > info.max_tokens) {
        Some(tokens) => Err(too_long(tokens, info, reading.field).into()),
        None => Ok(texts),
    }
}

async fn joined(
    serving: &Serving,
    info: &EncoderInfo,
    pairs: Vec<[String; 2]>,
    reading: &PairReading,
) -> Result<Vec<TextTokens>, ErrorAnswer> {
    let failed = |error| text_error(error, reading.field, info.max_tokens);
    let most = if reading.truncate { info.max_tokens } else { usize::MAX };
    let question = PairQuestion::new(pairs, most).map_err(failed)?;
    let lists = serving.text.encode_pairs(question).await.map_err(failed)?;
    let tokens = |(tokens, second_from)| TextTokens { second_from, ..TextTokens::from(tokens) };
    Ok(lists.into_iter().map(tokens).collect())
}

/// The pairs as prompts. A document that is too long is cut at its end.
async fn prompted(
    serving: &Serving,
    info: &EncoderInfo,
    (prompt, pairs): (&PairPrompt, Vec<[String; 2]>),
    reading: &PairReading,
) -> Result<Vec<TextTokens>, ErrorAnswer> {
    let failed = |error| text_error(error, reading.field, info.max_tokens);
    let instruction = reading.instruction.as_ref().unwrap_or(&prompt.instruction);
    let [of_instruction, of_query, of_document] = &prompt.names;
    let body = |[query, document]: &[String; 2]| {
        [of_instruction.as_str(), instruction, of_query, query, of_document, document].concat()
    };
    let around = [prompt.before.clone(), prompt.behind.clone()];
    let texts = around.into_iter().chain(pairs.iter().map(body)).collect();
    let question = EncodeQuestion::new(texts, AddSpecials::No, None).map_err(failed)?;
    let mut lists = serving.text.encode(question).await.map_err(failed)?.into_iter();
    let (Some(before), Some(behind)) = (lists.next(), lists.next()) else { return Ok(Vec::new()) };
    let room = info.max_tokens.saturating_sub(before.len() + behind.len());
    if room == 0 {
        return Err(too_long(before.len() + behind.len() + 1, info, reading.field).into());
    }
    let whole = |mut body: Vec<u32>| {
        if reading.truncate {
            body.truncate(room);
        }
        TextTokens::from([&before[..], &body, &behind].concat())
    };
    Ok(lists.map(whole).collect())
}

fn too_long(tokens: usize, info: &EncoderInfo, field: &'static str) -> ApiError {
    let message = format!("'{field}' has a pair of {tokens} tokens; the model takes {}", info.max_tokens);
    ApiError::new(ErrorCode::ContextLengthExceeded, message).with_param(field)
}

/// The one number of each pair, from the model's own in this way.
pub(super) async fn scores_of(
    serving: &Serving,
    texts: Vec<TextTokens>,
    how: LabelShares,
) -> Result<Vec<f32>, ErrorAnswer> {
    let info = serving.encoder()?;
    if info.labels.len() != 1 {
        let message = format!(
            "this model has {} labels, {:?}, and no single score; /v1/classify gives their shares",
            info.labels.len(),
            info.labels.iter().take(8).collect::<Vec<_>>()
        );
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).into());
    }
    let numbers = numbers_of(serving, texts).await?.into_iter().map(|numbers| shares(&numbers, how));
    Ok(numbers.map(|numbers| numbers.first().copied().unwrap_or(0.0)).collect())
}

/// The share of each label in each text.
pub(super) async fn shares_of(serving: &Serving, texts: Vec<TextTokens>) -> Result<Vec<Vec<f32>>, ErrorAnswer> {
    let how = serving.encoder()?.shares;
    Ok(numbers_of(serving, texts).await?.into_iter().map(|numbers| shares(&numbers, how)).collect())
}

/// The number of each label for each text, as the model gives it.
pub(super) async fn numbers_of(serving: &Serving, texts: Vec<TextTokens>) -> Result<Vec<Vec<f32>>, ErrorAnswer> {
    Ok(serving.encode(texts).await?.map_err(|error| step_error(&error))?)
}

pub(super) fn shares(numbers: &[f32], how: LabelShares) -> Vec<f32> {
    match how {
        LabelShares::Unchanged => numbers.to_vec(),
        LabelShares::Apart => numbers.iter().map(|number| 1.0 / (1.0 + (-number).exp())).collect(),
        LabelShares::Together => {
            let highest = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = numbers.iter().map(|number| (number - highest).exp()).collect();
            let all: f32 = weights.iter().sum();
            weights.into_iter().map(|weight| weight / all).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_2_numbers_become_shares() {
        assert_eq!(shares(&[0.0, f32::INFINITY], LabelShares::Apart), [0.5, 1.0]);
        let together = shares(&[1.0, 1.0, 1.0 - f32::ln(2.0)], LabelShares::Together);
        assert!(together.iter().zip([0.4, 0.4, 0.2]).all(|(got, want)| (got - want).abs() < 1e-6), "{together:?}");
        assert_eq!(shares(&[200.0, -200.0], LabelShares::Together), [1.0, 0.0]);
        assert_eq!(shares(&[200.0, -200.0], LabelShares::Unchanged), [200.0, -200.0]);
    }
}
