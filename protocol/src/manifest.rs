//! Manifests: `manifests/NAME.toml`, or `model.toml` in a folder beside its weights (a package, DM-9).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    ByteCount, Category, CommandSource, DeviceId, KeepAlive, KvCacheType, LlamaArgs, LlamaArgsError, Modality,
    Residency, ResidencyMode, Source, SourceFault, Speculation, SpeechProgram, SpeechProgramError, StoreKind, Thinking,
};

/// One model, as an operator describes it. Unknown fields are errors: a typing mistake must not become a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Manifest {
    /// The id clients use. In a package it may be absent: the folder's name without `.mlpkg` is taken.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Other names for the same model. `default` answers requests that name none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The model's category; inferred from `labels` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// Free words. `embedding` and `reranking` set the category; `vision` says that a chat model accepts images
    /// (MM-2).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The model's kinds of input; inferred from category and `labels` when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_modalities: Vec<Modality>,
    /// The program that runs the model; inferred when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// The external engine behind the backend, by its name in Lemonade's catalogues. It sets the devices it needs
    /// (MM-5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
    /// The model's weights. A package needs none: it uses its own folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// LoRA adapters of the model by their names: folders of PEFT or GGUF files. Requests name one as `MODEL:ADAPTER`
    /// (EN-9).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub adapters: BTreeMap<String, PathBuf>,
    /// The device that the model should run on.
    #[serde(default)]
    pub device: DeviceId,
    /// The longest prompt plus answer, in tokens; the model's own limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    /// The type of keys and values: `auto`, `f32`, `f16`, `bf16` or `q8_0` (EN-2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_type: Option<KvCacheType>,
    /// The number of concurrent requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// The number of threads that compute on the CPU; by default one for each core that the worker may use (FA-5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Whether tokens that probably come next are evaluated in advance (EN-8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// The files of a smaller model with the same vocabulary, which writes drafts of the answers (EN-8). It is loaded
    /// and leased with the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<Source>,
    /// Whether all layers stay on the device, or those that do not fit are streamed in each step (RS-11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency: Option<ResidencyMode>,
    /// The look-ahead of a streamed model, in blocks of layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// The number of layers in a block of a streamed model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
    /// The kind of reads of a streamed model's layers. By default the file system decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreKind>,
    /// Whether the model is never evicted, nor unloaded when idle (RC-19).
    #[serde(default)]
    pub pin: bool,
    /// The time for which the model stays loaded after its last use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Whether a model that can reason before its answer does so: `on`, `off`, or a limit of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// The memory that the model needs, where the operator knows better than the estimate (RC-20).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram: Option<ByteCount>,
    /// The memory that the model needs, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_mb: Option<u64>,
    /// The text of a Jinja chat template in place of the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The form of prompts for a model without a chat template (RC-23).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_format: Option<PromptFormat>,
    /// The program that runs it, for the backend `command`: its template, or the name of a `[backends.NAME]` of
    /// `model-boss.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandSource>,
    /// A program that speaks, which our own worker runs for each request (RC-28).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech: Option<SpeechProgram>,
    /// Other names for the voices of a model that speaks: `alloy = "en-gb"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub voices: BTreeMap<String, String>,
    /// Additional arguments for llama-server, which override those of the configuration (MM-11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llamacpp_args: Option<LlamaArgs>,
    /// The build of llama-server that runs it, one of `[backends.llama-server.builds]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llamacpp_backend: Option<String>,
    /// Request fields used when the request does not set them (`temperature`, `top_p`, …).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, serde_json::Value>,
    /// A version in free text (DM-10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A human-readable description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The author, in free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The license, in free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Tags in free text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Values that the operator wants to keep beside the model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<String, serde_json::Value>,
}

/// A fault in a manifest that could be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The manifest has no name.
    #[error("'name' is missing")]
    NoName,
    /// The name has characters that break URLs or terminals.
    #[error("'{0}' cannot name a model; use letters, digits and . _ - / : @ +, at most 200 characters")]
    BadName(String),
    /// An adapter's name has characters that break names of models.
    #[error("'adapters': '{0}' cannot name an adapter; use letters, digits and . _ - @ +, at most 100 characters")]
    BadAdapter(String),
    /// A value is zero that must not be.
    #[error("'{0}' must be at least 1")]
    Zero(&'static str),
    /// The memory is stated in both fields.
    #[error("'vram' and 'vram_mb' say the same thing; keep one")]
    VramTwice,
    /// A `command` is given for a backend that uses none.
    #[error("'command' is for backend = \"command\", not for \"{0}\"")]
    CommandUnused(&'static str),
    /// The backend is `command`, and none is given.
    #[error("'command' is missing: backend = \"command\" needs the program's command line")]
    NoCommand,
    /// The program that speaks cannot be run.
    #[error("'speech': {0}")]
    Speech(#[from] SpeechProgramError),
    /// The manifest has both kinds of programs, or another backend than the one of its program.
    #[error("'speech' names the program that runs the model; leave out {0}")]
    SpeechBeside(&'static str),
    /// The category is not that of models that speak.
    #[error("a model with 'speech' speaks: its category is \"tts\", not \"{0}\"")]
    SpeechCategory(Category),
    /// The backend is `speech`, and no program is given.
    #[error("'speech' is missing: backend = \"speech\" needs the program's command line")]
    NoSpeech,
    /// The source is no place.
    #[error("'source': {0}")]
    Source(#[from] SourceFault),
    /// The draft model's files are at no place.
    #[error("'draft': {0}")]
    Draft(SourceFault),
    /// The model does not write text.
    #[error("'draft' is for models that write text, not for category \"{0}\"")]
    DraftCategory(Category),
    /// An argument is one that llama-server must not get.
    #[error("'llamacpp_args': {0}")]
    LlamaArgs(#[from] LlamaArgsError),
}

impl Manifest {
    /// The category: stated, else by label, else the only one of its backend, else `llm` (MM-2).
    pub fn category(&self) -> Category {
        self.category.unwrap_or_else(|| match () {
            () if self.is_labelled("embedding") => Category::Embedding,
            () if self.is_labelled("reranking") => Category::Reranking,
            () if self.backend == Some(Backend::Diffusers) => Category::Diffusion,
            () if self.speech.is_some() => Category::Tts,
            () => Category::Llm,
        })
    }

    /// The model's kinds of input: stated, else by category; a chat model with the label `vision` accepts images
    /// (MM-2).
    pub fn input_modalities(&self) -> Vec<Modality> {
        if !self.input_modalities.is_empty() {
            return self.input_modalities.clone();
        }
        match self.category() {
            Category::Llm if self.is_labelled("vision") => vec![Modality::Text, Modality::Image],
            Category::Vision => vec![Modality::Text, Modality::Image],
            _ => vec![Modality::Text],
        }
    }

    fn is_labelled(&self, word: &str) -> bool {
        self.labels.iter().any(|label| label == word)
    }

    /// The memory that the operator stated, if any.
    pub fn stated_size(&self) -> Option<ByteCount> {
        self.vram.or(self.vram_mb.map(ByteCount::mib))
    }

    /// The device: stated, else the one that its recipe needs.
    pub fn place(&self) -> DeviceId {
        match (&self.device, self.device_flags()) {
            (DeviceId::Auto, [DeviceFlag::Npu]) => DeviceId::Npu,
            (DeviceId::Auto, [DeviceFlag::Cpu]) => DeviceId::Cpu,
            (DeviceId::Auto, _) if self.speech.is_some() => DeviceId::Cpu,
            (device, _) => device.clone(),
        }
    }

    /// The kinds of devices that the model uses: those of its recipe, else that of its device. The list is empty where
    /// any device is permitted.
    pub const fn device_flags(&self) -> &'static [DeviceFlag] {
        use DeviceFlag::{Cpu, Gpu, Npu};
        match (self.recipe, &self.device) {
            (Some(Recipe::LlamaCpp), _) => &[Gpu],
            (Some(Recipe::OgaHybrid), _) => &[Gpu, Npu],
            (Some(Recipe::OgaNpu | Recipe::Flm), _) | (None, DeviceId::Npu) => &[Npu],
            (Some(Recipe::OgaCpu), _) | (None, DeviceId::Cpu) => &[Cpu],
            (None, DeviceId::Cuda(_) | DeviceId::Metal(_)) => &[Gpu],
            (None, _) => &[],
        }
    }

    /// The residency of its layers, and the type of their keys and values.
    pub fn residency(&self) -> Residency {
        let mode = self.residency.unwrap_or_default();
        let kv_cache_type = self.kv_cache_type.unwrap_or_default();
        Residency { mode, window: self.window, block: self.block, store: self.store, kv_cache_type }
    }

    /// Devices that it needs for itself alone (MM-5).
    pub fn exclusive_devices(&self) -> Vec<DeviceId> {
        let flagged = self.device_flags().contains(&DeviceFlag::Npu);
        if flagged || self.device == DeviceId::Npu { vec![DeviceId::Npu] } else { Vec::new() }
    }

    /// Checks that the fields fit together.
    pub fn check(&self) -> Result<(), ManifestError> {
        if self.name.is_empty() {
            return Err(ManifestError::NoName);
        }
        for name in std::iter::once(&self.name).chain(&self.aliases) {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@+".contains(&b);
            if name.is_empty() || name.len() > 200 || !name.bytes().all(allowed) {
                return Err(ManifestError::BadName(name.clone()));
            }
        }
        if self.context_length == Some(0) {
            return Err(ManifestError::Zero("context_length"));
        }
        if self.max_concurrent == Some(0) {
            return Err(ManifestError::Zero("max_concurrent"));
        }
        if self.threads == Some(0) {
            return Err(ManifestError::Zero("threads"));
        }
        if let Some(name) = self.adapters.keys().find(|name| !is_adapter_name(name)) {
            return Err(ManifestError::BadAdapter(name.clone()));
        }
        if self.window == Some(0) {
            return Err(ManifestError::Zero("window"));
        }
        if self.block == Some(0) {
            return Err(ManifestError::Zero("block"));
        }
        if self.vram.is_some() && self.vram_mb.is_some() {
            return Err(ManifestError::VramTwice);
        }
        if let Some(program) = &self.speech {
            program.check()?;
            match (&self.command, self.backend) {
                (Some(_), _) => return Err(ManifestError::SpeechBeside("'command'")),
                (None, None | Some(Backend::Command | Backend::Speech)) => {}
                (None, Some(_)) => return Err(ManifestError::SpeechBeside("'backend'")),
            }
            if self.category() != Category::Tts {
                return Err(ManifestError::SpeechCategory(self.category()));
            }
        }
        match (&self.command, self.backend) {
            (None, Some(Backend::Command)) if self.speech.is_some() => {}
            (None, Some(Backend::Speech)) if self.speech.is_none() => return Err(ManifestError::NoSpeech),
            (None, Some(Backend::Command)) => return Err(ManifestError::NoCommand),
            (Some(_), Some(other)) if other != Backend::Command => {
                return Err(ManifestError::CommandUnused(other.as_str()));
            }
            _ => {}
        }
        if let Some(source) = &self.source {
            source.check()?;
        }
        if let Some(draft) = &self.draft {
            draft.check().map_err(ManifestError::Draft)?;
            if self.category() != Category::Llm {
                return Err(ManifestError::DraftCategory(self.category()));
            }
        }
        if let Some(args) = &self.llamacpp_args {
            args.check()?;
        }
        Ok(())
    }
}

/// Whether a text can name an adapter, behind its model's name and a colon.
pub fn is_adapter_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-@+".contains(&b);
    !name.is_empty() && name.len() <= 100 && name.bytes().all(allowed)
}

/// The kind of program that runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Backend {
    /// Our own worker.
    Candle,
    /// The image pipelines of model-boss's own worker (RC-17).
    Diffusers,
    /// llama.cpp's server, an external engine.
    LlamaServer,
    /// Any program with an OpenAI-compatible port.
    Command,
    /// A program that speaks, run by our own worker for each request (RC-28).
    Speech,
    /// The fake worker, with canned answers and simulated memory (`serve --simulate`).
    Fake,
}

impl Backend {
    /// The word in manifests and the API, and the name of its table below `[custom]`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Candle => "candle",
            Self::Diffusers => "diffusers",
            Self::LlamaServer => "llama-server",
            Self::Command => "command",
            Self::Speech => "speech",
            Self::Fake => "fake",
        }
    }

    /// Whether one model's layers can be spread over several devices (RC-22).
    pub const fn splits(self) -> bool {
        matches!(self, Self::Candle | Self::Fake | Self::LlamaServer)
    }

    /// Whether it is an external engine, which does not know start lines and lifelines.
    pub const fn is_foreign(self) -> bool {
        matches!(self, Self::LlamaServer | Self::Command)
    }
}

/// A kind of devices that a model uses (MM-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DeviceFlag {
    /// Graphics processors.
    Gpu,
    /// The neural processor, which one model at a time has for itself.
    Npu,
    /// The host.
    Cpu,
}

/// The form in which the messages of a conversation become one text (RC-23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PromptFormat {
    /// Stanford Alpaca's: `### Instruction:` and `### Response:`.
    Alpaca,
    /// The texts of the messages, one after another.
    Raw,
}

/// An external engine, by the devices it needs (MM-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Recipe {
    /// llama.cpp: a GPU.
    #[serde(rename = "llamacpp")]
    LlamaCpp,
    /// ONNX Runtime GenAI on GPU and NPU.
    OgaHybrid,
    /// ONNX Runtime GenAI on the NPU.
    OgaNpu,
    /// ONNX Runtime GenAI on the CPU.
    OgaCpu,
    /// FastFlowLM: the NPU.
    Flm,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_full_manifest_reads() {
        let manifest: Manifest = toml::from_str(
            r#"
            name = "qwen3-8b"
            aliases = ["default"]
            source = { path = "weights/qwen3" }
            device = "cuda"
            context_length = 8192
            kv_cache_type = "q8_0"
            keep_alive = "5m"
            residency = "stream"
            window = 1
            store = "direct"
            thinking = "off"
            vram = "18GiB"
            [params]
            temperature = 0.7
            [custom]
            team = "red"
            "#,
        )
        .unwrap();
        manifest.check().unwrap();
        assert_eq!(manifest.category(), Category::Llm);
        assert_eq!(manifest.device, DeviceId::Cuda(0));
        assert_eq!(manifest.keep_alive, Some(KeepAlive::For(Duration::from_secs(300))));
        assert_eq!(manifest.stated_size(), Some(ByteCount::gib(18)));
        let store = Some(StoreKind::Direct);
        let kv_cache_type = KvCacheType::Q8_0;
        let streams = Residency { mode: ResidencyMode::Stream, window: Some(1), block: None, store, kv_cache_type };
        assert_eq!(manifest.residency(), streams);
    }

    #[test]
    fn mm_2_a_chat_model_that_sees_is_an_llm_that_takes_images() {
        let of = |text: &str| {
            let manifest: Manifest = toml::from_str(&format!("name = \"m\"\n{text}")).unwrap();
            (manifest.category(), manifest.input_modalities())
        };
        use Modality::{Audio, Image, Text};
        assert_eq!(of(""), (Category::Llm, vec![Text]));
        assert_eq!(of("labels = [\"vision\"]"), (Category::Llm, vec![Text, Image]));
        assert_eq!(of("category = \"vision\""), (Category::Vision, vec![Text, Image]));
        assert_eq!(of("labels = [\"embedding\", \"vision\"]"), (Category::Embedding, vec![Text]));
        assert_eq!(of("input_modalities = [\"text\", \"audio\"]"), (Category::Llm, vec![Text, Audio]));
    }

    #[test]
    fn mm_2_labels_set_the_category() {
        let manifest: Manifest = toml::from_str("name = \"e\"\nlabels = [\"embedding\"]").unwrap();
        assert_eq!(manifest.category(), Category::Embedding);
    }

    #[test]
    fn mm_5_a_recipe_says_which_devices_it_needs() {
        let manifest = |text: &str| toml::from_str::<Manifest>(&format!("name = \"x\"\n{text}")).unwrap();
        use DeviceFlag::{Cpu, Gpu, Npu};
        for (text, flags, place, exclusive) in [
            ("", &[][..], DeviceId::Auto, vec![]),
            ("device = \"cuda:1\"", &[Gpu], DeviceId::Cuda(1), vec![]),
            ("recipe = \"llamacpp\"", &[Gpu], DeviceId::Auto, vec![]),
            ("recipe = \"oga-hybrid\"", &[Gpu, Npu], DeviceId::Auto, vec![DeviceId::Npu]),
            ("recipe = \"oga-npu\"", &[Npu], DeviceId::Npu, vec![DeviceId::Npu]),
            ("recipe = \"oga-cpu\"", &[Cpu], DeviceId::Cpu, vec![]),
            ("recipe = \"flm\"\ndevice = \"npu\"", &[Npu], DeviceId::Npu, vec![DeviceId::Npu]),
            ("device = \"npu\"", &[Npu], DeviceId::Npu, vec![DeviceId::Npu]),
        ] {
            let manifest = manifest(text);
            let found = (manifest.device_flags(), manifest.place(), manifest.exclusive_devices());
            assert_eq!(found, (flags, place, exclusive), "{text}");
        }
        assert!(toml::from_str::<Manifest>("name = \"x\"\nrecipe = \"oga\"").is_err());
    }

    #[test]
    fn dm_2_an_unparsable_device_is_an_error() {
        let error = toml::from_str::<Manifest>("name = \"x\"\ndevice = \"cuda:one\"").unwrap_err();
        assert!(error.to_string().contains("cuda:one"), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(
            toml::from_str::<Manifest>("name = \"x\"\ncontex_length = 1")
                .unwrap_err()
                .to_string()
                .contains("contex_length")
        );
        let check = |text: &str| toml::from_str::<Manifest>(text).unwrap().check();
        assert_eq!(check("name = \"a b\""), Err(ManifestError::BadName("a b".into())));
        assert_eq!(check("name = \"a\"\nmax_concurrent = 0"), Err(ManifestError::Zero("max_concurrent")));
        assert_eq!(check("name = \"a\"\nthreads = 0"), Err(ManifestError::Zero("threads")));
        assert_eq!(check("name = \"a\"\nvram = \"1GiB\"\nvram_mb = 1"), Err(ManifestError::VramTwice));
        assert_eq!(check("labels = []"), Err(ManifestError::NoName));
    }
}
