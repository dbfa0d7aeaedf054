//! Comments: their first words, and their width.

use crate::sources::files;

/// Words that hide the subject of a sentence.
const HIDDEN: [&str; 6] = ["What", "Who", "Whoever", "Whatever", "Nobody", "Nothing"];
/// Columns of a line of a comment.
const WIDEST: usize = 120;

/// The mark of the comment that a line of Rust consists of, and its text.
fn comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let mark = ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark))?;
    Some((mark, line[mark.len()..].trim()))
}

/// The numbers of the lines, from 1, with which comments begin that hide their subject.
fn hidden_subjects(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut before = None;
    for (number, line) in text.lines().enumerate() {
        let here = comment(line);
        if let Some((mark, words)) = here
            && before.is_none_or(|before| before != mark)
            && words.split(|c: char| !c.is_alphabetic()).next().is_some_and(|word| HIDDEN.contains(&word))
        {
            found.push(number + 1);
        }
        before = here.map(|(mark, _)| mark);
    }
    found
}

#[test]
fn comments_name_their_subject_and_fit_the_width() {
    let mut faults = Vec::new();
    for source in files(&[".rs"]) {
        let at = |number: usize| format!("{}:{number}", source.path);
        faults.extend(hidden_subjects(&source.text).into_iter().map(|number| format!("{}: no subject", at(number))));
        let wide = source.text.lines().enumerate();
        let wide = wide.filter(|(_, line)| comment(line).is_some() && line.chars().count() > WIDEST);
        faults.extend(wide.map(|(number, _)| format!("{}: over {WIDEST} columns", at(number + 1))));
    }
    assert!(faults.is_empty(), "CONTRIBUTING.md says how comments are written:\n{}", faults.join("\n"));
}

#[test]
fn first_words_of_comments_are_found() {
    let text =
        "/// What it is.\nfn a() {}\n// Later lines\n// Who knows.\n\n//! Nobody.\n/// A word.\nlet x = 1; // What?\n";
    assert_eq!(hidden_subjects(text), [1, 6]);
}
