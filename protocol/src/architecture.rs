//! Architectures of decoders that the candle worker supports, by their names in model files. The worker refuses every
//! other one. The coordinator reads the same lists and uses another engine in that case (RC-16).

/// Names in GGUF files, in `general.architecture`.
pub const GGUF_ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Names in `config.json`, in `architectures`.
pub const CONFIG_ARCHITECTURES: [&str; 5] =
    ["LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];
