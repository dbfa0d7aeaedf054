//! Links and paths in the documents lead to existing files and headings.

use crate::sources::{Source, files, root};

/// Top-level folders, by which a path in a text is recognised.
const TOP: [&str; 9] =
    ["clients/", "coordinator/", "docs/", "fuzz/", "manifests/", "protocol/", "scripts/", "tests/", "worker/"];

/// The anchor of a heading: lower-case letters, hyphens for spaces, no other characters.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    headings.map(anchor).any(|anchor| anchor == wanted)
}

/// The target of a link, from the root, and its anchor.
fn target(page: &Source, link: &str) -> (String, String) {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let mut parts: Vec<&str> = page.path.split('/').collect();
    if !path.is_empty() {
        parts.pop();
    }
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    (parts.join("/"), anchor.to_owned())
}

#[test]
fn every_link_in_a_document_leads_somewhere() {
    let pages = files(&[".md"]);
    let mut faults = Vec::new();
    for page in &pages {
        for link in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = target(page, link);
            let known = pages.iter().find(|other| other.path == path);
            let leads = root().join(&path).exists()
                && known.is_none_or(|page| has_anchor(&page.text, &anchor) || anchor.is_empty());
            if !leads {
                faults.push(format!("{}: {link}", page.path));
            }
        }
    }
    assert!(faults.is_empty(), "links that lead nowhere:\n{}", faults.join("\n"));
}

#[test]
fn every_path_in_a_document_exists() {
    let mut faults = Vec::new();
    // Decision records and the changelog describe earlier versions too.
    for page in files(&[".md"]).iter().filter(|page| page.path != "CHANGELOG.md" && !page.path.contains("/adr/0")) {
        for path in page.text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let path = path.split(' ').next().unwrap_or_default();
            let is_path = TOP.iter().any(|top| path.starts_with(top)) && !path.contains('*');
            if is_path && !root().join(path).exists() && !root().join(format!("{path}.rs")).exists() {
                faults.push(format!("{}: {path}", page.path));
            }
        }
    }
    assert!(faults.is_empty(), "paths that are not there:\n{}", faults.join("\n"));
}

#[test]
fn every_test_that_holds_a_fault_exists() {
    let checks = std::fs::read_to_string(root().join("docs/checks.md")).unwrap();
    let table = checks.split("## Faults of the audit").nth(1).expect("the section is there");
    let code: String = files(&[".rs", ".py"]).iter().map(|source| source.text.as_str()).collect();
    let named =
        table.lines().filter_map(|row| row.split('|').nth(2)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let tests = named.filter_map(|name| name.rsplit("::").next()).filter(|name| name.matches('_').count() > 2);
    let missing: Vec<&str> = tests
        .filter(|name| !name.contains('…'))
        .filter(|name| !code.contains(&format!("fn {name}(")) && !code.contains(&format!("def {name}(")))
        .collect();
    assert!(missing.is_empty(), "docs/checks.md names tests that are not there: {missing:?}");
}
