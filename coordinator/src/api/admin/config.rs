//! `GET` and `PUT /api/v1/config`: settings that change while the process runs (TR-4).

use std::borrow::Cow;

use axum::response::Response;
use http::header::{ETAG, HeaderValue, IF_MATCH};
use model_boss_http::body;
use model_boss_http::path::parameter;
use model_boss_protocol::ApiError;
use model_boss_settings::{Detail, Expected, ShownValues, key_schemas};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::api::route::Call;
use crate::refusals::of_settings;

/// A change of settings: some keys with their new values, `null` for the configuration's.
pub(crate) struct ConfigChange;

/// The values in use by key; with their sources, each is an object. `ignored` has stored values that are not used.
pub(crate) struct ConfigValues;

/// Whether something is wanted, in a query.
#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) enum ConfigFlag {
    #[schemars(rename = "0")]
    No,
    #[schemars(rename = "1")]
    Yes,
    #[schemars(rename = "false")]
    False,
    #[schemars(rename = "true")]
    True,
}

impl JsonSchema for ConfigChange {
    fn schema_name() -> Cow<'static, str> {
        "ConfigChange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let or_null = |(name, schema)| (name, json!({ "anyOf": [schema, { "type": "null" }] }));
        let properties: Map<String, Value> = key_schemas().into_iter().map(or_null).collect();
        json_schema!({
            "description": "Some keys with their new values; null is the configuration's value.",
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
        })
    }
}

impl JsonSchema for ConfigValues {
    fn schema_name() -> Cow<'static, str> {
        "ConfigValues".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let shown = |(name, schema)| {
            let value = json!({ "anyOf": [schema, { "type": "null" }] });
            let with_source = json!({
                "type": "object",
                "properties": { "value": value, "default": value, "origin": { "type": "string" } },
                "required": ["value", "default", "origin"],
            });
            (name, json!({ "anyOf": [value, with_source] }))
        };
        let mut properties: Map<String, Value> = key_schemas().into_iter().map(shown).collect();
        let required: Vec<String> = properties.keys().cloned().collect();
        properties
            .insert("ignored".to_owned(), json!({ "type": "object", "additionalProperties": { "type": "string" } }));
        json_schema!({
            "description": "The values in use by key; with their sources, each is an object.",
            "type": "object",
            "properties": properties,
            "required": required,
        })
    }
}

/// The values in use; `?origin=1` shows each with its configured value and its source.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let detail = match parameter(call.request.uri(), "origin").as_deref() {
        None | Some("0" | "false") => Detail::Values,
        Some("1" | "true") => Detail::Origins,
        Some(other) => return Err(ApiError::invalid("origin", format!("'origin' must be 1 or 0, not '{other}'"))),
    };
    answer(&call.context.config.show(detail))
}

/// Changes the given keys and no others; `null` restores the configuration's value. With `If-Match`, the change applies
/// only to the version that the client has read; `*` replaces even a document that this version does not understand.
pub(crate) async fn change(mut call: Call) -> Result<Response, ApiError> {
    let expected = call.request.headers().get(IF_MATCH).map_or(Ok(Expected::Readable), expected)?;
    let changes: Map<String, Value> = call.body().await?.parse().await?;
    answer(&call.context.config.put(&changes, expected).await.map_err(of_settings)?)
}

fn answer(shown: &ShownValues) -> Result<Response, ApiError> {
    let mut response = body::json(&shown.body)?;
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", shown.version)) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// The version in a header: `"7"`, `7`, or `*` for any.
fn expected(value: &HeaderValue) -> Result<Expected, ApiError> {
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(Expected::Anything);
    }
    let number = text.strip_prefix("W/").unwrap_or(text).trim_matches('"').parse();
    number.map(Expected::Version).map_err(|_| {
        ApiError::invalid("If-Match", format!("'If-Match' must be the ETag of GET /api/v1/config, not '{text}'"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_an_etag_a_number_or_a_star() {
        let read = |text| expected(&HeaderValue::from_static(text)).ok();
        assert_eq!(read("\"7\""), Some(Expected::Version(7)));
        assert_eq!(read("W/\"7\""), Some(Expected::Version(7)));
        assert_eq!(read("7"), Some(Expected::Version(7)));
        assert_eq!(read("*"), Some(Expected::Anything));
        assert_eq!(read("\"abc\""), None);
        assert_eq!(read(""), None);
    }
}
