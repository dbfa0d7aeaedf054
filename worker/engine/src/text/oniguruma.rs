//! Regular expressions of a `tokenizer.json`, for the engine that this program has. Such files are written for
//! Oniguruma in Ruby's syntax, which gives some signs another meaning. The same signs are spelled out here.
//!
//! - `^` and `$` are the borders of a line, not of the text.
//! - Word characters (`\w`, `\b`) are letters, marks, decimal digits and connecting punctuation, and `²³¹¼½¾`.
//! - Classes such as `[:punct:]` have all of Unicode.

use serde_json::Value;

/// Word characters, as the inside of a class.
const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u{b2}\u{b3}\u{b9}\u{bc}-\u{be}";

/// Rewrites every `{"Regex": …}` inside a part of a `tokenizer.json`. The answer is whether any changed.
pub(super) fn rewrite_expressions(part: &mut Value) -> bool {
    match part {
        Value::Object(fields) => {
            let mut changed = false;
            for (name, value) in fields {
                if let (true, Value::String(pattern)) = (name == "Regex", &mut *value) {
                    let rewritten = rewritten(pattern);
                    changed |= rewritten != *pattern;
                    *pattern = rewritten;
                } else {
                    changed |= rewrite_expressions(value);
                }
            }
            changed
        }
        Value::Array(items) => items.iter_mut().fold(false, |changed, item| rewrite_expressions(item) | changed),
        _ => false,
    }
}

/// An expression that finds here what Oniguruma finds by `pattern`.
fn rewritten(pattern: &str) -> String {
    let mut output = String::with_capacity(pattern.len());
    let mut rest = pattern;
    // The number of classes that are open: `[` inside a class opens another one.
    let mut classes = 0_usize;
    while let Some(character) = rest.chars().next() {
        let (one, behind) = rest.split_at(character.len_utf8());
        let posix = POSIX.iter().find(|(name, _)| classes > 0 && rest.starts_with(name));
        let mut behind = behind;
        match (character, classes) {
            ('[', _) if let Some((name, class)) = posix => {
                output.push_str(class);
                behind = rest.get(name.len()..).unwrap_or_default();
            }
            ('\\', _) => {
                let escaped = behind.chars().next().map_or(0, char::len_utf8);
                let (letter, after) = behind.split_at(escaped);
                behind = after;
                match (letter, classes) {
                    ("w", 0) => output.push_str(&format!("[{WORD}]")),
                    ("w", _) => output.push_str(WORD),
                    ("W", _) => output.push_str(&format!("[^{WORD}]")),
                    ("b", 0) => output.push_str(&format!("(?:(?<=[{WORD}])(?![{WORD}])|(?<![{WORD}])(?=[{WORD}]))")),
                    ("B", 0) => output.push_str(&format!("(?:(?<=[{WORD}])(?=[{WORD}])|(?<![{WORD}])(?![{WORD}]))")),
                    _ => {
                        output.push('\\');
                        output.push_str(letter);
                    }
                }
            }
            ('^', 0) => output.push_str(r"(?:\A|(?<=\n)(?!\z))"),
            ('$', 0) => output.push_str(r"(?=\n|\z)"),
            _ => {
                output.push_str(one);
                match character {
                    '[' => {
                        classes += 1;
                        // A bracket right behind the start is an ordinary character.
                        let start = if behind.starts_with('^') { "^" } else { "" };
                        let plain = behind.strip_prefix(start).is_some_and(|inside| inside.starts_with(']'));
                        output.push_str(start);
                        output.push_str(if plain { r"\]" } else { "" });
                        behind = behind.get(start.len() + usize::from(plain)..).unwrap_or_default();
                    }
                    ']' => classes = classes.saturating_sub(1),
                    _ => {}
                }
            }
        }
        rest = behind;
    }
    output
}

/// Oniguruma's classes by name, as the inside of a class.
const POSIX: [(&str, &str); 8] = [
    ("[:punct:]", r"\p{P}\p{S}"),
    ("[:alpha:]", r"\p{Alphabetic}"),
    ("[:alnum:]", r"\p{Alphabetic}\p{Nd}"),
    ("[:digit:]", r"\p{Nd}"),
    ("[:space:]", r"\s"),
    ("[:upper:]", r"\p{Uppercase}"),
    ("[:lower:]", r"\p{Lowercase}"),
    ("[:word:]", r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use fancy_regex::Regex;

    fn found(pattern: &str, text: &str) -> Vec<String> {
        let regex = Regex::new(&rewritten(pattern)).unwrap();
        regex.find_iter(text).map(|found| found.unwrap().as_str().to_owned()).collect()
    }

    /// The expected matches are those of the PyPI package `tokenizers` 0.23.3.
    #[test]
    fn signs_mean_what_they_mean_to_oniguruma() {
        assert_eq!(found(r"\s+$", "a \nb  "), [" ", "  "]);
        assert_eq!(found(r"^\w+", "ab c\nd²"), ["ab", "d²"]);
        assert_eq!(found(r"\w\b", "1² x"), ["²", "x"]);
        assert_eq!(found(r"[\w-]+|\W", "a-½ "), ["a-½", " "]);
        assert_eq!(found(r"[[:punct:]]+", "a€$.b"), ["€$."]);
        assert_eq!(found(r"[^[:alpha:]\s]+", "a1 2é"), ["1", "2"]);
        assert_eq!(found(r"\$\^[$^]", "$^^"), ["$^^"]);
        assert_eq!(found(r"[]a]+[^]b]", "]ac"), ["]ac"]);
        assert_eq!(found(r"[\[\]]", "[]"), ["[", "]"]);
    }

    #[test]
    fn usual_expressions_stay_as_they_are() {
        for pattern in [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[\p{Ll}&&[^\p{Han}]]+\\",
            "",
        ] {
            assert_eq!(rewritten(pattern), pattern);
        }
    }

    #[test]
    fn expressions_are_found_wherever_they_are() {
        let mut part = serde_json::json!({"pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "a$"}}, {"pattern": {"String": "a$"}}]});
        assert!(rewrite_expressions(&mut part));
        assert_eq!(part["pretokenizers"][0]["pattern"]["Regex"], r"a(?=\n|\z)");
        assert_eq!(part["pretokenizers"][1]["pattern"]["String"], "a$");
        assert!(!rewrite_expressions(&mut serde_json::json!({"Regex": "a"})));
    }
}
