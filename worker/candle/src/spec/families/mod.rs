//! The families of models. Each is a function from facts to a decoder's spec; a file has a family and its close
//! relatives. To add one: CONTRIBUTING.md.

mod bamba;
mod cohere;
mod deepseek;
mod ernie;
mod exaone;
mod experts;
mod falcon;
mod gemma;
mod gemma3n;
mod glm;
mod gpt_oss;
mod granite;
mod hunyuan;
mod hybrid;
mod lfm2;
mod llama;
mod mistral;
mod nemotron;
mod olmo;
mod phi;
mod qwen;
mod qwen_next;
mod qwen_vl;
mod smollm;
mod starcoder;

use crate::spec::DecoderSpec;
use crate::spec::fact_error::FactError;
use crate::spec::facts::ModelFacts;

/// Makes a spec of facts.
pub(crate) type ReadFamily = fn(&ModelFacts<'_>) -> Result<DecoderSpec, FactError>;

/// Names in `config.json`, those of classes and of `model_type`.
const IN_CONFIG: &[(&[&str], ReadFamily)] = &[
    (&["LlamaForCausalLM", "LLaMAForCausalLM", "llama"], llama::llama),
    (&["SeedOssForCausalLM", "seed_oss"], llama::seed_oss),
    (&["MistralForCausalLM", "mistral", "MinistralForCausalLM", "ministral"], mistral::mistral),
    (&["MixtralForCausalLM", "mixtral"], mistral::mixtral),
    (&["Qwen2ForCausalLM", "qwen2"], qwen::qwen2),
    (&["Qwen3ForCausalLM", "qwen3"], qwen::qwen3),
    (&["Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"], qwen_vl::qwen2_5_vl),
    (&["Qwen3VLForConditionalGeneration", "qwen3_vl"], qwen_vl::qwen3_vl),
    (&["Qwen2MoeForCausalLM", "qwen2_moe"], qwen::qwen2_moe),
    (&["Qwen3MoeForCausalLM", "qwen3_moe"], qwen::qwen3_moe),
    (&["GemmaForCausalLM", "gemma"], gemma::gemma),
    (&["Gemma2ForCausalLM", "gemma2"], gemma::gemma2),
    (&["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "gemma3_text", "gemma3"], gemma::gemma3),
    (&["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration", "gemma3n_text", "gemma3n"], gemma3n::gemma3n),
    (&["Phi3ForCausalLM", "phi3"], phi::phi3),
    (&["PhimoeForCausalLM", "PhiMoEForCausalLM", "phimoe"], phi::phimoe),
    (&["GptOssForCausalLM", "gpt_oss"], gpt_oss::gpt_oss),
    (&["GlmForCausalLM", "glm"], glm::glm),
    (&["Glm4ForCausalLM", "glm4"], glm::glm4),
    (&["Glm4MoeForCausalLM", "glm4_moe"], glm::glm4_moe),
    (&["DeepseekV2ForCausalLM", "deepseek_v2"], deepseek::deepseek_v2),
    (&["DeepseekV3ForCausalLM", "deepseek_v3"], deepseek::deepseek_v3),
    (&["Olmo2ForCausalLM", "olmo2"], olmo::olmo2),
    (&["Olmo3ForCausalLM", "olmo3"], olmo::olmo3),
    (&["OlmoeForCausalLM", "olmoe"], olmo::olmoe),
    (&["GraniteForCausalLM", "granite"], granite::granite),
    (&["GraniteMoeForCausalLM", "granitemoe", "GraniteMoeSharedForCausalLM", "granitemoeshared"], granite::granite_moe),
    (&["SmolLM3ForCausalLM", "smollm3"], smollm::smollm3),
    (&["CohereForCausalLM", "cohere"], cohere::cohere),
    (&["Cohere2ForCausalLM", "cohere2"], cohere::cohere2),
    (&["Starcoder2ForCausalLM", "starcoder2"], starcoder::starcoder2),
    (&["Exaone4ForCausalLM", "exaone4"], exaone::exaone4),
    (&["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "ernie4_5"], ernie::ernie4_5),
    (&["Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe"], ernie::ernie4_5_moe),
    (&["HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"], hunyuan::dense),
    (&["HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"], hunyuan::moe),
    (&["Qwen3NextForCausalLM", "qwen3_next"], qwen_next::qwen3_next),
    (&["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "qwen3_5_text", "qwen3_5"], qwen_next::qwen3_5),
    (
        &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "qwen3_5_moe"],
        qwen_next::qwen3_5_moe,
    ),
    (&["GraniteMoeHybridForCausalLM", "granitemoehybrid"], granite::granite_hybrid),
    (&["BambaForCausalLM", "bamba"], bamba::bamba),
    (&["FalconH1ForCausalLM", "falcon_h1"], falcon::falcon_h1),
    (&["NemotronHForCausalLM", "nemotron_h"], nemotron::nemotron_h),
    (&["Lfm2ForCausalLM", "lfm2"], lfm2::lfm2),
    (&["Lfm2MoeForCausalLM", "lfm2_moe"], lfm2::lfm2_moe),
];

/// Names of classes and types whose language model is of the family that their `text_config` names.
const WRAPPERS: &[&str] = &[
    "LlavaForConditionalGeneration",
    "llava",
    "Idefics3ForConditionalGeneration",
    "idefics3",
    "SmolVLMForConditionalGeneration",
    "smolvlm",
];

/// Names of architectures in GGUF files.
const IN_GGUF: &[(&str, ReadFamily)] = &[
    ("llama", llama::llama),
    ("mistral3", llama::llama),
    ("seed_oss", llama::seed_oss),
    ("qwen2", qwen::qwen2),
    ("qwen3", qwen::qwen3),
    ("qwen2moe", qwen::qwen2_moe),
    ("qwen3moe", qwen::qwen3_moe),
    ("gemma", gemma::gemma),
    ("gemma2", gemma::gemma2),
    ("gemma3", gemma::gemma3),
    ("gemma-embedding", gemma::gemma_embedding),
    ("gemma3n", gemma3n::gemma3n),
    ("phi3", phi::phi3),
    ("gpt-oss", gpt_oss::gpt_oss),
    ("chatglm", glm::glm),
    ("glm4", glm::glm4),
    ("glm4moe", glm::glm4_moe),
    ("deepseek2", deepseek::deepseek_v2),
    ("olmo2", olmo::olmo2_gguf),
    ("olmoe", olmo::olmoe),
    ("granite", granite::granite),
    ("granitemoe", granite::granite_moe),
    ("smollm3", smollm::smollm3),
    ("command-r", cohere::cohere),
    ("cohere2", cohere::cohere2),
    ("starcoder2", starcoder::starcoder2),
    ("exaone4", exaone::exaone4),
    ("ernie4_5", ernie::ernie4_5),
    ("ernie4_5-moe", ernie::ernie4_5_moe),
    ("hunyuan-dense", hunyuan::dense),
    ("hunyuan-moe", hunyuan::moe),
    ("qwen3next", qwen_next::qwen3_next),
    ("qwen35", qwen_next::qwen3_5),
    ("qwen35moe", qwen_next::qwen3_5_moe),
    ("granitehybrid", granite::granite_hybrid),
    ("falcon-h1", falcon::falcon_h1),
    ("nemotron_h", nemotron::nemotron_h),
    ("nemotron_h_moe", nemotron::nemotron_h),
    ("lfm2", lfm2::lfm2),
    ("lfm2moe", lfm2::lfm2_moe),
];

/// The family of a class or a `model_type` of `config.json`.
pub(crate) fn of_config(name: &str) -> Option<ReadFamily> {
    IN_CONFIG.iter().find(|(names, _)| names.contains(&name)).map(|(_, family)| *family)
}

/// Whether the language model is of the family that `text_config` names, or of Llama's if it names none.
pub(crate) fn is_wrapper(name: &str) -> bool {
    WRAPPERS.contains(&name)
}

/// The family of an architecture of GGUF.
pub(crate) fn of_gguf(name: &str) -> Option<ReadFamily> {
    IN_GGUF.iter().find(|(known, _)| *known == name).map(|(_, family)| *family)
}
