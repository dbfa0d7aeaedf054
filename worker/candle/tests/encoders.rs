//! Encoders beside `sentence-transformers` and `transformers`: tiny random models of each family, from
//! `scripts/reference/encoders.py`, and in GGUF from `scripts/reference/encoders_gguf.py`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

#[path = "family_cases/rule.rs"]
mod rule;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use half::{bf16, f16};
use model_boss_candle::{
    DecoderLoadOptions, DeviceOptions, EncoderTask, is_encoder, load_decoder_embedder, load_encoder, load_over,
};
use model_boss_engine::{
    BlockId, Decoder, DecoderError, DecoderInfo, DecoderJudge, DecoderScorer, DecoderStep, EncodedForm, EncoderText,
    PausedEncoder, TextEncoder,
};
use model_boss_protocol::{DeviceId, KvCacheType};
use model_boss_weights::gguf::{HeaderWriter, TensorType, quantise_q8_0};
use rule::{TensorRule, floats, safetensors_as};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct EncoderCase {
    case: String,
    #[serde(default)]
    files: BTreeMap<String, Value>,
    #[serde(default)]
    weights: BTreeMap<String, WeightRules>,
    /// Of a GGUF file: keys, their types and values.
    #[serde(default)]
    keys: Vec<(String, String, Value)>,
    #[serde(default)]
    tensors: Vec<GgufRule>,
    texts: Vec<Vec<u32>>,
    seconds: Option<Vec<usize>>,
    answers: Option<[u32; 2]>,
    /// The task whose adapters are used.
    task: Option<String>,
    /// The tokens of each text that its vector leaves out.
    #[serde(default)]
    left_out: usize,
    vectors: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct WeightRules {
    seed: u64,
    /// The type of the floats, as safetensors names it; F32 without.
    dtype: Option<String>,
    tensors: Vec<TensorRule>,
}

/// A tensor of a GGUF file: its name, the entries that it is made of, their seed, its shape, the first row that is
/// taken, whether each matrix is turned over, and a number that is added to all.
#[derive(Deserialize)]
struct GgufRule(String, Vec<TensorRule>, u64, Vec<usize>, usize, bool, f32);

impl GgufRule {
    fn values(&self) -> Vec<f32> {
        let Self(_, entries, seed, shape, first, turned, more) = self;
        let of_entry = |rule: &TensorRule| match rule {
            TensorRule::Floats(name, shape, mean, scale) => {
                let row: usize = shape[1..].iter().product();
                floats(name, shape, (*mean, *scale), *seed).split_off(first * row)
            }
            TensorRule::Bytes(..) => panic!("bytes in {}", self.0),
        };
        let values: Vec<f32> = entries.iter().flat_map(of_entry).map(|value| value + more).collect();
        if !turned {
            return values;
        }
        let [_, outs, ins] = shape[..] else { panic!("{shape:?}") };
        let of_matrix =
            |matrix: &[f32]| (0..outs * ins).map(|at| matrix[at % ins * outs + at / ins]).collect::<Vec<f32>>();
        values.chunks_exact(outs * ins).flat_map(of_matrix).collect()
    }
}

impl EncoderCase {
    /// The case as a GGUF file, whose matrices are of this type where their rows fill its blocks.
    fn write_gguf(&self, path: &Path, kind: TensorType) {
        let mut header = HeaderWriter::new();
        for (key, of, value) in &self.keys {
            match of.as_str() {
                "u32" => header.set(key, &(value.as_u64().unwrap() as u32)),
                "f32" => header.set(key, &(value.as_f64().unwrap() as f32)),
                "bool" => header.set(key, &value.as_bool().unwrap()),
                "text" => header.set(key, value.as_str().unwrap()),
                _ => header.set(key, serde_json::from_value::<Vec<String>>(value.clone()).unwrap().as_slice()),
            }
            .unwrap();
        }
        let is_matrix = |rule: &GgufRule| rule.3.len() > 1 && rule.3.last().unwrap().is_multiple_of(32);
        let of = |rule: &GgufRule| if is_matrix(rule) { kind } else { TensorType::F32 };
        for rule in &self.tensors {
            let shape: Vec<u64> = rule.3.iter().map(|length| *length as u64).collect();
            header.tensor(&rule.0, of(rule), &shape).unwrap();
        }
        let mut body = header.begin(std::fs::File::create(path).unwrap()).unwrap();
        for rule in &self.tensors {
            let values = rule.values();
            let bytes = match of(rule) {
                TensorType::Q8_0 => {
                    let mut blocks = Vec::new();
                    quantise_q8_0(&values, &mut blocks).unwrap();
                    blocks
                }
                _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            };
            body.write(&bytes).unwrap();
        }
        body.finish().unwrap();
    }

    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 71, "cases are missing");
        files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
    }

    fn write(&self, folder: &Path) {
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        self.files.iter().for_each(|(name, text)| write(name, text.to_string().as_bytes()));
        for (name, WeightRules { seed, dtype, tensors }) in &self.weights {
            let put: &dyn Fn(f32, &mut Vec<u8>) = match dtype.as_deref() {
                Some("F16") => &|number, bytes| bytes.extend(f16::from_f32(number).to_le_bytes()),
                Some("BF16") => &|number, bytes| bytes.extend(bf16::from_f32(number).to_le_bytes()),
                _ => &|number, bytes| bytes.extend(number.to_le_bytes()),
            };
            write(name, &safetensors_as(tensors, *seed, (dtype.as_deref().unwrap_or("F32"), put)));
        }
        if !self.tensors.is_empty() {
            self.write_gguf(&folder.join("model.gguf"), TensorType::F32);
        }
    }

    fn loaded(&self) -> Box<dyn TextEncoder> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        self.loaded_from(folder.path())
    }

    fn loaded_from(&self, folder: &Path) -> Box<dyn TextEncoder> {
        let on = [DeviceOptions { device: DeviceId::Cpu, share: None, limit: None }];
        let options = DecoderLoadOptions { kv_cache_type: KvCacheType::F32, ..DecoderLoadOptions::default() };
        let of_decoder = self.case.starts_with("decoder-");
        assert_eq!(is_encoder(folder), self.answers.is_none() && !of_decoder, "{}", self.case);
        if of_decoder {
            return load_decoder_embedder(folder, &on, &options, &mut |_| {})
                .unwrap_or_else(|error| panic!("{}: {error}", self.case));
        }
        if let Some(answers) = self.answers {
            let decoder = load_over(folder, &on, &options, &mut |_| {}).unwrap();
            return Box::new(DecoderScorer::new(decoder, usize::MAX, DecoderJudge::qwen3(answers)).unwrap());
        }
        let task = if self.seconds.is_some() { EncoderTask::Labels } else { EncoderTask::Vectors };
        load_encoder(folder, &DeviceId::Cpu, task, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", self.case))
    }

    fn texts(&self) -> Vec<EncoderText<'_>> {
        let second_from = |at: usize| self.seconds.as_ref().map_or(self.texts[at].len(), |seconds| seconds[at]);
        let all = self.texts.iter().enumerate();
        let tasks: Vec<String> = self.files.get("config.json").map_or_else(Vec::new, |config| {
            serde_json::from_value(config["lora_adaptations"].clone()).unwrap_or_default()
        });
        let task = self.task.as_ref().map(|task| tasks.iter().position(|known| known == task).unwrap());
        all.map(|(at, tokens)| EncoderText {
            second_from: second_from(at),
            task,
            left_out: self.left_out,
            ..EncoderText::one(tokens)
        })
        .collect()
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

/// Blocks stay blocks: their rounding is all that differs.
#[test]
fn em_1_encoders_of_quantised_gguf_files_give_nearly_the_same_vectors() {
    let all = EncoderCase::all();
    let cases: Vec<&EncoderCase> = all.iter().filter(|case| !case.tensors.is_empty()).collect();
    assert!(cases.len() >= 13, "cases are missing");
    for case in cases {
        let folder = tempfile::tempdir().unwrap();
        case.write_gguf(&folder.path().join("model.gguf"), TensorType::Q8_0);
        let mut encoder = case.loaded_from(folder.path());
        let plain = case.loaded();
        assert!(encoder.info().weight_bytes < plain.info().weight_bytes * 2 / 5, "{}", case.case);
        let vectors = encoder.encode(&case.texts()).unwrap();
        for (ours, theirs) in vectors.iter().zip(&case.vectors) {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let apart: f32 = ours.iter().zip(theirs).map(|(a, b)| (a - b).powi(2)).sum();
            assert!(apart < 0.02 * dot(theirs, theirs).max(0.5), "{}: {apart} of {}", case.case, dot(theirs, theirs));
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
fn em_5_other_texts_are_computed_in_the_middle_of_a_pass() {
    for case in EncoderCase::all() {
        let (mut encoder, texts) = (case.loaded(), case.texts());
        let alone = encoder.encode_as(&texts, EncodedForm::Whole).unwrap();
        let between = Mutex::new(Vec::new());
        let paused = |now: &dyn PausedEncoder| {
            let rows = now.encode_now(&texts[..1], EncodedForm::Whole).unwrap();
            between.lock().unwrap().extend(rows);
        };
        let together = encoder.encode_pausing(&texts, EncodedForm::Whole, &paused).unwrap();
        assert_eq!(together, alone, "{}", case.case);
        let between = between.into_inner().unwrap();
        for (ours, first) in between.iter().flat_map(|rows: &Vec<Vec<f32>>| rows[0].iter().zip(&alone[0][0])) {
            assert!((ours - first).abs() < 1e-5, "{}: {ours} {first}", case.case);
        }
        // Decoders do not pause within a pass.
        let is_of_decoder = case.case.starts_with("decoder-") || case.answers.is_some();
        assert_eq!(between.is_empty(), is_of_decoder, "{}", case.case);
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

#[test]
fn em_1_texts_of_several_tasks_have_their_own_adapters() {
    let all = EncoderCase::all();
    let named = |name: &str| all.iter().find(|case| case.case == name).unwrap();
    let (plain, adapted) = (named("jina-v3-flash"), named("jina-v3-adapted"));
    let mut encoder = plain.loaded();
    assert_eq!(encoder.info().tasks, ["retrieval.query", "separation"]);
    let text = |task| EncoderText { task, ..EncoderText::one(&plain.texts[2]) };
    let texts = [text(None), text(Some(1)), text(Some(0)), text(None)];
    let vectors = encoder.encode(&texts).unwrap();
    for (at, text) in texts.iter().enumerate() {
        assert_eq!(encoder.encode(&[*text]).unwrap()[0], vectors[at], "{at}");
    }
    assert!(vectors[0] == vectors[3] && vectors[0] != vectors[1] && vectors[1] != vectors[2]);
    assert!(encoder.encode(&[text(Some(2))]).is_err());
    assert_ne!(plain.vectors, adapted.vectors);
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
    let judge = DecoderJudge::qwen3(case.answers.unwrap());
    let mut scorer = DecoderScorer::new(Box::new(ShortSteps(decoder, short)), 60, judge).unwrap();
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
