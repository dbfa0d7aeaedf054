//! Manifests for models that were pulled from a hub.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use model_boss_hub::{HubChoice, HubName};
use model_boss_protocol::Source;
use model_boss_weights::PartName;

use super::entries::Catalog;
use super::model::Model;

/// The longest name of a model.
const NAME_LENGTH: usize = 120;

/// The manifest of a model that was pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledManifest {
    /// The path of the manifest.
    pub file: PathBuf,
    /// The model's name in it.
    pub name: String,
    /// Whether it was written now; otherwise an earlier one names the same files.
    pub is_new: bool,
}

/// Why no manifest was written.
#[derive(Debug, thiserror::Error)]
pub enum PulledManifestError {
    /// Another model has the name.
    #[error("'{name}' already names another model, in {}; choose another name", .file.display())]
    Taken {
        /// The name.
        name: String,
        /// The manifest of the other model.
        file: PathBuf,
    },
    /// The name has characters that no model's name has.
    #[error("'{0}' cannot name a model; use letters, digits and . _ - / : @ +")]
    Name(String),
    /// The file cannot be written.
    #[error("{0} cannot be written: {1}")]
    Write(PathBuf, io::Error),
}

/// Writes the manifest of a pulled model, unless an earlier one has the same source. An existing file is never changed.
pub fn write_manifest(
    folder: &Path,
    asked: &HubName,
    name: Option<&str>,
    source: &Source,
) -> Result<PulledManifest, PulledManifestError> {
    let catalog = Catalog::read(folder);
    let same = |model: &Model| {
        let is_same = |known: &Source| {
            (&known.hf, &known.file, known.revision()) == (&source.hf, &source.file, source.revision())
        };
        model.manifest.source.as_ref().is_some_and(is_same)
    };
    if let Some(model) = catalog.models().find(|model| same(model) && name.is_none_or(|name| is_called(model, name))) {
        return Ok(PulledManifest { file: model.file.clone(), name: model.manifest.name.clone(), is_new: false });
    }
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => usual_names(asked, source),
    };
    let free = names.iter().find(|name| catalog.find(name).is_none() && !file_of(folder, name).exists());
    let Some(name) = free else {
        let name = names.into_iter().next_back().unwrap_or_default();
        let file = catalog.find(&name).map_or_else(|| file_of(folder, &name), |model| model.file.clone());
        return Err(PulledManifestError::Taken { name, file });
    };
    if !is_valid(name) {
        return Err(PulledManifestError::Name(name.clone()));
    }
    let alias = format!("hf.co/{name}");
    let aliases = (name.contains('/') && catalog.find(&alias).is_none()).then_some(alias);
    let file = file_of(folder, name);
    write(&file, &text(name, aliases, source)).map_err(|error| PulledManifestError::Write(file.clone(), error))?;
    Ok(PulledManifest { file, name: name.clone(), is_new: true })
}

fn is_called(model: &Model, name: &str) -> bool {
    model.manifest.name == name || model.manifest.aliases.iter().any(|alias| alias == name)
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::File::create_new(file)?.write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            // A half manifest is no manifest.
            let _ = fs::remove_file(file);
            Err(error)
        }
        done => done,
    }
}

fn text(name: &str, alias: Option<String>, source: &Source) -> String {
    let mut table = toml::Table::new();
    table.insert("name".to_owned(), name.into());
    if let Some(alias) = alias {
        table.insert("aliases".to_owned(), vec![alias].into());
    }
    let mut place = toml::Table::new();
    let repo = source.hf.as_ref().map(|repo| repo.as_str().to_owned());
    for (key, value) in [("hf", repo), ("file", source.file.clone()), ("revision", source.revision.clone())] {
        if let Some(value) = value {
            place.insert(key.to_owned(), value.into());
        }
    }
    if let Some(bytes) = source.bytes.and_then(|bytes| i64::try_from(bytes.0).ok()) {
        place.insert("bytes".to_owned(), bytes.into());
    }
    table.insert("source".to_owned(), place.into());
    table.to_string()
}

/// The names for a model that was given none, the best first: `ORG/NAME:Q4_K_M` as it was asked for, or by its file.
fn usual_names(asked: &HubName, source: &Source) -> Vec<String> {
    let repo = asked.repo.as_str();
    let Some(file) = &source.file else { return vec![repo.to_owned()] };
    let file = file.rsplit('/').next().unwrap_or(file);
    let stem =
        PartName::of(file).map_or_else(|| file.rsplit_once('.').map_or(file, |(stem, _)| stem), |part| part.stem);
    let by_quant = match &asked.choice {
        HubChoice::Quant(quant) => Some(quant.as_str()),
        _ => quantisation(stem),
    };
    let names = [by_quant, Some(stem)].into_iter().flatten();
    names.map(|tag| clean(&format!("{repo}:{tag}"))).collect()
}

/// The quantisation at the end of a file's name, such as `Q4_K_M`.
fn quantisation(stem: &str) -> Option<&str> {
    let last = stem.rsplit(['-', '.']).next()?;
    let upper = last.to_ascii_uppercase();
    let with_bits =
        |prefix: &str| upper.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    ["Q", "IQ", "TQ", "F", "BF", "MXFP"].iter().any(|prefix| with_bits(prefix)).then_some(last)
}

fn is_valid(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_LENGTH && name == clean(name)
}

fn clean(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    name.chars().map(|c| if allowed(c) { c } else { '-' }).take(NAME_LENGTH).collect()
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}.toml", name.replace(['/', ':'], "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: Option<&str>) -> Source {
        let bytes = Some(model_boss_protocol::ByteCount(7));
        Source { hf: Some("org/repo".parse().unwrap()), file: file.map(str::to_owned), bytes, ..Source::default() }
    }

    #[test]
    fn op_6_a_pulled_model_has_the_name_by_which_it_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let written = |asked: &str, name: Option<&str>, file: Option<&str>| {
            let written = write_manifest(folder.path(), &asked.parse().unwrap(), name, &source(file));
            written.map(|written| (written.name, written.is_new)).map_err(|error| error.to_string())
        };
        let new = |name: &str| Ok((name.to_owned(), true));
        let old = |name: &str| Ok((name.to_owned(), false));
        assert_eq!(written("hf.co/org/repo:q4_k_m", None, Some("m-Q4_K_M.gguf")), new("org/repo:q4_k_m"));
        assert_eq!(written("org/repo:Q4_K_M", None, Some("m-Q4_K_M.gguf")), old("org/repo:q4_k_m"));
        assert_eq!(written("org/repo", None, None), new("org/repo"));
        assert_eq!(written("org/repo", None, Some("a/n-Q8_0-00001-of-00002.gguf")), new("org/repo:Q8_0"));
        assert_eq!(written("org/repo", None, Some("b/n2-Q8_0.gguf")), new("org/repo:n2-Q8_0"), "the other is taken");
        assert_eq!(written("org/repo", None, Some("odd name.gguf")), new("org/repo:odd-name"));
        assert_eq!(written("org/repo", Some("mine"), Some("m-Q4_K_M.gguf")), new("mine"));
        assert_eq!(written("org/repo", Some("mine"), Some("m-Q4_K_M.gguf")), old("mine"));
        assert!(written("org/repo", Some("mine"), None).unwrap_err().contains("'mine' already names another model"));
        assert!(written("org/repo", Some("a b"), None).unwrap_err().contains("'a b' cannot name"));
        let catalog = Catalog::read(folder.path());
        assert!(catalog.problems.is_empty(), "{:?}", catalog.problems);
        let model = catalog.find("hf.co/org/repo:q4_k_m").unwrap();
        assert_eq!((model.manifest.source.clone(), model.is_absent), (Some(source(Some("m-Q4_K_M.gguf"))), true));
    }
}
