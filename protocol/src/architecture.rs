//! The families of decoders that our worker computes, by the names that model files have for them. The worker refuses
//! every other, and the coordinator looks for another engine before it asks (RC-16): both read these lists.

/// As GGUF files name them, in `general.architecture`.
pub const GGUF_ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// As `config.json` names them, in `architectures`.
pub const CONFIG_ARCHITECTURES: [&str; 5] =
    ["LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];
