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
/// means its own operations only. A path of the table is no id of another.
pub fn methods_of(routes: &[DescribedRoute], path: &str) -> Vec<&'static str> {
    let mut all = routes.iter().flat_map(|route| std::iter::once(&route.path).chain(&route.also_at));
    let has_own = all.any(|pattern| pattern == path);
    let mut found: Vec<(&str, &'static str)> = Vec::new();
    for route in routes {
        let paths = std::iter::once(&route.path).chain(&route.also_at);
        let rests: Vec<&str> = paths
            .filter_map(|pattern| match pattern.split_once("{*") {
                Some((head, _)) => path.strip_prefix(head).filter(|_| !has_own),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Tag;

    fn route(method: &'static str, path: &str, tails: &[&'static str]) -> DescribedRoute {
        let of = |tail: &&'static str| Operation::new(Tag::Jobs, "x", "does something").behind_id(tail);
        DescribedRoute {
            method,
            path: path.to_owned(),
            also_at: Vec::new(),
            access: RouteAccess::Public,
            dialect: ErrorDialect::OpenAi,
            operations: RowOperations(tails.iter().map(of).collect()),
        }
    }

    #[test]
    fn op_8_a_paths_own_methods_are_not_those_of_an_id() {
        let routes = [
            route("POST", "/r/count", &[""]),
            route("GET", "/r/{*id}", &[""]),
            route("POST", "/r/{*id}", &["/cancel"]),
        ];
        assert_eq!(methods_of(&routes, "/r/count"), ["POST"]);
        assert_eq!(methods_of(&routes, "/r/7"), ["GET", "HEAD"]);
        assert_eq!(methods_of(&routes, "/r/7/cancel"), ["POST"]);
        assert!(methods_of(&routes, "/other").is_empty());
    }
}
