//! Cases of families, and answers compared with theirs.

mod case;

use std::path::Path;

use model_boss_candle::load;
use model_boss_engine::{KvSlot, Logits, SequenceStep, Sequences};
use model_boss_protocol::DeviceId;

pub(crate) use case::Case;
#[allow(unused_imports, reason = "not every test that has this module lists files")]
pub(crate) use case::case_files;

impl Case {
    /// The largest difference of a logit, of every prompt alone; an error for other tokens that follow. Of quantised
    /// models it is a share of the largest logit.
    pub(crate) fn check_alone(&self) -> Result<f32, String> {
        let loaded = load(self.folder(), &DeviceId::Cpu, None, &mut |_| {}).map_err(|error| whole(&error))?;
        let mut decoder = Sequences::over(loaded);
        let mut largest = 0.0_f32;
        for ((prompt, logits), followed) in self.prompts.iter().zip(&self.logits).zip(&self.greedy) {
            if prompt.len() + followed.len() > decoder.info().context_length {
                return Err("a prompt is longer than the context".to_owned());
            }
            let kv = decoder.open(prompt.len() + followed.len()).unwrap();
            let row = alone(&mut decoder, kv, prompt, Logits::Last);
            let most = logits.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
            largest = largest.max(worst(&row, logits) / if self.is_quantised() { most } else { 1.0 });
            let answer = greedy(&mut decoder, kv, row, followed.len());
            if answer != *followed && !self.is_quantised() {
                return Err(format!("{answer:?} follow and not {followed:?}, off by {largest}"));
            }
            decoder.close(kv);
        }
        Ok(largest)
    }

    /// The largest difference of a logit as a share of the largest one, of the same model in another file.
    pub(crate) fn check_file(&self, file: &Path) -> Result<f32, String> {
        let loaded = load(file, &DeviceId::Cpu, None, &mut |_| {}).map_err(|error| whole(&error))?;
        let mut decoder = Sequences::over(loaded);
        let mut largest = 0.0_f32;
        for (prompt, logits) in self.prompts.iter().zip(&self.logits) {
            // The converter gives some files a shorter context than the model has.
            if prompt.len() > decoder.info().context_length {
                continue;
            }
            let kv = decoder.open(prompt.len()).unwrap();
            let row = alone(&mut decoder, kv, prompt, Logits::Last);
            let most = logits.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
            largest = largest.max(worst(&row, logits) / most);
            decoder.close(kv);
        }
        Ok(largest)
    }
}

/// An error with its sources.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

pub(crate) fn open(folder: &Path) -> Sequences {
    Sequences::over(load(folder, &DeviceId::Cpu, None, &mut |_| {}).unwrap_or_else(|error| panic!("{error}")))
}

pub(crate) fn step<'a>(kv: KvSlot, tokens: &'a [u32], logits: Logits) -> SequenceStep<'a> {
    SequenceStep { kv, tokens, logits }
}

/// Runs one sequence's part of a step alone; returns its logits.
pub(crate) fn alone(decoder: &mut Sequences, kv: KvSlot, tokens: &[u32], logits: Logits) -> Vec<f32> {
    decoder.forward(&[step(kv, tokens, logits)]).unwrap().remove(0)
}

pub(crate) fn best(logits: &[f32]) -> u32 {
    let (index, _) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    index as u32
}

/// The largest difference.
pub(crate) fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

/// The most likely tokens after `logits`, with one sequence alone.
pub(crate) fn greedy(decoder: &mut Sequences, kv: KvSlot, mut logits: Vec<f32>, count: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let token = best(&logits);
        tokens.push(token);
        if tokens.len() < count {
            logits = alone(decoder, kv, &[token], Logits::Last);
        }
    }
    tokens
}
