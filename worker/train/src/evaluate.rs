//! The score of a package on questions it was not trained on, by greedy decoding on the decoder that serves it. An
//! answer counts if it contains the required texts.

use model_boss_engine::{DecoderError, KvSlot, Logits, SequenceStep, Sequences};

use crate::corpus::HeldOut;
use crate::text::{GuideText, GuideTextError};

/// The longest answer, in tokens.
const LONGEST_ANSWER: usize = 128;
/// Questions that are answered in one batch.
const GROUP: usize = 16;

/// The reason why a question could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The tokenizer failed.
    #[error(transparent)]
    GuideText(#[from] GuideTextError),
    /// The decoder failed.
    #[error("the decoder could not go on")]
    Decoder(#[from] DecoderError),
}

/// The results on the held-out questions.
pub struct HeldOutReport {
    /// Each question with the answer given and whether it is right.
    pub answers: Vec<(HeldOut, String, bool)>,
}

impl HeldOutReport {
    /// The share answered correctly, 0 to 1.
    pub fn share(&self) -> f64 {
        self.correct() as f64 / self.answers.len().max(1) as f64
    }

    /// The number of correct answers.
    pub fn correct(&self) -> usize {
        self.answers.iter().filter(|(_, _, right)| *right).count()
    }
}

/// Answers every question in a new conversation.
pub fn evaluate(
    decoder: &mut Sequences,
    text: &GuideText,
    questions: &[HeldOut],
) -> Result<HeldOutReport, EvaluateError> {
    let mut answers = Vec::with_capacity(questions.len());
    for group in questions.chunks(GROUP) {
        let asked: Vec<&str> = group.iter().map(|held_out| held_out.question.as_str()).collect();
        for (held_out, answer) in group.iter().zip(answer(decoder, text, &asked)?) {
            let right = held_out.accepts(&answer);
            answers.push((held_out.clone(), answer, right));
        }
    }
    Ok(HeldOutReport { answers })
}

/// A question whose answer is being generated.
struct QuestionSequence {
    kv: KvSlot,
    /// Tokens that are not in the decoder yet: the question, then the newest token.
    pending: Vec<u32>,
    answer: Vec<u32>,
    ended: bool,
}

/// The most likely answer to each question, all in one batch.
pub fn answer(decoder: &mut Sequences, text: &GuideText, questions: &[&str]) -> Result<Vec<String>, EvaluateError> {
    let mut sequences = Vec::with_capacity(questions.len());
    for question in questions {
        let pending = text.question(question)?;
        let kv = decoder.open(pending.len() + LONGEST_ANSWER)?;
        sequences.push(QuestionSequence { kv, pending, answer: Vec::new(), ended: false });
    }
    for _ in 0..LONGEST_ANSWER {
        let running: Vec<&mut QuestionSequence> = sequences.iter_mut().filter(|sequence| !sequence.ended).collect();
        if running.is_empty() {
            break;
        }
        let steps: Vec<SequenceStep<'_>> = running
            .iter()
            .map(|sequence| SequenceStep { kv: sequence.kv, tokens: &sequence.pending, logits: Logits::Last })
            .collect();
        let logits = decoder.forward(&steps)?;
        for (sequence, logits) in running.into_iter().zip(logits) {
            let token = most_likely(&logits);
            sequence.ended = token == text.end;
            sequence.answer.push(token);
            sequence.pending = vec![token];
        }
    }
    sequences.iter().for_each(|sequence| decoder.close(sequence.kv));
    sequences.iter().map(|sequence| Ok(text.decode(&sequence.answer)?)).collect()
}

fn most_likely(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map_or(0, |(token, _)| token as u32)
}
