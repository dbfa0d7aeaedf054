//! The secrets that this machine has, so that their text can be removed from a bundle.

use std::fs;
use std::path::Path;

use model_boss_config::model_folders::ModelFolders;
use model_boss_config::secrets::hidden_if_secret;
use model_boss_config::{Config, Provider};

/// The longest file of a secret that is read.
const LONGEST: u64 = 1 << 20;

/// The text of every secret that the settings, the environment and the usual files have.
pub(super) fn of_this_machine(config: &Config) -> Vec<String> {
    let mut secrets: Vec<String> =
        std::env::vars().filter(|(name, _)| hidden_if_secret(name).is_some()).map(|(_, value)| value).collect();
    for (name, spec) in config.providers.with_claude() {
        let provider = Provider::new(&name, spec);
        secrets.extend(provider.key().ok().flatten());
        secrets.extend(provider.key_variable().and_then(|name| std::env::var(name).ok()));
        secrets.extend(provider.key_file().into_iter().flat_map(words));
    }
    if let Some(url) = &config.redis_url {
        secrets.push(url.secret().to_owned());
        let credentials = url.secret().split_once("://").and_then(|(_, rest)| Some(rest.rsplit_once('@')?.0));
        secrets.extend(credentials.into_iter().flat_map(|credentials| credentials.split(':')).map(str::to_owned));
    }
    secrets.extend(words(&config.keys_file()).into_iter().filter(|word| word.len() >= 16));
    secrets.extend(words(&config.own_state_dir().join("owner.key")).into_iter().filter(|word| word.len() >= 16));
    secrets.extend(config.tls_key.iter().flat_map(|file| lines(file)));
    let home = std::env::home_dir().unwrap_or_default();
    let folders = ModelFolders::below(&home, |name| std::env::var_os(name).map(Into::into));
    let named = std::env::var_os("HF_TOKEN_PATH").map(Into::into);
    secrets.extend(words(&named.unwrap_or_else(|| folders.hub_home.join("token"))));
    secrets
}

fn words(file: &Path) -> Vec<String> {
    text(file).split_whitespace().flat_map(|word| word.split(['"', '\'', ',', '='])).map(str::to_owned).collect()
}

fn lines(file: &Path) -> Vec<String> {
    text(file).lines().filter(|line| !line.starts_with("-----")).map(str::to_owned).collect()
}

/// The text of a small file; empty where it cannot be read.
fn text(file: &Path) -> String {
    let is_small = file.metadata().is_ok_and(|about| about.is_file() && about.len() <= LONGEST);
    if is_small { fs::read_to_string(file).unwrap_or_default() } else { String::new() }
}
