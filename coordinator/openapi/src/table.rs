//! Tables of routes for docs/api.md.

use serde_json::Value;

use crate::document::OpenApiDocument;
use crate::operation::{Operation, Tag};
use crate::route::{DescribedRoute, RouteAccess};

/// Whether a table lists the fields of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldsColumn {
    /// A column has the fields, the required ones in bold.
    Shown,
    /// The text of a route says what its body is.
    Hidden,
}

/// The rows of these parts of the API, as a table in Markdown. Paths have the place of an id in capitals.
pub fn route_table(
    routes: &[DescribedRoute],
    document: &OpenApiDocument,
    tags: &[Tag],
    fields: FieldsColumn,
) -> String {
    let mut table = match fields {
        FieldsColumn::Shown => "| route | scope | body | |\n|---|---|---|---|\n".to_owned(),
        FieldsColumn::Hidden => "| route | scope | |\n|---|---|---|\n".to_owned(),
    };
    for route in routes {
        for operation in route.operations.0.iter().filter(|operation| tags.contains(&operation.tag)) {
            table += &row(route, operation, document, fields);
        }
    }
    table
}

fn row(route: &DescribedRoute, operation: &Operation, document: &OpenApiDocument, fields: FieldsColumn) -> String {
    let path = route.path_of(operation);
    let scope = match &route.access {
        RouteAccess::Public => "–".to_owned(),
        RouteAccess::Scopes { names, .. } => {
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ")
        }
    };
    let see: Vec<String> = operation.see.iter().copied().map(link).collect();
    let see = if see.is_empty() { String::new() } else { format!(" ({})", see.join(", ")) };
    let first = format!("| `{} {}` | {scope} |", route.method, path.replace("{id}", "ID"));
    let text = operation.text.replace('|', "\\|");
    match fields {
        FieldsColumn::Hidden => format!("{first} {text}{see} |\n"),
        FieldsColumn::Shown => {
            let method = route.method.to_ascii_lowercase();
            let body =
                document.value()["paths"][&path][method].pointer("/requestBody/content/application~1json/schema");
            let fields = body.map(|schema| fields_of(schema, document)).filter(|fields| !fields.is_empty());
            format!("{first} {} | {text}{see} |\n", fields.unwrap_or_else(|| "–".to_owned()))
        }
    }
}

/// A link to a page, or to a heading of it.
fn link(page: &str) -> String {
    format!("[{}]({page})", page.split('#').next().unwrap_or_default())
}

/// The names of a body's fields.
fn fields_of(schema: &Value, document: &OpenApiDocument) -> String {
    let named = schema["$ref"].as_str().and_then(|target| document.value().pointer(target.strip_prefix('#')?));
    let schema = named.unwrap_or(schema);
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let fields = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| match required {
        ref required if required.contains(&name.as_str()) => format!("**`{name}`**"),
        _ => format!("`{name}`"),
    });
    fields.collect::<Vec<_>>().join(", ")
}
