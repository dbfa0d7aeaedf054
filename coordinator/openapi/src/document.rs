//! The OpenAPI document of a table of routes.

use serde_json::{Map, Value, json};

use crate::operation::{ErrorDialect, Operation, Parameter, ParameterPlace, Tag};
use crate::responses::{responses, shared_headers};
use crate::route::{DescribedRoute, RouteAccess};
use crate::schemas::{SchemaSide, Schemas};

/// The version of OpenAPI: its schemas are those of JSON Schema 2020-12.
const OPENAPI: &str = "3.1.0";

/// The document, as text.
#[derive(Clone, Debug)]
pub struct OpenApiDocument(Value);

impl OpenApiDocument {
    /// Describes these routes, in their order.
    pub fn of(version: &str, routes: &[DescribedRoute]) -> Self {
        let mut schemas = Schemas::new();
        let mut paths: Map<String, Value> = Map::new();
        for route in routes {
            for operation in &route.operations.0 {
                let item = paths.entry(route.path_of(operation)).or_insert_with(|| json!({}));
                item[route.method.to_ascii_lowercase()] = described(route, operation, &mut schemas);
                if !route.also_at.is_empty() {
                    item["x-also-at"] = json!(route.also_at);
                }
            }
        }
        let tags = Tag::ALL.map(|tag| json!({ "name": tag.name(), "description": tag.text() }));
        let mut document = json!({
            "openapi": OPENAPI,
            "info": {
                "title": "model-boss",
                "version": version,
                "description": "One door to every model of a machine. Routes under /v1 are also served under /api/v1 and \
                    without a prefix. docs/api.md describes the API in words, and docs/errors.md its errors.",
                "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
            },
            "servers": [{ "url": "/" }],
            "tags": tags,
            "paths": {},
        });
        document["paths"] = Value::Object(paths);
        let named = schemas.place(&mut document);
        document["components"] = json!({
            "schemas": named,
            "headers": shared_headers(),
            "securitySchemes": security_schemes(),
        });
        Self(document)
    }

    /// The document as a value.
    pub const fn value(&self) -> &Value {
        &self.0
    }
}

fn security_schemes() -> Value {
    json!({
        "bearer": { "type": "http", "scheme": "bearer", "description": "A key of this server; its name is the client. None is needed where there are none. One of the scopes named is needed, or `admin`." },
        "key": { "type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key, as Anthropic's clients send it." },
    })
}

fn described(route: &DescribedRoute, operation: &Operation, schemas: &mut Schemas) -> Value {
    let dialect = if operation.either_error { ErrorDialect::Either } else { route.dialect };
    let mut value = json!({
        "operationId": operation.id,
        "summary": plain(operation.text),
        "tags": [operation.tag.name()],
    });
    let parameters: Vec<Value> = operation.parameters.iter().map(|one| parameter(one, schemas)).collect();
    if !parameters.is_empty() {
        value["parameters"] = Value::Array(parameters);
    }
    if let Some(body) = &operation.body {
        let schema = schemas.of(SchemaSide::Request, body.schema);
        value["requestBody"] = json!({ "required": body.required, "content": { body.media: { "schema": schema } } });
    }
    value["responses"] = Value::Object(responses(operation, &route.access, dialect, schemas));
    value["security"] = match &route.access {
        RouteAccess::Public => json!([]),
        RouteAccess::Scopes { names, .. } => {
            names.iter().flat_map(|name| [json!({ "bearer": [name] }), json!({ "key": [name] })]).collect()
        }
    };
    value
}

fn parameter(one: &Parameter, schemas: &mut Schemas) -> Value {
    let place = match one.place {
        ParameterPlace::Path => "path",
        ParameterPlace::Query => "query",
        ParameterPlace::Header => "header",
    };
    json!({
        "name": one.name,
        "in": place,
        "required": one.place == ParameterPlace::Path,
        "description": one.text,
        "schema": schemas.of(SchemaSide::Request, one.schema),
    })
}

/// Markdown without its marks for code.
fn plain(text: &str) -> String {
    text.replace('`', "")
}
