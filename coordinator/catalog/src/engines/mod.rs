//! The choice of the engine for each model (RC-16), and the command line of an external engine. It uses manifests,
//! settings and paths of programs, and starts no program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model_boss_config::{BackendTables, DeclaredDevices};
use model_boss_core::{EngineOptions, LayerOptions, ModelDescription};
use model_boss_dialects::EngineDialect;
use model_boss_engines::{
    Facts, HealthRule, Launch, LaunchError, LlamaServer, command_line, llama_files, llama_server,
};
use model_boss_protocol::{
    Backend, Category, CommandSource, CommandSpec, KvCacheType, LlamaArgs, Recipe, StopSignal, parse_span,
};

use super::files::model_files;
use super::model::Model;

/// The engines of this machine, and their settings.
#[derive(Clone, Debug, Default)]
pub struct Engines {
    /// Whether the machine is simulated, so that the fake worker runs every model.
    pub all_fake: bool,
    /// The path of llama.cpp's server, when one was found.
    pub llama_server: Option<PathBuf>,
    /// The builds of llama-server by name, and the templates of other programs.
    pub tables: BackendTables,
    /// `--llamacpp`: the build used when neither manifest nor load names one.
    pub build: Option<String>,
    /// The arguments of `--llamacpp-args`.
    pub args: LlamaArgs,
    /// The context of `--ctx-size`, in tokens.
    pub context: Option<u64>,
    /// Declared devices, and the engines that run on them.
    pub devices: DeclaredDevices,
}

/// An external engine, ready to be started.
#[derive(Clone, Debug)]
pub struct ForeignEngine {
    /// The command line.
    pub launch: Launch,
    /// The path of the engine's health route.
    pub health_path: String,
    /// The answer that means ready.
    pub health: HealthRule,
    /// The signal that ends the engine in order.
    pub stop: StopSignal,
    /// The longest time to readiness, if the engine's template states one.
    pub load_timeout: Option<Duration>,
    /// The context of one sequence in tokens, if it is known.
    pub context: Option<u64>,
}

/// Why no engine can run a model.
#[derive(Debug, thiserror::Error)]
pub enum NoEngine {
    /// The model needs llama-server, which was not found.
    #[error(
        "{reason}, and no llama-server was found: install llama.cpp, then put llama-server on PATH, set \
         MODEL_BOSS_LLAMA_SERVER, or name a build in [backends.llama-server.builds]"
    )]
    NoLlamaServer {
        /// The reason why llama-server is needed.
        reason: String,
    },
    /// The model does not paint.
    #[error(
        "backend \"diffusers\" is the image pipelines of our worker, and this model's category is {0}: leave 'backend' \
         out, or 'category'"
    )]
    NoImages(Category),
    /// Neither the candle worker nor llama-server can run the model, for this reason.
    #[error("{0}, and llama-server reads only .gguf files; a program that runs it can be set by backend = \"command\"")]
    Nothing(String),
    /// The configuration has no such build.
    #[error("there is no build '{name}' of llama-server; [backends.llama-server.builds] has {known}")]
    NoBuild {
        /// The requested name.
        name: String,
        /// The names that exist, as a list in words.
        known: String,
    },
    /// The configuration has no such template.
    #[error("there is no [backends.{name}] in the configuration; there is {known}")]
    NoCommand {
        /// The requested name.
        name: String,
        /// The names that exist, as a list in words.
        known: String,
    },
    /// The type of keys and values cannot be passed on to the engine.
    #[error(
        "'kv_cache_type' is for our own worker and llama-server, and \"{wanted}\" cannot be passed on to backend \
         \"{backend}\"; leave it out, and write the program's own option into its command line"
    )]
    KvCacheType {
        /// The chosen type.
        wanted: KvCacheType,
        /// The model's backend.
        backend: &'static str,
    },
    /// The number of threads cannot be passed on to the engine.
    #[error(
        "'threads' is for our own worker, and this model's backend is \"{0}\"; leave it out, and set the program's own \
         option (llamacpp_args = \"--threads N\", or the command line)"
    )]
    Threads(&'static str),
    /// Only our own worker takes it.
    #[error(
        "'speculation' is for our own worker, and this model's backend is \"{0}\"; leave it out, and set the program's \
         own option (llamacpp_args = \"--draft-max N\", or the command line)"
    )]
    Speculation(&'static str),
    /// Only our own worker has a draft model.
    #[error(
        "'draft' is for our own worker, and this model's backend is \"{0}\"; leave it out, and set the program's own \
         option (llamacpp_args = \"--model-draft FILE\", or the command line)"
    )]
    Draft(&'static str),
    /// The manifest gives neither a command nor a template's name.
    #[error("its manifest names no 'command' to run it with")]
    Command,
    /// The command line is invalid.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl Engines {
    /// The backend that runs this model.
    pub fn backend(&self, model: &Model) -> Backend {
        let manifest = &model.manifest;
        if self.all_fake {
            return Backend::Fake;
        }
        if manifest.speech.is_some() {
            return Backend::Speech;
        }
        if let Some(backend) = manifest.backend {
            return backend;
        }
        if manifest.command.is_some() {
            return Backend::Command;
        }
        match manifest.recipe {
            Some(Recipe::LlamaCpp) => return Backend::LlamaServer,
            Some(_) => return Backend::Command,
            None => {}
        }
        if manifest.llamacpp_backend.is_some() || manifest.llamacpp_args.is_some() {
            return Backend::LlamaServer;
        }
        if let Some(backend) = self.devices.0.get(&manifest.device).and_then(|declared| declared.backend) {
            return backend;
        }
        let fits = model.candle_lacks().is_none() || self.build(None).is_err() || !model.has_gguf();
        if fits { Backend::Candle } else { Backend::LlamaServer }
    }

    /// Whether the model's layers may be spread over several devices (RC-22).
    pub(crate) fn splits(&self, model: &Model) -> bool {
        match self.backend(model) {
            Backend::Command => self.command(model).is_ok_and(CommandSpec::splits),
            // The parts of a pipeline are on one device.
            Backend::Candle => model.description.category != Category::Diffusion,
            backend => backend.splits(),
        }
    }

    /// Checks that this model can be run at all (RC-16).
    pub fn check(&self, model: &Model, options: &EngineOptions) -> Result<(), NoEngine> {
        self.check_kv(model, model.manifest.kv_cache_type.unwrap_or_default())?;
        let backend = self.backend(model);
        let runs_a_program = backend.is_foreign() || backend == Backend::Speech;
        if model.manifest.threads.is_some() && runs_a_program {
            return Err(NoEngine::Threads(backend.as_str()));
        }
        if model.manifest.speculation.is_some() && runs_a_program {
            return Err(NoEngine::Speculation(backend.as_str()));
        }
        if model.manifest.draft.is_some() && runs_a_program {
            return Err(NoEngine::Draft(backend.as_str()));
        }
        match backend {
            Backend::Fake | Backend::Speech => Ok(()),
            Backend::Diffusers if model.description.category != Category::Diffusion => {
                Err(NoEngine::NoImages(model.description.category))
            }
            // An operator's explicit choice is tried; the worker then names the obstacle.
            Backend::Diffusers => Ok(()),
            Backend::Candle => match model.candle_lacks() {
                // An operator's explicit choice is tried; the worker then names the obstacle.
                _ if model.manifest.backend.is_some() => Ok(()),
                None => Ok(()),
                Some(reason) if model.has_gguf() => Err(NoEngine::NoLlamaServer { reason: reason.to_owned() }),
                Some(reason) => Err(NoEngine::Nothing(reason.to_owned())),
            },
            Backend::LlamaServer => {
                self.build(options.build.as_deref().or(model.manifest.llamacpp_backend.as_deref())).map(|_| ())
            }
            Backend::Command => self.command(model).map(|_| ()),
        }
    }

    /// Checks that the model's engine can be given this type of keys and values.
    pub fn check_kv(&self, model: &Model, wanted: KvCacheType) -> Result<(), NoEngine> {
        match self.backend(model) {
            backend @ (Backend::Command | Backend::Diffusers | Backend::Speech) if !wanted.is_auto() => {
                Err(NoEngine::KvCacheType { wanted, backend: backend.as_str() })
            }
            _ => Ok(()),
        }
    }

    /// The external engine of this model; `None` for the candle worker and the fake worker.
    pub fn foreign(
        &self,
        model: &Model,
        options: &EngineOptions,
        facts: Facts<'_>,
    ) -> Result<Option<ForeignEngine>, NoEngine> {
        self.check(model, options)?;
        match self.backend(model) {
            Backend::Candle | Backend::Diffusers | Backend::Fake | Backend::Speech => Ok(None),
            Backend::LlamaServer => self.llama_server_for(model, options, facts).map(Some),
            Backend::Command => self.command_for(model, facts).map(Some),
        }
    }

    /// The form that requests to the model's engine must have.
    pub fn dialect(&self, model: &Model) -> Option<EngineDialect> {
        let backend = self.backend(model);
        if !backend.is_foreign() {
            return None;
        }
        let manifest = &model.manifest;
        let own_name = self.command(model).ok().and_then(|spec| spec.served_name.clone());
        Some(EngineDialect {
            served_name: own_name.unwrap_or_else(|| model.description.id.to_string()),
            params: manifest.params.clone(),
            thinking: manifest.thinking,
            prompt: manifest.prompt_format,
            is_llama_server: backend == Backend::LlamaServer,
            leaves_last_message: self.usual(model).args.is_some_and(|args| args.sets("--no-prefill-assistant")),
        })
    }

    /// A build of llama-server: by name, else the one chosen at the start, else the one that was found.
    pub fn build(&self, name: Option<&str>) -> Result<&Path, NoEngine> {
        let builds = &self.tables.builds;
        match name.or(self.build.as_deref()) {
            Some(name) => builds
                .get(name)
                .map(PathBuf::as_path)
                .ok_or_else(|| NoEngine::NoBuild { name: name.to_owned(), known: listed(builds) }),
            None => {
                let found = self.llama_server.as_deref().or_else(|| builds.values().next().map(PathBuf::as_path));
                let reason = "it runs by llama-server".to_owned();
                found.ok_or(NoEngine::NoLlamaServer { reason })
            }
        }
    }

    /// The options of a model's engine for a load that has none.
    pub fn usual(&self, model: &Model) -> EngineOptions {
        if self.backend(model) != Backend::LlamaServer {
            return EngineOptions::default();
        }
        let given = [Some(&self.args), model.manifest.llamacpp_args.as_ref()];
        let words = given.into_iter().flatten().flat_map(LlamaArgs::words).cloned().collect();
        let chosen = model.manifest.llamacpp_backend.as_deref().or(self.build.as_deref());
        let build = chosen.map(str::to_owned).or_else(|| self.named(self.build(None).ok()?));
        EngineOptions { args: Some(LlamaArgs::new(words)), build }
    }

    /// The model's usual name for a build if `name` is the same program, else `name`: two names of one program are one
    /// build.
    pub fn same_build(&self, model: &Model, name: String) -> String {
        let usual = self.usual(model).build;
        let program = |name: &str| self.tables.builds.get(name);
        match usual {
            Some(usual) if program(&usual) == program(&name) => usual,
            _ => name,
        }
    }

    /// The name of this program among the builds.
    fn named(&self, program: &Path) -> Option<String> {
        self.tables.builds.iter().find(|(_, build)| *build == program).map(|(name, _)| name.clone())
    }

    fn command<'a>(&'a self, model: &'a Model) -> Result<&'a CommandSpec, NoEngine> {
        match &model.manifest.command {
            None => Err(NoEngine::Command),
            Some(CommandSource::Own(spec)) => Ok(spec),
            Some(CommandSource::Named(name)) => self
                .tables
                .commands
                .get(name)
                .ok_or_else(|| NoEngine::NoCommand { name: name.clone(), known: listed(&self.tables.commands) }),
        }
    }

    fn llama_server_for(
        &self,
        model: &Model,
        options: &EngineOptions,
        facts: Facts<'_>,
    ) -> Result<ForeignEngine, NoEngine> {
        let manifest = &model.manifest;
        let program = self.build(options.build.as_deref().or(manifest.llamacpp_backend.as_deref()))?;
        let mut found: Vec<PathBuf> = model_files(&model.source).iter().map(|file| file.path().to_owned()).collect();
        found.extend(model.projectors());
        let files = llama_files(&model.source, &found).map_err(LaunchError::from)?;
        let more = LlamaServer {
            chat_template: manifest.chat_template.as_deref(),
            thinking: manifest.thinking,
            args: [Some(&self.args), manifest.llamacpp_args.as_ref(), options.args.as_ref()],
        };
        Ok(ForeignEngine {
            launch: llama_server(program, &files, &facts, &more)?,
            health_path: "/health".to_owned(),
            health: HealthRule::LlamaServer,
            stop: StopSignal::Terminate,
            load_timeout: None,
            context: facts.context,
        })
    }

    fn command_for(&self, model: &Model, facts: Facts<'_>) -> Result<ForeignEngine, NoEngine> {
        let spec = self.command(model)?;
        Ok(ForeignEngine {
            launch: command_line(spec, &facts)?,
            health_path: spec.health.clone(),
            health: HealthRule::Plain,
            stop: spec.stop_signal,
            load_timeout: spec.load_timeout.as_deref().and_then(|text| parse_span(text).ok()),
            context: facts.context,
        })
    }
}

/// The names of a table, human-readable.
fn listed<T>(table: &BTreeMap<String, T>) -> String {
    let names: Vec<&str> = table.keys().map(String::as_str).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The llama-server on PATH.
pub fn find_llama_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("llama-server")).find(|program| program.is_file())
}

impl Engines {
    /// The scheduler's description of a model, with the engine that runs it. The function reads files, so it may block.
    pub(super) fn describe(&self, model: &Model) -> ModelDescription {
        let backend = self.backend(model);
        let of_engine = backend.is_foreign() || (model.manifest.context_length.is_none() && self.context.is_some());
        let size = if of_engine {
            model.size_with(model.manifest.context_length.or(self.context), LayerOptions::default(), backend)
        } else {
            model.description.size.clone()
        };
        ModelDescription {
            splittable: self.splits(model),
            bulk_waits: !backend.is_foreign() && model.description.category == Category::Llm,
            context_length: model.description.context_length.or(self.context),
            size,
            engine: self.usual(model),
            ..model.description.clone()
        }
    }
}

#[cfg(test)]
mod tests;
