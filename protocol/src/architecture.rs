//! Architectures of decoders that the candle worker supports, by their names in model files. The worker refuses every
//! other one. The coordinator reads the same lists and uses another engine in that case (RC-16).

/// Names in GGUF files, in `general.architecture`.
pub const GGUF_ARCHITECTURES: &[&str] = &[
    "llama",
    "mistral3",
    "seed_oss",
    "qwen2",
    "qwen3",
    "qwen2moe",
    "qwen3moe",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma-embedding",
    "gemma3n",
    "phi3",
    "gpt-oss",
    "chatglm",
    "glm4",
    "glm4moe",
    "deepseek2",
    "olmo2",
    "olmoe",
    "granite",
    "granitemoe",
    "smollm3",
    "command-r",
    "cohere2",
    "starcoder2",
    "exaone4",
    "ernie4_5",
    "ernie4_5-moe",
    "hunyuan-dense",
    "hunyuan-moe",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "granitehybrid",
    "falcon-h1",
    "nemotron_h",
    "nemotron_h_moe",
    "lfm2",
    "lfm2moe",
];

/// The values of `model_type` in `config.json` of the encoders that the worker knows, in alphabetical order.
pub const ENCODER_TYPES: &[&str] = &[
    "bert",
    "camembert",
    "distilbert",
    "gte",
    "jina_embeddings_v3",
    "modernbert",
    "mpnet",
    "new",
    "nomic_bert",
    "roberta",
    "xlm-roberta",
];

/// The names of encoders in GGUF files, in `general.architecture`, in alphabetical order.
pub const GGUF_ENCODERS: &[&str] =
    &["bert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "nomic-bert", "nomic-bert-moe"];

/// The values of `model_type` in `config.json` of language models that the worker reads images with, if their files
/// have a tower: in alphabetical order.
pub const SEEING_TYPES: &[&str] = &["gemma3", "idefics3", "llava", "qwen2_5_vl", "qwen3_vl", "smolvlm"];

/// The `model_type`s of models that turn texts and images into vectors that can be compared, which our worker runs.
pub const TOWER_TYPES: &[&str] = &["clip", "siglip", "siglip2"];

/// The `model_type`s of models that speak, which our worker runs.
pub const SPEECH_TYPES: &[&str] = &["csm", "parler_tts", "vits"];

/// The `model_type` of models that turn speech into text, which is their name in GGUF files too.
pub const HEARING_TYPES: &[&str] = &["whisper"];

/// The classes in `model_index.json` of pipelines that paint, which our worker runs. Classes for one use of the same
/// parts are alike.
pub const PIPELINE_CLASSES: &[&str] = &[
    "StableDiffusionPipeline",
    "StableDiffusionImg2ImgPipeline",
    "StableDiffusionInpaintPipeline",
    "StableDiffusionXLPipeline",
    "StableDiffusionXLImg2ImgPipeline",
    "StableDiffusionXLInpaintPipeline",
    "StableDiffusion3Pipeline",
    "StableDiffusion3Img2ImgPipeline",
    "FluxPipeline",
    "FluxImg2ImgPipeline",
];

/// Bytes of activations for each pixel of a picture, at the most: 1,024 numbers of f32 in the last blocks of a decoder
/// of pictures with 128 channels.
pub const PICTURE_BYTES_PER_PIXEL: u64 = 4096;

/// Names in `config.json`, in `architectures`.
pub const CONFIG_ARCHITECTURES: &[&str] = &[
    "LlamaForCausalLM",
    "LLaMAForCausalLM",
    "SeedOssForCausalLM",
    "MistralForCausalLM",
    "MinistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration",
    "Phi3ForCausalLM",
    "PhimoeForCausalLM",
    "PhiMoEForCausalLM",
    "GptOssForCausalLM",
    "GlmForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "OlmoeForCausalLM",
    "GraniteForCausalLM",
    "GraniteMoeForCausalLM",
    "GraniteMoeSharedForCausalLM",
    "SmolLM3ForCausalLM",
    "CohereForCausalLM",
    "Cohere2ForCausalLM",
    "Starcoder2ForCausalLM",
    "Exaone4ForCausalLM",
    "Ernie4_5ForCausalLM",
    "Ernie4_5_ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "GraniteMoeHybridForCausalLM",
    "BambaForCausalLM",
    "FalconH1ForCausalLM",
    "NemotronHForCausalLM",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "LlavaForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
];

/// The architecture of this name in `config.json`, if it is known. `Qwen3Model` is `Qwen3ForCausalLM` without its last
/// product, as models that give vectors are stored, and so is `Gemma3TextModel` of `Gemma3ForCausalLM`.
pub fn config_architecture(name: &str) -> Option<&'static str> {
    let of = |name: &str| CONFIG_ARCHITECTURES.iter().find(|known| **known == name).copied();
    let without = |end: &str| of(&format!("{}ForCausalLM", name.strip_suffix(end)?));
    of(name).or_else(|| without("Model")).or_else(|| without("TextModel"))
}
