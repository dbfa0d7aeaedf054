//! The page docs/requirements.md: every requirement, its code, and the tests that carry its id in their names.
//!
//! The page is generated from docs/requirements.toml and the names of the tests, and an outdated page fails here. With
//! `MODEL_BOSS_WRITE_DOCS=1` the test writes the page instead.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::fs;

use serde::Deserialize;

use crate::sources::{Test, files, root, tests};

const WRITE: &str = "MODEL_BOSS_WRITE_DOCS";

/// The content of docs/requirements.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirements {
    area: Vec<Area>,
    requirement: Vec<Requirement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Area {
    id: String,
    title: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    id: String,
    /// The requirement, in a sentence or two.
    text: String,
    /// Files and folders that implement the requirement.
    #[serde(default)]
    code: Vec<String>,
    /// Scripts that measure the requirement, where a test cannot.
    #[serde(default)]
    checks: Vec<String>,
    /// The part that is not built, or that no test covers.
    missing: Option<String>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum State {
    Held,
    InPart,
    Missing,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::InPart => "held in part",
            Self::Missing => "missing",
        }
    }
}

impl Requirements {
    fn read() -> Self {
        toml::from_str(&fs::read_to_string(root().join("docs/requirements.toml")).unwrap()).unwrap()
    }

    fn area_ids(&self) -> Vec<&str> {
        self.area.iter().map(|area| area.id.as_str()).collect()
    }

    fn of<'a>(&'a self, area: &'a Area) -> impl Iterator<Item = &'a Requirement> {
        self.requirement.iter().filter(|one| one.area() == area.id)
    }
}

impl Requirement {
    fn area(&self) -> &str {
        self.id.split('-').next().unwrap()
    }

    fn state(&self, tests: usize) -> State {
        match (tests, &self.missing) {
            (0, _) => State::Missing,
            (_, Some(_)) => State::InPart,
            (_, None) => State::Held,
        }
    }
}

/// Ids such as `RC-20` in a name such as `rc_20_a_footprint_only_rises`, wherever they are in it.
fn ids_in_name(areas: &[&str], name: &str) -> Vec<String> {
    let words: Vec<&str> = name.split('_').collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    words
        .windows(2)
        .filter(|pair| areas.iter().any(|area| area.eq_ignore_ascii_case(pair[0])) && is_number(pair[1]))
        .map(|pair| format!("{}-{}", pair[0].to_uppercase(), pair[1]))
        .collect()
}

/// Ids such as `RC-20` in a text, each with the number of its line.
fn ids_in_text(areas: &[&str], text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (start, _) in line.match_indices('-') {
            let before: String = line[..start].chars().rev().take_while(char::is_ascii_alphanumeric).collect();
            let before: String = before.chars().rev().collect();
            let digits: String = line[start + 1..].chars().take_while(char::is_ascii_digit).collect();
            if areas.contains(&before.as_str()) && !digits.is_empty() {
                found.push((number + 1, format!("{before}-{digits}")));
            }
        }
    }
    found
}

/// The tests of each id by file, in an order that moving a test does not change.
type Carriers = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn carriers(areas: &[&str], tests: &[Test]) -> Carriers {
    let mut carriers = Carriers::new();
    for test in tests {
        for id in ids_in_name(areas, &test.name) {
            carriers.entry(id).or_default().entry(test.path.clone()).or_default().insert(test.name.clone());
        }
    }
    carriers
}

fn page(requirements: &Requirements, carriers: &Carriers) -> String {
    let count = |id: &str| carriers.get(id).map_or(0, |files| files.values().map(BTreeSet::len).sum());
    let mut out = String::from(
        "# Requirements\n\n\
         This page is made from [requirements.toml](requirements.toml) and the names of the tests. Edit those,\n\
         then run `MODEL_BOSS_WRITE_DOCS=1 cargo test -p model-boss-tests --test tidy`.\n\n\
         A test carries the id of what it holds, as `rc_20_a_footprint_only_rises` does. *Held in part*:\n\
         tests hold some of it, and the rest is named. *Missing*: no test carries the id, and the page says why.\n\n\
         | area | requirements | held | held in part | missing |\n|---|---|---|---|---|\n",
    );
    for area in &requirements.area {
        let states: Vec<State> = requirements.of(area).map(|one| one.state(count(&one.id))).collect();
        let of = |state| states.iter().filter(|one| **one == state).count();
        let (held, in_part, missing) = (of(State::Held), of(State::InPart), of(State::Missing));
        let (id, title, all) = (&area.id, &area.title, states.len());
        writeln!(out, "| {id}: {title} | {all} | {held} | {in_part} | {missing} |").unwrap();
    }
    for area in &requirements.area {
        writeln!(out, "\n## {}: {}", area.id, area.title).unwrap();
        for one in requirements.of(area) {
            out.push_str(&section(one, one.state(count(&one.id)), carriers.get(&one.id)));
        }
    }
    out
}

fn section(one: &Requirement, state: State, tests: Option<&BTreeMap<String, BTreeSet<String>>>) -> String {
    let mut out = format!("\n### {}\n\n{}\n\n- State: {}\n", one.id, one.text.trim(), state.word());
    if !one.code.is_empty() {
        writeln!(out, "- Code: {}", quoted(&one.code)).unwrap();
    }
    if !one.checks.is_empty() {
        writeln!(out, "- Measured by: {}", quoted(&one.checks)).unwrap();
    }
    if let Some(missing) = &one.missing {
        writeln!(out, "- Missing: {}", missing.trim()).unwrap();
    }
    for (path, names) in tests.into_iter().flatten() {
        writeln!(out, "- Tests in `{path}`: {}", quoted(names)).unwrap();
    }
    out
}

fn quoted<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    texts.into_iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
}

#[test]
fn every_requirement_has_a_test_or_says_what_is_missing() {
    let requirements = Requirements::read();
    let areas = requirements.area_ids();
    let carriers = carriers(&areas, &tests());
    let mut faults = Vec::new();
    let mut seen = HashSet::new();
    for one in &requirements.requirement {
        let id = &one.id;
        if !seen.insert(id.clone()) || ids_in_text(&areas, id) != [(1, id.clone())] {
            faults.push(format!("'{id}' is there twice, or is no id of an area"));
        }
        if !carriers.contains_key(id) && one.missing.is_none() {
            let name = id.to_lowercase().replace('-', "_");
            faults.push(format!("{id}: no test's name has {name}: write one, or say in 'missing' what is not there"));
        }
        if one.code.is_empty() && one.missing.is_none() {
            faults.push(format!("{id}: 'code' names no file"));
        }
        for path in one.code.iter().chain(&one.checks).filter(|path| !root().join(path).exists()) {
            faults.push(format!("{id}: there is no '{path}'"));
        }
    }
    for (id, files) in carriers.iter().filter(|(id, _)| !seen.contains(*id)) {
        faults.push(format!("{id}, in a test's name, is no requirement: {files:?}"));
    }
    assert!(faults.is_empty(), "docs/requirements.toml:\n{}", faults.join("\n"));
}

#[test]
fn every_requirement_that_is_named_exists() {
    let requirements = Requirements::read();
    let known: HashSet<&str> = requirements.requirement.iter().map(|one| one.id.as_str()).collect();
    let faults: Vec<String> = files(&[".rs", ".md", ".py", ".toml", ".yaml"])
        .iter()
        .flat_map(|source| {
            let ids = ids_in_text(&requirements.area_ids(), &source.text);
            ids.into_iter().map(|(line, id)| (format!("{}:{line}", source.path), id)).collect::<Vec<_>>()
        })
        .filter(|(_, id)| !known.contains(id.as_str()))
        .map(|(place, id)| format!("{place}: {id} is no requirement of docs/requirements.toml"))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_page_of_requirements_is_up_to_date() {
    let requirements = Requirements::read();
    let now = page(&requirements, &carriers(&requirements.area_ids(), &tests()));
    let path = root().join("docs/requirements.md");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &now).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let first = now.lines().zip(committed.lines()).position(|(now, committed)| now != committed);
    let line = first.unwrap_or_else(|| now.lines().count().min(committed.lines().count())) + 1;
    assert!(
        committed == now,
        "docs/requirements.md is out of date from line {line}; \
         {WRITE}=1 cargo test -p model-boss-tests --test tidy writes it"
    );
}

#[test]
fn ids_are_read_from_names_and_texts() {
    let areas = ["RC", "LE"];
    assert_eq!(ids_in_name(&areas, "rc_4_rc_5_the_queue_agrees"), ["RC-4", "RC-5"]);
    assert_eq!(ids_in_name(&areas, "test_le_2_it_waits"), ["LE-2"]);
    assert!(ids_in_name(&areas, "src_4_and_rc_alone").is_empty());
    let text = "as RC-4 says\n(LE-2), utf-8, SRC-4, RC-x\n";
    assert_eq!(ids_in_text(&areas, text), [(1, "RC-4".to_owned()), (2, "LE-2".to_owned())]);
}
