//! GGUF files compared with `transformers`. The golden models, written as llama.cpp's converter does, have to give the
//! same answers. Files that cannot be loaded have to be reported by name.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs::File;
use std::path::{Path, PathBuf};

use model_boss_candle::{
    Activation, AttentionBias, AttentionSpec, Conversion, ConvertError, DecoderSpec, FeedForward, GgufSpecError,
    MatrixType, Mixer, MlpSpec, QueryKeyNorm, RopePlanes, RopeScaling, RopeSpec, load,
};
use model_boss_engine::{Logits, SequenceStep, Sequences};
use model_boss_protocol::{DeviceId, GGUF_ARCHITECTURES, WorkerExit};
use model_boss_weights::gguf::{GgufModel, HeaderWriter, TensorType, dequantise, quantise_q8_0};
use model_boss_weights::{Dtype, MappedWeights, TensorIndex};
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    last_logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(golden("")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn cases(name: &str) -> Vec<Case> {
    let expected: Expected =
        serde_json::from_slice(&std::fs::read(golden(name).join("expected.json")).unwrap()).unwrap();
    expected.cases
}

/// The parts of a model whose layers are all the same.
fn parts(spec: &DecoderSpec) -> (&AttentionSpec, &MlpSpec, &RopeSpec) {
    match (&spec.layers[0].mixer, &spec.layers[0].feed_forward) {
        (Mixer::Attention(attention), FeedForward::Gated(mlp)) => (attention, mlp, &spec.ropes[0]),
        other => panic!("{other:?}"),
    }
}

fn is_silu(name: &str) -> bool {
    parts(&spec(name)).1.activation == Activation::Silu
}

fn spec(name: &str) -> DecoderSpec {
    DecoderSpec::from_config(&std::fs::read(golden(name).join("config.json")).unwrap()).unwrap().0
}

#[test]
fn rc_16_every_architecture_that_the_coordinator_sends_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let refusal = |architecture: &str| {
        let mut header = HeaderWriter::new();
        header.set("general.architecture", architecture).unwrap();
        header.begin(File::create(&path).unwrap()).unwrap().finish().unwrap();
        DecoderSpec::from_gguf(&GgufModel::read(&path).unwrap()).unwrap_err()
    };
    for architecture in GGUF_ARCHITECTURES {
        let error = refusal(architecture);
        assert!(matches!(error, GgufSpecError::Key(_)), "{architecture}: {error}");
    }
    assert!(matches!(refusal("rwkv7"), GgufSpecError::Architecture(_)));
}

/// The type of written matrices.
#[derive(Clone, Copy, PartialEq)]
enum Matrices {
    AsStored,
    Q8_0,
}

/// Writes a golden model as a GGUF file; `None` for a model that GGUF cannot express.
fn convert(name: &str, matrices: Matrices, path: &Path, more: impl FnOnce(&mut HeaderWriter)) -> Option<()> {
    let spec = spec(name);
    let (attention, mlp, rope) = parts(&spec);
    if !is_silu(name) {
        return None;
    }
    let architecture = if attention.norm != QueryKeyNorm::None {
        "qwen3"
    } else if attention.bias == AttentionBias::QueryKeyValue {
        "qwen2"
    } else {
        "llama"
    };
    let mut header = HeaderWriter::new();
    header.set("general.architecture", architecture).unwrap();
    let mut number = |key: &str, value: usize| header.set(&format!("{architecture}.{key}"), &(value as u32)).unwrap();
    number("block_count", spec.layers.len());
    number("embedding_length", spec.hidden);
    number("feed_forward_length", mlp.intermediate);
    number("attention.head_count", attention.heads);
    number("attention.head_count_kv", attention.kv_heads);
    number("attention.key_length", attention.head_dim);
    number("attention.value_length", attention.head_dim);
    number("rope.dimension_count", attention.head_dim);
    number("context_length", spec.max_positions);
    header.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), &(spec.norm.eps as f32)).unwrap();
    header.set(&format!("{architecture}.rope.freq_base"), &(rope.theta as f32)).unwrap();
    let mut tensors = Vec::new();
    match rope.scaling {
        RopeScaling::None | RopeScaling::Factors(_) | RopeScaling::Dynamic { .. } | RopeScaling::Long { .. } => {}
        RopeScaling::Linear { factor } => {
            header.set(&format!("{architecture}.rope.scaling.type"), "linear").unwrap();
            header.set(&format!("{architecture}.rope.scaling.factor"), &(factor as f32)).unwrap();
        }
        RopeScaling::Yarn { factor, original_max_positions, .. } => {
            header.set(&format!("{architecture}.rope.scaling.type"), "yarn").unwrap();
            header.set(&format!("{architecture}.rope.scaling.factor"), &(factor as f32)).unwrap();
            let key = format!("{architecture}.rope.scaling.original_context_length");
            header.set(&key, &(original_max_positions as u32)).unwrap();
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let factors = (0..attention.head_dim / 2).map(|plane| {
                let frequency = rope.theta.powf(-((2 * plane) as f64) / attention.head_dim as f64);
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                let (long, short) =
                    (original_max_positions / low_freq_factor, original_max_positions / high_freq_factor);
                if wavelength < short {
                    1.0
                } else if wavelength > long {
                    factor
                } else {
                    let smooth =
                        (original_max_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            });
            let factors: Vec<u8> = factors.flat_map(|factor| (factor as f32).to_le_bytes()).collect();
            let count = (attention.head_dim / 2) as u64;
            tensors.push(("rope_freqs.weight".to_owned(), TensorType::F32, vec![count], factors));
        }
    }
    more(&mut header);
    let weights = MappedWeights::map(TensorIndex::open(&golden(name)).unwrap()).unwrap();
    for (name, entry) in weights.index().iter() {
        let kind = match entry.dtype {
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::BF16,
            _ => TensorType::F32,
        };
        let mut stored = weights.bytes(name).unwrap().to_vec();
        let row = stored.len() / entry.shape[0];
        if architecture == "llama" && (name.contains("q_proj") || name.contains("k_proj")) {
            stored = neighbours(&stored, row, attention.head_dim);
        }
        let shape: Vec<u64> = entry.shape.iter().map(|length| *length as u64).collect();
        let mut values = vec![0.0; shape.iter().product::<u64>() as usize];
        dequantise(kind, &stored, &mut values).unwrap();
        let (kind, stored) = if shape.len() == 1 {
            (TensorType::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        } else if matrices == Matrices::Q8_0 && shape[1].is_multiple_of(32) {
            let mut blocks = Vec::new();
            quantise_q8_0(&values, &mut blocks).unwrap();
            (TensorType::Q8_0, blocks)
        } else {
            (kind, stored)
        };
        tensors.push((gguf_name(name), kind, shape, stored));
    }
    for (name, kind, shape, _) in &tensors {
        header.tensor(name, *kind, shape).unwrap();
    }
    let mut body = header.begin(File::create(path).unwrap()).unwrap();
    for (.., stored) in &tensors {
        body.write(stored).unwrap();
    }
    body.finish().unwrap();
    Some(())
}

/// Reorders the rows of each head from planes in halves to planes of neighbours.
fn neighbours(stored: &[u8], row: usize, head_dim: usize) -> Vec<u8> {
    let head = |head: &[u8]| {
        let rows: Vec<&[u8]> = head.chunks(row).collect();
        (0..head_dim).flat_map(|i| rows[i / 2 + i % 2 * head_dim / 2].to_vec()).collect::<Vec<u8>>()
    };
    stored.chunks(row * head_dim).flat_map(head).collect()
}

/// The name of a tensor in GGUF. The table is repeated here on purpose, because it tests the loader's.
fn gguf_name(name: &str) -> String {
    let name = name.replace("model.layers.", "blk.").replace("self_attn.o_proj", "attn_output");
    let name = name.replace("self_attn.", "attn_").replace("attn_q_proj", "attn_q").replace("attn_k_proj", "attn_k");
    let name = name.replace("attn_v_proj", "attn_v").replace("input_layernorm", "attn_norm");
    let name = name.replace("post_attention_layernorm", "ffn_norm").replace("mlp.", "ffn_").replace("_proj", "");
    let name = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm");
    name.replace("lm_head", "output")
}

fn open(path: &Path) -> Sequences {
    Sequences::over(load(path, &DeviceId::Cpu, None, &mut |_| {}).unwrap_or_else(|error| panic!("{error}")))
}

fn last_logits(decoder: &mut Sequences, tokens: &[u32]) -> Vec<f32> {
    let kv = decoder.open(tokens.len()).unwrap();
    let logits = decoder.forward(&[SequenceStep { kv, tokens, logits: Logits::Last }]).unwrap().remove(0);
    decoder.close(kv);
    logits
}

fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

#[test]
fn fa_1_a_gguf_file_answers_as_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    let mut architectures = [0; 2];
    for name in names() {
        let path = folder.path().join(format!("{name}.gguf"));
        if convert(&name, Matrices::AsStored, &path, |_| {}).is_none() {
            continue;
        }
        architectures[usize::from(name.starts_with("qwen"))] += 1;
        let mut decoder = open(&path);
        for case in cases(&name) {
            let logits = last_logits(&mut decoder, &case.prompt);
            let off = worst(&logits, &case.last_logits);
            // Keys and values of models stored in 16 bits are rounded to f16; golden.rs has that tolerance.
            let largest = case.last_logits.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
            assert!(off < 2e-3 * largest, "{name}, prompt of {}: off by {off} of {largest}", case.prompt.len());
            let mut tokens = case.prompt.clone();
            for wanted in &case.greedy {
                let logits = last_logits(&mut decoder, &tokens);
                let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
                assert_eq!(best as u32, *wanted, "{name}");
                tokens.push(*wanted);
            }
        }
    }
    assert!(architectures[0] >= 18 && architectures[1] >= 6, "{architectures:?}");
}

#[test]
fn fa_2_weights_rounded_to_8_bits_stay_close() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for name in names() {
        let path = folder.path().join(format!("{name}.gguf"));
        if convert(&name, Matrices::Q8_0, &path, |_| {}).is_none() {
            continue;
        }
        let mut decoder = open(&path);
        for case in cases(&name) {
            let logits = last_logits(&mut decoder, &case.prompt);
            let off: Vec<f32> = logits.iter().zip(&case.last_logits).map(|(got, want)| got - want).collect();
            let off = spread(&off) / spread(&case.last_logits);
            println!("{off} {name}");
            // Attention of random weights is sharp: in a narrow model a rounding error may move it to another token.
            assert!(off < 0.2, "{name}: off by {off} of the logits' spread");
            all.push(off);
        }
    }
    all.sort_by(f32::total_cmp);
    assert!(all[all.len() / 2] < 0.04, "half of the answers are off by {} or more", all[all.len() / 2]);
}

#[test]
fn a_converted_folder_answers_as_transformers_does() {
    let folder = tempfile::tempdir().unwrap();
    let mut converted = 0;
    for name in names() {
        for (matrices, most) in [(MatrixType::F16, 0.02), (MatrixType::BF16, 0.1), (MatrixType::Q8_0, 0.2)] {
            let path = folder.path().join(format!("{name}.gguf"));
            let model = match Conversion::open(&golden(&name), matrices) {
                Ok(model) => model,
                Err(ConvertError::Keys(why)) if !is_silu(&name) => {
                    assert!(why.to_string().contains("SiLU"), "{why}");
                    continue;
                }
                // This loader could read such a file, but llama.cpp could not.
                Err(ConvertError::Keys(why)) if name == "qwen3-biases" => {
                    assert!(why.to_string().contains("norms over heads and biases"), "{why}");
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            };
            model.write(HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
            let mut decoder = open(&path);
            assert_eq!(decoder.info().vocab_size, model.vocabulary());
            for case in cases(&name) {
                let logits = last_logits(&mut decoder, &case.prompt);
                let off: Vec<f32> = logits.iter().zip(&case.last_logits).map(|(got, want)| got - want).collect();
                let off = spread(&off) / spread(&case.last_logits);
                assert!(off < most, "{name} as {matrices:?}: off by {off} of the logits' spread");
            }
            converted += 1;
        }
    }
    assert!(converted >= 3 * 23, "{converted}");
}

#[test]
fn what_cannot_be_converted_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    convert("plain", Matrices::AsStored, &path, |_| {}).unwrap();
    assert!(matches!(Conversion::open(&path, MatrixType::F16), Err(ConvertError::Already)));
    assert!(matches!(Conversion::open(folder.path(), MatrixType::F16), Err(ConvertError::Already)));
    let empty = tempfile::tempdir().unwrap();
    let words = Conversion::open(empty.path(), MatrixType::F16).err().unwrap().to_string();
    assert!(words.contains("config.json"), "{words}");
}

/// The standard deviation of logits.
fn spread(logits: &[f32]) -> f32 {
    let mean = logits.iter().sum::<f32>() / logits.len() as f32;
    (logits.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / logits.len() as f32).sqrt()
}

#[test]
fn what_a_quantised_decoder_holds_is_what_its_file_holds() {
    let folder = tempfile::tempdir().unwrap();
    for (name, matrices) in [("qwen3", Matrices::AsStored), ("qwen3", Matrices::Q8_0), ("f16", Matrices::Q8_0)] {
        let path = folder.path().join("m.gguf");
        convert(name, matrices, &path, |_| {}).unwrap();
        let model = GgufModel::open(&path).unwrap();
        let stored: u64 = model.tensors().map(|(_, tensor)| tensor.bytes).sum();
        assert_eq!(open(&path).info().weight_bytes, stored, "{name}");
    }
}

#[test]
fn fa_2_who_shares_a_step_changes_no_bit_of_a_quantised_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    convert("qwen2", Matrices::Q8_0, &path, |_| {}).unwrap();
    let mut decoder = open(&path);
    let cases = cases("qwen2");
    let slots: Vec<_> = cases.iter().map(|_| decoder.open(100).unwrap()).collect();
    let batch: Vec<_> = cases
        .iter()
        .zip(&slots)
        .map(|(case, kv)| SequenceStep { kv: *kv, tokens: &case.prompt, logits: Logits::Last })
        .collect();
    let together = decoder.forward(&batch).unwrap();
    for (case, together) in cases.iter().zip(together) {
        assert_eq!(last_logits(&mut decoder, &case.prompt), together);
    }
}

#[test]
fn a_folder_with_one_model_is_that_model() {
    let folder = tempfile::tempdir().unwrap();
    convert("plain", Matrices::AsStored, &folder.path().join("a.gguf"), |_| {}).unwrap();
    let decoder = load(folder.path(), &DeviceId::Cpu, Some(50), &mut |_| {}).unwrap();
    assert_eq!(decoder.info().context_length, 50);
    convert("plain", Matrices::AsStored, &folder.path().join("b.gguf"), |_| {}).unwrap();
    assert_says(folder.path(), &["a.gguf, b.gguf"]);
}

#[track_caller]
fn assert_says(source: &Path, parts: &[&str]) {
    let error = load(source, &DeviceId::Cpu, None, &mut |_| {}).map(drop).expect_err("loaded all the same");
    assert_eq!(error.exit(), WorkerExit::BadModel, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
    }
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let with = |more: &dyn Fn(&mut HeaderWriter)| convert("plain", Matrices::AsStored, &path, |header| more(header));
    with(&|header| header.set("llama.expert_count", &8_u32).unwrap());
    assert_says(&path, &["a use for tensor `blk.0.ffn_", "llama-server"]);
    with(&|header| header.set("llama.rope.scaling.type", "longrope").unwrap());
    assert_says(&path, &["'longrope'"]);

    let write = |architecture: &str, tensors: &[(&str, TensorType, &[u64])]| {
        let mut header = HeaderWriter::new();
        header.set("general.architecture", architecture).unwrap();
        for (name, kind, shape) in tensors {
            header.tensor(name, *kind, shape).unwrap();
        }
        let mut body = header.begin(File::create(&path).unwrap()).unwrap();
        for (_, kind, shape) in tensors {
            body.write(&vec![0; kind.bytes_of(shape.iter().product()).unwrap() as usize]).unwrap();
        }
        body.finish().unwrap();
    };
    write("mamba", &[]);
    assert_says(&path, &["'mamba'", "qwen3", "m.gguf"]);
    write("llama", &[]);
    assert_says(&path, &["llama.block_count"]);
    write("llama", &[("blk.0.ffn_up.weight", TensorType::IQ2_XS, &[1, 256])]);
    assert_says(&path, &["blk.0.ffn_up.weight", "IQ2_XS", "llama-server"]);
    std::fs::write(&path, b"GGUF").unwrap();
    assert_says(&path, &["cut short"]);

    // A tensor has an unknown name, so that a needed one is missing.
    convert("plain", Matrices::AsStored, &path, |_| {}).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let rename = |from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, changed).unwrap();
    };
    rename("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight");
    assert_says(&path, &["blk.1.ffn_xx.weight"]);
    rename("output_norm.weight", "output_xxxx.weight");
    assert_says(&path, &["output_xxxx.weight"]);
}

#[test]
fn the_spec_of_a_file_is_that_of_the_config() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["plain", "qwen2-tied-bf16", "qwen3", "gqa-head-dim", "linear-new"] {
        let path = folder.path().join(format!("{name}.gguf"));
        convert(name, Matrices::AsStored, &path, |_| {}).unwrap();
        let read = DecoderSpec::from_gguf(&GgufModel::open(&path).unwrap()).unwrap();
        let mut wanted = spec(name);
        wanted.norm.eps = f64::from(wanted.norm.eps as f32);
        wanted.spelling = read.spelling.clone();
        if !name.starts_with("qwen") {
            wanted.ropes[0].planes = RopePlanes::Neighbours;
        }
        assert_eq!(read, wanted, "{name}");
    }
}
