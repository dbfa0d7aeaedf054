//! Regular expressions of a `tokenizer.json`, for the engine that this program has. Such files are written for
//! Oniguruma in Ruby's syntax, which gives some signs another meaning. The same signs are spelled out here.
//!
//! - `^` and `$` are the borders of a line, not of the text.
//! - Word characters (`\w`, `\b`) are letters, marks, decimal digits and connecting punctuation, and outside of classes
//!   also `²³¹¼½¾`.
//! - `(?m)` lets a dot find the end of a line; `\Z` is the text's end or the end of its last line.
//! - Classes such as `[:punct:]` have all of Unicode.

use serde_json::Value;

/// Word characters outside of classes, as the inside of a class.
const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u{b2}\u{b3}\u{b9}\u{bc}-\u{be}";

/// Word characters inside of classes: without the numbers that are no digits.
const WORD_OF_CLASS: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}";

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
        let posix = if classes > 0 { posix_class(rest) } else { None };
        let mut behind = behind;
        match (character, classes) {
            ('[', _) if let Some((class, after)) = &posix => {
                output.push_str(class);
                behind = after;
            }
            ('(', 0) if let Some((flags, after)) = flags(behind) => {
                output.push_str(&format!("(?{}", flags.replace('m', "s")));
                behind = after;
            }
            ('\\', _) => {
                let escaped = behind.chars().next().map_or(0, char::len_utf8);
                let (letter, after) = behind.split_at(escaped);
                behind = after;
                match (letter, classes) {
                    ("w", 0) => output.push_str(&format!("[{WORD}]")),
                    ("w", _) => output.push_str(WORD_OF_CLASS),
                    ("W", 0) => output.push_str(&format!("[^{WORD}]")),
                    ("W", _) => output.push_str(&format!("[^{WORD_OF_CLASS}]")),
                    ("Z", 0) => output.push_str(r"(?=\n?\z)"),
                    ("R", 0) => output.push_str(r"(?:\r\n|[\n\x0b\x0c\r\u{85}\u{2028}\u{2029}])"),
                    ("p", _) if behind.starts_with("{^") => {
                        output.push_str(r"\P{");
                        behind = behind.get(2..).unwrap_or_default();
                    }
                    ("p" | "P", _) if let Some((name, class)) = named(behind) => {
                        let not = if letter == "P" { "^" } else { "" };
                        output.push_str(&format!("[{not}{class}]"));
                        behind = behind.get(name.len() + 2..).unwrap_or_default();
                    }
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

/// The class that a text begins with (`[:alpha:]`, `[:^alpha:]`), as the inside of a class, and what is behind it.
fn posix_class(text: &str) -> Option<(String, &str)> {
    let (name, behind) = text.strip_prefix("[:")?.split_once(":]")?;
    let (not, name) = name.strip_prefix('^').map_or((false, name), |name| (true, name));
    let (_, class) = POSIX.iter().find(|(known, _)| *known == name)?;
    Some((if not { format!("[^{class}]") } else { (*class).to_owned() }, behind))
}

/// The class of Oniguruma's own that is named behind `\p`, `{Alnum}`: those that other engines have not.
fn named(behind: &str) -> Option<(&'static str, &'static str)> {
    let (name, _) = behind.strip_prefix('{')?.split_once('}')?;
    let own = ["alnum", "word", "blank", "graph", "print", "xdigit", "punct"];
    let known = |(known, _): &&(&str, &str)| own.contains(known) && name.eq_ignore_ascii_case(known);
    // `\p{Punct}` is the general category alone.
    POSIX.iter().find(known).map(|(name, class)| (*name, if *name == "punct" { r"\p{P}" } else { class }))
}

/// The flags behind the parenthesis of `(?im)` or `(?m:`, and what follows them.
fn flags(behind: &str) -> Option<(&str, &str)> {
    let inside = behind.strip_prefix('?')?;
    let end = inside.find(|character| !matches!(character, 'i' | 'm' | 'x' | '-'))?;
    let (flags, after) = inside.split_at(end);
    (flags.contains('m') && after.starts_with([':', ')'])).then_some((flags, after))
}

/// Oniguruma's classes by name, as the inside of a class.
const POSIX: [(&str, &str); 13] = [
    ("punct", r"\p{P}\p{S}"),
    ("alpha", r"\p{Alphabetic}"),
    ("alnum", r"\p{Alphabetic}\p{Nd}"),
    ("digit", r"\p{Nd}"),
    ("xdigit", "0-9A-Fa-f"),
    ("space", r"\s"),
    ("blank", r"\p{Zs}\t"),
    ("cntrl", r"\p{Cc}"),
    ("graph", r"[^\s\p{Cc}\p{Cn}]"),
    ("print", r"[^\s\p{Cc}\p{Cn}]\p{Zs}"),
    ("upper", r"\p{Uppercase}"),
    ("lower", r"\p{Lowercase}"),
    ("word", r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"),
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
        assert_eq!(found(r"[\w-]+|\W", "a-½ "), ["a-", " "]);
        assert_eq!(found(r"[^\w\s]+", "12.5 ½²³"), [".", "½²³"]);
        assert_eq!(found(r"[\W_]", "a_½"), ["_", "½"]);
        assert_eq!(found(r"(?m)a.b", "a\nb"), ["a\nb"]);
        assert_eq!(found(r"(?im-x:A.)b", "a\nb"), ["a\nb"]);
        assert_eq!(found(r"[[:^alpha:]]+", "a12é"), ["12"]);
        assert_eq!(found(r"[[:cntrl:][:blank:]]+", "a\u{7}\t \u{85}b"), ["\u{7}\t \u{85}"]);
        assert_eq!(found(r"[[:graph:]]+", "é€ ㄱ"), ["é€", "ㄱ"]);
        assert_eq!(found(r"\p{^L}+|\p{Alnum}+\Z", "a1-b2"), ["1-", "b2"]);
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
