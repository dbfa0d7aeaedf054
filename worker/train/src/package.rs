//! A model package on disk: weights as f16 safetensors, `config.json`, tokenizer and chat template, in the form that
//! Hugging Face tools read. The manifest `model.toml` is written by hand and not changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::DType;
use serde_json::{Value, json};

use crate::model::{Architecture, GuideModel};
use crate::text::{ASSISTANT, CHAT_TEMPLATE, END, GuideText, GuideTextError, USER};

/// The reason why a package cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The weights cannot be converted.
    #[error("the weights")]
    Weights(#[from] candle_core::Error),
    /// The weights cannot be serialised.
    #[error("the weights")]
    Layout(#[from] safetensors::SafeTensorError),
    /// The tokenizer failed.
    #[error(transparent)]
    GuideText(#[from] GuideTextError),
}

/// Writes weights, configuration and tokenizer into `folder`, which is created if necessary.
pub fn write(folder: &Path, model: &GuideModel, text: &GuideText) -> Result<(), PackageError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| PackageError::Write { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    let put = |name: &str, value: Value| {
        let path = folder.join(name);
        let text = format!("{value:#}\n");
        std::fs::write(&path, text).map_err(failed(&path))
    };
    put("config.json", config(model, text))?;
    put("generation_config.json", json!({"do_sample": false, "eos_token_id": text.end, "pad_token_id": text.padding}))?;
    put("tokenizer_config.json", tokenizer_config(&model.architecture))?;
    text.save(&folder.join("tokenizer.json"))?;

    let mut tensors = Vec::new();
    for (name, var) in &model.parameters {
        tensors.push((name.clone(), var.as_detached_tensor().to_dtype(DType::F16)?));
    }
    // transformers requires the mark `format`. Tensors are written in the order of their names, so that the same
    // weights give the same file.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(tensors.iter().map(|(name, tensor)| (name, tensor)), Some(metadata))?;
    let path = folder.join("model.safetensors");
    std::fs::write(&path, bytes).map_err(failed(&path))
}

fn config(model: &GuideModel, text: &GuideText) -> Value {
    let shape = &model.architecture;
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.hidden_size / shape.num_attention_heads,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "torch_dtype": "float16",
        "bos_token_id": null,
        "eos_token_id": text.end,
        "pad_token_id": text.padding,
    })
}

fn tokenizer_config(shape: &Architecture) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_position_embeddings,
        "add_bos_token": false,
        "add_eos_token": false,
        "clean_up_tokenization_spaces": false,
        "eos_token": END,
        "pad_token": "<|pad|>",
        "additional_special_tokens": [USER, ASSISTANT],
        "chat_template": CHAT_TEMPLATE,
    })
}
