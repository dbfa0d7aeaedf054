//! The structure of the crates: the edges between them, no circle between files or folders, and a limit on the length
//! of files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::modules::{Crate, circles};
use crate::sources::{files, root};

/// The most lines of a file, without its tests.
const LONGEST_FILE: usize = 500;

/// The folders of the crates' sources.
fn crates() -> Vec<PathBuf> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    members.iter().map(|member| root().join(member.as_str().unwrap()).join("src")).collect()
}

/// The crates whose manifests name each crate of the workspace.
fn users(members: &[PathBuf]) -> BTreeMap<String, BTreeSet<String>> {
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for member in members {
        let manifest = std::fs::read_to_string(member.parent().unwrap().join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let name = manifest["package"]["name"].as_str().unwrap();
        let tables =
            ["dependencies", "dev-dependencies"].into_iter().filter_map(|table| manifest.get(table)?.as_table());
        for dependency in tables.flat_map(|table| table.keys()).filter(|key| key.starts_with("model-boss")) {
            users.entry(dependency.clone()).or_default().insert(name.to_owned());
        }
    }
    users
}

/// The roots of a crate's library and programs.
fn roots(source: &Path) -> Vec<PathBuf> {
    let usual = ["lib.rs", "main.rs"].map(|name| source.join(name));
    let programs = std::fs::read_dir(source.join("bin")).into_iter().flatten();
    let programs = programs.map(|entry| entry.unwrap().path()).map(|path| match path.is_dir() {
        true => path.join("main.rs"),
        false => path,
    });
    usual.into_iter().chain(programs).filter(|path| path.is_file()).collect()
}

/// The folders from the root of a crate down to a file. A folder's own file represents the folder.
fn place(file: &str) -> Vec<&str> {
    let mut place: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    if matches!(place.last(), Some(&("mod" | "lib" | "main"))) {
        place.pop();
    }
    place
}

/// The name of a folder's own file among its entries.
const ITSELF: &str = "(its own file)";

/// Arrows between the entries of each folder.
fn within_folders(arrows: &BTreeSet<(String, String)>) -> BTreeMap<String, BTreeSet<(String, String)>> {
    let mut folders: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for (from, to) in arrows {
        let (from, to) = (place(from), place(to));
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let entry = |place: &[&str]| (*place.get(shared).unwrap_or(&ITSELF)).to_owned();
        folders.entry(from[..shared].join("/")).or_default().insert((entry(&from), entry(&to)));
    }
    folders
}

#[test]
fn deny_toml_lists_the_edges_between_our_crates() {
    let rules = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let rules: toml::Table = rules.parse().unwrap();
    let texts = |value: &toml::Value| -> BTreeSet<String> {
        value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let listed = rules["bans"]["deny"].as_array().unwrap().iter().filter_map(|rule| {
        let name = rule["crate"].as_str().unwrap();
        name.starts_with("model-boss").then(|| (name.to_owned(), texts(&rule["wrappers"])))
    });
    let mut users = users(&crates());
    // Every crate may use the protocol.
    users.remove("model-boss-protocol");
    assert_eq!(listed.collect::<BTreeMap<_, _>>(), users, "an edge belongs into deny.toml and ARCHITECTURE.md");
}

#[test]
fn no_circle_is_between_the_files_or_the_folders_of_a_crate() {
    let mut faults = Vec::new();
    for source in crates() {
        for file in roots(&source) {
            let base = file.parent().unwrap();
            let name = |path: &Path| path.strip_prefix(base).unwrap().to_string_lossy().replace('\\', "/");
            let named = Crate::read(&file).arrows();
            let arrows = named.keys().map(|(from, to)| (name(from), name(to))).collect();
            let shown = base.strip_prefix(root()).unwrap().display();
            for circle in circles(&arrows) {
                faults.push(format!("{shown}: these files name each other: {circle:?}"));
                let ties = named.iter().map(|((from, to), what)| (name(from), name(to), what));
                let ties = ties.filter(|(from, to, _)| circle.contains(from) && circle.contains(to));
                faults.extend(ties.map(|(from, to, what)| format!("    {from} -> {to}: {what:?}")));
            }
            for (folder, arrows) in within_folders(&arrows) {
                let circles = circles(&arrows).into_iter();
                faults.extend(circles.map(|circle| format!("{shown}/{folder}: a circle of its entries {circle:?}")));
            }
        }
    }
    assert!(faults.is_empty(), "what several files use belongs into a file below them:\n{}", faults.join("\n"));
}

#[test]
fn entries_of_a_folder_are_compared_and_its_own_file_is_one_of_them() {
    let arrows = [("a/mod.rs", "a/b.rs"), ("a/b.rs", "a/mod.rs"), ("a/b.rs", "c/d/e.rs"), ("lib.rs", "a/b.rs")];
    let arrows = arrows.map(|(from, to)| (from.to_owned(), to.to_owned())).into();
    let folders = within_folders(&arrows);
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(folders["a"], [pair(ITSELF, "b"), pair("b", ITSELF)].into());
    assert_eq!(folders[""], [pair("a", "c"), pair(ITSELF, "a")].into());
}

#[test]
fn no_file_is_too_long() {
    let is_ours = |path: &str| path.contains("/src/") && !path.contains("/tests");
    let length = |text: &str| text.lines().take_while(|line| !line.starts_with("mod tests {")).count();
    let sources = files(&[".rs"]).into_iter().filter(|source| is_ours(&source.path));
    let long = sources.map(|source| (length(&source.text), source.path)).filter(|(lines, _)| *lines > LONGEST_FILE);
    let long: Vec<_> = long.map(|(lines, path)| format!("{path}: {lines} lines")).collect();
    assert!(long.is_empty(), "at most {LONGEST_FILE} lines beside its tests:\n{}", long.join("\n"));
}
