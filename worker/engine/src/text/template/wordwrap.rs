//! The `wordwrap` filter: lines of at most a width, filled as Python's module `textwrap` fills them.

use std::sync::LazyLock;

use fancy_regex::Regex;

use super::arguments::{Arguments, integer};
use super::fault::{RenderFault, RenderResult, refuse};
use super::printing::bounded;
use super::text as texts;
use super::value::{MOST_PIECES, PythonValue, TOO_MANY_PIECES};

/// The white space that words end at. Other kinds of it belong to words.
const SPACES: &str = r"\t\n\x0b\x0c\r ";

/// Parts that a line may break between: white space, dashes between words, and words up to a hyphen of theirs. A hyphen
/// is one of a word between two letters before it, or a letter and a mark, and two letters behind it.
static PARTS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let letter = r"[^\W\d]";
    let in_word = r#"[\w!"'&.,?]"#;
    let hyphen = format!("-(?:(?<={letter}{letter}-)|(?<={letter}-{in_word}-))(?={letter}-?{letter})");
    let ends = format!(r"{hyphen}|(?=[{SPACES}]|\z)|(?<={in_word})(?=--+\w)");
    Regex::new(&format!(r"[{SPACES}]+|(?<={in_word})--+(?=\w)|[^{SPACES}]+?(?:{ends})")).ok()
});

/// The same where hyphens are no places to break at.
static WORDS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(&format!("[{SPACES}]+|[^{SPACES}]+")).ok());

pub(super) fn wordwrap(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [width, breaks_words, between, breaks_hyphens] =
        arguments.bind(["width", "break_long_words", "wrapstring", "break_on_hyphens"], 0)?;
    let width = integer(width.as_ref())?.unwrap_or(79);
    let is_set = |flag: Option<PythonValue>| flag.is_none_or(|flag| flag.is_true());
    let wrap = Wrap {
        width: usize::try_from(width).unwrap_or(0),
        breaks_words: is_set(breaks_words),
        breaks_hyphens: is_set(breaks_hyphens),
    };
    let between = between.filter(|between| !between.is_none()).unwrap_or_else(|| PythonValue::text("\n"));
    if between.as_str().is_none() {
        refuse!("'{}' object has no attribute 'join'", between.kind());
    }
    let Some(text) = value.defined()?.as_str() else {
        refuse!("'{}' object has no attribute 'splitlines'", value.kind())
    };
    let mut lines = Vec::new();
    for line in texts::lines(text, false) {
        if wrap.width == 0 {
            refuse!("invalid width {width} (must be > 0)");
        }
        let filled = wrap.filled(line)?.into_iter().map(PythonValue::text).collect();
        lines.push(texts::joined(&between, &PythonValue::list(filled)?)?);
    }
    let whole = texts::joined(&between, &PythonValue::list(lines)?)?;
    bounded(whole.as_str().map_or(0, str::len))?;
    Ok(whole)
}

struct Wrap {
    width: usize,
    breaks_words: bool,
    breaks_hyphens: bool,
}

impl Wrap {
    /// The lines that a line is broken into.
    fn filled(&self, line: &str) -> RenderResult<Vec<String>> {
        let mut parts = self.parts(line)?;
        parts.reverse();
        let mut lines: Vec<String> = Vec::new();
        while let Some(first) = parts.last() {
            if is_blank(first) && !lines.is_empty() {
                parts.pop();
            }
            let (mut filled, mut length) = (Vec::new(), 0);
            while let Some(part) = parts.pop_if(|part| length + part.len() <= self.width) {
                length += part.len();
                filled.push(part);
            }
            if let Some(long) = parts.pop_if(|part| part.len() > self.width) {
                let (now, later) = self.cut(long, self.width - length, filled.is_empty());
                filled.extend(now);
                parts.extend(later);
            }
            if filled.last().is_some_and(|part| is_blank(part)) {
                filled.pop();
            }
            if !filled.is_empty() {
                lines.push(filled.into_iter().flatten().collect());
            }
        }
        Ok(lines)
    }

    /// A word that no line has room for: the part in this line, and the rest.
    fn cut(&self, mut word: Vec<char>, left: usize, is_first: bool) -> (Option<Vec<char>>, Option<Vec<char>>) {
        if !self.breaks_words {
            return if is_first { (Some(word), None) } else { (None, Some(word)) };
        }
        let hyphen = word.iter().take(left).rposition(|c| *c == '-').filter(|_| self.breaks_hyphens);
        let end = match hyphen {
            Some(at) if word[..at].iter().any(|c| *c != '-') => at + 1,
            _ => left,
        };
        let rest = word.split_off(end);
        (Some(word), Some(rest))
    }

    fn parts(&self, line: &str) -> RenderResult<Vec<Vec<char>>> {
        let regex = if self.breaks_hyphens { &PARTS } else { &WORDS };
        let Some(regex) = regex.as_ref() else { refuse!("words cannot be told apart") };
        let (mut parts, mut end) = (Vec::new(), 0);
        for found in regex.find_iter(line) {
            let found = found.map_err(|_| RenderFault::Limit("takes too long to find words"))?;
            parts.push(line[end..found.start()].chars().collect());
            parts.push(found.as_str().chars().collect());
            end = found.end();
            if parts.len() > MOST_PIECES {
                return Err(TOO_MANY_PIECES);
            }
        }
        parts.push(line[end..].chars().collect());
        parts.retain(|part: &Vec<char>| !part.is_empty());
        Ok(parts)
    }
}

fn is_blank(part: &[char]) -> bool {
    part.iter().all(|c| texts::is_space(*c))
}
