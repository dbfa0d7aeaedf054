//! A model for tests that says what it is scripted to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use model_boss_audio::MelShape;

use super::model::{AtSpeechPause, HeardWindow, SpeechInfo, SpeechModel, SpeechStep, SpeechText, SpeechTokens};
use crate::decoder::DecoderError;
use crate::places::PlaceUse;

/// Facts of a small model: text is below 100, and times are from 109 on.
pub fn info(mel: MelShape) -> SpeechInfo {
    SpeechInfo {
        vocab_size: 180,
        mel,
        frames: 100,
        most_tokens: 40,
        tokens: SpeechTokens {
            end: 100,
            start: 101,
            transcribe: Some(104),
            translate: Some(105),
            previous: Some(106),
            no_speech: Some(107),
            no_timestamps: 108,
            ..SpeechTokens::default()
        },
        languages: vec![("de".to_owned(), 102), ("en".to_owned(), 103)],
        knows_words: true,
        smoothed: 3,
        most_windows: 2,
        weight_bytes: 0,
        kv_bytes: 0,
        workspace_bytes: 0,
    }
}

/// The model: for each text that begins, the tokens that it is likeliest to say.
pub struct ScriptedSpeech {
    /// The facts.
    pub info: SpeechInfo,
    /// The next texts, each with how sure its tokens are: the logit above all others.
    pub script: Mutex<VecDeque<(Vec<u32>, f32)>>,
    /// The tokens that each text began with.
    pub begun: Mutex<Vec<Vec<u32>>>,
}

struct ScriptedText {
    left: VecDeque<u32>,
    sure: f32,
    has_begun: bool,
}

impl SpeechModel for ScriptedSpeech {
    fn info(&self) -> &SpeechInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::new([])
    }

    fn hear(&self, mel: &[f32], pause: AtSpeechPause<'_>) -> Result<HeardWindow, DecoderError> {
        pause();
        if mel.len() != self.info.mel.bins * self.info.frames {
            return Err(DecoderError::Step("the window has another size".to_owned()));
        }
        Ok(HeardWindow(Arc::new(())))
    }

    fn begin(&self, _: &HeardWindow) -> Result<SpeechText, DecoderError> {
        Ok(SpeechText(Box::new(ScriptedText { left: VecDeque::new(), sure: 0.0, has_begun: false })))
    }

    fn step(&self, steps: &mut [SpeechStep<'_>], _: AtSpeechPause<'_>) -> Result<Vec<Vec<f32>>, DecoderError> {
        let mut rows = Vec::new();
        for step in steps {
            let Some(text) = step.text.0.downcast_mut::<ScriptedText>() else { continue };
            if !text.has_begun {
                text.has_begun = true;
                self.begun.lock().unwrap_or_else(PoisonError::into_inner).push(step.tokens.to_vec());
                // A lone token asks for the language: the second.
                if step.tokens.len() > 1 {
                    let next = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    (text.left, text.sure) = next.map(|(tokens, sure)| (tokens.into(), sure)).unwrap_or_default();
                } else {
                    (text.left, text.sure) = ([103].into(), 9.0);
                }
            }
            let mut of_step = Vec::new();
            for wanted in step.wanted {
                let mut row = vec![0.0; self.info.vocab_size];
                if *wanted + 1 == step.tokens.len() {
                    let next = text.left.pop_front().unwrap_or(self.info.tokens.end);
                    row[next as usize] = text.sure;
                }
                of_step.extend(row);
            }
            rows.push(of_step);
        }
        Ok(rows)
    }

    fn attended(
        &self,
        _: &HeardWindow,
        tokens: &[u32],
        _: AtSpeechPause<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), DecoderError> {
        let columns = self.info.frames / 2;
        // Each token has two columns, one behind the other.
        let attention = (0..tokens.len())
            .flat_map(|token| (0..columns).map(move |column| if column / 2 == token { 1.0 } else { 0.01 }));
        Ok((attention.collect(), vec![0.0; tokens.len() * self.info.vocab_size]))
    }
}
