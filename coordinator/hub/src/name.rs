//! The names by which people call a model of a hub: `hf://ORG/NAME@REVISION/FILE`, `ORG/NAME:Q4_K_M` as llama.cpp's and
//! Ollama's users write it, and the address of a page.

use std::fmt;
use std::str::FromStr;

use model_boss_protocol::{HubRepo, Source, check_hub_path, check_revision};

/// Prefixes of names without a scheme, as Ollama's users write them.
const HOSTS: [&str; 2] = ["hf.co/", "huggingface.co/"];
/// The tag of Ollama's names that means no choice.
const NO_CHOICE: &str = "latest";

/// A model of a hub, or the wish for one of its files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HubName {
    /// The repository.
    pub repo: HubRepo,
    /// The branch, tag or commit; `main` when absent.
    pub revision: Option<String>,
    /// The wish among the repository's files.
    pub choice: HubChoice,
}

/// The wish among the files of a repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HubChoice {
    /// The safetensors of the repository, else its usual GGUF file.
    Any,
    /// The safetensors of the repository.
    Folder,
    /// The GGUF file at this path.
    File(String),
    /// The GGUF file of this quantisation, such as `Q4_K_M`.
    Quant(String),
}

/// The text names no model of a hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' names no model of a hub: {why}. Write ORG/NAME, ORG/NAME:Q4_K_M, or hf://ORG/NAME[@REVISION]/FILE.gguf"
)]
pub struct ParseHubNameError {
    text: String,
    why: String,
}

impl HubName {
    /// The model of a manifest; `None` for one at a path of this machine.
    pub fn of_source(source: &Source) -> Option<Self> {
        let repo = source.hf.clone()?;
        let choice = source.file.clone().map_or(HubChoice::Folder, HubChoice::File);
        Some(Self { repo, revision: source.revision.clone(), choice })
    }

    /// Whether the text has a form that only models of a hub have: a scheme or a host.
    pub fn is_explicit(text: &str) -> bool {
        without_host(text).is_some()
    }
}

/// The rest of a name after the scheme or the host; `None` if it has neither.
fn without_host(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix("hf://") {
        return Some(rest);
    }
    let rest = text.strip_prefix("https://").unwrap_or(text);
    HOSTS.iter().find_map(|host| rest.strip_prefix(host))
}

impl FromStr for HubName {
    type Err = ParseHubNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = |why: String| ParseHubNameError { text: text.to_owned(), why };
        let rest = without_host(text).unwrap_or(text).trim_end_matches('/');
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        let mut parts = path.split('/');
        let (org, name) = (parts.next().unwrap_or_default(), parts.next());
        // The oldest repositories have no organisation.
        let repo = match name {
            Some(name) => format!("{org}/{name}"),
            None if without_host(text).is_some() => org.to_owned(),
            None => return Err(fault("the part ORG/ or NAME is missing".to_owned())),
        };
        let (repo, mut revision) = match repo.split_once('@') {
            Some((repo, revision)) => (repo.to_owned(), Some(revision.to_owned())),
            None => (repo, None),
        };
        let repo = repo.parse::<HubRepo>().map_err(|error| fault(error.to_string()))?;
        let mut file: Vec<&str> = parts.collect();
        // The addresses of pages and of files have a verb and the revision behind the name.
        if let [verb, of, rest @ ..] = file.as_slice()
            && ["blob", "resolve", "tree"].contains(verb)
            && without_host(text).is_some()
            && revision.is_none()
        {
            revision = Some((*of).to_owned());
            file = rest.to_vec();
        }
        if let Some(revision) = &revision {
            check_revision(revision).map_err(|error| fault(error.to_string()))?;
        }
        let file = file.join("/").split('?').next().unwrap_or_default().to_owned();
        let choice = match (file.is_empty(), tag) {
            (false, None) => of_file(file).map_err(fault)?,
            (false, Some(_)) => return Err(fault("it has a file and a ':', of which one is enough".to_owned())),
            (true, None) => HubChoice::Any,
            (true, Some(tag)) if tag.eq_ignore_ascii_case(NO_CHOICE) => HubChoice::Any,
            (true, Some(tag)) if is_gguf(tag) => of_file(tag.to_owned()).map_err(fault)?,
            (true, Some(tag)) => {
                let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                if tag.is_empty() || tag.len() > 100 || !tag.chars().all(allowed) {
                    return Err(fault(format!("'{tag}' is no quantisation")));
                }
                HubChoice::Quant(tag.to_owned())
            }
        };
        Ok(Self { repo, revision, choice })
    }
}

fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

fn of_file(file: String) -> Result<HubChoice, String> {
    check_hub_path(&file).map_err(|error| error.to_string())?;
    if is_gguf(&file) { Ok(HubChoice::File(file)) } else { Err(format!("{file} is no .gguf file")) }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.choice {
            HubChoice::Any | HubChoice::Folder => Ok(()),
            HubChoice::File(file) => write!(f, "/{file}"),
            HubChoice::Quant(quant) => write!(f, ":{quant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> String {
        text.parse::<HubName>().map_or_else(|error| error.to_string(), |name| name.to_string())
    }

    #[test]
    fn op_6_every_way_to_write_a_name_is_one_name() {
        for (text, means) in [
            ("org/repo", "hf://org/repo"),
            ("hf://org/repo", "hf://org/repo"),
            ("hf://gpt2@v1", "hf://gpt2@v1"),
            ("org/repo:Q4_K_M", "hf://org/repo:Q4_K_M"),
            ("hf.co/org/repo:Q4_K_M", "hf://org/repo:Q4_K_M"),
            ("huggingface.co/org/repo:latest", "hf://org/repo"),
            ("https://huggingface.co/org/repo/", "hf://org/repo"),
            ("https://huggingface.co/org/repo/blob/main/a/m.gguf", "hf://org/repo@main/a/m.gguf"),
            ("https://huggingface.co/org/repo/resolve/v1/m.gguf?download=true", "hf://org/repo@v1/m.gguf"),
            ("hf://org/repo@v1.0/a/m-00001-of-00002.gguf", "hf://org/repo@v1.0/a/m-00001-of-00002.gguf"),
            ("org/repo:m.GGUF", "hf://org/repo/m.GGUF"),
            ("org/repo@0123abc:Q8_0", "hf://org/repo@0123abc:Q8_0"),
        ] {
            assert_eq!(name(text), means, "{text}");
        }
        for (text, why) in [
            ("repo", "missing"),
            ("", "missing"),
            ("../../etc", "names no repository"),
            ("org/repo/../../x.gguf", "no path inside"),
            ("org/repo/model.bin", "no .gguf file"),
            ("org/repo:", "no quantisation"),
            ("org/repo:a b", "no quantisation"),
            ("org/repo@../x", "names no branch"),
            ("org/repo/m.gguf:Q4_0", "one is enough"),
        ] {
            let error = name(text);
            assert!(error.contains(why) && error.contains("hf://ORG/NAME"), "{text}: {error}");
        }
    }

    #[test]
    fn op_6_a_manifest_names_a_folder_or_a_file() {
        let source: Source = toml_of("org/repo", None);
        assert_eq!(HubName::of_source(&source).unwrap().choice, HubChoice::Folder);
        let source = toml_of("org/repo", Some("m.gguf"));
        assert_eq!(HubName::of_source(&source).unwrap().choice, HubChoice::File("m.gguf".into()));
        assert_eq!(HubName::of_source(&Source::at("x")), None);
        assert!(HubName::is_explicit("hf.co/a/b") && !HubName::is_explicit("a/b"));
    }

    fn toml_of(repo: &str, file: Option<&str>) -> Source {
        Source { hf: Some(repo.parse().unwrap()), file: file.map(str::to_owned), ..Source::default() }
    }
}
