//! The files name only each other, and nothing in them gets around the policy.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

fn text(file: &DashboardFile) -> &'static str {
    std::str::from_utf8(file.bytes).unwrap()
}

fn scripts() -> impl Iterator<Item = &'static DashboardFile> {
    ALL.iter().filter(|file| file.name.ends_with(".js"))
}

/// The parts of a text between a beginning and an end.
fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split_once(end)).map(|(inside, _)| inside)
}

#[test]
fn op_2_every_file_of_the_folder_is_served_and_no_other() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let there: BTreeSet<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let served: BTreeSet<String> = ALL.iter().map(|file| file.name.to_owned()).collect();
    assert_eq!(there, served, "add new files to the list in lib.rs");
    assert!(ALL.iter().all(|file| file.content_type != "application/octet-stream"));
    assert_eq!(page().name, "index.html");
    assert!(file("nobody.js").is_none());
}

#[test]
fn op_2_the_page_loads_its_own_files_only() {
    let html = text(page());
    let mut named = BTreeSet::new();
    for attribute in [" src=\"", " href=\""] {
        for target in between(html, attribute, "\"") {
            if target.starts_with('#') {
                continue;
            }
            let name = target.strip_prefix("/dashboard/").unwrap_or_else(|| panic!("{target} is not ours"));
            assert!(file(name).is_some(), "{target}");
            named.insert(name);
        }
    }
    // A module that is not preloaded is found only when another has arrived.
    for script in scripts() {
        assert!(named.contains(script.name), "index.html does not preload {}", script.name);
    }
    for script in scripts() {
        for target in between(text(script), " from \"", "\"") {
            let name = target.strip_prefix("./").unwrap_or_else(|| panic!("{}: {target}", script.name));
            assert!(file(name).is_some(), "{} imports {target}", script.name);
        }
    }
}

#[test]
fn op_2_the_policy_needs_no_exception() {
    let html = text(page());
    assert!(!html.contains("<style") && !html.contains(" style=") && !html.contains("javascript:"));
    assert!(between(html, "<script", ">").all(|tag| tag.contains(" src=")), "a script in the page");
    let handlers = [" onclick=", " onload=", " onerror=", " onsubmit=", " onchange="];
    assert!(handlers.iter().all(|handler| !html.contains(handler)));
    for exception in ["unsafe-inline", "unsafe-eval", "http:", "https:", "*"] {
        assert!(!CONTENT_SECURITY_POLICY.contains(exception));
    }
    for part in ["default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
        assert!(CONTENT_SECURITY_POLICY.contains(part));
    }
}

#[test]
fn op_2_no_script_makes_markup_from_text() {
    let forbidden = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "DOMParser",
    ];
    for script in scripts() {
        for word in forbidden {
            assert!(!text(script).contains(word), "{} uses {word}", script.name);
        }
    }
}

#[test]
fn op_2_tags_differ_with_the_content() {
    let tags: BTreeSet<&str> = ALL.iter().map(|file| file.etag.as_str()).collect();
    assert_eq!(tags.len(), ALL.len());
    assert!(tags.iter().all(|tag| tag.starts_with('"') && tag.ends_with('"') && tag.len() == 18));
}

#[test]
fn op_2_files_are_short_enough_to_read() {
    for file in ALL.iter() {
        let lines = text(file).lines().count();
        assert!(lines <= 500, "{} has {lines} lines", file.name);
        assert!(
            text(file).lines().all(|line| line.chars().count() <= 120),
            "{} has a line over 120 columns",
            file.name
        );
    }
}
