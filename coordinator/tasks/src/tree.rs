//! YAML into JSON values with the line of every field, and values into types with every problem and its line. Sizes
//! are bounded: a file that would expand into a huge value is refused (aliases, depth, size).

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_saphyr::Spanned;

/// The largest file in bytes. A configuration is a few pages of text.
const MAX_SIZE: usize = 1 << 20;
/// The most nodes that a file may expand to, with aliases resolved.
const MAX_NODES: usize = 100_000;
/// The limit on nesting; files written by hand stay below it.
const MAX_DEPTH: usize = 24;
/// The most problems that are reported, since an operator would not read more.
const MAX_PROBLEMS: usize = 100;

/// A problem that an operator has to fix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The line in the file, from 1.
    pub line: Option<usize>,
    /// The field, such as `tasks.chat.ladder[1]`. The path is empty for the file itself.
    pub field: String,
    /// The fault, and its remedy.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// A document: its value, and the lines of its fields.
#[derive(Debug)]
pub(crate) struct ParsedTasks {
    pub(crate) value: Value,
    lines: BTreeMap<String, usize>,
}

impl ParsedTasks {
    /// Reads YAML. An error concerns its syntax.
    pub(crate) fn read(text: &str) -> Result<Self, Problem> {
        let whole = |message: String| Problem { line: None, field: String::new(), message };
        if text.len() > MAX_SIZE {
            return Err(whole(format!("has {} bytes; {MAX_SIZE} are enough for any file of tasks", text.len())));
        }
        let budget = serde_saphyr::budget! { max_nodes: MAX_NODES, max_depth: MAX_DEPTH, max_documents: 1 };
        // Plain words stay text: only true and false are booleans, and a duplicate key is a mistake.
        let options = serde_saphyr::options! { budget: budget, strict_booleans: true };
        let tree: Spanned<Tree> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let line = error.location().and_then(|at| usize::try_from(at.line()).ok()).filter(|line| *line > 0);
            let message = error.without_snippet().to_string();
            // The position is reported separately.
            let message = message.split(" at line ").next().unwrap_or_default().trim_end_matches([',', ':', ' ']);
            Problem { line, field: String::new(), message: message.replace('\n', " ") }
        })?;
        let mut document = Self { value: Value::Null, lines: BTreeMap::new() };
        document.value = document.take(tree.value, String::new());
        Ok(document)
    }

    fn take(&mut self, tree: Tree, path: String) -> Value {
        match tree {
            Tree::Leaf(value) => value,
            Tree::List(items) => {
                let item = |(number, item): (usize, Spanned<Tree>)| {
                    let path = format!("{path}[{number}]");
                    self.stands(&path, item.referenced.line());
                    self.take(item.value, path)
                };
                Value::Array(items.into_iter().enumerate().map(item).collect())
            }
            Tree::Map(fields) => {
                let field = |(name, value): (Spanned<String>, Spanned<Tree>)| {
                    let path = if path.is_empty() { name.value.clone() } else { format!("{path}.{}", name.value) };
                    self.stands(&path, name.referenced.line());
                    (name.value, self.take(value.value, path))
                };
                Value::Object(fields.into_iter().map(field).collect())
            }
        }
    }

    fn stands(&mut self, path: &str, line: u64) {
        if let Ok(line) = usize::try_from(line)
            && line > 0
        {
            self.lines.insert(path.to_owned(), line);
        }
    }

    /// The line of a field, or of the value that contains it.
    pub(crate) fn line(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.lines.get(path) {
                return Some(*line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// A problem with a field.
    pub(crate) fn problem(&self, field: impl Into<String>, message: impl Into<String>) -> Problem {
        let field = field.into();
        Problem { line: self.line(&field), message: message.into(), field }
    }

    /// Reads the value at `path` as a `T`. Each fault is reported once; `T` is then read without the faulty fields,
    /// so that the next fault is found.
    pub(crate) fn decode<T: DeserializeOwned + Default>(
        &self,
        mut value: Value,
        path: &str,
        problems: &mut Vec<Problem>,
    ) -> T {
        loop {
            let error = match serde_path_to_error::deserialize::<_, T>(&value) {
                Ok(decoded) => return decoded,
                Err(error) => error,
            };
            let message = error.inner().to_string();
            let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
            let mut inner = error.path().to_string();
            if inner == "." {
                inner.clear();
            }
            if let Some(name) = unknown
                && inner != name
                && !inner.ends_with(&format!(".{name}"))
            {
                inner = if inner.is_empty() { name.to_owned() } else { format!("{inner}.{name}") };
            }
            let field = match (path, inner.as_str()) {
                (_, "") => path.to_owned(),
                ("", inner) => inner.to_owned(),
                _ => format!("{path}.{inner}"),
            };
            problems.push(self.problem(field, in_words(&message)));
            if problems.len() >= MAX_PROBLEMS || !prune(&mut value, &inner) {
                return T::default();
            }
        }
    }
}

/// Serde's message in words for the author of the file.
fn in_words(message: &str) -> String {
    const WORDS: [(&str, &str); 8] = [
        ("expected f64", "expected a number"),
        ("expected u32", "expected a whole number"),
        ("expected u8", "expected a whole number up to 255"),
        ("expected a sequence", "expected a list"),
        ("expected a string", "expected a text"),
        ("invalid type: sequence", "invalid type: a list"),
        ("invalid type: string", "invalid type: the text"),
        ("a boolean", "true or false"),
    ];
    WORDS.iter().fold(message.to_owned(), |text, (rust, word)| text.replace(rust, word))
}

/// Removes the field at `path`; false when it does not exist.
fn prune(value: &mut Value, path: &str) -> bool {
    let Some(path) = Some(path).filter(|path| !path.is_empty()) else { return false };
    if let Value::Object(fields) = value {
        if fields.remove(path).is_some() {
            return true;
        }
        // Names may contain dots: the longest name that matches is the intended one.
        let mut ends: Vec<usize> = path.match_indices(['.', '[']).map(|(at, _)| at).collect();
        ends.reverse();
        for at in ends {
            if let Some(inner) = fields.get_mut(&path[..at]) {
                let rest = path[at..].trim_start_matches('.');
                // A list with a faulty item is removed as a whole, since its other items would change their
                // positions.
                if rest.starts_with('[') || !prune(inner, rest) {
                    fields.remove(&path[..at]);
                }
                return true;
            }
        }
    }
    false
}

/// A YAML value with the positions of its parts.
enum Tree {
    Leaf(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyYaml)
    }
}

struct AnyYaml;

impl<'de> Visitor<'de> for AnyYaml {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Tree, E> {
        let number = serde_json::Number::from_f64(value);
        number.map(|number| Tree::Leaf(number.into())).ok_or_else(|| E::custom(format!("{value} is not a number here")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Tree::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Thing {
        number: u8,
        words: Vec<String>,
        inner: BTreeMap<String, u8>,
    }

    fn decode(text: &str) -> (Thing, Vec<String>) {
        let document = ParsedTasks::read(text).unwrap();
        let mut problems = Vec::new();
        let thing = document.decode(document.value.clone(), "", &mut problems);
        (thing, problems.iter().map(|problem| format!("{}|{}", problem.line.unwrap_or(0), problem.field)).collect())
    }

    #[test]
    fn every_problem_is_named_with_its_line_and_field() {
        let (thing, problems) = decode("number: many\nwords:\n  - a\n  - [b]\nwrods: []\ninner:\n  x: 1\n  y.z: 300\n");
        assert_eq!(problems.len(), 4, "{problems:?}");
        for wanted in ["1|number", "4|words[1]", "5|wrods", "8|inner.y.z"] {
            assert!(problems.contains(&wanted.to_owned()), "{wanted} is not in {problems:?}");
        }
        assert_eq!(thing.inner, BTreeMap::from([("x".to_owned(), 1)]));
    }

    #[test]
    fn words_stay_words_and_a_key_stands_once() {
        let document = ParsedTasks::read("a: yes\nb: 012\nc: 1e3\nd: ~\ne: \"5\"\n").unwrap();
        assert_eq!(document.value["a"], "yes");
        assert_eq!(document.value["d"], Value::Null);
        assert_eq!(document.value["e"], "5");
        let twice = ParsedTasks::read("a: 1\nb: 2\na: 3\n").unwrap_err();
        assert_eq!(twice.line, Some(3), "{twice:?}");
    }

    #[test]
    fn broken_text_is_a_problem_with_a_line() {
        for (text, line) in [("a: 1\n  b: [\n", None), ("a: {\n", None), ("tasks:\n\tchat: 1\n", Some(2))] {
            let problem = ParsedTasks::read(text).unwrap_err();
            assert!(!problem.message.is_empty() && problem.line.is_some(), "{text:?}: {problem:?}");
            assert!(line.is_none() || problem.line == line, "{text:?}: {problem:?}");
        }
    }

    #[test]
    fn a_bomb_does_not_go_off() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let before = format!("*a{}", n - 1);
            bomb.push_str(&format!("a{n}: &a{n} [{}]\n", [before.as_str(); 10].join(", ")));
        }
        assert!(ParsedTasks::read(&bomb).is_err());
        assert!(ParsedTasks::read(&"[".repeat(100_000)).is_err());
        assert!(ParsedTasks::read(&"x".repeat(MAX_SIZE + 1)).is_err());
        assert!(ParsedTasks::read(&format!("a: {}1{}", "[".repeat(80), "]".repeat(80))).is_err());
    }
}
