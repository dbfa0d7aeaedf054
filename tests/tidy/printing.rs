//! The outputs of the repository's programs to a terminal or a log: each is one module that filters, and no other code
//! prints.

use crate::sources::files;

/// Folders of the programs that users run, and of the crates in them.
const FOLDERS: [&str; 3] = ["coordinator/", "protocol/src/", "worker/"];
/// Files that may print: the filters, tests and measurements, the fake worker, whose output only a harness reads, and
/// build scripts, which print to cargo.
const EXITS: [&str; 8] = [
    "/terminal.rs",
    "/tests.rs",
    "/tests/",
    "/scheduler/simulation.rs",
    "/benches/",
    "/examples/",
    "worker/fake/",
    "/build.rs",
];
const WAYS: [&str; 6] = ["io::stdout", "io::stderr", "println!(", "print!(", "stdout().", "stderr()."];

#[test]
fn op_10_programs_print_through_the_printable_filter_only() {
    let mut found = Vec::new();
    for source in files(&[".rs"]) {
        if FOLDERS.iter().any(|folder| source.path.starts_with(folder))
            && !EXITS.iter().any(|exit| source.path.contains(exit))
        {
            let ways = WAYS.iter().filter(|way| source.text.contains(**way));
            found.extend(ways.map(|way| format!("{} has {way}", source.path)));
        }
    }
    assert!(found.is_empty(), "print through the terminal module of the program in place of: {found:#?}");
    let exits: Vec<_> = files(&["terminal.rs"]).into_iter().map(|source| source.path).collect();
    assert_eq!(exits, ["coordinator/host/src/terminal.rs", "worker/src/terminal.rs", "worker/train/src/terminal.rs"]);
    for exit in files(&["terminal.rs"]) {
        assert!(exit.text.contains("PrintableWriter::new("), "{} does not filter", exit.path);
    }
}
