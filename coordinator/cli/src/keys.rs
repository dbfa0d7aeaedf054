//! `model-boss keys`: makes, lists and ends the API keys of clients. The commands edit the file of keys, which a
//! running coordinator follows; they need none.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use model_boss_access::{KeyDigest, KeyFile, KeyFileError, KeyLimits, KeyRecord, KeyScope, KeySecret, draw_key};
use model_boss_config::{Sources, environment};
use model_boss_host::clocks::unix_seconds;
use model_boss_host::terminal;
use model_boss_protocol::{ClientId, parse_span};
use serde_json::{Value, json};

use super::error::{CliError, KeysError};
use super::tables::{pretty, table};

/// The subcommands of `keys`.
#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Make a key for a client. It is printed once; the file holds its digest.
    Create(CreateArgs),
    /// List the clients with keys, their scopes and limits.
    List(ListArgs),
    /// Make a new key for a client, whose keys of before end after a time of grace.
    Rotate(RotateArgs),
    /// End every key of a client at once.
    Revoke(RevokeArgs),
}

/// The file that a command edits.
#[derive(Debug, Args)]
pub(super) struct KeyPlace {
    /// The file of keys; by default that of the configuration (`api_keys`).
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The configuration file [default: model-boss.toml, if it is there]
    #[arg(long, value_name = "FILE", env = "MODEL_BOSS_CONFIG")]
    config: Option<PathBuf>,
}

/// Arguments of `keys create`.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// The client's name, as `tasks.yaml` and statistics have it.
    name: String,
    /// The scopes of the key: inference, read, manage, lease, admin; several with commas.
    #[arg(long = "scope", value_delimiter = ',', default_value = "inference", value_name = "SCOPE")]
    scopes: Vec<KeyScope>,
    /// A model or task:NAME that it may ask for, `NAME*` for all that begin so; several by repeating it [default: all]
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// The most tokens of prompts and answers in a day of UTC.
    #[arg(long, value_name = "TOKENS")]
    daily_tokens: Option<u64>,
    /// The most that it may spend at cloud providers in a day, in US dollars.
    #[arg(long, value_name = "USD")]
    daily_spend: Option<f64>,
    /// The time after which the key is of no use, such as 30d [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    expires: Option<Duration>,
    #[command(flatten)]
    place: KeyPlace,
}

/// Arguments of `keys list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: KeyPlace,
}

/// Arguments of `keys rotate`.
#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    /// The client's name.
    name: String,
    /// The time for which its keys of before stay valid.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_span)]
    grace: Duration,
    /// The time after which the new key is of no use [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    expires: Option<Duration>,
    #[command(flatten)]
    place: KeyPlace,
}

/// Arguments of `keys revoke`.
#[derive(Debug, Args)]
pub(super) struct RevokeArgs {
    /// The client's name.
    name: String,
    #[command(flatten)]
    place: KeyPlace,
}

impl KeyPlace {
    fn path(&self) -> Result<PathBuf, CliError> {
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => {
                let sources = Sources { flags: Vec::new(), environment: environment(), file: self.config.clone() };
                Ok(sources.keys_file()?)
            }
        }
    }

    /// The file, which may not exist yet.
    fn open(&self) -> Result<(PathBuf, KeyFile), CliError> {
        let path = self.path()?;
        Ok((path.clone(), opened(&path)?))
    }
}

fn opened(path: &Path) -> Result<KeyFile, KeysError> {
    match KeyFile::read(path) {
        Err(KeyFileError::Read(_, error)) if error.kind() == ErrorKind::NotFound => Ok(KeyFile::default()),
        Err(KeyFileError::Empty(_)) => {
            let text = std::fs::read_to_string(path).map_err(|error| KeyFileError::Read(path.to_owned(), error))?;
            Ok(KeyFile::parse(path, &text)?)
        }
        read => Ok(read?),
    }
}

/// Runs a command; returns the text to print.
pub(super) fn run(command: KeysCommand) -> Result<String, CliError> {
    match command {
        KeysCommand::Create(args) => create(args),
        KeysCommand::List(args) => list(&args),
        KeysCommand::Rotate(args) => rotate(&args),
        KeysCommand::Revoke(args) => revoke(&args),
    }
}

fn create(args: CreateArgs) -> Result<String, CliError> {
    let (path, mut file) = args.place.open()?;
    let is_first = file.is_empty();
    let name = ClientId::from(args.name.as_str());
    if file.record_mut(&name).is_some() {
        return Err(KeysError::Exists(name).into());
    }
    let limits = KeyLimits {
        allowed_models: Some(args.models).filter(|models| !models.is_empty()),
        daily_tokens: args.daily_tokens,
        daily_spend_usd: args.daily_spend,
    };
    let (key, secret) = drawn(args.expires)?;
    let record = KeyRecord::new(name, args.scopes.into_iter().collect(), limits, secret);
    record.check().map_err(KeysError::Record)?;
    terminal::say(&format!("{}: {} Its digest is in {}.", record.name, words(&record), path.display()));
    if is_first {
        terminal::say(
            "It is the first key: from now on every request needs one, but those of model-boss's own commands.",
        );
    }
    file.add(record);
    file.write(&path).map_err(KeysError::File)?;
    Ok(format!("{key}\n"))
}

fn list(args: &ListArgs) -> Result<String, CliError> {
    let (path, file) = args.place.open()?;
    let now = unix_seconds();
    if args.json {
        let clients: Vec<Value> = file
            .records()
            .map(|record| {
                json!({
                    "name": record.name, "scopes": record.scopes, "limits": record.limits,
                    "keys": record.secrets.iter().filter(|key| key.is_valid(now))
                        .map(|key| json!({ "created": key.created, "expires": key.expires })).collect::<Vec<_>>(),
                })
            })
            .collect();
        let listed = json!({ "file": path, "clients": clients, "without_a_name": file.unnamed().count() });
        return Ok(pretty(&listed));
    }
    let or_all = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let rows = file.records().map(|record| {
        let scopes: Vec<&str> = record.scopes.iter().map(|scope| scope.as_str()).collect();
        let limits = &record.limits;
        let valid = record.secrets.iter().filter(|secret| secret.is_valid(now));
        let ends: Vec<String> = valid
            .map(|key| key.expires.map_or_else(|| "never".to_owned(), |at| left(at.saturating_sub(now))))
            .collect();
        [
            record.name.to_string(),
            scopes.join(","),
            or_all(limits.allowed_models.as_ref().map(|models| models.join(","))),
            or_all(limits.daily_tokens.map(|tokens| tokens.to_string())),
            or_all(limits.daily_spend_usd.map(|dollars| format!("${dollars}"))),
            if ends.is_empty() { "ended".to_owned() } else { ends.join(", ") },
        ]
    });
    let mut shown = table(["CLIENT", "SCOPES", "MODELS", "TOKENS/DAY", "USD/DAY", "EXPIRES"], rows);
    match file.unnamed().count() {
        0 => {}
        count => shown.push_str(&format!("{count} keys in the clear, without a name: they permit everything\n")),
    }
    Ok(shown)
}

fn rotate(args: &RotateArgs) -> Result<String, CliError> {
    let (path, mut file) = args.place.open()?;
    let name = ClientId::from(args.name.as_str());
    let now = unix_seconds();
    let (key, secret) = drawn(args.expires)?;
    let record = file.record_mut(&name).ok_or_else(|| KeysError::Unknown(name.clone(), path.clone()))?;
    record.rotate(secret, now.saturating_add(args.grace.as_secs()), now);
    record.check().map_err(KeysError::Record)?;
    file.write(&path).map_err(KeysError::File)?;
    terminal::say(&format!("{name}: its keys of before end in {} s.", args.grace.as_secs()));
    Ok(format!("{key}\n"))
}

fn revoke(args: &RevokeArgs) -> Result<String, CliError> {
    let (path, mut file) = args.place.open()?;
    let name = ClientId::from(args.name.as_str());
    if !file.remove(&name) {
        return Err(KeysError::Unknown(name, path).into());
    }
    file.write(&path).map_err(KeysError::File)?;
    let rest = if file.is_empty() { " No key is left; a coordinator that runs refuses every request." } else { "" };
    terminal::say(&format!("{name}: its keys have ended.{rest}"));
    Ok(String::new())
}

/// A new key, and what the file holds of it.
fn drawn(expires: Option<Duration>) -> Result<(String, KeySecret), KeysError> {
    let key = draw_key().map_err(KeysError::Random)?;
    let now = unix_seconds();
    let expires = expires.map(|after| now.saturating_add(after.as_secs()));
    let secret = KeySecret { sha256: KeyDigest::of(&key), created: now, expires };
    Ok((key, secret))
}

/// A time until the end of a key.
fn left(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("in {} min", seconds.div_ceil(60)),
        7_200..172_800 => format!("in {} h", seconds / 3_600),
        _ => format!("in {} d", seconds / 86_400),
    }
}

/// The scopes and limits of a key, in words.
fn words(record: &KeyRecord) -> String {
    let scopes: Vec<&str> = record.scopes.iter().map(|scope| scope.as_str()).collect();
    let limits = &record.limits;
    let mut text = format!("the key permits {}", scopes.join(", "));
    if let Some(models) = &limits.allowed_models {
        text.push_str(&format!(" with {}", models.join(", ")));
    }
    if let Some(tokens) = limits.daily_tokens {
        text.push_str(&format!(", {tokens} tokens a day"));
    }
    if let Some(dollars) = limits.daily_spend_usd {
        text.push_str(&format!(", ${dollars} a day at clouds"));
    }
    text.push('.');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_args(name: &str, file: &Path) -> CreateArgs {
        CreateArgs {
            name: name.to_owned(),
            scopes: vec![KeyScope::Inference],
            models: vec!["guide".to_owned()],
            daily_tokens: Some(100),
            daily_spend: Some(2.0),
            expires: None,
            place: place(file),
        }
    }

    fn place(file: &Path) -> KeyPlace {
        KeyPlace { file: Some(file.to_owned()), config: None }
    }

    #[test]
    fn op_5_keys_are_made_rotated_listed_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let key = create(create_args("anna", &file)).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(key.starts_with("mb-") && !text.contains(key.trim()), "{text}");
        assert!(create(create_args("anna", &file)).unwrap_err().to_string().contains("keys rotate anna"));
        assert!(create(create_args("default", &file)).unwrap_err().to_string().contains("choose another"));
        let list_args = |json| ListArgs { json, place: place(&file) };
        let shown = list(&list_args(false)).unwrap();
        assert!(shown.lines().nth(1).unwrap().split_whitespace().eq([
            "anna",
            "inference",
            "guide",
            "100",
            "$2",
            "never"
        ]));
        let grace = Duration::from_secs(60);
        let rotate_args = |name: &str| RotateArgs { name: name.into(), grace, expires: None, place: place(&file) };
        let second = rotate(&rotate_args("anna")).unwrap();
        assert_ne!(key, second);
        let listed: Value = serde_json::from_str(&list(&list_args(true)).unwrap()).unwrap();
        assert_eq!(listed["clients"][0]["keys"].as_array().unwrap().len(), 2, "both are valid for a minute");
        assert!(rotate(&rotate_args("bert")).unwrap_err().to_string().contains("no key of 'bert'"));
        let revoke_args = || RevokeArgs { name: "anna".to_owned(), place: place(&file) };
        revoke(&revoke_args()).unwrap();
        assert!(revoke(&revoke_args()).is_err());
        assert!(KeyFile::parse(&file, &std::fs::read_to_string(&file).unwrap()).unwrap().is_empty());
    }
}
