//! The files of the repository as text, and the names of the tests in them.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders with this repository's own files. Build outputs and files that git ignores are not in them.
const FOLDERS: [&str; 9] =
    ["clients", "coordinator", "docs", "fuzz", "manifests", "protocol", "scripts", "tests", "worker"];

/// The root of the repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// One file: its path from the root, with slashes, and its text.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

/// Every file whose name ends in one of `ends`, sorted by path.
pub(super) fn files(ends: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    for folder in FOLDERS {
        visit(&root.join(folder), ends, &mut found);
    }
    for entry in fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_file() && ends.iter().any(|end| entry.to_string_lossy().ends_with(end)) {
            found.push(entry);
        }
    }
    found.sort();
    let relative = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
    found.iter().map(|path| Source { path: relative(path), text: fs::read_to_string(path).unwrap() }).collect()
}

fn visit(folder: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && !name.starts_with('.') && name != "target" && name != "__pycache__" {
            visit(&path, ends, found);
        } else if kind.is_file() && ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// One test: its file and its name.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Test {
    pub(super) path: String,
    pub(super) name: String,
}

/// Every test of the repository, in the order of files and lines.
pub(super) fn tests() -> Vec<Test> {
    files(&[".rs", ".py"])
        .iter()
        .flat_map(|source| {
            let names =
                if source.path.ends_with(".rs") { rust_tests(&source.text) } else { python_tests(&source.text) };
            names.into_iter().map(|name| Test { path: source.path.clone(), name: name.to_owned() })
        })
        .collect()
}

/// The names of functions with a test attribute, also inside macros.
fn rust_tests(text: &str) -> Vec<&str> {
    let mut marked = false;
    let mut names = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        }
        let function =
            ["fn ", "async fn ", "pub fn ", "pub async fn "].iter().find_map(|start| line.strip_prefix(start));
        if let Some(name) = function.and_then(|rest| rest.split(['(', '<']).next())
            && std::mem::take(&mut marked)
        {
            names.push(name);
        }
    }
    names
}

fn python_tests(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim_start)
        .filter_map(|line| line.strip_prefix("async def ").or_else(|| line.strip_prefix("def ")))
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| name.starts_with("test_"))
        .collect()
}

#[test]
fn tests_are_found_by_their_attributes_and_names() {
    let rust = "#[test]\nfn a() {}\nfn helper() {}\n    #[tokio::test(start_paused = true)]\n    #[cfg(unix)]\n    \
                async fn b() {}\n        #[test]\n        fn c(x in 0..9u8) {}\n";
    assert_eq!(rust_tests(rust), ["a", "b", "c"]);
    let python = "def test_a():\n    pass\n\ndef helper():\n    pass\n\nasync def test_b(x):\n    pass\n";
    assert_eq!(python_tests(python), ["test_a", "test_b"]);
    assert!(tests().iter().any(|test| test.name == "tests_are_found_by_their_attributes_and_names"));
}

/// Attributes that exclude a test. They are composed here, so that this file contains none.
fn marks_of_left_out_tests() -> Vec<String> {
    [("#[", "ignore"), ("mark.", "skip"), ("mark.", "xfail"), ("unittest.", "skip")]
        .map(|(a, b)| format!("{a}{b}"))
        .into()
}

#[test]
fn no_test_is_left_out() {
    let marks = marks_of_left_out_tests();
    let mut faults = Vec::new();
    for source in files(&[".rs", ".py"]) {
        for (number, line) in source.text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                faults.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "a test that does not run holds nothing:\n{}", faults.join("\n"));
}
