//! Manifests and tasks, read as a coordinator would read them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use model_boss_catalog::{Catalog, Engines, ManifestFolders, NoEngine, find_llama_server};
use model_boss_config::Config;
use model_boss_core::EngineOptions;
use model_boss_tasks::{TasksFile, unknown_models};

use super::super::checks::models::CatalogFacts;
use super::folders::may_read;

/// The facts, and the models that only llama-server runs, which was not found.
pub(crate) fn models(config: &Config) -> (CatalogFacts, Vec<String>) {
    let catalog = Catalog::read(ManifestFolders::of(config));
    let engines = Engines {
        all_fake: config.simulate.is_some(),
        llama_server: config.llama_server.clone().or_else(find_llama_server),
        tables: config.backends.clone(),
        build: config.llamacpp.clone(),
        args: config.llamacpp_args.clone(),
        context: config.ctx_size,
        devices: config.devices.clone(),
    };
    let mut facts = CatalogFacts {
        folder: whole(&config.manifests_folder()),
        models: catalog.models().count(),
        problems: catalog.problems.iter().map(ToString::to_string).collect(),
        tasks_file: whole(&config.tasks),
        ..CatalogFacts::default()
    };
    let mut need_llama_server = Vec::new();
    for model in catalog.models() {
        let name = model.manifest.name.clone();
        if config.simulate.is_some() {
            continue;
        }
        if model.is_absent {
            facts.absent.push(format!("{name} ({})", model.source.display()));
        } else if model.source.exists() && !may_read(&model.source) {
            facts.unreadable.push(format!("{name} ({})", model.source.display()));
        } else {
            match engines.check(model, &EngineOptions::default()) {
                Ok(()) => {}
                Err(NoEngine::NoLlamaServer { .. }) => need_llama_server.push(name),
                Err(error) => facts.without_engine.push(format!("{name}: {error}")),
            }
        }
    }
    tasks(config, &catalog, &mut facts);
    (facts, need_llama_server)
}

/// The path from the root on, where the system tells the present folder.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn tasks(config: &Config, catalog: &Catalog, facts: &mut CatalogFacts) {
    let text = match std::fs::read_to_string(&config.tasks) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        Err(error) => {
            facts.task_problems.push(format!("it cannot be read: {error}"));
            return;
        }
    };
    let providers = config.providers.prefixes();
    match TasksFile::read(&text, &providers) {
        Err(problems) => facts.task_problems.extend(problems.iter().map(|problem| {
            let line = problem.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{line}{problem}")
        })),
        Ok(file) => {
            facts.tasks = Some((file.tasks.len(), file.clients.len()));
            let unknown = unknown_models(&file, &providers, |name| catalog.knows(name));
            facts.unknown_rungs = unknown.into_iter().map(|(_, name)| name.to_owned()).collect();
            facts.unknown_rungs.sort();
            facts.unknown_rungs.dedup();
        }
    }
}
