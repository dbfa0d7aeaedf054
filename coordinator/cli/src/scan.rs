//! `scan`: proposes manifests for the models on this disk: in the caches of Hugging Face, LM Studio and Ollama, or in
//! given folders. The command prints the manifests, or writes them into a folder. It reads names and sizes, and no
//! weights.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use model_boss_config::model_folders::ModelFolders;
use serde_json::Value;

use super::error::CliError;

/// The deepest nesting of folders that is searched.
const MAX_DEPTH: u32 = 8;
/// The smallest model in bytes: a smaller file is a test file or a vocabulary.
const SMALLEST: u64 = 1 << 20;
const NAME_LENGTH: usize = 120;

/// The folders to search.
#[derive(Clone, Debug, Args)]
pub(super) struct ScanArgs {
    /// Folders to search, in place of the usual ones.
    folders: Vec<PathBuf>,
    /// Write each manifest into this folder, unless it has one of that name.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "manifests")]
    write: Option<PathBuf>,
}

/// A model that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundModel {
    name: String,
    path: PathBuf,
    bytes: u64,
    embedding: bool,
    origin: &'static str,
}

/// Searches the folders and returns the manifests as text.
pub(super) fn scan(args: &ScanArgs) -> Result<String, CliError> {
    let found = named_apart(if args.folders.is_empty() {
        let home = std::env::home_dir().unwrap_or_default();
        usual(&home, |name| std::env::var_os(name).map(PathBuf::from))
    } else {
        args.folders.iter().flat_map(|folder| folder_models(folder, "folder")).collect()
    });
    let mut text = String::new();
    if found.is_empty() {
        return Ok("# nothing found; name a folder: model-boss scan /models\n".to_owned());
    }
    for model in &found {
        match &args.write {
            None => {
                let file = file_name(&model.name);
                text += &format!("# manifests/{file}.toml: {}\n{}\n", model.origin, manifest(model, &model.path));
            }
            Some(folder) => {
                let file = folder.join(format!("{}.toml", file_name(&model.name)));
                let path = with_its_ending(folder, model).map_err(|error| CliError::Write(file.clone(), error))?;
                let said = match write(&file, &manifest(model, &path)) {
                    Ok(true) => "written",
                    Ok(false) => "there already, left as it is",
                    Err(error) => return Err(CliError::Write(file, error)),
                };
                // Writing to a text cannot fail.
                let _ = writeln!(text, "{}: {said}", file.display());
            }
        }
    }
    Ok(text)
}

/// Writes a manifest. Returns `false` where the file exists: an existing file is kept.
fn write(file: &Path, text: &str) -> std::io::Result<bool> {
    use std::io::Write as _;
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::File::create_new(file) {
        Ok(mut file) => file.write_all(text.as_bytes()).map(|()| true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// A link to an Ollama blob with the ending that readers of models expect: the blob itself is named by a hash.
fn with_its_ending(folder: &Path, model: &FoundModel) -> std::io::Result<PathBuf> {
    if model.path.extension().is_some() || model.path.is_dir() {
        return Ok(model.path.clone());
    }
    let folder = std::path::absolute(folder)?;
    let links = folder.parent().unwrap_or(&folder).join("model-links");
    fs::create_dir_all(&links)?;
    let link = links.join(format!("{}.gguf", file_name(&model.name)));
    match std::os::unix::fs::symlink(&model.path, &link) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(link),
    }
}

fn manifest(model: &FoundModel, path: &Path) -> String {
    let mut table = toml::Table::new();
    table.insert("name".to_owned(), model.name.clone().into());
    if model.embedding {
        table.insert("labels".to_owned(), vec!["embedding"].into());
    }
    let mut source = toml::Table::new();
    source.insert("path".to_owned(), path.display().to_string().into());
    if let Ok(bytes) = i64::try_from(model.bytes) {
        source.insert("bytes".to_owned(), bytes.into());
    }
    table.insert("source".to_owned(), source.into());
    format!("{table}")
}

/// The usual caches of other programs below the home folder.
fn usual(home: &Path, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<FoundModel> {
    let ModelFolders { hub, ollama, studio, llama_cpp, .. } = ModelFolders::below(home, variable);
    let mut found = hugging_face(&hub);
    found.extend(ollama_models(&ollama));
    found.extend(studio.iter().flat_map(|folder| folder_models(folder, "LM Studio")));
    found.extend(folder_models(&llama_cpp, "llama.cpp"));
    found
}

/// Models in `models--ORG--NAME/snapshots/REVISION/…`, of the revision that `refs/main` names.
fn hugging_face(hub: &Path) -> Vec<FoundModel> {
    let mut found = Vec::new();
    for repository in folders_in(hub) {
        let name = repository.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(id) = name.strip_prefix("models--").map(|id| id.replace("--", "/")) else { continue };
        let revision = fs::read_to_string(repository.join("refs/main")).ok();
        let snapshot = revision
            .map(|revision| repository.join("snapshots").join(revision.trim()))
            .filter(|snapshot| snapshot.is_dir())
            .or_else(|| folders_in(&repository.join("snapshots")).pop());
        let Some(snapshot) = snapshot else { continue };
        for mut model in folder_models(&snapshot, "Hugging Face cache") {
            // The snapshot's folder is named by a hash; the repository has the model's name.
            if model.path == snapshot {
                model.name.clone_from(&id);
            }
            found.push(model);
        }
    }
    found
}

/// Models in Ollama's store: `manifests/HOST/SPACE/NAME/TAG` is JSON that names the blob with the weights.
fn ollama_models(root: &Path) -> Vec<FoundModel> {
    let mut files = Vec::new();
    collect(&root.join("manifests"), 0, &mut files);
    let model = |file: &PathBuf| {
        let tag = file.file_name()?.to_string_lossy().into_owned();
        let name = file.parent()?.file_name()?.to_string_lossy().into_owned();
        let json: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        let layers = json["layers"].as_array()?;
        let weights = layers.iter().find(|layer| layer["mediaType"] == "application/vnd.ollama.image.model")?;
        let path = root.join("blobs").join(weights["digest"].as_str()?.replace(':', "-"));
        let bytes = fs::metadata(&path).ok()?.len();
        let name = if tag == "latest" { name } else { format!("{name}:{tag}") };
        Some(FoundModel { embedding: looks_like_embedding(&name), name: clean(&name), path, bytes, origin: "Ollama" })
    };
    files.iter().filter_map(model).collect()
}

/// Models in a folder: `.gguf` files, the first part of each split model, and folders with `config.json` and
/// `*.safetensors`.
fn folder_models(folder: &Path, origin: &'static str) -> Vec<FoundModel> {
    let mut files = Vec::new();
    collect(folder, 0, &mut files);
    let mut folders: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let mut found = Vec::new();
    for file in files {
        let bytes = fs::metadata(&file).map_or(0, |about| about.len());
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let lower = name.to_ascii_lowercase();
        if lower.ends_with(".safetensors") {
            *folders.entry(file.parent().unwrap_or(folder).to_owned()).or_default() += bytes;
        } else if lower.ends_with(".gguf") && bytes >= SMALLEST && !lower.contains("mmproj") && !is_later_part(&lower) {
            let stem = name[..name.len() - ".gguf".len()].split("-00001-of-").next().unwrap_or_default();
            let (name, embedding) = (clean(stem), looks_like_embedding(stem));
            found.push(FoundModel { name, path: file, bytes, embedding, origin });
        }
    }
    for (path, bytes) in folders {
        if bytes >= SMALLEST && path.join("config.json").is_file() {
            let stem = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push(FoundModel { name: clean(&stem), embedding: looks_like_embedding(&stem), path, bytes, origin });
        }
    }
    found
}

fn is_later_part(name: &str) -> bool {
    let part = name.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-'));
    part.and_then(|(_, part)| part.parse::<u32>().ok()).is_some_and(|part| part > 1)
}

fn looks_like_embedding(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["embed", "minilm", "bge-", "gte-", "e5-"].iter().any(|word| name.contains(word))
}

/// A valid name: other characters become `-`.
fn clean(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    name.chars().map(|c| if allowed(c) { c } else { '-' }).take(NAME_LENGTH).collect()
}

fn file_name(name: &str) -> String {
    name.replace(['/', ':'], "-")
}

/// Distinguishes models of one name by numbers; a file found twice is kept once.
fn named_apart(mut found: Vec<FoundModel>) -> Vec<FoundModel> {
    found.retain(|model| !model.name.is_empty());
    found.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
    found.dedup_by(|a, b| a.path == b.path);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for model in &mut found {
        let count = seen.entry(file_name(&model.name)).or_default();
        *count += 1;
        if *count > 1 {
            model.name = format!("{}-{count}", model.name);
        }
    }
    found
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn collect(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        // Links are followed: caches consist of links.
        if path.is_dir() {
            if depth < MAX_DEPTH {
                collect(&path, depth + 1, files);
            }
        } else if path.is_file() {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: PathBuf, bytes: u64) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::File::create(path).unwrap().set_len(bytes).unwrap();
    }

    fn names(found: &[FoundModel]) -> Vec<(&str, &str)> {
        found.iter().map(|model| (model.name.as_str(), model.origin)).collect()
    }

    #[test]
    fn op_6_op_1_the_usual_caches_are_read() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        let snapshot = ".cache/huggingface/hub/models--org--qwen/snapshots/abc";
        file(at(&format!("{snapshot}/model.safetensors")), SMALLEST);
        fs::write(at(&format!("{snapshot}/config.json")), "{}").unwrap();
        fs::create_dir_all(at(".cache/huggingface/hub/models--org--qwen/refs")).unwrap();
        fs::write(at(".cache/huggingface/hub/models--org--qwen/refs/main"), "abc").unwrap();
        file(at(".lmstudio/models/a/b/Gemma 3.Q4_K_M-00001-of-00002.gguf"), SMALLEST);
        file(at(".lmstudio/models/a/b/Gemma 3.Q4_K_M-00002-of-00002.gguf"), SMALLEST);
        file(at(".lmstudio/models/a/b/mmproj-f16.gguf"), SMALLEST);
        file(at(".ollama/models/blobs/sha256-1"), 5);
        let layers = r#"{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:1"}]}"#;
        fs::create_dir_all(at(".ollama/models/manifests/registry.ollama.ai/library/nomic-embed-text")).unwrap();
        fs::write(at(".ollama/models/manifests/registry.ollama.ai/library/nomic-embed-text/latest"), layers).unwrap();
        let found = named_apart(usual(home.path(), |_| None));
        assert_eq!(
            names(&found),
            [("Gemma-3.Q4_K_M", "LM Studio"), ("nomic-embed-text", "Ollama"), ("org/qwen", "Hugging Face cache")]
        );
        for model in &found {
            let manifest: model_boss_protocol::Manifest = toml::from_str(&manifest(model, &model.path)).unwrap();
            manifest.check().unwrap();
            assert_eq!(manifest.source.as_ref().unwrap().bytes.map(|bytes| bytes.0), Some(model.bytes));
            assert_eq!(manifest.category() == model_boss_protocol::Category::Embedding, model.embedding);
        }
    }

    #[test]
    fn op_1_what_is_there_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        for part in ["a/m.gguf", "b/m.gguf", "c/tiny.gguf"] {
            file(folder.path().join(part), if part.contains("tiny") { 9 } else { SMALLEST });
        }
        let args = ScanArgs { folders: vec![folder.path().to_owned()], write: Some(folder.path().join("manifests")) };
        let blob = FoundModel {
            name: "n:7b".into(),
            path: folder.path().join("a/m.gguf").with_extension(""),
            bytes: 1,
            embedding: false,
            origin: "Ollama",
        };
        let link = with_its_ending(&folder.path().join("manifests"), &blob).unwrap();
        assert_eq!((link.file_name().unwrap().to_str(), fs::read_link(&link).unwrap()), (Some("n-7b.gguf"), blob.path));
        let said = scan(&args).unwrap();
        assert_eq!((said.matches("written").count(), said.lines().count()), (2, 2), "{said}");
        assert!(folder.path().join("manifests/m-2.toml").is_file());
        assert_eq!(scan(&args).unwrap().matches("there already").count(), 2);
    }
}
