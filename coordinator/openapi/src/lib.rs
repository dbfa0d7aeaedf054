//! The description of the HTTP API. Each route has an [`Operation`] as a value, whose bodies are types; [`Document`]
//! makes OpenAPI 3.1 and the tables of docs/api.md of them. [`shapes`] has the bodies that the coordinator passes on
//! and does not parse. The crate knows no handlers and no I/O.

mod document;
mod operation;
mod responses;
mod schemas;
pub mod shapes;
mod table;

pub use document::{Access, DescribedRoute, Document, methods_of};
pub use operation::{
    Answer, Content, Described, ErrorDialect, Operation, Parameter, ParameterPlace, RequestContent, SchemaOf, Tag,
};
pub use table::{FieldsColumn, route_table};
