//! `model-boss tasks check`: the faults that a coordinator would report for a file of tasks, with the settings and the
//! manifests that it would have.

use std::path::{Path, PathBuf};

use clap::Args;
use model_boss_catalog::{Catalog, ManifestFolders};
use model_boss_config::{Config, DEFAULT_FILE, DEFAULT_TASKS, Sources, environment};
use model_boss_core::Target;
use model_boss_tasks::{Problem, Providers, TasksFile, unknown_models};
use serde_json::{Value, json};

use super::super::args::ReadArgs;
use super::super::error::CliError;
use super::super::tables::pretty;

/// Arguments of `tasks check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// The file to check.
    #[arg(default_value = DEFAULT_TASKS)]
    file: PathBuf,
    /// The file of settings, with providers and the folder of manifests [default: model-boss.toml beside FILE, if it is
    /// there].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder of manifests [default: the settings'].
    #[arg(long, value_name = "FOLDER")]
    manifests: Option<PathBuf>,
    /// More prefixes of providers.
    #[arg(long, value_name = "NAME")]
    provider: Vec<String>,
    /// Report models without a manifest as problems too.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    read: ReadArgs,
}

/// The result of a check.
pub(crate) struct Checked {
    pub(crate) text: String,
    pub(crate) is_good: bool,
}

/// Reads a file as a coordinator would.
pub(crate) fn check(args: &CheckArgs) -> Result<Checked, CliError> {
    let file = &args.file;
    let text = std::fs::read_to_string(file).map_err(|error| CliError::Unreadable(file.clone(), error))?;
    let (config, own) = settings(args)?;
    let prefixes = config.providers.prefixes();
    let providers = args.provider.iter().fold(prefixes, |providers, name| providers.with(name, true));
    Ok(match TasksFile::read(&text, &providers) {
        Err(problems) => report(args, &problems, &[], ""),
        Ok(read) => {
            let folders = ManifestFolders { own, installed: config.installed_models_folder() };
            let catalog = Catalog::read(folders.clone());
            let warnings = warnings(&read, &providers, &catalog, &folders.own);
            let counts = format!("{} tasks, {} clients", read.tasks.len(), read.clients.len());
            report(args, &[], &warnings, &counts)
        }
    })
}

/// The settings that a coordinator would have beside this file, and its folder of manifests.
fn settings(args: &CheckArgs) -> Result<(Config, PathBuf), CliError> {
    let beside = args.file.parent().unwrap_or(Path::new(""));
    let file = args.config.clone().or_else(|| Some(beside.join(DEFAULT_FILE)).filter(|file| file.is_file()));
    let is_named = args.config.is_some();
    let loaded = Sources { flags: Vec::new(), environment: environment(), file }.load()?;
    let manifests = match &args.manifests {
        Some(folder) => folder.clone(),
        // Relative paths in the settings start in the folder of their file.
        None if is_named || loaded.config.manifests.is_some() => loaded.config.manifests_folder(),
        None => {
            let beside = Some(beside.join("manifests")).filter(|folder| folder.is_dir());
            beside.unwrap_or_else(|| loaded.config.manifests_folder())
        }
    };
    Ok((loaded.config, manifests))
}

/// A fault that a coordinator would accept, but that is hardly intended.
struct Warning {
    field: String,
    model: Option<String>,
    message: String,
}

fn warnings(file: &TasksFile, providers: &Providers, catalog: &Catalog, manifests: &Path) -> Vec<Warning> {
    let folder = manifests.display();
    let unread = catalog.problems.iter().map(|problem| Warning {
        field: String::new(),
        model: None,
        message: format!("manifest not used: {problem}"),
    });
    let unknown = unknown_models(file, providers, |name| catalog.knows(name));
    let unknown = unknown.into_iter().map(|(field, name)| {
        let hint = match name.split_once(':') {
            Some((prefix, _)) => format!(", and no provider is called '{prefix}'"),
            None => String::new(),
        };
        let message = format!("no manifest in {folder} describes '{name}' yet{hint}");
        Warning { field, model: Some(name.to_owned()), message }
    });
    let twice = file.tasks.iter().flat_map(|(task, what)| {
        what.ladder.iter().enumerate().filter_map(move |(place, name)| {
            let own = |name: &str| match providers.target(name) {
                Target::Local(_) => catalog.find(name).map(|model| model.description.id.clone()),
                Target::Cloud { .. } => None,
            };
            let model = own(name)?;
            let earlier = what.ladder[..place].iter().find(|earlier| own(earlier).as_ref() == Some(&model))?;
            let message = format!("'{name}' and '{earlier}' are the same model, {model}");
            Some(Warning { field: format!("tasks.{task}.ladder[{place}]"), model: None, message })
        })
    });
    unread.chain(unknown).chain(twice).collect()
}

fn report(args: &CheckArgs, problems: &[Problem], warnings: &[Warning], counts: &str) -> Checked {
    let (file, is_strict) = (args.file.display(), args.strict);
    let is_good = problems.is_empty() && (warnings.is_empty() || !is_strict);
    if args.read.json {
        let unknown = warnings.iter().filter_map(|warning| Some((warning, warning.model.as_ref()?)));
        let unknown: Vec<Value> =
            unknown.map(|(warning, model)| json!({ "field": warning.field, "model": model })).collect();
        let warnings: Vec<Value> =
            warnings.iter().map(|warning| json!({ "field": warning.field, "message": warning.message })).collect();
        let found = json!({
            "file": args.file, "good": is_good, "problems": problems, "warnings": warnings, "unknown_models": unknown,
        });
        return Checked { text: pretty(&found), is_good };
    }
    let mut lines: Vec<String> = Vec::new();
    for problem in problems {
        let line = problem.line.map_or_else(String::new, |line| format!(":{line}"));
        lines.push(format!("{file}{line}: {problem}"));
    }
    for Warning { field, message, .. } in warnings {
        let place = if field.is_empty() { String::new() } else { format!("{field}: ") };
        lines.push(format!("{file}: {}: {place}{message}", if is_strict { "problem" } else { "warning" }));
    }
    let found = problems.len() + if is_strict { warnings.len() } else { 0 };
    lines.push(match found {
        0 => format!("{file}: good: {counts}"),
        1 => "1 problem".to_owned(),
        many => format!("{many} problems"),
    });
    Checked { text: lines.join("\n") + "\n", is_good }
}
