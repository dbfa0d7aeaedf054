//! Names of types: each is the name of one type in the whole workspace, so that a word means one thing.

use std::collections::BTreeMap;

use crate::sources::files;

/// Folders with the crates of the product.
const PRODUCT: [&str; 3] = ["coordinator/", "protocol/", "worker/"];
/// Files that are no part of a program.
const BESIDE: [&str; 5] = ["/tests/", "/tests.rs", "/testing.rs", "/benches/", "/examples/"];

/// The types that a text defines before its tests.
fn types(text: &str) -> Vec<&str> {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut names = Vec::new();
    for line in product.lines() {
        let definition = line.trim_start();
        // Associated types are named by their trait.
        let is_inner = line.len() != definition.len();
        let public = definition.strip_prefix("pub").map(|rest| match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(')').map_or("", |(_, rest)| rest),
            None => rest,
        });
        let definition = public.unwrap_or(definition).trim_start();
        let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
        let named = kinds.iter().find_map(|kind| Some((kind, definition.strip_prefix(kind)?)));
        let Some((_, rest)) = named.filter(|(kind, _)| **kind != "type " || !is_inner) else { continue };
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if rest.starts_with(char::is_uppercase) {
            names.push(&rest[..end]);
        }
    }
    names
}

#[test]
fn types_are_found_by_their_definitions() {
    let text = "pub(crate) struct A<T> {\nstruct B;\n    pub enum C {\n    type D = u8;\ntype E = u8;\n// struct F\n\
                use x::G;\npub(in crate::a) trait H {\n#[cfg(test)]\nmod tests {\n    struct I;\n}\n";
    assert_eq!(types(text), ["A", "B", "C", "E", "H"]);
}

#[test]
fn no_type_name_has_two_meanings() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in files(&[".rs"]) {
        let path = format!("/{}", source.path);
        if !PRODUCT.iter().any(|folder| source.path.starts_with(folder))
            || BESIDE.iter().any(|part| path.contains(part))
        {
            continue;
        }
        for name in types(&source.text) {
            places.entry(name.to_owned()).or_default().push(source.path.clone());
        }
    }
    assert!(places.len() > 1_000, "{} types", places.len());
    places.retain(|_, files| {
        files.sort();
        files.dedup();
        files.len() > 1
    });
    assert!(places.is_empty(), "each of these names has several types; rename all but one: {places:#?}");
}
