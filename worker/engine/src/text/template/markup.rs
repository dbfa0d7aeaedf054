//! Jinja2's rule for text marked `safe` that is added to other text: the other text is escaped for HTML.
//!
//! No chat template wants that, but models were trained on prompts rendered so, and minijinja's `+` forgets the mark.
//! An output such as `{{ "a"|safe + b }}` is therefore rewritten to a call that adds as Jinja2 does.

use minijinja::value::{Rest, Value};
use minijinja::{Error, ErrorKind};

/// The function that rewritten outputs call. No template has the name by chance.
pub(super) const ADD: &str = "_add_with_markup";

/// Adds texts from left to right; what meets marked text is escaped, and the sum is marked.
pub(super) fn add(parts: Rest<Value>) -> Result<Value, Error> {
    let mut sum: Option<(String, bool)> = None;
    for part in parts.iter() {
        let Some(text) = part.as_str() else {
            return Err(Error::new(ErrorKind::InvalidOperation, "only texts can be added to text"));
        };
        sum = Some(match sum {
            None => (text.to_owned(), part.is_safe()),
            Some((left, safe)) => {
                let mark = |text: &str, marked: bool| if marked { text.to_owned() } else { escaped(text) };
                match safe || part.is_safe() {
                    true => (mark(&left, safe) + &mark(text, part.is_safe()), true),
                    false => (left + text, false),
                }
            }
        });
    }
    let (text, safe) = sum.unwrap_or_default();
    Ok(if safe { Value::from_safe_string(text) } else { Value::from(text) })
}

/// MarkupSafe's five replacements.
fn escaped(text: &str) -> String {
    let amp = text.replace('&', "&amp;");
    amp.replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&#34;")
}

/// Rewrites the outputs of a template that add marked text.
pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, output)) = rest.split_once("{{") {
        out.push_str(before);
        out.push_str("{{");
        let Some(end) = terms(output).end else {
            rest = output;
            continue;
        };
        let (inside, after) = output.split_at(end);
        let (lead, inside) = inside.split_at(usize::from(inside.starts_with(['-', '+'])));
        let (inside, trail) = inside.split_at(inside.len() - usize::from(inside.ends_with(['-', '+'])));
        let TermStarts { starts, simple, .. } = terms(inside);
        let parts: Vec<&str> = starts.windows(2).map(|pair| inside[pair[0]..pair[1] - 1].trim()).collect();
        let marked = parts.iter().any(|part| part.strip_suffix("safe").is_some_and(|p| p.trim_end().ends_with('|')));
        out.push_str(lead);
        match marked && simple && parts.len() > 1 {
            true => out.push_str(&format!(" {ADD}({}) ", parts.join(", "))),
            false => out.push_str(inside),
        }
        out.push_str(trail);
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The starts of an expression's terms.
struct TermStarts {
    /// Starts of the terms between `+`, and one behind the end plus one.
    starts: Vec<usize>,
    /// Whether nothing outside brackets binds less than `+`.
    simple: bool,
    /// The end of the output, once it was found.
    end: Option<usize>,
}

/// Reads an expression up to `}}`, minding strings and brackets.
fn terms(expression: &str) -> TermStarts {
    let (mut starts, mut simple, mut depth, mut quote, mut word) = (vec![0], true, 0_usize, None, 0);
    let bytes = expression.as_bytes();
    let mut index = 0;
    while index < bytes.len() {
        let byte = bytes[index];
        match (quote, byte) {
            (Some(_), b'\\') => index += 1,
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b'}') if depth == 0 && bytes.get(index + 1) == Some(&b'}') => {
                return TermStarts { starts, simple, end: Some(index) };
            }
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            (None, b'+') if depth == 0 => starts.push(index + 1),
            (None, b'~' | b'<' | b'>' | b'=' | b'!') if depth == 0 => simple = false,
            _ => {}
        }
        let in_word = quote.is_none() && (byte.is_ascii_alphanumeric() || byte == b'_');
        if !in_word {
            let binds_less = ["if", "else", "or", "and", "not", "in", "is"];
            simple &= depth > 0 || !expression.get(word..index).is_some_and(|word| binds_less.contains(&word));
            word = index + 1;
        }
        index += 1;
    }
    starts.push(expression.len() + 1);
    TermStarts { starts, simple, end: None }
}
