//! Patterns of ECMA-262 that the library does not read, as those that it does.

use serde_json::{Map, Value, json};

use crate::constraint::TextSet;

/// Replaces a pattern that cannot be read by what can be held to of it.
pub(super) fn readable_pattern(fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
    let Some(pattern) = fields.get("pattern").and_then(Value::as_str) else { return };
    if is_readable(pattern) {
        return;
    }
    let mut found = parts_of(pattern).into_iter().filter(|part| is_readable(part));
    let first = found.next();
    also.extend(found.map(|pattern| json!({ "pattern": pattern })));
    match first {
        Some(first) => fields.insert("pattern".to_owned(), first.into()),
        None => fields.shift_remove("pattern"),
    };
}

/// Leaves out keys by a pattern that cannot be read, and with them all that no schema names: it might be such a key.
pub(super) fn readable_keys(fields: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = fields.get_mut("patternProperties") else { return };
    let before = patterns.len();
    patterns.retain(|pattern, _| is_readable(pattern));
    if patterns.len() < before {
        let is_empty = patterns.is_empty();
        fields.insert("additionalProperties".to_owned(), json!(false));
        if is_empty {
            fields.shift_remove("patternProperties");
        }
    }
}

fn is_readable(pattern: &str) -> bool {
    TextSet::with_pattern(pattern).is_ok()
}

/// The pattern without what looks ahead or behind, and each start that it demands by itself.
fn parts_of(pattern: &str) -> Vec<String> {
    let (mut rest, mut plain, mut demanded) = (pattern, String::new(), Vec::new());
    let mut is_in_class = false;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\\' => {
                let escaped = rest[1..].chars().next();
                match escaped {
                    Some('Z' | 'z') => plain.push('$'),
                    Some('A') => plain.push('^'),
                    Some('c') => {
                        let letter = rest[2..].chars().next().unwrap_or('@');
                        plain.push_str(&format!("\\x{:02x}", u32::from(letter) % 32));
                    }
                    // A word's edge is that of the text, or beside what belongs to no word.
                    Some('b') if plain.is_empty() => plain.push_str(r"(^|\W)"),
                    Some('b') if rest.len() == 2 => plain.push_str(r"(\W|$)"),
                    Some('b') if !is_in_class && plain != "^" => return Vec::new(),
                    Some('b') if !is_in_class => {}
                    // The text that a group matched is not known.
                    Some('1'..='9') if !is_in_class => return Vec::new(),
                    Some(other) => plain.extend(['\\', other]),
                    None => {}
                }
                let named = if escaped == Some('c') { rest[2..].chars().next().map_or(0, char::len_utf8) } else { 0 };
                1 + escaped.map_or(0, char::len_utf8) + named
            }
            '(' if !is_in_class && ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|mark| rest.starts_with(mark)) => {
                let Some(length) = group_length(rest) else { return Vec::new() };
                if plain == "^" {
                    let group = &rest[..length - 1];
                    demanded.extend(group.strip_prefix("(?=").map(|inside| format!("^(?:{inside})")));
                    demanded.extend(group.strip_prefix("(?!").and_then(without_start));
                }
                length
            }
            _ => {
                match c {
                    '[' => is_in_class = true,
                    ']' => is_in_class = false,
                    _ => {}
                }
                plain.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    let plain = (plain != pattern).then_some(plain);
    plain.into_iter().chain(demanded).collect()
}

/// A pattern of texts that do not begin with a text, or do not have it anywhere (`.*` in front of it). Of the latter,
/// texts of one character are known, and of the same one twice.
fn without_start(inside: &str) -> Option<String> {
    let (anywhere, text) = inside.strip_prefix(".*").map_or((false, inside), |text| (true, text));
    let mut characters = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        characters.push(match c {
            '\\' => rest.next().filter(|c| c.is_ascii_punctuation())?,
            c if c.is_alphanumeric() || "-_@ ,;:!#%&/<>='\"~`".contains(c) => c,
            _ => return None,
        });
    }
    let escaped = |c: &char| if *c == '^' { r"\^".to_owned() } else { regex_syntax::escape(&c.to_string()) };
    let all: Vec<String> = characters.iter().map(escaped).collect();
    match (anywhere, all.as_slice()) {
        (_, []) => None,
        (true, [c]) => Some(format!("^[^{c}]*$")),
        (true, [a, b]) if a == b => Some(format!("^([^{a}]|{a}[^{a}])*{a}?$")),
        (true, _) => None,
        (false, all) => {
            let ways = (0..all.len()).map(|at| format!("{}([^{}]|$)", all[..at].concat(), all[at]));
            Some(format!("^({})", ways.collect::<Vec<_>>().join("|")))
        }
    }
}

/// Bytes of the group that a pattern begins with.
fn group_length(pattern: &str) -> Option<usize> {
    let (mut depth, mut is_in_class, mut is_escaped) = (0_usize, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '(' if !is_in_class => depth += 1,
            ')' if !is_in_class => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_5_patterns_of_ecmascript_become_those_that_can_be_held_to() {
        for (pattern, parts) in [
            (
                r"^(?!\.)(?!.*\.\.)([a-z.]*)[a-z]@[a-z]+$",
                vec![r"^([a-z.]*)[a-z]@[a-z]+$", r"^(([^\.]|$))", r"^([^\.]|\.[^\.])*\.?$"],
            ),
            (r"^(?!no)(?!.*-)(?!.*ab)[a-z-]+$", vec!["^[a-z-]+$", "^(([^n]|$)|n([^o]|$))", r"^[^\-]*$"]),
            (r"\bto\b", vec![r"(^|\W)to(\W|$)"]),
            (r"a\bto", vec![]),
            (r"^(?=.*[0-9])(?=.{4,})[a-z0-9(?=]+\Z", vec![r"^[a-z0-9(?=]+$", "^(?:.*[0-9])", "^(?:.{4,})"]),
            (r"a(?<!b)\cJ", vec![r"a\x0a"]),
            (r"^(a|b)\1$", vec![]),
            ("*.txt", vec![]),
        ] {
            assert_eq!(parts_of(pattern), parts, "{pattern}");
            let mut fields = json!({ "pattern": pattern }).as_object().unwrap().clone();
            let mut also = Vec::new();
            readable_pattern(&mut fields, &mut also);
            assert_eq!(fields.get("pattern").map(Value::as_str), parts.first().map(|part| Some(*part)), "{pattern}");
            assert_eq!(also.len(), parts.len().saturating_sub(1), "{pattern}");
        }
    }

    #[test]
    fn en_5_keys_by_unreadable_patterns_are_left_out() {
        let mut fields = json!({"patternProperties": {"^(?=a)": {}, "^b": {}}}).as_object().unwrap().clone();
        readable_keys(&mut fields);
        assert_eq!(Value::Object(fields), json!({"patternProperties": {"^b": {}}, "additionalProperties": false}));
    }
}
