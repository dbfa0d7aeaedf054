//! The trait of settings: how each is parsed from a file's value or from text, and how it is printed.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use figment::value::{Num, Value};

/// The value of a setting. Environment and command line give text; the file gives text, numbers, booleans and lists.
pub(super) trait Setting {
    /// Parses the value; the error describes the valid ones.
    fn read(&mut self, value: &Value) -> Result<(), String>;

    /// The value as it would be written in the file.
    fn show(&self) -> String;

    /// The number of words that the setting takes on the command line.
    fn words(&self) -> RangeInclusive<usize> {
        1..=1
    }

    /// Whether the setting's text may begin with a dash on the command line.
    fn may_begin_with_dash(&self) -> bool {
        false
    }

    /// Whether the setting is a list, whose flag may be repeated.
    fn is_list(&self) -> bool {
        false
    }

    /// Makes relative paths of a file start at the file's folder.
    fn resolve(&mut self, _folder: &Path) {}
}

/// A group of settings, walked leaf by leaf.
pub(super) trait Section {
    /// Calls `visit` with the path of each leaf (`stay_warm.llm`), the leaf, and its help text.
    fn walk(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut dyn Setting, &str));
}

/// A setting or a group, so that one list can hold both.
pub(super) trait Node {
    fn walk_node(&mut self, path: &str, help: &str, visit: &mut dyn FnMut(&str, &mut dyn Setting, &str));
}

/// Declares a group of settings once: the struct, its defaults and the walk over it.
macro_rules! section {
    (
        $(#[$doc:meta])*
        pub struct $name:ident {
            $( #[doc = $help:literal] $field:ident : $kind:ty = $default:expr, )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( #[doc = $help] pub $field: $kind, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl $crate::setting::Section for $name {
            fn walk(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut dyn $crate::setting::Setting, &str)) {
                $(
                    let path = format!("{prefix}{}", stringify!($field));
                    $crate::setting::Node::walk_node(&mut self.$field, &path, $help.trim(), visit);
                )*
            }
        }

        impl $crate::setting::Node for $name {
            fn walk_node(&mut self, path: &str, _help: &str, visit: &mut dyn FnMut(&str, &mut dyn $crate::setting::Setting, &str)) {
                $crate::setting::Section::walk(self, &format!("{path}."), visit);
            }
        }
    };
}

pub(super) use section;

/// A value quoted as a person would write it.
pub(super) struct Quoted<'a>(pub(super) &'a Value);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(_, text) => write!(f, "'{text}'"),
            Value::Bool(_, value) => write!(f, "{value}"),
            Value::Num(_, number) => match number.to_f64() {
                Some(float) => write!(f, "{float}"),
                None => write!(f, "{}", number.to_i128().unwrap_or_default()),
            },
            Value::Array(..) => f.write_str("a list"),
            Value::Dict(..) => f.write_str("a table"),
            Value::Char(_, c) => write!(f, "'{c}'"),
            Value::Empty(..) => f.write_str("nothing"),
        }
    }
}

pub(super) fn text(value: &Value) -> Option<&str> {
    if let Value::String(_, text) = value { Some(text.trim()) } else { None }
}

/// A whole number, written as a number or as text.
pub(super) fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Num(_, number) => whole_number(*number),
        other => text(other)?.parse().ok(),
    }
}

pub(super) fn whole_number(number: Num) -> Option<u64> {
    number
        .to_i128()
        .or_else(|| number.to_u128().and_then(|n| i128::try_from(n).ok()))
        .and_then(|n| u64::try_from(n).ok())
}

pub(super) fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The entries of a list: a list of the file, a text in the file's syntax, or words with commas between them.
pub(super) fn list(value: &Value) -> Option<Vec<String>> {
    let mut entries: Vec<String> = match value {
        Value::Array(_, items) => items.iter().map(|item| text(item).map(str::to_owned)).collect::<Option<_>>()?,
        other => match text(other)? {
            // The file's syntax, for entries that contain a comma. An IPv6 address also begins with `[`, but is no
            // list.
            list if list.starts_with('[') => match list.parse::<toml::Value>().map(toml::Value::try_into) {
                Ok(Ok(entries)) => entries,
                _ if list.contains("::") => list.split(',').map(str::to_owned).collect(),
                _ => return None,
            },
            list => list.split(',').map(str::to_owned).collect(),
        },
    };
    entries.iter_mut().for_each(|entry| *entry = entry.trim().to_owned());
    entries.retain(|entry| !entry.is_empty());
    Some(entries)
}

/// The text of a flag that was given several times, each with an entry or a list of entries.
pub fn entries(texts: &[&str]) -> String {
    let each = |text: &&str| list(&Value::from(*text)).unwrap_or_else(|| vec![(*text).to_owned()]);
    let all: Vec<String> = texts.iter().flat_map(each).map(|entry| quote(&entry)).collect();
    format!("[{}]", all.join(", "))
}
