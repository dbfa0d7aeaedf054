//! The rows of the table of routes.

use crate::operation::{ErrorDialect, ID, Operation, RowOperations};

/// The callers of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAccess {
    /// Every caller.
    Public,
    /// Callers with a key for one of these scopes, where there are keys.
    Scopes {
        /// The names of the scopes.
        names: Vec<&'static str>,
        /// Whether the route takes `Content-Type: application/json` only, with a body or without.
        json_only: bool,
    },
}

/// A row of the table of routes.
#[derive(Clone, Debug)]
pub struct DescribedRoute {
    /// The method, such as `GET`.
    pub method: &'static str,
    /// The path, whose end may be `{*id}`.
    pub path: String,
    /// Further paths that lead to the same handler.
    pub also_at: Vec<String>,
    /// The callers of the route.
    pub access: RouteAccess,
    /// The shape of its errors.
    pub dialect: ErrorDialect,
    /// Its operations: several where the path behind an id has a verb.
    pub operations: RowOperations,
}

impl DescribedRoute {
    /// The path of one operation as the document has it.
    pub(crate) fn path_of(&self, operation: &Operation) -> String {
        match self.path.split_once("{*") {
            Some((head, _)) => format!("{head}{{{ID}}}{}", operation.tail),
            None => self.path.clone(),
        }
    }
}

/// The methods of a path, for `Allow`: those of the operations that the path means. Behind an id, a verb of the table
/// means its own operations only.
pub fn methods_of(routes: &[DescribedRoute], path: &str) -> Vec<&'static str> {
    let mut found: Vec<(&str, &'static str)> = Vec::new();
    for route in routes {
        let paths = std::iter::once(&route.path).chain(&route.also_at);
        let rests: Vec<&str> = paths
            .filter_map(|pattern| match pattern.split_once("{*") {
                Some((head, _)) => path.strip_prefix(head),
                None => (pattern == path).then_some(""),
            })
            .collect();
        for operation in &route.operations.0 {
            if rests.iter().any(|rest| rest.ends_with(operation.tail)) {
                found.push((operation.tail, route.method));
            }
        }
    }
    let has_verb = found.iter().any(|(tail, _)| !tail.is_empty());
    let mut methods: Vec<&'static str> = Vec::new();
    for (_, method) in found.into_iter().filter(|(tail, _)| tail.is_empty() != has_verb) {
        let with_head = if method == "GET" { &["GET", "HEAD"][..] } else { std::slice::from_ref(&method) };
        methods.extend_from_slice(with_head);
    }
    methods
}
