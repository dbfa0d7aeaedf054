//! Models given as a file, a folder or a name. The module recognises paths, has a coordinator load them, and looks for
//! names in the folders of this machine. The coordinator decides which files make a model.

use std::path::{Path, PathBuf};

use model_boss_catalog::{Catalog, ManifestFolders};
use model_boss_client::{Client, ClientError, in_path};
use model_boss_protocol::ErrorCode;
use serde_json::{Value, json};

use super::error::CliError;
use super::flags::SettingFlags;

/// The absolute path that `text` means, or `None` if it is the name of a model. A text that begins like a path is one.
/// A text that could be either, such as one that ends in `.gguf`, is a name if the coordinator lists it.
pub(super) async fn meant(client: &Client, text: &str) -> Result<Option<PathBuf>, CliError> {
    let begins_like_one = ["/", "./", "../", "~/"].iter().any(|start| text.starts_with(start));
    let path = match text.strip_prefix("~/").zip(std::env::home_dir()) {
        Some((rest, home)) => home.join(rest),
        None => std::path::absolute(text).map_err(|_| CliError::NoSuchPath(text.into()))?,
    };
    if !begins_like_one && ![".", "..", "~"].contains(&text) {
        let could_be_one = path.exists() || text.to_lowercase().ends_with(".gguf");
        if !could_be_one || is_known(client, text).await? {
            return Ok(None);
        }
    }
    let path = if text == "~" { std::env::home_dir().unwrap_or(path) } else { path };
    if path.exists() { Ok(Some(path)) } else { Err(CliError::NoSuchPath(path)) }
}

/// Whether a coordinator runs and has a model of this name.
async fn is_known(client: &Client, name: &str) -> Result<bool, CliError> {
    match client.get(&format!("/v1/models/{}", in_path(name))).await {
        Ok(_) => Ok(true),
        Err(ClientError::Api(body)) if body.error.code.as_deref() == Some(ErrorCode::ModelNotFound.as_str()) => {
            Ok(false)
        }
        Err(ClientError::NoCoordinator(..)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a coordinator answers, without a word about the model: its name may be a task's.
pub(super) async fn named(client: &Client, name: &str) -> Result<(), CliError> {
    match client.get(&format!("/v1/models/{}", in_path(name))).await {
        Err(error @ ClientError::NoCoordinator(..)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The folders of this machine's models, if one has this name.
pub(super) fn folders_with(name: &str) -> Option<ManifestFolders> {
    let config = SettingFlags::default().sources().load().ok()?.config;
    let folders = ManifestFolders::of(&config);
    Catalog::read(folders.clone()).find(name).is_some().then_some(folders)
}

/// Has the coordinator add the files as a model and load it; returns the model's name. Files outside of the model roots
/// are loaded only for the user who runs the coordinator.
pub(super) async fn load(client: &Client, path: &Path) -> Result<String, CliError> {
    let path = path.to_str().ok_or_else(|| CliError::NotText(path.to_owned()))?;
    let body = json!({ "path": path, "wait": false });
    let answer = match client.post("/api/v1/load", &body).await {
        Err(ClientError::Api(refused)) => match client.owner_key() {
            Some(key) => client.post_as_owner("/api/v1/load", &body, &key).await,
            None => Err(ClientError::Api(refused)),
        },
        answer => answer,
    }?;
    let stranger = || ClientError::Stranger { url: client.url().to_owned(), status: 202 };
    answer.get("model_name").and_then(Value::as_str).map(str::to_owned).ok_or_else(|| stranger().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeCoordinator, ScriptedAnswer};

    /// Runs `meant` against a coordinator that lists every name, or none; returns the number of requests and the
    /// result.
    async fn asked(text: &str, knows: bool) -> (usize, Result<Option<PathBuf>, CliError>) {
        let answer = if knows {
            ScriptedAnswer::json(200, &json!({ "id": text }))
        } else {
            let error = json!({ "message": "no", "type": "x", "param": null, "code": "model_not_found" });
            ScriptedAnswer::json(404, &json!({ "error": error }))
        };
        let fake = FakeCoordinator::answering(vec![answer]).await.unwrap();
        let client = Client::new(&fake.url, None).unwrap();
        let meant = meant(&client, text).await;
        (fake.asked().len(), meant)
    }

    #[tokio::test]
    async fn names_and_paths_are_told_apart() {
        let here = std::env::current_dir().unwrap();
        // The tests run in the folder of this crate.
        for (text, path) in [
            ("./src", here.join("src")),
            ("../cli", here.join("../cli")),
            (".", here.clone()),
            (here.to_str().unwrap(), here.clone()),
        ] {
            let (asked, meant) = asked(text, true).await;
            assert_eq!((asked, meant.unwrap()), (0, Some(path)), "{text}");
        }
        for (text, knows, asks, path) in [
            ("src", true, 1, None),
            ("src", false, 1, Some(here.join("src"))),
            ("src/chat", false, 1, Some(here.join("src/chat"))),
            ("guide", true, 0, None),
            ("team/m:1", false, 0, None),
            ("m.gguf", true, 1, None),
        ] {
            let (asked, meant) = asked(text, knows).await;
            assert_eq!((asked, meant.unwrap()), (asks, path), "{text} {knows}");
        }
        for text in ["./nowhere", "/nowhere/x.gguf", "~/nowhere.gguf", "nowhere.gguf", "nowhere.GGUF"] {
            let error = asked(text, false).await.1.unwrap_err();
            assert!(matches!(&error, CliError::NoSuchPath(path) if path.is_absolute()), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn the_coordinator_is_asked_by_path_and_gives_the_name() {
        let answer = ScriptedAnswer::json(202, &json!({ "status": "loading", "model_name": "file:x" }));
        let fake = FakeCoordinator::answering(vec![answer]).await.unwrap();
        let client = Client::new(&fake.url, None).unwrap();
        assert_eq!(load(&client, Path::new("/m/x.gguf")).await.unwrap(), "file:x");
        let [request] = fake.asked().try_into().unwrap();
        assert_eq!(request.line, "POST /api/v1/load");
        assert_eq!(request.body, json!({ "path": "/m/x.gguf", "wait": false }));
    }
}
