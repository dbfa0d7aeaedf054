//! Functions that `transformers` puts into a template's environment, and the methods of Python's strings that templates
//! call.

use std::fmt;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, State};

use super::error::TemplateError;
use super::tojson::tojson;
use super::{markup, python_types};

/// The widest indent in spaces.
const WIDEST_INDENT: usize = 1 << 20;

pub(super) fn install(environment: &mut Environment<'static>) {
    minijinja_contrib::add_to_environment(environment);
    environment.add_filter("tojson", tojson);
    environment.add_filter("indent", indent);
    python_types::install(environment);
    environment.add_function(markup::ADD, markup::add);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.set_unknown_method_callback(method);
}

/// Jinja2's `indent`: spaces, or a text, in front of every line but the first; with `first` there too, with `blank` in
/// front of empty lines too. Unlike minijinja's it keeps the line feed that ends the text.
fn indent(
    text: String,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width: Option<Value> = width.or(options.get("width")?);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let space = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(width.clone())?).unwrap_or(0).min(WIDEST_INDENT)),
        },
    };
    let mut indented = String::new();
    for (number, line) in python_lines(&text).into_iter().enumerate() {
        if number > 0 {
            indented.push('\n');
        }
        if if number == 0 { first } else { blank || !line.is_empty() } {
            indented.push_str(&space);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

/// The parts of a text between line ends, as Python's `splitlines` knows them. A line end at the end of the text is
/// followed by an empty line.
fn python_lines(text: &str) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| is_end(*c)) {
        lines.push(&rest[..at]);
        let length = if rest[at..].starts_with("\r\n") { 2 } else { end.len_utf8() };
        rest = &rest[at + length..];
    }
    lines.push(rest);
    lines
}

/// A message of the template itself, kept apart from failures of the engine.
#[derive(Debug)]
struct RaisedRefusal(String);

impl fmt::Display for RaisedRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RaisedRefusal {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(RaisedRefusal(message)))
}

/// Distinguishes the template's own refusal from a failure.
pub(super) fn refusal(error: Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(RaisedRefusal(message)) = current.downcast_ref() {
            return TemplateError::Refused(message.clone());
        }
        cause = current.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Limit("takes more than 20 million steps");
    }
    TemplateError::Failed(error)
}

/// The local time, by Python's format letters.
fn strftime_now(format: String) -> Result<String, Error> {
    jiff::fmt::strtime::format(&format, &jiff::Zoned::now()).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, "strftime_now cannot use this format").with_source(error)
    })
}

/// `{% generation %}` marks the assistant's words for training masks in `transformers`; it renders its body unchanged.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        match tag.trim_matches(|c| "{%-+}".contains(c)).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Methods of Python's objects: minijinja-contrib's, and those of strings that it lacks.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let text = |index: usize| args.get(index).and_then(Value::as_str);
    let Some(this) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    let list = |parts: &[&str]| parts.iter().map(|part| Value::from(*part)).collect::<Value>();
    match (name, args.len(), text(0)) {
        ("removeprefix", 1, Some(prefix)) => Ok(this.strip_prefix(prefix).unwrap_or(this).into()),
        ("removesuffix", 1, Some(suffix)) => Ok(this.strip_suffix(suffix).unwrap_or(this).into()),
        ("partition", 1, Some(mark)) if !mark.is_empty() => Ok(match this.split_once(mark) {
            Some((before, after)) => list(&[before, mark, after]),
            None => list(&[this, "", ""]),
        }),
        ("rpartition", 1, Some(mark)) if !mark.is_empty() => Ok(match this.rsplit_once(mark) {
            Some((before, after)) => list(&[before, mark, after]),
            None => list(&["", "", this]),
        }),
        ("rsplit", 1 | 2, Some(mark)) if !mark.is_empty() => {
            let most = match args.get(1) {
                Some(limit) => usize::try_from(i64::try_from(limit.clone())?).map_or(usize::MAX, |n| n + 1),
                None => usize::MAX,
            };
            let mut parts: Vec<&str> = this.rsplitn(most, mark).collect();
            parts.reverse();
            Ok(list(&parts))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}
