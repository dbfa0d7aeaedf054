//! Cases of families, and answers compared with theirs.

#[allow(dead_code, reason = "one test has adapters")]
mod adapter;
mod case;
mod rule;

use std::path::Path;

use model_boss_candle::{DecoderLoadOptions, load_with};
use model_boss_engine::{Decoder, KvSlot, Logits, SequenceStep, Sequences};
use model_boss_protocol::DeviceId;

#[allow(unused_imports, reason = "one test has adapters")]
pub(crate) use adapter::{AdapterCase, adapter_cases, adapter_weights};
pub(crate) use case::Case;
#[allow(unused_imports, reason = "not every test that has this module lists files")]
pub(crate) use case::case_files;

/// The device that the cases run on: the one that `MODEL_BOSS_TEST_DEVICE` names, else the CPU.
pub(crate) fn device() -> DeviceId {
    match std::env::var("MODEL_BOSS_TEST_DEVICE") {
        Ok(name) => name.parse().unwrap_or_else(|_| panic!("MODEL_BOSS_TEST_DEVICE={name} is no device")),
        Err(_) => DeviceId::Cpu,
    }
}

/// The largest difference of a logit between two ways to compute the same. On the CPU there is none. A GPU's library
/// chooses the order of its sums by the number of rows.
pub(crate) fn same_bits_within() -> f32 {
    if device() == DeviceId::Cpu { 0.0 } else { 1e-4 }
}

/// Prints a result on devices other than the CPU, for `scripts/gpu-check`.
pub(crate) fn report(case: &str, result: &dyn std::fmt::Debug) {
    if device() != DeviceId::Cpu {
        eprintln!("CASE {case} {result:?}");
    }
}

fn load_for_test(model: &Path) -> Result<Box<dyn Decoder>, String> {
    load_with(model, &device(), &DecoderLoadOptions::default(), &mut |_| {}).map_err(|error| whole(&error))
}

impl Case {
    /// The largest difference of a logit, of every prompt alone; an error for other tokens that follow. Of quantised
    /// models it is a share of the largest logit.
    pub(crate) fn check_alone(&self) -> Result<f32, String> {
        let mut decoder = Sequences::over(load_for_test(self.folder())?);
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
        let mut decoder = Sequences::over(load_for_test(file)?);
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
    Sequences::over(load_for_test(folder).unwrap_or_else(|error| panic!("{error}")))
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
