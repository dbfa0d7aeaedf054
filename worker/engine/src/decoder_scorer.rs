//! A model that writes text as one that judges: how much it would rather say yes than no behind a text, or how much it
//! would say yes. Qwen3-Reranker (Zhang et al., 2025, arXiv 2506.05176) is asked so.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::BLOCK_TOKENS;
use crate::decoder::{Decoder, DecoderError};
use crate::encoder::{EncoderInfo, EncoderText, PairForm, PairPrompt, TextEncoder};
use crate::label_shares::LabelShares;
use crate::places::PlaceUse;
use crate::text_steps::TextSteps;

/// A decoder, and the tokens that it may answer with.
pub struct DecoderScorer {
    decoder: Box<dyn Decoder>,
    info: EncoderInfo,
    yes: usize,
    no: Option<usize>,
}

/// How a decoder is asked about pairs, and the tokens that are its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderJudge {
    /// The token that says yes.
    pub yes: u32,
    /// The one that says no; without one, the logit of yes is the score.
    pub no: Option<u32>,
    /// The form of pairs.
    pub pairs: PairForm,
    /// Texts in front of the first text of a pair, by their names.
    pub prompts: BTreeMap<String, String>,
    /// The one that is used where a request names none.
    pub default_prompt: Option<String>,
}

impl DecoderJudge {
    /// Qwen3-Reranker's prompt, with these tokens for yes and no.
    pub fn qwen3([yes, no]: [u32; 2]) -> Self {
        let pairs = PairForm::Prompt(PairPrompt::qwen3());
        Self { yes, no: Some(no), pairs, prompts: BTreeMap::new(), default_prompt: None }
    }
}

impl PairPrompt {
    /// The prompt that Qwen3-Reranker was trained with (its model card).
    pub fn qwen3() -> Self {
        Self {
            before: "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
                     Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
                .to_owned(),
            names: ["<Instruct>: ", "\n<Query>: ", "\n<Document>: "].map(str::to_owned),
            instruction: "Given a web search query, retrieve relevant passages that answer the query".to_owned(),
            behind: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n".to_owned(),
        }
    }
}

impl DecoderScorer {
    /// The decoder has a row of logits for each of these tokens. Texts have at most `max_tokens`.
    ///
    /// # Errors
    ///
    /// When a token is not of its vocabulary.
    pub fn new(decoder: Box<dyn Decoder>, max_tokens: usize, judge: DecoderJudge) -> Result<Self, DecoderError> {
        let DecoderJudge { yes, no, pairs, prompts, default_prompt } = judge;
        let facts = decoder.info();
        let room = facts.kv_blocks.saturating_mul(BLOCK_TOKENS);
        let info = EncoderInfo {
            vocab_size: facts.vocab_size,
            max_tokens: max_tokens.min(facts.context_length).min(room),
            width: 1,
            labels: vec!["yes".to_owned()],
            shares: LabelShares::Apart,
            pairs,
            weight_bytes: facts.weight_bytes,
            workspace_bytes: facts.workspace_bytes,
            kv_tokens: facts.kv_blocks.checked_mul(BLOCK_TOKENS),
            prompts,
            default_prompt,
            leaves_prompts_out: false,
            tasks: Vec::new(),
        };
        let (yes, no) = (yes as usize, no.map(|no| no as usize));
        if yes.max(no.unwrap_or(0)) >= facts.vocab_size {
            return Err(DecoderError::Step("the words yes and no are outside of the vocabulary".to_owned()));
        }
        Ok(Self { decoder, info, yes, no })
    }

    /// The logarithm of the chance of yes over that of no, or the logit of yes, behind each text.
    fn scores(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        let steps = TextSteps::of(texts, self.decoder.info());
        let mut rows = Ok(Vec::new());
        for piece in steps.pieces(texts) {
            rows = self.decoder.forward(&piece);
            if rows.is_err() {
                break;
            }
        }
        self.decoder.free(&steps.all_blocks());
        let score = |row: Vec<f32>| match (row.get(self.yes), self.no.map(|no| row.get(no))) {
            (Some(yes), Some(Some(no))) => Ok(vec![yes - no]),
            (Some(yes), None) => Ok(vec![*yes]),
            _ => Err(DecoderError::Step("the decoder gave rows of another length".to_owned())),
        };
        rows?.into_iter().map(score).collect()
    }
}

impl TextEncoder for DecoderScorer {
    fn info(&self) -> &EncoderInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        self.decoder.places()
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        let mut scores = Vec::with_capacity(texts.len());
        for batch in TextSteps::batches(texts, self.info.max_tokens, self.decoder.info())? {
            scores.extend(self.scores(batch)?);
        }
        Ok(scores)
    }
}
