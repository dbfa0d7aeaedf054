//! `rm`: removes a model's manifest, and the files of a pulled model that no other model uses. Files at other places,
//! such as those of Ollama and LM Studio, stay.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use model_boss_catalog::{Catalog, ManifestFolders, Model};
use model_boss_host::terminal;
use model_boss_hub::{FileRemoval, HubCache};

use super::error::CliError;
use super::flags::SettingFlags;

/// The name of a package's manifest.
const PACKAGE_FILE: &str = "model.toml";

/// The model to remove.
#[derive(Clone, Debug, Args)]
pub(super) struct RemoveArgs {
    /// The model's name or alias.
    model: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Remove the manifest alone, and keep the files.
    #[arg(long)]
    keep_files: bool,
}

/// Removes a model; returns what was removed, as text.
pub(super) fn remove(args: &RemoveArgs) -> Result<String, CliError> {
    let config = SettingFlags::default().sources().load()?.config;
    let folders = ManifestFolders::of(&config);
    let catalog = Catalog::read(folders.clone());
    let found = catalog.find(&args.model);
    let model = found.ok_or_else(|| CliError::NoSuchModel(args.model.clone(), folders.own))?;
    if model.file.file_name().is_some_and(|name| name == PACKAGE_FILE) {
        return Err(CliError::IsPackage(args.model.clone(), model.file.clone()));
    }
    let files = if args.keep_files { None } else { removable(model, &catalog) };
    let question = match &files {
        Some(files) => format!("remove {} and {} of files in the cache?", model.file.display(), files.bytes()),
        None => format!("remove {}?", model.file.display()),
    };
    if !args.yes && !confirmed(&question)? {
        return Ok("nothing was removed\n".to_owned());
    }
    fs::remove_file(&model.file).map_err(|error| CliError::Write(model.file.clone(), error))?;
    let mut text = format!("{} removed\n", model.file.display());
    if let Some(files) = files {
        let removed = files.carry_out().map_err(|error| CliError::Write(model.source.clone(), error))?;
        text += &format!("{} files removed, {} freed\n", removed.files, removed.bytes);
    } else if !args.keep_files && model.source.exists() {
        text += &format!("{} stays\n", model.source.display());
    }
    Ok(text)
}

/// The files of a pulled model that no other manifest names.
fn removable(model: &Model, catalog: &Catalog) -> Option<FileRemoval> {
    let source = model.manifest.source.as_ref()?;
    let is_shared = catalog.models().any(|other| other.file != model.file && other.source.starts_with(&model.source));
    if is_shared { None } else { HubCache::default().removal(source) }
}

fn confirmed(question: &str) -> Result<bool, CliError> {
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        return Err(CliError::NotConfirmed(question.to_owned()));
    }
    let mut out = terminal::err();
    out.write_all(format!("{question} [y/N] ").as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)?;
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(CliError::Input)?;
    Ok(["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes)))
}
