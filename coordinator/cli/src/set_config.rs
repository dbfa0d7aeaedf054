//! `model-boss config get` and `set`: the settings that can be changed while the coordinator runs.

use clap::Args;
use http::Method;
use model_boss_client::Client;
use serde_json::{Map, Value};

use super::error::CliError;
use super::tables::{pretty, table, text};

/// The answer's field of stored values that are not used, by key, with the reason.
const IGNORED: &str = "ignored";

/// Arguments of `config get`.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// One key; without it, all keys.
    key: Option<String>,
    /// Also show the configured values, and their sources.
    #[arg(long)]
    origin: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `config set`.
#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// Changes such as `maxQueue=100`, `allowCloudFallback=false`; `KEY=null` restores the configured value.
    #[arg(required = true, value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Replace a stored document that the coordinator does not understand.
    #[arg(long)]
    replace: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Shows the values in use.
pub(super) async fn get(client: &Client, args: &GetArgs) -> Result<String, CliError> {
    let answer = client.get("/api/v1/config?origin=1").await?;
    let mut all = answer.as_object().cloned().unwrap_or_default();
    let ignored = all.remove(IGNORED);
    let wanted = match &args.key {
        None => all,
        Some(key) => {
            let value = all
                .get(key)
                .ok_or_else(|| CliError::NoSuchKey(key.clone(), all.keys().cloned().collect::<Vec<_>>().join(", ")))?;
            Map::from_iter([(key.clone(), value.clone())])
        }
    };
    let plain = |value: &Value| if args.origin { value.clone() } else { value["value"].clone() };
    let unused = ignored.filter(|_| args.key.is_none());
    if args.json {
        let mut shown: Map<String, Value> = wanted.iter().map(|(key, value)| (key.clone(), plain(value))).collect();
        shown.extend(unused.map(|unused| (IGNORED.to_owned(), unused)));
        return Ok(pretty(&Value::Object(shown)));
    }
    let of_newer: String = unused
        .iter()
        .filter_map(Value::as_object)
        .flatten()
        .map(|(_, why)| format!("not used: {}\n", text(why)))
        .collect();
    if let (Some(_), false) = (&args.key, args.origin) {
        return Ok(wanted.values().map(|value| format!("{}\n", text(&value["value"]))).collect());
    }
    if args.origin {
        let rows = wanted
            .iter()
            .map(|(key, value)| [key.clone(), text(&value["value"]), text(&value["default"]), text(&value["origin"])]);
        return Ok(table(["KEY", "VALUE", "CONFIGURED", "ORIGIN"], rows) + &of_newer);
    }
    let rows = wanted.iter().map(|(key, value)| [key.clone(), text(&value["value"])]);
    Ok(table(["KEY", "VALUE"], rows) + &of_newer)
}

/// Stores values.
pub(super) async fn set(client: &Client, args: &SetArgs) -> Result<String, CliError> {
    let changes: Map<String, Value> =
        args.changes.iter().map(|change| key_and_value(change)).collect::<Result<_, _>>()?;
    let keys: Vec<String> = changes.keys().cloned().collect();
    let changes = Value::Object(changes);
    let answer = if args.replace {
        client.replace("/api/v1/config", &changes).await?
    } else {
        client.ask(Method::PUT, "/api/v1/config", Some(&changes)).await?.1
    };
    if args.json {
        return Ok(pretty(&answer));
    }
    Ok(keys.iter().map(|key| format!("{key} = {}\n", text(&answer[key.as_str()]))).collect())
}

/// A key and its value: JSON where the text is valid JSON, else a string.
fn key_and_value(change: &str) -> Result<(String, Value), CliError> {
    let (key, value) = change.split_once('=').ok_or_else(|| CliError::NotAChange(change.to_owned()))?;
    let value = serde_json::from_str(value.trim()).unwrap_or_else(|_| Value::from(value.trim()));
    Ok((key.trim().to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_key_and_json_or_a_word() {
        let read = |text| key_and_value(text).unwrap();
        assert_eq!(read("maxQueue=100"), ("maxQueue".into(), 100.into()));
        assert_eq!(read("logLevel = debug"), ("logLevel".into(), "debug".into()));
        assert_eq!(read("maxQueue=null").1, Value::Null);
        assert_eq!(read("maxLoadedModels={\"llm\":2}").1["llm"], 2);
        assert!(key_and_value("maxQueue").is_err());
    }
}
