//! The choice among the files of a repository: one GGUF model with all its parts and its projector, or the safetensors
//! with the small files that describe them. Pickled weights are never chosen, since reading them runs programs.

use std::collections::BTreeSet;

use model_boss_protocol::HubRepo;
use model_boss_weights::PartName;

use super::error::HubError;
use super::name::HubChoice;

/// The quantisations that are taken where none is named, the first one first.
const USUAL: [&str; 8] = ["Q4_K_M", "Q4_K_S", "Q4_0", "MXFP4", "Q5_K_M", "Q8_0", "BF16", "F16"];
/// The number of names in an error.
const SHOWN: usize = 30;
/// Folders beside the weights that modules of sentence-transformers have.
const MODULES: [&str; 3] = ["_Pooling", "_Dense", "_Normalize"];
/// Endings of small files beside safetensors.
const BESIDE: [&str; 3] = [".json", ".jinja", ".model"];
/// Small files beside safetensors with other endings.
const BESIDE_NAMES: [&str; 2] = ["merges.txt", "vocab.txt"];

/// The chosen files of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChosenFiles {
    /// The GGUF file to load; `None` for safetensors, which are loaded by their folder.
    pub(crate) file: Option<String>,
    /// All files, the one by which the model is recognised last.
    pub(crate) files: Vec<String>,
}

/// Chooses among the paths of a repository.
pub(crate) fn choose(repo: &HubRepo, choice: &HubChoice, paths: &[String]) -> Result<ChosenFiles, HubError> {
    let models = gguf_models(paths);
    match choice {
        HubChoice::File(file) => of_file(repo, file, paths),
        HubChoice::Quant(wanted) => {
            let found: Vec<&String> = models.iter().filter(|path| is_quantised(path, wanted)).collect();
            match found.as_slice() {
                [] => {
                    Err(HubError::NoQuantisation { repo: repo.clone(), wanted: wanted.clone(), there: listed(&models) })
                }
                [one] => of_file(repo, one, paths),
                several => Err(HubError::Several {
                    repo: repo.clone(),
                    there: names(several.iter().map(|path| path.as_str())),
                }),
            }
        }
        HubChoice::Folder => folder(repo, paths, &models),
        HubChoice::Any => match folder(repo, paths, &models) {
            Ok(chosen) => Ok(chosen),
            Err(error) if models.is_empty() => Err(error),
            Err(_) => usual(repo, paths, &models),
        },
    }
}

/// The GGUF file that is taken where none is named.
fn usual(repo: &HubRepo, paths: &[String], models: &BTreeSet<String>) -> Result<ChosenFiles, HubError> {
    if let (Some(only), 1) = (models.iter().next(), models.len()) {
        return of_file(repo, only, paths);
    }
    for quant in USUAL {
        let found: Vec<&String> = models.iter().filter(|path| is_quantised(path, quant)).collect();
        if let [one] = found.as_slice() {
            return of_file(repo, one, paths);
        }
    }
    Err(HubError::Several { repo: repo.clone(), there: listed(models) })
}

/// A GGUF file with its other parts, and the repository's projector.
fn of_file(repo: &HubRepo, file: &str, paths: &[String]) -> Result<ChosenFiles, HubError> {
    let models = gguf_models(paths);
    let absent = |file: &str| HubError::NoFile { repo: repo.clone(), file: file.to_owned(), there: listed(&models) };
    if !paths.iter().any(|path| path == file) {
        return Err(absent(file));
    }
    let (folder, name) = file.rsplit_once('/').map_or(("", file), |(folder, name)| (folder, name));
    let at = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
    let mut files: Vec<String> = projector(file, paths).into_iter().collect();
    let mut first = file.to_owned();
    if let Some(part) = PartName::of(name) {
        for number in (1..=part.count).rev() {
            let part = at(&part.sibling(number));
            if !paths.contains(&part) {
                return Err(absent(&part));
            }
            first.clone_from(&part);
            files.push(part);
        }
    } else {
        files.push(file.to_owned());
    }
    Ok(ChosenFiles { file: Some(first), files })
}

/// The projector for a model's images: one in its folder or at the top, in 16 bits if there is a choice.
fn projector(model: &str, paths: &[String]) -> Option<String> {
    let folder = model.rsplit_once('/').map_or("", |(folder, _)| folder);
    let near = |path: &&String| {
        let of = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        is_projector(path) && (of == folder || of.is_empty())
    };
    let mut found: Vec<&String> = paths.iter().filter(near).collect();
    let rank = |path: &str| {
        let wanted = ["-f16", "-bf16", "-q8_0"];
        let name = path.to_ascii_lowercase();
        wanted.iter().position(|quant| name.contains(quant)).unwrap_or(wanted.len())
    };
    found.sort_by_key(|path| (rank(path), (*path).clone()));
    found.first().map(|path| (*path).clone())
}

/// The safetensors at the top of a repository, and the files that describe them.
fn folder(repo: &HubRepo, paths: &[String], models: &BTreeSet<String>) -> Result<ChosenFiles, HubError> {
    let at_top = || paths.iter().filter(|path| !path.contains('/'));
    let weights = top_weights(&at_top().map(String::as_str).collect::<Vec<_>>());
    let has_config = at_top().any(|path| path == "config.json");
    if weights.is_empty() || !has_config {
        if !models.is_empty() {
            return Err(HubError::Several { repo: repo.clone(), there: listed(models) });
        }
        let pickled = paths.iter().find(|path| [".bin", ".pt", ".pth"].iter().any(|end| path.ends_with(end)));
        let lacks = match pickled {
            _ if !weights.is_empty() => "beside *.safetensors there is no config.json".to_owned(),
            Some(file) => format!("of {file} only its programs could read it: there are no *.safetensors"),
            None => "there are no *.safetensors".to_owned(),
        };
        return Err(HubError::NoModel { repo: repo.clone(), lacks });
    }
    let is_module = |path: &str| {
        let folder = path.split('/').next().unwrap_or_default();
        MODULES.iter().any(|module| folder.ends_with(module))
            && path.matches('/').count() == 1
            && (is_beside(path) || path.ends_with(".safetensors"))
    };
    let is_template = |path: &str| path.starts_with("additional_chat_templates/") && path.ends_with(".jinja");
    let beside = paths.iter().filter(|path| {
        let top = !path.contains('/') && is_beside(path) && *path != "config.json";
        top || is_module(path) || is_template(path)
    });
    let files = weights.into_iter().chain(beside.cloned()).chain(["config.json".to_owned()]);
    Ok(ChosenFiles { file: None, files: files.collect() })
}

fn is_beside(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    BESIDE.iter().any(|end| name.ends_with(end)) || BESIDE_NAMES.contains(&name)
}

/// The weights among the files at the top. A repository may have them twice: whole and in parts, under the names of
/// other programs, or in other types.
fn top_weights(top: &[&str]) -> Vec<String> {
    let all: Vec<&str> = top.iter().copied().filter(|path| path.ends_with(".safetensors")).collect();
    let parts = all.iter().copied().filter(|path| path.starts_with("model-") && path.contains("-of-"));
    let parts: Vec<&str> = parts.collect();
    let chosen = if all.contains(&"model.safetensors") && !top.contains(&"model.safetensors.index.json") {
        vec!["model.safetensors"]
    } else if !parts.is_empty() {
        parts
    } else {
        all
    };
    chosen.into_iter().map(str::to_owned).collect()
}

/// The GGUF models of a repository by their first parts, without projectors.
fn gguf_models(paths: &[String]) -> BTreeSet<String> {
    let is_model = |path: &&String| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.to_ascii_lowercase().ends_with(".gguf")
            && !is_projector(path)
            && PartName::of(name).is_none_or(|part| part.number == 1)
    };
    paths.iter().filter(is_model).cloned().collect()
}

fn is_projector(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.ends_with(".gguf") && name.contains("mmproj")
}

/// Whether a model's name ends with this quantisation, or lies in a folder of that name.
fn is_quantised(path: &str, wanted: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = PartName::of(name).map_or_else(|| name.get(..name.len() - ".gguf".len()), |part| Some(part.stem));
    let (stem, wanted) = (stem.unwrap_or_default().to_ascii_lowercase(), wanted.to_ascii_lowercase());
    let before = stem.strip_suffix(&wanted);
    before.is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']))
        || folder.split('/').any(|part| part.eq_ignore_ascii_case(&wanted))
}

fn listed(models: &BTreeSet<String>) -> String {
    if models.is_empty() { "no .gguf file".to_owned() } else { names(models.iter().map(String::as_str)) }
}

/// Names, human-readable; a long list is cut.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = all.collect();
    let shown = all.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(choice: HubChoice, paths: &[&str]) -> Result<String, String> {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        choose(&"org/repo".parse().unwrap(), &choice, &paths)
            .map(|chosen| chosen.files.join(" "))
            .map_err(|error| error.to_string())
    }

    fn quant(wanted: &str) -> HubChoice {
        HubChoice::Quant(wanted.to_owned())
    }

    const GGUFS: [&str; 7] = [
        "README.md",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "mmproj-m-F32.gguf",
        "mmproj-m-f16.gguf",
        "BF16/m-BF16-00001-of-00002.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
    ];

    #[test]
    fn op_6_a_quantisation_brings_all_its_parts_and_the_projector() {
        assert_eq!(chosen(quant("q8_0"), &GGUFS).unwrap(), "mmproj-m-f16.gguf m-Q8_0.gguf");
        assert_eq!(
            chosen(quant("BF16"), &GGUFS).unwrap(),
            "mmproj-m-f16.gguf BF16/m-BF16-00002-of-00002.gguf BF16/m-BF16-00001-of-00002.gguf"
        );
        assert_eq!(chosen(HubChoice::Any, &GGUFS).unwrap(), "mmproj-m-f16.gguf m-Q4_K_M.gguf", "the usual one");
        let later = HubChoice::File("BF16/m-BF16-00002-of-00002.gguf".into());
        assert!(chosen(later, &GGUFS).unwrap().ends_with("00001-of-00002.gguf"), "a part brings the others");
        let error = chosen(quant("Q5_K_M"), &GGUFS).unwrap_err();
        assert!(error.contains("'Q5_K_M'") && error.contains("m-Q8_0.gguf") && !error.contains("mmproj"), "{error}");
        assert!(chosen(quant("K_M"), &["m-Q4_K_M.gguf", "n.gguf"]).is_ok());
        assert!(chosen(quant("4_K_M"), &["m-Q4_K_M.gguf"]).is_err(), "a part of a word is no quantisation");
        let error = chosen(quant("Q8_0"), &["a-Q8_0.gguf", "b-Q8_0.gguf"]).unwrap_err();
        assert!(error.contains("a-Q8_0.gguf, b-Q8_0.gguf") && error.contains("hf://org/repo/FILE"), "{error}");
        let error = chosen(HubChoice::File("BF16/m-BF16-00001-of-00002.gguf".into()), &GGUFS[..6]).unwrap_err();
        assert!(error.contains("00002-of-00002"), "{error}");
    }

    #[test]
    fn op_6_a_folder_has_its_weights_once_and_no_pickles() {
        let repo = [
            "config.json",
            "tokenizer.json",
            "tokenizer.model",
            "merges.txt",
            "pytorch_model.bin",
            "original/consolidated.00.pth",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "README.md",
            "onnx/model.onnx",
            "1_Pooling/config.json",
            "chat_template.jinja",
        ];
        assert_eq!(
            chosen(HubChoice::Any, &repo).unwrap(),
            "model-00001-of-00002.safetensors model-00002-of-00002.safetensors tokenizer.json tokenizer.model merges.txt \
             model.safetensors.index.json 1_Pooling/config.json chat_template.jinja config.json"
        );
        let whole = ["config.json", "model.safetensors", "model.fp16.safetensors", "m.gguf"];
        assert_eq!(chosen(HubChoice::Any, &whole).unwrap(), "model.safetensors config.json");
        assert_eq!(chosen(HubChoice::Folder, &whole).unwrap(), "model.safetensors config.json");
        for (paths, why) in [
            (&["config.json", "pytorch_model.bin"][..], "pytorch_model.bin"),
            (&["model.safetensors"], "no config.json"),
            (&["README.md"], "no *.safetensors"),
            (&["a-Q2_K.gguf", "b-Q2_K.gguf"], "a-Q2_K.gguf, b-Q2_K.gguf"),
        ] {
            let error = chosen(HubChoice::Any, paths).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let error = chosen(HubChoice::Folder, &["m-Q4_0.gguf"]).unwrap_err();
        assert!(error.contains("m-Q4_0.gguf"), "a manifest has to name the file: {error}");
    }
}
