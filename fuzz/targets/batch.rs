//! Any bytes as a batch's file: every line is a request that is found again at its place, or the file is refused with
//! its faults and their lines. Any bytes as a batch's answers: what is kept are whole lines, and a second look keeps
//! the same.
#![no_main]

use std::collections::HashSet;
use std::io::{Seek, Write};

use libfuzzer_sys::fuzz_target;
use model_boss_jobs::{BatchRules, MAX_LINE_ERRORS, ValidatedInput, keep_whole_lines, read_line, scan_input};

/// The longest line, small so that long lines are tried too.
const LONGEST: usize = 4 << 10;

fuzz_target!(|bytes: &[u8]| {
    let rules = BatchRules { endpoint: "/v1/chat/completions".to_owned(), lines: 100, line_bytes: LONGEST };
    match scan_input(bytes, &rules).expect("memory cannot fail") {
        ValidatedInput::Good(mut plan) => {
            assert!(plan.total() > 0 && plan.total() <= rules.lines);
            let mut seen = HashSet::new();
            for index in plan.open_by_model() {
                let spot = plan.spot(index as usize).expect("an open line has a place");
                let start = usize::try_from(spot.offset).expect("a place in memory");
                let line = &bytes[start..start + spot.length as usize];
                let read = read_line(line, &rules).expect("a checked line is read again");
                assert!(seen.insert(read.custom_id.clone()), "a name is there twice");
            }
            assert_eq!(seen.len(), plan.total());
            assert!(seen.iter().all(|name| plan.done(name)), "every line is found by its name");
            assert!(plan.open_by_model().is_empty());
        }
        ValidatedInput::Bad(faults) => {
            assert!(!faults.is_empty() && faults.len() <= MAX_LINE_ERRORS, "refused without a reason");
            let lines = bytes.split(|byte| *byte == b'\n').count();
            assert!(faults.iter().all(|fault| fault.line.is_none_or(|line| (1..=lines).contains(&line))));
        }
    }
    let mut file = tempfile();
    file.write_all(bytes).expect("a file takes bytes");
    let mut names = Vec::new();
    let mut keep = |name: &str| {
        names.push(name.to_owned());
        true
    };
    let first = keep_whole_lines(&mut file, LONGEST, &mut keep).expect("a file is read");
    assert!(first.bytes <= bytes.len() as u64 && first.lines <= bytes.len());
    assert_eq!(file.stream_position().expect("a place"), first.bytes);
    let mut again = 0;
    let second = keep_whole_lines(&mut file, LONGEST, |name| {
        again += 1;
        names.contains(&name.to_owned())
    });
    assert_eq!((second.expect("a file is read"), again), (first, first.lines), "what is kept stays");
});

/// A file that is removed at its end. The fuzzer runs in a folder of its own.
fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("model-boss-fuzz-batch-{}", std::process::id()));
    let options = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = options.expect("the folder takes files");
    std::fs::remove_file(path).expect("the file is there");
    file
}
