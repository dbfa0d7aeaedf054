//! One chunk of a recording on its way to text: a row of windows, each read from where the one before was complete.
//! A window's text that is not good enough is written again at a higher temperature.

use std::ops::Range;
use std::sync::Arc;

use model_boss_audio::{MelFilters, RATE, SoundRecording};

use super::alignment::{aligned, asked};
use super::model::{AtSpeechPause, HeardWindow, SpeechModel, SpeechStep, SpeechText};
use super::rules::log_of_sum;
use super::segments::{SegmentTokens, SpeechSegment, segments_of};
use super::squeeze::compression_ratio;
use super::text::{TranscriptWish, WindowText, likeliest, start_tokens};
use super::vocabulary::{TokenTexts, text_of};
use super::words::{timed, usual_length, words_of};
use crate::decoder::DecoderError;

/// Texts drawn at a higher temperature are no context for the next.
const WARM: f32 = 0.5;

/// Words may begin this much before their segment, in seconds.
const EARLY: f64 = 0.5;

/// A chunk's sound.
#[derive(Clone, Debug)]
pub struct ChunkSound {
    /// The whole recording.
    pub recording: Arc<SoundRecording>,
    /// The chunk's samples.
    pub samples: Range<usize>,
}

/// The next need of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// Its next window has to be heard: [`ChunkSpeech::hear`].
    Hears,
    /// Its text goes on: [`ChunkSpeech::step`] and [`ChunkSpeech::took`].
    Reads,
    /// A text is good, and becomes segments: [`ChunkSpeech::settle`].
    Settles,
    /// All is said.
    Done,
}

/// The text of a chunk so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeardText {
    /// The segments.
    pub segments: Vec<SpeechSegment>,
}

/// A chunk on its way.
pub struct ChunkSpeech {
    sound: ChunkSound,
    wish: Arc<TranscriptWish>,
    texts: Arc<dyn TokenTexts>,
    language: Option<u32>,
    /// Frames of the chunk.
    frames: usize,
    /// The frame of the chunk that the window begins with.
    seek: usize,
    /// The largest number of the chunk's spectrogram, for a chunk of several windows.
    largest: Option<f32>,
    /// Text of windows before, for the next.
    context: Vec<u32>,
    window: Option<OpenWindow>,
    heard: HeardText,
    /// The tokens that were computed, of all tries.
    computed: usize,
}

/// The window that is being read.
struct OpenWindow {
    window: HeardWindow,
    text: SpeechText,
    draft: WindowDraft,
    /// The number of the temperature.
    attempt: usize,
}

/// The state of a window's text.
enum WindowDraft {
    Language,
    /// The text, and whether its first tokens were read.
    Text {
        text: Box<WindowText>,
        begun: bool,
        next: [u32; 1],
    },
    Good(Box<WindowText>),
}

impl ChunkSpeech {
    /// A chunk of which nothing was heard.
    pub fn new(
        model: &dyn SpeechModel,
        sound: ChunkSound,
        wish: Arc<TranscriptWish>,
        texts: Arc<dyn TokenTexts>,
        language: Option<u32>,
    ) -> Self {
        let frames = sound.samples.len().div_ceil(model.info().mel.hop);
        let context = wish.prompt.clone();
        Self {
            sound,
            wish,
            texts,
            language,
            frames,
            seek: 0,
            largest: None,
            context,
            window: None,
            heard: HeardText::default(),
            computed: 0,
        }
    }

    /// Its next need.
    pub fn state(&self) -> ChunkState {
        match &self.window {
            None if self.seek >= self.frames => ChunkState::Done,
            None => ChunkState::Hears,
            Some(OpenWindow { draft: WindowDraft::Good(_), .. }) => ChunkState::Settles,
            Some(_) => ChunkState::Reads,
        }
    }

    /// The token of the language, once it is known.
    pub fn language(&self) -> Option<u32> {
        self.language
    }

    /// The tokens that were computed so far, those of tries that were not good included.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// The segments since the last call.
    pub fn take(&mut self) -> HeardText {
        std::mem::take(&mut self.heard)
    }

    /// Hears the next window.
    pub fn hear(
        &mut self,
        model: &dyn SpeechModel,
        filters: &MelFilters,
        pause: AtSpeechPause<'_>,
    ) -> Result<(), DecoderError> {
        let info = model.info();
        let samples = &self.sound.recording.samples[self.sound.samples.clone()];
        let mel = if self.frames <= info.frames && self.seek == 0 {
            filters.spectrogram(samples, info.frames)
        } else {
            let largest = *self.largest.get_or_insert_with(|| filters.largest(samples, self.frames));
            filters.window(samples, self.seek..self.seek + info.frames, largest)
        };
        let window = model.hear(&mel, pause)?;
        let text = model.begin(&window)?;
        let knows = self.language.is_some() || info.languages.is_empty();
        let draft = if knows { self.draft(model) } else { WindowDraft::Language };
        self.window = Some(OpenWindow { window, text, draft, attempt: 0 });
        Ok(())
    }

    /// The tokens that its text reads next; none unless it reads.
    pub fn step<'a>(&'a mut self, model: &'a dyn SpeechModel) -> Option<SpeechStep<'a>> {
        const LAST: &[usize] = &[0];
        let OpenWindow { text, draft, .. } = self.window.as_mut()?;
        match draft {
            WindowDraft::Language => {
                let start = std::slice::from_ref(&model.info().tokens.start);
                Some(SpeechStep { text, tokens: start, wanted: LAST })
            }
            WindowDraft::Text { text: window, begun: false, .. } => {
                Some(SpeechStep { text, tokens: &window.before, wanted: window.first_wanted() })
            }
            WindowDraft::Text { next, .. } => Some(SpeechStep { text, tokens: next, wanted: LAST }),
            WindowDraft::Good(_) => None,
        }
    }

    /// Takes the logits of its step.
    pub fn took(&mut self, model: &dyn SpeechModel, mut logits: Vec<f32>) -> Result<(), DecoderError> {
        let info = model.info();
        let Some(open) = self.window.as_mut() else { return Ok(()) };
        match &mut open.draft {
            WindowDraft::Good(_) => Ok(()),
            WindowDraft::Language => {
                let of = |token: u32| logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
                let scores: Vec<f32> = info.languages.iter().map(|(_, token)| of(*token)).collect();
                self.language = info.languages.get(likeliest(&scores)).map(|(_, token)| *token);
                open.text = model.begin(&open.window)?;
                self.computed += 1;
                let draft = self.draft(model);
                if let Some(open) = self.window.as_mut() {
                    open.draft = draft;
                }
                Ok(())
            }
            WindowDraft::Text { text, begun, next } => {
                if !*begun {
                    let last = logits.split_off(logits.len() - info.vocab_size);
                    // One place may be both.
                    text.read_silence(info, if logits.is_empty() { &last } else { &logits });
                    logits = last;
                    *begun = true;
                }
                if !logits.iter().any(|logit| logit.is_finite()) {
                    return Err(DecoderError::Step("the model's numbers are not finite".to_owned()));
                }
                self.computed += 1;
                if let Some(token) = text.push(info, self.wish.times, logits) {
                    *next = [token];
                    return Ok(());
                }
                self.finish(model)
            }
        }
    }

    /// A text has ended: it is good, or written again.
    fn finish(&mut self, model: &dyn SpeechModel) -> Result<(), DecoderError> {
        let Some(open) = self.window.as_mut() else { return Ok(()) };
        let WindowDraft::Text { text, .. } = std::mem::replace(&mut open.draft, WindowDraft::Language) else {
            return Ok(());
        };
        let mean = text.mean_logprob();
        let unsure = mean < self.wish.least_logprob;
        let silent = unsure && text.no_speech > self.wish.most_silence;
        let said = text_of(self.texts.as_ref(), words_among(model, &text.tokens));
        let repeats = compression_ratio(&said) > self.wish.most_compressed;
        let next = self.wish.temperatures.get(open.attempt + 1).filter(|_| (unsure || repeats) && !silent);
        open.draft = match next {
            None => WindowDraft::Good(text),
            Some(temperature) => {
                open.attempt += 1;
                open.text = model.begin(&open.window)?;
                WindowDraft::Text { text: Box::new(text.again(*temperature)), begun: false, next: [0] }
            }
        };
        Ok(())
    }

    /// Makes segments of a good text, and goes on behind them.
    pub fn settle(&mut self, model: &dyn SpeechModel, pause: AtSpeechPause<'_>) -> Result<(), DecoderError> {
        let info = model.info();
        let Some(OpenWindow { window, draft: WindowDraft::Good(text), .. }) = self.window.take() else { return Ok(()) };
        let heard = info.frames.min(self.frames - self.seek);
        let mean = text.mean_logprob();
        let is_silent = text.no_speech > self.wish.most_silence && mean <= self.wish.least_logprob;
        let (segments, complete) = segments_of(info, &text);
        let seconds = |frames: usize| frames as f64 * info.mel.hop as f64 / f64::from(RATE);
        let begin = self.sound.samples.start as f64 / f64::from(RATE) + seconds(self.seek);
        // A window is longer than what is left of the sound, and some texts have times behind its end.
        let last = (begin + seconds(heard)).min(self.sound.samples.end as f64 / f64::from(RATE));
        // A time is two frames long.
        let moment = |time: u32| begin + seconds(2 * time as usize);
        if !is_silent {
            let said = text_of(self.texts.as_ref(), words_among(model, &text.tokens));
            let ratio = compression_ratio(&said);
            let at = self.sound.samples.start / info.mel.hop + self.seek;
            let mut made: Vec<SpeechSegment> = segments
                .iter()
                .map(|SegmentTokens { tokens, times: (start, end) }| SpeechSegment {
                    seek: at,
                    start: moment(*start).min(last),
                    end: end.map_or(last, moment).min(last),
                    text: text_of(self.texts.as_ref(), words_among(model, &text.tokens[tokens.clone()])),
                    tokens: text.tokens[tokens.clone()].to_vec(),
                    logprobs: text.logprobs[tokens.clone()].to_vec(),
                    temperature: text.temperature,
                    mean_logprob: mean,
                    compression_ratio: ratio,
                    no_speech: text.no_speech,
                    words: Vec::new(),
                })
                .collect();
            if self.wish.words {
                self.add_words(model, &window, &mut made, (begin, heard), pause)?;
            }
            made.retain(|segment| !segment.text.trim().is_empty() && segment.end > segment.start);
            if self.wish.keeps_context {
                self.context.extend(made.iter().flat_map(|segment| &segment.tokens));
            }
            self.heard.segments.extend(made);
        }
        if self.wish.keeps_context && text.temperature > WARM {
            self.context.clear();
        }
        // Behind silence nothing of the window is heard again.
        let complete = complete.filter(|_| !is_silent);
        self.seek += complete.map_or(heard, |time| (2 * time as usize).min(heard));
        Ok(())
    }

    /// Finds the times of all words of a window.
    fn add_words(
        &self,
        model: &dyn SpeechModel,
        window: &HeardWindow,
        segments: &mut [SpeechSegment],
        (begin, heard): (f64, usize),
        pause: AtSpeechPause<'_>,
    ) -> Result<(), DecoderError> {
        let info = model.info();
        let tokens: Vec<u32> = segments.iter().flat_map(|segment| words_among(model, &segment.tokens)).collect();
        if tokens.is_empty() {
            return Ok(());
        }
        // The times of the text are not among the tokens, and the end of the text is that of its last word.
        let read = asked(info, &start_tokens(info, &self.wish, self.language), &tokens);
        if read.all.len() > info.most_tokens {
            return Ok(());
        }
        let (attention, logits) = model.attended(window, &read.all, pause)?;
        let shape = [read.all.len(), info.frames / 2];
        let starts = aligned(&attention, shape, read.rows(), heard / 2, info.smoothed);
        let moment = |column: usize| begin + (2 * column * info.mel.hop) as f64 / f64::from(RATE);
        let starts: Vec<f64> = starts.into_iter().map(moment).collect();
        let probability = |(row, token): (usize, &u32)| {
            let logits = &logits[row * info.vocab_size..][..info.tokens.end as usize];
            logits.get(*token as usize).map_or(0.0, |logit| (logit - log_of_sum(logits)).exp())
        };
        let probabilities: Vec<f32> = (read.first..).zip(&tokens).map(probability).collect();
        let language = info.languages.iter().find(|(_, token)| Some(*token) == self.language);
        let words = words_of(self.texts.as_ref(), &tokens, language.map(|(code, _)| code.as_str()));
        let words = timed(&words, &starts, &probabilities);
        let usual = usual_length(words.iter().map(|(word, _)| word));
        let mut words = words.into_iter().peekable();
        for segment in segments {
            let mut left = words_among(model, &segment.tokens).count();
            while let Some((word, count)) = words.next_if(|_| left > 0) {
                left = left.saturating_sub(count);
                segment.words.push(word);
            }
            fit(segment, usual);
        }
        Ok(())
    }

    fn draft(&self, model: &dyn SpeechModel) -> WindowDraft {
        let mut text = WindowText::new(model.info(), &self.wish, self.language, &self.context);
        text.temperature = self.wish.temperatures.first().copied().unwrap_or(0.0);
        WindowDraft::Text { text: Box::new(text), begun: false, next: [0] }
    }
}

/// Tokens that are neither times nor the end.
fn words_among<'a>(model: &dyn SpeechModel, tokens: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
    let end = model.info().tokens.end;
    tokens.iter().copied().filter(move |token| *token < end)
}

/// Makes a segment's times and those of its first and last word agree.
fn fit(segment: &mut SpeechSegment, usual: f64) {
    if let Some(first) = segment.words.first_mut() {
        if segment.start < first.end && segment.start - EARLY > first.start {
            first.start = segment.start.min(first.end - usual).max(0.0);
        } else {
            segment.start = first.start;
        }
    }
    if let Some(last) = segment.words.last_mut() {
        if segment.end > last.start && segment.end + EARLY < last.end {
            last.end = segment.end.max(last.start + usual);
        } else {
            segment.end = last.end;
        }
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
