//! The files that a worker's processes may open: those of one model, by their names alone.

use std::fs;
use std::path::Path;

use model_boss_sandbox::AllowedFiles;
use model_boss_weights::{PartName, model_folder};

/// Folders that are searched for links to other places, one in the other. Folders of models have two.
const DEEPEST: usize = 4;

/// Endings of the files beside a weight file that belong to its model.
const BESIDE: [&str; 5] = [".safetensors", ".json", ".jinja", ".model", ".layers.bin"];

/// Allows to read the files of a model. A folder is one model's, with everything in it. A file may be among files of
/// another kind, such as those of a home folder: those beside it are allowed by their names.
///
/// A link is followed to a file, as the Hugging Face cache has them, and not to a folder.
pub(crate) fn allow_model_files(source: &Path, files: &mut AllowedFiles) {
    files.read(source);
    if source.is_dir() {
        return follow_links(source, DEEPEST, files);
    }
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let folder = model_folder(source);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (beside, path) = (entry.file_name(), entry.path());
        let beside = beside.to_string_lossy();
        if path.is_dir() {
            // Modules of sentence-transformers, and further templates of transformers.
            let module = beside.split_once('_').is_some_and(|(number, _)| number.parse::<u8>().is_ok());
            if !is_gguf(&name) && (module || beside == "additional_chat_templates") {
                allow_model_files(&path, files);
            }
        } else if belongs(&name, &beside) {
            files.read(path);
        }
    }
}

/// Allows what every process looks up: the time zone, and what the C library's allocator asks about the machine.
pub(crate) fn allow_common_files(files: &mut AllowedFiles) {
    let zones = ["/etc/localtime", "/etc/timezone", "/usr/share/zoneinfo"];
    for path in zones.into_iter().chain(["/sys/devices/system/cpu/online"]) {
        files.read(path);
    }
}

/// Whether a file is part of the model of another one in the same folder.
fn belongs(of: &str, name: &str) -> bool {
    if !is_gguf(of) {
        return BESIDE.iter().any(|ending| name.ends_with(ending));
    }
    let (one, other) = (PartName::of(of), PartName::of(name));
    let part = one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.same_model(other));
    let index = name
        .rsplit_once(".layers.")
        .is_some_and(|(weights, _)| weights == of || one.as_ref().is_some_and(|one| one.sibling(1) == weights));
    part || index
}

/// Whether a weight file has everything in itself. One without an ending that says otherwise is a blob of a cache.
fn is_gguf(name: &str) -> bool {
    !BESIDE.iter().any(|ending| name.ends_with(ending))
}

fn follow_links(folder: &Path, deepest: usize, files: &mut AllowedFiles) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (kind, path) = (entry.file_type(), entry.path());
        match kind {
            Ok(kind) if kind.is_symlink() && path.is_file() => files.read(path),
            Ok(kind) if kind.is_dir() && deepest > 0 => follow_links(&path, deepest - 1, files),
            Ok(_) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn allowed(folder: &Path, source: &str) -> Vec<String> {
        let mut files = AllowedFiles::default();
        allow_model_files(&folder.join(source), &mut files);
        let mut names: Vec<String> = files
            .readable()
            .iter()
            .map(|path| path.strip_prefix(folder).unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    #[test]
    fn op_5_files_beside_a_weight_file_are_its_models_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(".ssh")).unwrap();
        fs::create_dir_all(folder.path().join("1_Pooling")).unwrap();
        for name in [
            "a-00001-of-00002.gguf",
            "a-00002-of-00002.gguf",
            "a-00001-of-00002.gguf.layers.json",
            "a-00001-of-00002.gguf.layers.bin",
            "b.gguf",
            "b.gguf.layers.json",
            "c.gguf",
            "sha256-0123",
            "model.safetensors",
            "config.json",
            "chat_template.jinja",
            "tokenizer.model",
            "secrets.txt",
            ".ssh/id_ed25519",
        ] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let parts = [
            "a-00001-of-00002.gguf",
            "a-00001-of-00002.gguf.layers.bin",
            "a-00001-of-00002.gguf.layers.json",
            "a-00002-of-00002.gguf",
        ];
        assert_eq!(allowed(folder.path(), "a-00001-of-00002.gguf"), parts);
        assert_eq!(allowed(folder.path(), "a-00002-of-00002.gguf"), parts);
        assert_eq!(allowed(folder.path(), "b.gguf"), ["b.gguf", "b.gguf.layers.json"]);
        assert_eq!(allowed(folder.path(), "sha256-0123"), ["sha256-0123"]);
        let safetensors = allowed(folder.path(), "model.safetensors");
        for name in ["model.safetensors", "config.json", "chat_template.jinja", "tokenizer.model", "1_Pooling"] {
            assert!(safetensors.iter().any(|allowed| allowed == name), "{name}: {safetensors:?}");
        }
        assert!(!safetensors.iter().any(|name| name.contains("secrets") || name.contains("ssh")), "{safetensors:?}");
    }

    #[test]
    fn op_5_links_in_a_models_folder_lead_to_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("snapshot");
        fs::create_dir_all(snapshot.join("inner")).unwrap();
        fs::create_dir_all(folder.path().join("elsewhere")).unwrap();
        fs::write(folder.path().join("blob"), "x").unwrap();
        symlink("../blob", snapshot.join("model.safetensors")).unwrap();
        symlink("../../blob", snapshot.join("inner/config.json")).unwrap();
        symlink("../elsewhere", snapshot.join("folder")).unwrap();
        symlink("../gone", snapshot.join("broken")).unwrap();
        let followed = ["snapshot", "snapshot/inner/config.json", "snapshot/model.safetensors"];
        assert_eq!(allowed(folder.path(), "snapshot"), followed);
    }
}
