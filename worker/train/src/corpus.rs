//! The text `guide` learns from: families of questions with one meaning, and their answer. Tokens are not known here.
//!
//! A corpus file is read line by line:
//!
//! ```text
//! # family-name          starts a family
//! ^ other-family         its questions only follow an answer of that family
//! ? {which|what} port    a question; {a|b|} is one of several wordings, chosen anew each time it is shown
//! = It is port 8210.     the answer
//! // anything            a comment
//! ```
//!
//! A held-out file has the same questions (`?`). Each is followed by texts that the answer must contain (`!`).
//! Wordings of one text are divided by `|`; several texts take several lines.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::rng::Rng;

/// Questions that mean the same, and the one answer to these questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The family's name, unique in the corpus.
    pub name: String,
    /// The family whose answer must be directly before, for questions such as "how do I change it?".
    pub after: Option<String>,
    /// The questions, with their choices in braces.
    pub questions: Vec<String>,
    /// The answer that the model learns.
    pub answer: String,
}

/// A question that is not used in training, with a test of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOut {
    /// The question, in one wording.
    pub question: String,
    /// Texts that the answer must contain, each in one of its wordings; upper and lower case count as equal.
    pub must: Vec<Vec<String>>,
}

impl HeldOut {
    /// Whether the answer contains all required texts.
    pub fn accepts(&self, answer: &str) -> bool {
        let answer = answer.to_lowercase();
        self.must.iter().all(|wordings| wordings.iter().any(|wording| answer.contains(&wording.to_lowercase())))
    }
}

/// The reason why a corpus cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line with invalid syntax.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The fault, in words.
        problem: &'static str,
    },
    /// A family is incomplete, occurs twice, or follows one that does not exist.
    #[error("family '{name}': {problem}")]
    Family {
        /// The family's name.
        name: String,
        /// The fault, in words.
        problem: &'static str,
    },
}

/// Reads all `*.txt` of a folder but `heldout.txt`, in the order of their names.
pub fn read_families(folder: &Path) -> Result<Vec<Family>, CorpusError> {
    let read = |source| CorpusError::Read { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|e| e == "txt") && path.file_name().is_some_and(|n| n != "heldout.txt") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut families = Vec::new();
    for path in paths {
        parse_families(&path, &read_text(&path)?, &mut families)?;
    }
    check(&families)?;
    Ok(families)
}

/// Reads a held-out file.
pub fn read_held_out(path: &Path) -> Result<Vec<HeldOut>, CorpusError> {
    let mut all: Vec<HeldOut> = Vec::new();
    for (line, mark, rest) in lines(&read_text(path)?) {
        let bad = |problem| CorpusError::Line { path: path.to_owned(), line, problem };
        match (mark, all.last_mut()) {
            ('?', _) => all.push(HeldOut { question: rest.to_owned(), must: Vec::new() }),
            ('!', Some(last)) => last.must.push(rest.split('|').map(str::to_owned).collect()),
            ('!', None) => return Err(bad("a demand before the first question")),
            _ => return Err(bad("a line starts with ?, ! or //")),
        }
    }
    Ok(all)
}

/// One random wording of a question: each `{a|b}` becomes one of its choices.
pub fn one_wording(question: &str, rng: &mut Rng) -> String {
    let mut text = String::with_capacity(question.len());
    let mut rest = question;
    while let Some((before, tail)) = rest.split_once('{') {
        let (choices, after) = tail.split_once('}').unwrap_or((tail, ""));
        let choices: Vec<&str> = choices.split('|').collect();
        text.push_str(before);
        text.push_str(choices[rng.below(choices.len())]);
        rest = after;
    }
    text.push_str(rest);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every wording of a question.
pub fn all_wordings(question: &str) -> Vec<String> {
    let Some((before, tail)) = question.split_once('{') else {
        return vec![question.split_whitespace().collect::<Vec<_>>().join(" ")];
    };
    let (choices, after) = tail.split_once('}').unwrap_or((tail, ""));
    choices.split('|').flat_map(|choice| all_wordings(&format!("{before}{choice}{after}"))).collect()
}

fn read_text(path: &Path) -> Result<String, CorpusError> {
    std::fs::read_to_string(path).map_err(|source| CorpusError::Read { path: path.to_owned(), source })
}

/// The lines that are neither empty nor comments: number, mark, rest.
fn lines(text: &str) -> impl Iterator<Item = (usize, char, &str)> {
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with("//")).map(|(at, line)| {
        let mark = line.chars().next().unwrap_or(' ');
        (at + 1, mark, line[mark.len_utf8()..].trim())
    })
}

fn parse_families(path: &Path, text: &str, families: &mut Vec<Family>) -> Result<(), CorpusError> {
    for (line, mark, rest) in lines(text) {
        let bad = |problem| Err(CorpusError::Line { path: path.to_owned(), line, problem });
        if mark == '#' {
            let (name, after, questions, answer) = (rest.to_owned(), None, Vec::new(), String::new());
            families.push(Family { name, after, questions, answer });
            continue;
        }
        let Some(family) = families.last_mut() else { return bad("text before the first family") };
        match mark {
            '?' if rest.matches('{').count() != rest.matches('}').count() => return bad("unbalanced braces"),
            '?' => family.questions.push(rest.to_owned()),
            '=' if !family.answer.is_empty() => return bad("a second answer"),
            '=' => family.answer = rest.to_owned(),
            '^' => family.after = Some(rest.to_owned()),
            _ => return bad("a line starts with #, ^, ?, = or //"),
        }
    }
    Ok(())
}

fn check(families: &[Family]) -> Result<(), CorpusError> {
    let names: HashSet<&str> = families.iter().map(|f| f.name.as_str()).collect();
    let mut seen = HashSet::new();
    for family in families {
        let problem = match family {
            f if f.questions.is_empty() => "it has no question",
            f if f.answer.is_empty() => "it has no answer",
            f if !seen.insert(f.name.as_str()) => "there are two of this name",
            f if f.after.as_deref().is_some_and(|after| !names.contains(after)) => "what it follows does not exist",
            _ => continue,
        };
        return Err(CorpusError::Family { name: family.name.clone(), problem });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Family>, CorpusError> {
        let mut families = Vec::new();
        parse_families(Path::new("x.txt"), text, &mut families)?;
        check(&families)?;
        Ok(families)
    }

    #[test]
    fn families_are_read_and_mistakes_named() {
        let families = parse("# a\n? {which|what} port\n= 8210.\n\n# b\n^ a\n? why\n= So.\n").unwrap();
        assert_eq!(families.len(), 2);
        assert_eq!(families[1].after.as_deref(), Some("a"));
        for (bad, says) in [
            ("? x\n", "line 1"),
            ("# a\n? x {y\n= z\n", "braces"),
            ("# a\n? x\n", "no answer"),
            ("# a\n^ c\n? x\n= y\n", "does not exist"),
            ("# a\n? x\n= y\n# a\n? x\n= y\n", "two of this name"),
            ("# a\nx\n", "line 2"),
        ] {
            assert!(parse(bad).unwrap_err().to_string().contains(says), "{bad}");
        }
    }

    #[test]
    fn a_wording_is_one_of_all() {
        let question = "{which|what} port {does it use|} {now|}";
        let all = all_wordings(question);
        assert_eq!(all.len(), 8);
        assert!(all.contains(&"what port now".to_owned()));
        let mut rng = Rng::new(1, 1);
        assert!((0..50).all(|_| all.contains(&one_wording(question, &mut rng))));
    }

    #[test]
    fn a_held_out_answer_must_say_everything() {
        let held =
            HeldOut { question: String::new(), must: vec![vec!["8210".into()], vec!["port".into(), "v1".into()]] };
        assert!(held.accepts("Port 8210."));
        assert!(!held.accepts("8210"));
        assert!(!held.accepts("Port 80."));
    }

    #[test]
    fn the_committed_corpus_is_sound_and_held_out_questions_are_not_in_it() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let families = read_families(&folder).unwrap();
        assert!(families.len() >= 120, "{} families", families.len());
        let plain = |text: &str| crate::text::plain_question(text);
        let known: HashSet<String> =
            families.iter().flat_map(|f| &f.questions).flat_map(|q| all_wordings(q)).map(|q| plain(&q)).collect();
        for held in read_held_out(&folder.join("heldout.txt")).unwrap() {
            assert!(!held.must.is_empty(), "nothing is demanded of '{}'", held.question);
            assert!(!known.contains(&plain(&held.question)), "'{}' is trained on", held.question);
        }
    }
}
