//! LoRA adapters compared with `peft`, on the tiny models of `families/`. Cases under `lora/` are from
//! `scripts/reference/lora.py`; tensors of adapters are made here by the rule that the script has.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

#[allow(dead_code, reason = "families have more tests")]
mod family_cases;

use std::sync::Arc;

use family_cases::{
    AdapterCase, adapter_cases, adapter_weights, alone, best, device, open, same_bits_within, step, worst,
};
use model_boss_candle::{Conversion, DecoderLoadOptions, DeviceOptions, MatrixType, load_over, load_with};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{AdapterFiles, KvSlot, LoadedAdapter, Logits, Sequences};
use model_boss_protocol::{DeviceId, ResidencyMode};
use model_boss_weights::gguf::{HeaderWriter, TensorType};
use serde_json::{Value, json};

/// The largest difference of a logit from the reference.
const TOLERANCE: f32 = 1e-3;

/// The same for a model whose matrices were written with 16 bits.
const HALVED: f32 = 0.02;

/// The tolerance where products round activations to eight bits, as a share of the largest logit.
const ROUNDED: f32 = 0.08;

fn files(config: &Value, weights: Vec<u8>) -> AdapterFiles {
    AdapterFiles::Peft { config: config.to_string().into_bytes(), weights }
}

fn load(decoder: &Sequences, files: &AdapterFiles) -> Result<Arc<LoadedAdapter>, String> {
    let loader = decoder.adapter_loader().unwrap();
    loader.load(files).map(Arc::new).map_err(|error| error.to_string())
}

fn own(case: &AdapterCase) -> AdapterFiles {
    files(&case.config, case.weights())
}

fn opened(decoder: &mut Sequences, adapter: Option<&Arc<LoadedAdapter>>) -> KvSlot {
    let capacity = decoder.info().context_length.min(48);
    decoder.open_with(capacity, adapter.cloned()).unwrap()
}

/// The logits behind each prompt, and the largest difference from the reference. Tokens that follow are checked too.
fn check(case: &AdapterCase, decoder: &mut Sequences, adapter: &Arc<LoadedAdapter>) -> f32 {
    let mut largest = 0.0_f32;
    for ((prompt, logits), followed) in case.prompts.iter().zip(&case.logits).zip(&case.greedy) {
        let kv = opened(decoder, Some(adapter));
        let mut row = alone(decoder, kv, prompt, Logits::Last);
        largest = largest.max(worst(&row, logits));
        let mut answer = Vec::new();
        while answer.len() < followed.len() {
            answer.push(best(&row));
            row = alone(decoder, kv, &answer[answer.len() - 1..], Logits::Last);
        }
        assert_eq!(answer, *followed, "{}, off by {largest}", case.name);
        decoder.close(kv);
    }
    largest
}

#[test]
fn en_9_adapters_answer_as_peft_does() {
    let mut faults = Vec::new();
    for case in adapter_cases() {
        let mut decoder = open(case.base().folder());
        let adapter = load(&decoder, &own(&case)).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(adapter.warnings(), Vec::<String>::new(), "{}", case.name);
        let apart = check(&case, &mut decoder, &adapter);
        if apart >= TOLERANCE {
            faults.push(format!("{}: off by {apart}", case.name));
        }
        // The adapter changes the answer, so that one without effect would be found.
        let kv = opened(&mut decoder, None);
        let plain = alone(&mut decoder, kv, &case.prompts[2], Logits::Last);
        assert!(worst(&plain, &case.logits[2]) > 0.05, "{} has no effect", case.name);
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn en_9_rows_of_several_adapters_and_none_are_those_alone() {
    for case in adapter_cases() {
        let mut decoder = open(case.base().folder());
        // The same tensors under another seed are another adapter.
        let other = AdapterFiles::Peft { config: case.config.to_string().into_bytes(), weights: case.weights_of(99) };
        let adapters = [None, Some(load(&decoder, &own(&case)).unwrap()), Some(load(&decoder, &other).unwrap())];
        let order = [1, 0, 2, 1, 1, 0, 2];
        let prompts: Vec<&Vec<u32>> = order.iter().enumerate().map(|(at, _)| &case.prompts[at % 3]).collect();
        let slots: Vec<KvSlot> = order.map(|of| opened(&mut decoder, adapters[of].as_ref())).into();
        let batch: Vec<_> = prompts.iter().zip(&slots).map(|(prompt, kv)| step(*kv, prompt, Logits::Last)).collect();
        let together = decoder.forward(&batch).unwrap();
        // The next token of all of them: one row each.
        let next: Vec<[u32; 1]> = together.iter().map(|row| [best(row)]).collect();
        let batch: Vec<_> = next.iter().zip(&slots).map(|(next, kv)| step(*kv, next, Logits::Last)).collect();
        let behind = decoder.forward(&batch).unwrap();
        for (at, of) in order.into_iter().enumerate() {
            let kv = opened(&mut decoder, adapters[of].as_ref());
            let first = alone(&mut decoder, kv, prompts[at], Logits::Last);
            let second = alone(&mut decoder, kv, &next[at], Logits::Last);
            let apart = worst(&first, &together[at]).max(worst(&second, &behind[at]));
            assert!(apart <= same_bits_within(), "{}, sequence {at}: {apart} apart", case.name);
            decoder.close(kv);
        }
    }
}

#[test]
fn en_9_streamed_layers_take_adapters_to_the_bit() {
    for case in adapter_cases() {
        let residency = ResidencyOptions { mode: ResidencyMode::Stream, window: Some(1), block: Some(1) };
        let options = DecoderLoadOptions { context_length: Some(64), residency, ..DecoderLoadOptions::default() };
        let base = case.base();
        let streamed = load_with(base.folder(), &device(), &options, &mut |_| {});
        // A model whose layers cannot be streamed says so.
        let Ok(streamed) = streamed else { continue };
        let (mut resident, mut streamed) = (open(base.folder()), Sequences::over(streamed));
        let answer = |decoder: &mut Sequences| {
            let adapter = load(decoder, &own(&case)).unwrap();
            let kv = opened(decoder, Some(&adapter));
            alone(decoder, kv, &case.prompts[2], Logits::Last)
        };
        let apart = worst(&answer(&mut resident), &answer(&mut streamed));
        assert!(apart <= same_bits_within(), "{}: {apart} apart", case.name);
    }
}

#[test]
fn en_9_adapters_are_on_the_devices_of_their_layers() {
    let place = DeviceOptions { device: device(), share: None, limit: None };
    for case in adapter_cases() {
        let base = case.base();
        let Ok(divided) =
            load_over(base.folder(), &[place.clone(), place.clone()], &DecoderLoadOptions::default(), &mut |_| {})
        else {
            continue;
        };
        let mut divided = Sequences::over(divided);
        let adapter = load(&divided, &own(&case)).unwrap();
        let apart = check(&case, &mut divided, &adapter);
        assert!(apart < TOLERANCE, "{}: off by {apart}", case.name);
    }
}

fn case(name: &str) -> AdapterCase {
    adapter_cases().into_iter().find(|case| case.name == name).unwrap()
}

#[test]
fn en_9_matrices_in_blocks_take_adapters() {
    // Blocks of eight bits, whose products round activations: near the reference and not at it.
    for case in adapter_cases().into_iter().filter(|case| case.name == "plain") {
        let name = &case.name;
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("model.gguf");
        let conversion = Conversion::open(case.base().folder(), MatrixType::Q8_0).unwrap();
        conversion.write(HeaderWriter::new(), std::fs::File::create(&path).unwrap()).unwrap();
        let mut decoder = open(&path);
        let adapter = load(&decoder, &own(&case)).unwrap();
        for (prompt, logits) in case.prompts.iter().zip(&case.logits) {
            let kv = opened(&mut decoder, Some(&adapter));
            let largest = logits.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
            let apart = worst(&alone(&mut decoder, kv, prompt, Logits::Last), logits) / largest;
            assert!(apart < ROUNDED, "{name}: off by {apart} of the largest");
        }
    }
}

/// Every kind of quantised safetensors: as the same numbers written in 16 bits. DoRA reads the matrices, whose columns
/// some files have in an order of their own.
#[test]
fn en_9_quantised_safetensors_take_adapters_as_their_floats_do() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantised");
    let mut folders: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| !folder.ends_with("gptq-act-order-latent"));
    assert!(folders.len() > 4, "models are missing");
    let config = json!({
        "peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_dora": true,
        "target_modules": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
    });
    let sizes = [
        ("self_attn.q_proj", 64, 64),
        ("self_attn.v_proj", 64, 32),
        ("self_attn.o_proj", 64, 64),
        ("mlp.up_proj", 64, 128),
        ("mlp.down_proj", 128, 64),
    ];
    let mut tensors = Vec::new();
    for (layer, (part, ins, outs)) in (0..2).flat_map(|layer| sizes.map(|size| (layer, size))) {
        let name = |ending: &str| format!("base_model.model.model.layers.{layer}.{part}.{ending}");
        tensors.push((name("lora_A.weight"), vec![3, ins], 0.0, 0.2));
        tensors.push((name("lora_B.weight"), vec![outs, 3], 0.0, 0.4));
        tensors.push((name("lora_magnitude_vector"), vec![outs], 1.0, 0.3));
    }
    let adapter = files(&config, adapter_weights(tensors, 7));
    for folder in folders {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("model.gguf");
        let conversion = Conversion::open(&folder, MatrixType::F16).unwrap();
        conversion.write(HeaderWriter::new(), std::fs::File::create(&path).unwrap()).unwrap();
        let prompt: Vec<u32> = (0..20).map(|at| (at * 13 + 5) % 96).collect();
        let answer = |model: &std::path::Path, adapted: bool| {
            let mut decoder = open(model);
            let adapter = adapted.then(|| load(&decoder, &adapter).unwrap());
            let kv = opened(&mut decoder, adapter.as_ref());
            alone(&mut decoder, kv, &prompt, Logits::Last)
        };
        let floats = answer(&path, true);
        let largest = floats.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
        let apart = worst(&answer(&folder, true), &floats) / largest;
        assert!(apart < 0.12, "{}: off by {apart} of the largest", folder.display());
        let effect = worst(&answer(&folder, false), &floats) / largest;
        assert!(effect > 2.0 * apart, "{}: an effect of {effect}, off by {apart}", folder.display());
    }
}

/// Llama's rows of queries and keys are in another order in GGUF.
#[test]
fn en_9_one_adapter_serves_safetensors_and_gguf_alike() {
    for case in adapter_cases().into_iter().filter(|case| case.name == "plain") {
        let name = &case.name;
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("model.gguf");
        let conversion = Conversion::open(case.base().folder(), MatrixType::F16).unwrap();
        conversion.write(HeaderWriter::new(), std::fs::File::create(&path).unwrap()).unwrap();
        let mut decoder = open(&path);
        let adapter = load(&decoder, &own(&case)).unwrap();
        let kv = opened(&mut decoder, Some(&adapter));
        let apart = worst(&alone(&mut decoder, kv, &case.prompts[1], Logits::Last), &case.logits[1]);
        assert!(apart < HALVED, "{name}: off by {apart}");
        // The same as llama.cpp's converter writes it, for both files.
        let in_gguf = AdapterFiles::Gguf(as_gguf(&case));
        for file in [path.as_path(), case.base().folder()] {
            let mut decoder = open(file);
            let adapter = load(&decoder, &in_gguf).unwrap();
            let kv = opened(&mut decoder, Some(&adapter));
            let apart = worst(&alone(&mut decoder, kv, &case.prompts[1], Logits::Last), &case.logits[1]);
            assert!(apart < HALVED, "{name}, GGUF for {}: off by {apart}", file.display());
        }
    }
}

/// A case's adapter as llama.cpp writes it for an architecture whose queries and keys are in pairs.
fn as_gguf(case: &AdapterCase) -> Vec<u8> {
    const PARTS: [(&str, &str); 7] = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let config = &case.config;
    let rank = config["r"].as_f64().unwrap();
    let alpha = config["lora_alpha"].as_f64().unwrap();
    // The converter knows one factor: alpha by the rank.
    let alpha = if config["use_rslora"] == json!(true) { alpha * rank.sqrt() } else { alpha };
    let mut header = HeaderWriter::new();
    for (key, text) in [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", "llama")] {
        header.set(key, text).unwrap();
    }
    header.set("adapter.lora.alpha", &(alpha as f32)).unwrap();
    let mut all = Vec::new();
    for (name, shape, mut values) in case.tensors_of() {
        let inner = name.strip_prefix("base_model.model.model.layers.").unwrap();
        let (layer, rest) = inner.split_once('.').unwrap();
        let (part, of) = PARTS.iter().find(|(part, _)| rest.starts_with(part)).unwrap();
        let is_up = rest.ends_with("lora_B.weight");
        if is_up && (part.ends_with("q_proj") || part.ends_with("k_proj")) {
            let heads = if part.ends_with("q_proj") { 4 } else { case.base().kv_heads() };
            values = in_pairs(&values, shape[1], heads);
        }
        let ending = if is_up { "lora_b" } else { "lora_a" };
        let stored = format!("blk.{layer}.{of}.weight.{ending}");
        header.tensor(&stored, TensorType::F32, &shape.map(|length| length as u64)).unwrap();
        all.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    // Tensors follow one another without gaps: their lengths are multiples of the alignment.
    let mut body = header.begin(Vec::new()).unwrap();
    while let Some(name) = body.due().map(str::to_owned) {
        let (_, shape, _) = tensor_named(case, &name, &PARTS);
        let bytes = shape[0] * shape[1] * 4;
        let rest = all.split_off(bytes);
        body.write(&all).unwrap();
        all = rest;
    }
    body.finish().unwrap()
}

fn tensor_named(case: &AdapterCase, stored: &str, parts: &[(&str, &str)]) -> (String, [usize; 2], Vec<f32>) {
    let found = case.tensors_of().into_iter().find(|(name, ..)| {
        let inner = name.strip_prefix("base_model.model.model.layers.").unwrap();
        let (layer, rest) = inner.split_once('.').unwrap();
        let (_, of) = parts.iter().find(|(part, _)| rest.starts_with(part)).unwrap();
        let ending = if rest.ends_with("lora_B.weight") { "lora_b" } else { "lora_a" };
        stored == format!("blk.{layer}.{of}.weight.{ending}")
    });
    found.unwrap()
}

/// Rows of each head: the first of the first half, the first of the second, and so on.
fn in_pairs(values: &[f32], columns: usize, heads: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let width = rows / heads;
    let from = |row: usize| row / width * width + row % width % 2 * (width / 2) + row % width / 2;
    (0..rows).flat_map(|row| values[from(row) * columns..(from(row) + 1) * columns].to_vec()).collect()
}

#[test]
fn en_9_faults_of_adapters_are_named_and_the_base_goes_on() {
    let case = case("plain");
    let mut decoder = open(case.base().folder());
    let kv = opened(&mut decoder, None);
    let before = alone(&mut decoder, kv, &case.prompts[1], Logits::Last);
    let fault = |files: &AdapterFiles| load(&decoder, files).unwrap_err();
    let query = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
    let changed = |change: &dyn Fn(&str, &mut Vec<usize>) -> bool| {
        let weights = case.changed(&|name, shape| change(name, shape));
        fault(&files(&case.config, weights))
    };
    let missing = changed(&|name, _| name != query);
    assert!(missing.contains(query) && missing.contains("is missing"), "{missing}");
    let both = changed(&|name, _| !name.contains("layers.1.self_attn.q_proj"));
    assert!(both.contains(query) && both.contains("is missing"), "{both}");
    let wide = changed(&|name, shape| {
        if name.contains("lora_A") {
            shape[1] *= 2;
        }
        true
    });
    assert!(wide.contains("q_proj") && wide.contains("another base"), "{wide}");
    let rank = changed(&|name, shape| {
        if name == query {
            shape[0] += 1;
        }
        true
    });
    assert!(rank.contains(query) && rank.contains("rank"), "{rank}");
    let mut deep = case.config.clone();
    deep["base_model_name_or_path"] = json!("org/deeper");
    let renamed = case.renamed(&|name| name.replace("layers.1.", "layers.41."));
    let layers = fault(&files(&deep, renamed));
    assert!(layers.contains("layers.41") && layers.contains("org/deeper"), "{layers}");
    let other = case.renamed(&|name| name.replace("q_proj", "c_attn"));
    let mut config = case.config.clone();
    config["target_modules"] = json!(["c_attn", "v_proj"]);
    let unknown = fault(&files(&config, other));
    assert!(unknown.contains("c_attn"), "{unknown}");
    assert!(fault(&files(&json!({"r": 4}), case.weights())).contains("lora_alpha"));
    let cut = fault(&files(&case.config, case.weights()[..200].to_vec()));
    assert!(cut.contains("adapter_model.safetensors"), "{cut}");
    assert!(fault(&AdapterFiles::Gguf(b"GGUF".to_vec())).contains("GGUF"));
    // Tensors of modules that are not meant have no effect, as for PEFT, and are told of.
    let mut fewer = case.config.clone();
    fewer["target_modules"] = json!(["v_proj"]);
    let adapter = load(&decoder, &files(&fewer, case.weights())).unwrap();
    assert!(adapter.warnings().iter().all(|warning| warning.contains("q_proj")) && !adapter.warnings().is_empty());
    // An adapter of another decoder is refused by its step.
    let mut twin = open(case.base().folder());
    let kv = opened(&mut twin, Some(&adapter));
    assert!(twin.forward(&[step(kv, &[1], Logits::Last)]).unwrap_err().to_string().contains("another model"));
    let kv = opened(&mut decoder, None);
    assert_eq!(alone(&mut decoder, kv, &case.prompts[1], Logits::Last), before);
}

#[test]
fn en_9_bytes_of_adapters_are_those_of_their_tensors() {
    if device() != DeviceId::Cpu {
        return;
    }
    let case = case("plain");
    let decoder = open(case.base().folder());
    let elements: usize = case.tensors_of().iter().map(|(_, _, values)| values.len()).sum();
    let adapter = load(&decoder, &own(&case)).unwrap();
    assert_eq!(adapter.bytes(), (elements * size_of::<f32>()) as u64);
}
