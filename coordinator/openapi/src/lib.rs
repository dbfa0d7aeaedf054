//! The description of the HTTP API. Each route has an [`Operation`] as a value, whose bodies are types.
//! [`OpenApiDocument`] makes OpenAPI 3.1 of them, and [`route_table`] the tables of docs/api.md. [`shapes`] has the
//! bodies that the coordinator passes on and does not parse. The crate knows no handlers and no I/O.

mod document;
mod operation;
mod responses;
mod route;
mod schemas;
pub mod shapes;
mod table;

pub use document::OpenApiDocument;
pub use operation::{
    DescribedAnswer, DescribedContent, ErrorDialect, MakeSchema, Operation, Parameter, ParameterPlace, RequestContent,
    RowOperations, Tag,
};
pub use route::{DescribedRoute, RouteAccess, methods_of};
pub use table::{FieldsColumn, route_table};
