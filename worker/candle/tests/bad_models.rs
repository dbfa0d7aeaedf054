//! Models that cannot be loaded: each fault has its own message that names the file or tensor, and none causes a panic.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs;
use std::path::{Path, PathBuf};

use model_boss_candle::{LoadError, load};
use model_boss_protocol::{DeviceId, WorkerExit};
use proptest::prelude::*;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A copy of a golden model, to be damaged by a test.
fn copy_of(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

fn try_load(folder: &Path) -> Result<(), LoadError> {
    load(folder, &DeviceId::Cpu, None, &mut |_| {}).map(drop)
}

/// The error message of a load that must fail because of the folder's content.
#[track_caller]
fn words(folder: &Path) -> String {
    let error = try_load(folder).expect_err("loaded all the same");
    assert_eq!(error.exit(), WorkerExit::BadModel, "{error}");
    let words = error.to_string();
    assert!(words.contains(&*folder.to_string_lossy()), "{words}");
    words
}

#[track_caller]
fn assert_says(folder: &Path, parts: &[&str]) {
    let words = words(folder);
    for part in parts {
        assert!(words.contains(part), "'{part}' is not in: {words}");
    }
}

/// Replaces a text in a file.
fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from} is not in {}", file.display());
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// Replaces a text in the header of a safetensors file, keeping the header's length.
fn edit_header(file: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(file).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect(from);
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_truncated_file_is_named_with_the_bytes_it_lacks() {
    let model = copy_of("plain");
    let file = model.path().join("model.safetensors");
    let len = fs::metadata(&file).unwrap().len();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(len / 2).unwrap();
    assert_says(
        model.path(),
        &["model.safetensors is truncated", "tensor 'model.", &format!("the file has {}", len / 2)],
    );
    for rest in [100, 8, 5, 0] {
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(rest).unwrap();
        assert_says(model.path(), &["model.safetensors is truncated", "the header", &format!("the file has {rest}")]);
    }
}

#[test]
fn what_is_missing_is_named() {
    let model = copy_of("sharded");
    fs::remove_file(model.path().join("model-00002-of-00003.safetensors")).unwrap();
    assert_says(model.path(), &["model-00002-of-00003.safetensors", "missing", "model.safetensors.index.json"]);

    let model = copy_of("plain");
    fs::remove_file(model.path().join("config.json")).unwrap();
    assert_says(model.path(), &["config.json", "cannot be read"]);

    let model = copy_of("plain");
    fs::remove_file(model.path().join("model.safetensors")).unwrap();
    assert_says(model.path(), &["no weights", "model.safetensors.index.json"]);

    let model = copy_of("plain");
    edit_header(&model.path().join("model.safetensors"), "model.layers.1.mlp.up_proj", "model.layers.1.mlp.xx_proj");
    assert_says(model.path(), &["model.layers.1.mlp.up_proj.weight"]);

    let folder = tempfile::tempdir().unwrap();
    assert_says(&folder.path().join("absent"), &["cannot be read"]);
}

#[test]
fn config_and_weights_that_disagree_are_told_by_tensor() {
    for (from, to, tensor) in [
        ("\"hidden_size\": 32", "\"hidden_size\": 64", "model.embed_tokens.weight"),
        ("\"vocab_size\": 128", "\"vocab_size\": 100", "model.embed_tokens.weight"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "model.layers.2.input_layernorm.weight"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4000", "model.layers.2."),
        ("\"intermediate_size\": 48", "\"intermediate_size\": 49", "model.layers.0.mlp.gate_proj.weight"),
        ("\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2", "model.layers.0.self_attn.k_proj.weight"),
        ("\"head_dim\": 8", "\"head_dim\": 16", "model.layers.0.self_attn.q_proj.weight"),
        ("\"mlp_bias\": false", "\"mlp_bias\": true", "model.layers.0.mlp.gate_proj.bias"),
        ("\"attention_bias\": false", "\"attention_bias\": true", "model.layers.0.self_attn.q_proj.bias"),
    ] {
        let model = copy_of("plain");
        edit(&model.path().join("config.json"), from, to);
        assert_says(model.path(), &[tensor]);
    }
    let tied = copy_of("tied");
    edit(&tied.path().join("config.json"), "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    assert_says(tied.path(), &["lm_head.weight"]);
}

#[test]
fn broken_numbers_and_unknown_types_are_refused() {
    let model = copy_of("plain");
    let file = model.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    assert_says(model.path(), &["NaN", "tensor '"]);

    let model = copy_of("plain");
    edit_header(&model.path().join("model.safetensors"), "\"dtype\":\"F32\"", "\"dtype\":\"I32\"");
    assert_says(model.path(), &["stored as I32", "F32, F16 and BF16"]);

    let model = copy_of("plain");
    edit(&model.path().join("config.json"), "LlamaForCausalLM", "MambaForCausalLM");
    assert_says(model.path(), &["'MambaForCausalLM'"]);

    let model = copy_of("plain");
    fs::write(model.path().join("config.json"), "{\"architectures\": [").unwrap();
    assert_says(model.path(), &["config.json is malformed"]);
}

#[test]
fn devices_this_build_lacks_are_lost_not_bad() {
    for device in
        [DeviceId::Cuda(4_000), DeviceId::Metal(0), DeviceId::Npu, DeviceId::Custom("x".into()), DeviceId::Auto]
    {
        let error = load(&golden("plain"), &device, None, &mut |_| {}).err().unwrap();
        assert_eq!(error.exit(), WorkerExit::DeviceLost);
        assert!(error.to_string().contains(&device.to_string()), "{error}");
    }
}

#[test]
fn a_head_stored_beside_a_tied_embedding_is_compared() {
    let weight_bytes = |folder: &Path| load(folder, &DeviceId::Cpu, None, &mut |_| {}).unwrap().info().weight_bytes;
    let model = copy_of("plain");
    let untied = weight_bytes(model.path());
    edit(&model.path().join("config.json"), "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    assert_eq!(weight_bytes(model.path()), untied, "two different tensors stay two");

    let tied = copy_of("tied");
    let before = weight_bytes(tied.path());
    let file = tied.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let old = "model.embed_tokens.weight";
    let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    // The same tensor is named as the head. A space after the name's quote keeps the header's length.
    let mut renamed = bytes[..at].to_vec();
    renamed.extend(b"lm_head.weight\"");
    renamed.extend(vec![b' '; old.len() - "lm_head.weight".len()]);
    renamed.extend(&bytes[at + old.len() + 1..]);
    fs::write(&file, renamed).unwrap();
    assert_eq!(weight_bytes(tied.path()), before, "either name will do");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// With random damage to a header, to the data after it or to config.json, a load succeeds or fails, and does not
    /// panic.
    #[test]
    fn random_damage_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in prop::option::of(any::<prop::sample::Index>()),
        part in 0usize..3,
    ) {
        let model = copy_of("f16");
        let file = model.path().join(if part == 2 { "config.json" } else { "model.safetensors" });
        let mut bytes = fs::read(&file).unwrap();
        let header = 8 + usize::from_le_bytes(bytes[..8].try_into().unwrap());
        let within = if part == 0 { header } else { bytes.len() };
        for (place, value) in changes {
            bytes[place.index(within)] = value;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len() + 1));
        }
        fs::write(&file, bytes).unwrap();
        if let Err(error) = try_load(model.path()) {
            prop_assert_eq!(error.exit(), WorkerExit::BadModel);
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
    }
}
