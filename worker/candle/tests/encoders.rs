//! Encoders beside `sentence-transformers` and `transformers`: tiny random models of each family, from
//! `scripts/reference/encoders.py`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

#[path = "family_cases/rule.rs"]
mod rule;

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_candle::{
    DecoderLoadOptions, DeviceOptions, EncoderTask, is_encoder, load_decoder_embedder, load_encoder, load_over,
};
use model_boss_engine::{
    BlockId, Decoder, DecoderError, DecoderInfo, DecoderScorer, DecoderStep, EncoderText, TextEncoder,
};
use model_boss_protocol::{DeviceId, KvCacheType};
use rule::{TensorRule, safetensors};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct EncoderCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: BTreeMap<String, WeightRules>,
    texts: Vec<Vec<u32>>,
    seconds: Option<Vec<usize>>,
    answers: Option<[u32; 2]>,
    vectors: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct WeightRules {
    seed: u64,
    tensors: Vec<TensorRule>,
}

impl EncoderCase {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 25, "cases are missing");
        files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
    }

    fn write(&self, folder: &Path) {
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        self.files.iter().for_each(|(name, text)| write(name, text.to_string().as_bytes()));
        self.weights.iter().for_each(|(name, rules)| write(name, &safetensors(&rules.tensors, rules.seed)));
    }

    fn loaded(&self) -> Box<dyn TextEncoder> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        let on = [DeviceOptions { device: DeviceId::Cpu, share: None, limit: None }];
        let options = DecoderLoadOptions { kv_cache_type: KvCacheType::F32, ..DecoderLoadOptions::default() };
        let of_decoder = self.case.starts_with("decoder-");
        assert_eq!(is_encoder(folder.path()), self.answers.is_none() && !of_decoder, "{}", self.case);
        if of_decoder {
            return load_decoder_embedder(folder.path(), &on, &options, &mut |_| {}).unwrap();
        }
        if let Some(answers) = self.answers {
            let decoder = load_over(folder.path(), &on, &options, &mut |_| {}).unwrap();
            return Box::new(DecoderScorer::new(decoder, usize::MAX, answers).unwrap());
        }
        let task = if self.seconds.is_some() { EncoderTask::Labels } else { EncoderTask::Vectors };
        load_encoder(folder.path(), &DeviceId::Cpu, task, &mut |_| {})
            .unwrap_or_else(|error| panic!("{}: {error}", self.case))
    }

    fn texts(&self) -> Vec<EncoderText<'_>> {
        let second_from = |at: usize| self.seconds.as_ref().map_or(self.texts[at].len(), |seconds| seconds[at]);
        let all = self.texts.iter().enumerate();
        all.map(|(at, tokens)| EncoderText { tokens, second_from: second_from(at) }).collect()
    }
}

#[test]
fn em_1_every_encoder_gives_the_numbers_of_the_reference() {
    for case in EncoderCase::all() {
        let mut encoder = case.loaded();
        let texts = case.texts();
        let vectors = encoder.encode(&texts).unwrap();
        assert_eq!(encoder.info().width, case.vectors[0].len(), "{}", case.case);
        let labels = if case.seconds.is_some() { case.vectors[0].len() } else { 0 };
        assert_eq!(encoder.info().labels.len(), labels, "{}", case.case);
        for (ours, theirs) in vectors.iter().zip(&case.vectors) {
            let largest = theirs.iter().fold(1e-3_f32, |largest, number| largest.max(number.abs()));
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() < 2e-5 * largest.max(1.0), "{}: {ours} for {theirs}", case.case);
            }
        }
    }
}

#[test]
fn em_5_a_vector_does_not_depend_on_the_texts_beside_it() {
    for case in EncoderCase::all() {
        let mut encoder = case.loaded();
        let texts: Vec<EncoderText<'_>> = case.texts().into_iter().rev().collect();
        let together = encoder.encode(&texts).unwrap();
        for (text, together) in texts.iter().zip(together) {
            let alone = encoder.encode(&[*text]).unwrap().remove(0);
            let apart = alone.iter().zip(&together).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-5, "{}: {apart}", case.case);
        }
    }
}

#[test]
fn em_1_what_no_encoder_can_do_is_refused_by_name() {
    let case = EncoderCase::all().remove(0);
    let mut encoder = case.loaded();
    let longest = encoder.info().max_tokens;
    for text in [vec![], vec![5; longest + 1], vec![9_999]] {
        assert!(encoder.encode(&[EncoderText::one(&text)]).is_err());
    }
    assert!(encoder.encode(&[]).unwrap().is_empty());
    let refused = |change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        change(folder.path());
        load_encoder(folder.path(), &DeviceId::Cpu, EncoderTask::Vectors, &mut |_| {}).err().unwrap().to_string()
    };
    let config = |folder: &Path, from: &str, to: &str| {
        let path = folder.join("config.json");
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace(from, to)).unwrap();
    };
    assert!(refused(&|folder| config(folder, "\"bert\"", "\"llama\"")).contains("llama"));
    assert!(
        refused(&|folder| config(folder, "\"num_hidden_layers\":2", "\"num_hidden_layers\":3")).contains("layer.2.")
    );
    assert!(refused(&|folder| config(folder, "\"vocab_size\":90", "\"vocab_size\":91")).contains("word_embeddings"));
    assert!(refused(&|folder| std::fs::remove_file(folder.join("config.json")).unwrap()).contains("config.json"));
    // A decoder of a family that does not know how its tokens would see those behind them.
    let named = |name: &str| EncoderCase::all().into_iter().find(|case| case.case == name).unwrap();
    let folder = tempfile::tempdir().unwrap();
    named("decoder-qwen3").write(folder.path());
    config(folder.path(), "\"model_type\"", "\"use_bidirectional_attention\":true,\"model_type\"");
    let on = [DeviceOptions { device: DeviceId::Cpu, share: None, limit: None }];
    let options = DecoderLoadOptions::default();
    let refused = load_decoder_embedder(folder.path(), &on, &options, &mut |_| {});
    assert!(refused.err().unwrap().to_string().contains("use_bidirectional_attention"));
    // One that does know writes no text.
    let folder = tempfile::tempdir().unwrap();
    named("decoder-gemma3-both-ways").write(folder.path());
    let refused = load_over(folder.path(), &on, &options, &mut |_| {});
    assert!(refused.err().unwrap().to_string().contains("cannot write text"));
    // An encoder without a classifier.
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let judge = load_encoder(folder.path(), &DeviceId::Cpu, EncoderTask::Labels, &mut |_| {});
    assert!(judge.err().unwrap().to_string().contains("classifier"));
}

/// A text of more tokens than a step comes in pieces, and several texts may need several steps.
#[test]
fn em_2_scores_do_not_depend_on_steps() {
    let case = EncoderCase::all().into_iter().find(|case| case.answers.is_some()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let on = [DeviceOptions { device: DeviceId::Cpu, share: None, limit: None }];
    let options = DecoderLoadOptions { kv_cache_type: KvCacheType::F32, ..DecoderLoadOptions::default() };
    let decoder = load_over(folder.path(), &on, &options, &mut |_| {}).unwrap();
    let short = DecoderInfo { step_rows: 13, kv_blocks: 2, ..decoder.info().clone() };
    let mut scorer = DecoderScorer::new(Box::new(ShortSteps(decoder, short)), 60, case.answers.unwrap()).unwrap();
    assert_eq!(scorer.info().max_tokens, 60);
    let scores = scorer.encode(&case.texts()).unwrap();
    for (ours, theirs) in scores.iter().flatten().zip(case.vectors.iter().flatten()) {
        assert!((ours - theirs).abs() < 1e-4, "{ours} for {theirs}");
    }
}

/// A decoder with room for short steps and few blocks.
struct ShortSteps(Box<dyn Decoder>, DecoderInfo);

impl Decoder for ShortSteps {
    fn info(&self) -> &DecoderInfo {
        &self.1
    }

    fn forward_until(
        &mut self,
        batch: &[DecoderStep<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Vec<f32>>, DecoderError> {
        assert!(batch.iter().map(|step| step.tokens.len()).sum::<usize>() <= self.1.step_rows);
        assert!(batch.iter().flat_map(|step| step.blocks).all(|block| (block.0 as usize) < self.1.kv_blocks));
        self.0.forward_until(batch, stop)
    }

    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), DecoderError> {
        self.0.copy(from, to)
    }

    fn free(&mut self, blocks: &[BlockId]) {
        self.0.free(blocks);
    }
}
