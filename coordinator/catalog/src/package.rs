//! A package that a client named by its path: a `model.toml` that describes a model, but not how this machine runs it.
//! The type has no field for a program, an environment or a file outside of the package, so no package can choose one.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use model_boss_protocol::{
    Backend, ByteCount, Category, DeviceId, KeepAlive, KvCacheType, LlamaArgs, Manifest, Modality, PromptFormat,
    ResidencyMode, Source, Speculation, StoreKind, Thinking,
};
use serde::Deserialize;
use serde_json::Value;

/// Fields of a manifest that choose a program, an environment or an engine: only an operator may set them.
const OPERATORS_FIELDS: [&str; 6] = ["adapters", "command", "draft", "llamacpp_backend", "recipe", "speech"];

/// A `model.toml` beside its weights, written by an untrusted author. The fields mean what they mean in [`Manifest`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    #[serde(default)]
    name: String,
    /// The aliases are ignored for a package: they are for an operator who moves the package among the manifests.
    #[serde(default, rename = "aliases")]
    _aliases: Vec<String>,
    category: Option<Category>,
    #[serde(default)]
    labels: Vec<String>,
    #[serde(default)]
    input_modalities: Vec<Modality>,
    backend: Option<PackageBackend>,
    source: Option<Source>,
    #[serde(default)]
    device: DeviceId,
    context_length: Option<u64>,
    kv_cache_type: Option<KvCacheType>,
    max_concurrent: Option<u32>,
    threads: Option<u32>,
    speculation: Option<Speculation>,
    residency: Option<ResidencyMode>,
    window: Option<u32>,
    block: Option<u32>,
    store: Option<StoreKind>,
    /// The pin is ignored for a package: only an operator may keep other models out of memory.
    #[serde(default, rename = "pin")]
    _pin: bool,
    keep_alive: Option<KeepAlive>,
    thinking: Option<Thinking>,
    vram: Option<ByteCount>,
    vram_mb: Option<u64>,
    chat_template: Option<String>,
    prompt_format: Option<PromptFormat>,
    llamacpp_args: Option<LlamaArgs>,
    #[serde(default)]
    voices: BTreeMap<String, String>,
    #[serde(default)]
    params: BTreeMap<String, Value>,
    version: Option<String>,
    description: Option<String>,
    author: Option<String>,
    license: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    custom: BTreeMap<String, Value>,
}

/// The backends that may run a package. Their programs are the operator's choice, and read only its weights.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PackageBackend {
    Candle,
    Diffusers,
    LlamaServer,
}

/// Why a package is not used, and the place of the fault in its text.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) place: Option<TextPosition>,
    pub(super) message: String,
}

/// A place in the text of a package.
#[derive(Debug)]
pub(super) enum TextPosition {
    /// The line that sets this field.
    Field(&'static str),
    /// The offset in bytes.
    Offset(usize),
}

/// Parses a package. Without a name of its own it gets its folder's name.
pub(super) fn parse(text: &str, folder: &Path) -> Result<Manifest, Fault> {
    if let Some((field, message)) = refusal(text) {
        return Err(Fault { place: Some(TextPosition::Field(field)), message });
    }
    let package: Package = toml::from_str(text).map_err(|error| Fault {
        place: error.span().map(|span| TextPosition::Offset(span.start)),
        message: error.message().trim().replace('\n', "; "),
    })?;
    if let Some(source) = &package.source
        && !source.path.as_ref().is_some_and(|path| is_inside(path))
    {
        let place = source.path.as_ref().map_or("a repository of a hub".into(), |path| path.display().to_string());
        let message =
            format!("'source': {place} leads out of the package; what is loaded by its path has its weights inside");
        return Err(Fault { place: Some(TextPosition::Field("source")), message });
    }
    Ok(package.manifest(folder))
}

/// Whether a path stays inside of the folder that it is joined to.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// The settings of a package that are ignored, as human-readable text.
pub(super) fn ignored(text: &str) -> Option<String> {
    let table: toml::Table = toml::from_str(text).ok()?;
    (table.get("pin")?.as_bool()?).then(|| {
        "its 'pin' does not count: a package named by its path keeps nobody out; POST /api/v1/models/NAME/pin pins it, \
         or put it into the folder of manifests"
            .to_owned()
    })
}

/// Refuses a field that only an operator may set, before other faults are reported. The message names the place for it.
fn refusal(text: &str) -> Option<(&'static str, String)> {
    // Invalid TOML is reported by the parser of the fields.
    let table: toml::Table = toml::from_str(text).ok()?;
    let where_it_may = "only a file of the folder of manifests may; put the package there, or remove it";
    if let Some(field) = OPERATORS_FIELDS.into_iter().find(|field| table.contains_key(*field)) {
        return Some((field, format!("'{field}' chooses what this machine runs: {where_it_may}")));
    }
    let backend = table.get("backend").and_then(toml::Value::as_str)?;
    let known =
        [Backend::Command, Backend::Fake, Backend::Speech].into_iter().find(|known| known.as_str() == backend)?;
    let message = format!("backend = \"{}\" chooses what this machine runs: {where_it_may}", known.as_str());
    Some(("backend", message))
}

impl Package {
    /// The manifest of this package. Every field is listed by name, so that a new one is considered here.
    fn manifest(self, folder: &Path) -> Manifest {
        let of_folder = || {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.strip_suffix(".mlpkg").map(str::to_owned).unwrap_or(name)
        };
        Manifest {
            name: if self.name.is_empty() { of_folder() } else { self.name },
            aliases: Vec::new(),
            category: self.category,
            labels: self.labels,
            input_modalities: self.input_modalities,
            backend: self.backend.map(|backend| match backend {
                PackageBackend::Candle => Backend::Candle,
                PackageBackend::Diffusers => Backend::Diffusers,
                PackageBackend::LlamaServer => Backend::LlamaServer,
            }),
            recipe: None,
            source: self.source,
            adapters: BTreeMap::new(),
            device: self.device,
            context_length: self.context_length,
            kv_cache_type: self.kv_cache_type,
            max_concurrent: self.max_concurrent,
            threads: self.threads,
            speculation: self.speculation,
            draft: None,
            residency: self.residency,
            window: self.window,
            block: self.block,
            store: self.store,
            pin: false,
            keep_alive: self.keep_alive,
            thinking: self.thinking,
            vram: self.vram,
            vram_mb: self.vram_mb,
            chat_template: self.chat_template,
            prompt_format: self.prompt_format,
            command: None,
            speech: None,
            voices: self.voices,
            llamacpp_args: self.llamacpp_args,
            llamacpp_backend: None,
            params: self.params,
            version: self.version,
            description: self.description,
            author: self.author,
            license: self.license,
            tags: self.tags,
            custom: self.custom,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_says_what_a_model_is() {
        let manifest = parse(
            "name = \"m\"\naliases = [\"default\"]\nbackend = \"llama-server\"\ncontext_length = 7\n\
             llamacpp_args = \"-t 2\"\nsource = { path = \"./weights/m.gguf\" }\n[params]\ntemperature = 0.5\n",
            Path::new("/x/p.mlpkg"),
        )
        .unwrap();
        assert_eq!((manifest.name.as_str(), manifest.context_length), ("m", Some(7)));
        assert_eq!(manifest.backend, Some(Backend::LlamaServer));
        assert!(manifest.aliases.is_empty() && manifest.llamacpp_args.is_some());
        assert_eq!(parse("", Path::new("/x/p.mlpkg")).unwrap().name, "p");
    }

    #[test]
    fn a_package_by_path_pins_nothing_and_is_told_so() {
        let manifest = parse("pin = true\n", Path::new("/x/p")).unwrap();
        assert!(!manifest.pin);
        assert!(ignored("name = \"m\"\npin = true\n").unwrap().contains("'pin'"));
        assert_eq!(ignored("pin = false\n"), None);
        assert_eq!(ignored("no toml"), None);
    }

    #[test]
    fn op_5_nothing_of_it_chooses_a_program_or_a_file_elsewhere() {
        for (text, field) in [
            ("command = { line = [\"/bin/sh\", \"-c\", \"touch /tmp/x\", \"{port}\"] }", "'command'"),
            ("command = { line = [\"x\", \"{port}\"], env = { LD_PRELOAD = \"/tmp/x.so\" } }", "'command'"),
            ("command = \"vllm\"", "'command'"),
            ("backend = \"command\"", "backend = \"command\""),
            ("backend = \"fake\"", "backend = \"fake\""),
            ("llamacpp_backend = \"cuda\"", "'llamacpp_backend'"),
            ("recipe = \"oga-npu\"", "'recipe'"),
            ("source = { path = \"/etc\" }", "'source'"),
            ("source = { path = \"../other\" }", "'source'"),
            ("source = { hf = \"org/model\" }", "a repository of a hub"),
            ("source = { path = \"a/../../other\" }", "'source'"),
            ("env = { A = \"b\" }", "unknown field `env`"),
            ("nmae = 1", "unknown field `nmae`"),
            ("no toml", ""),
        ] {
            let error = parse(text, Path::new("/x/p")).unwrap_err().message;
            assert!(error.contains(field), "{text}: {error}");
        }
        // Arguments that the allow list refuses are refused by the manifest's own check.
        let args = parse("llamacpp_args = \"--lora /etc/passwd\"", Path::new("/x/p")).unwrap();
        assert!(args.check().is_err());
    }
}
