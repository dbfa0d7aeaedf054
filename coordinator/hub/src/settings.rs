//! The settings of a hub, from the variables that Hugging Face's tools read.

use std::fmt;
use std::path::{Path, PathBuf};

use model_boss_config::model_folders::ModelFolders;

/// The hub where no other is named.
const ENDPOINT: &str = "https://huggingface.co";
/// The connections of one download where no other number is set.
const CONNECTIONS: usize = 8;

/// The hub, its cache, and the folders in which files may be already.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The address of the hub, without a slash at its end.
    pub endpoint: String,
    /// The token that is sent to the hub, and to no other host.
    pub token: Option<HubToken>,
    /// Whether no connection is allowed.
    pub offline: bool,
    /// The cache that Hugging Face's tools share.
    pub cache: PathBuf,
    /// The folder with Ollama's models.
    pub ollama: PathBuf,
    /// The folders with LM Studio's models.
    pub studio: Vec<PathBuf>,
    /// The most connections of one download.
    pub connections: usize,
}

/// A token of a hub's account. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// The token as it is sent.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubToken(…)")
    }
}

impl HubSettings {
    /// The settings of the user who runs this process. The function reads the file with the token.
    pub fn of_environment() -> Self {
        let home = std::env::home_dir().unwrap_or_default();
        Self::below(&home, |name| std::env::var(name).ok())
    }

    /// The settings of a user with this home folder and these variables.
    pub fn below(home: &Path, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let folders = ModelFolders::below(home, |name| variable(name).map(PathBuf::from));
        let is_on = |name: &str| set(name).is_some_and(|text| is_yes(&text));
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let token_file = set("HF_TOKEN_PATH").map_or_else(|| folders.hub_home.join("token"), PathBuf::from);
        let of_file = || std::fs::read_to_string(token_file).ok().map(|text| text.trim().to_owned());
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).or_else(of_file);
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()).map(HubToken),
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
            cache: folders.hub,
            ollama: folders.ollama,
            studio: folders.studio.into(),
            connections: CONNECTIONS,
        }
    }
}

/// Whether the value of a variable means yes, by the rules of Hugging Face's tools.
fn is_yes(text: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|yes| text.eq_ignore_ascii_case(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> HubSettings {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".cache/huggingface")).unwrap();
        std::fs::write(home.path().join(".cache/huggingface/token"), "of-the-file\n").unwrap();
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        HubSettings::below(home.path(), value)
    }

    #[test]
    fn op_6_the_variables_of_hugging_faces_tools_count() {
        let usual = with(&[]);
        assert_eq!((usual.endpoint.as_str(), usual.offline), ("https://huggingface.co", false));
        assert!(usual.cache.ends_with(".cache/huggingface/hub"));
        assert_eq!(usual.token.unwrap().secret(), "of-the-file");
        let set = with(&[
            ("HF_ENDPOINT", "http://127.0.0.1:9/"),
            ("HF_TOKEN", " hf_x "),
            ("HF_HUB_OFFLINE", "ON"),
            ("HF_HOME", "/far"),
        ]);
        assert_eq!((set.endpoint.as_str(), set.offline), ("http://127.0.0.1:9", true));
        assert_eq!(set.cache, Path::new("/far/hub"));
        assert_eq!(set.token.clone().unwrap().secret(), "hf_x");
        assert!(!format!("{set:?}").contains("hf_x"), "a token is not printed");
        assert_eq!(with(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/far")]).cache, Path::new("/c"));
        assert!(!with(&[("HF_HUB_OFFLINE", "0")]).offline);
    }
}
