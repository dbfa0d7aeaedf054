//! Values of the small JSON files beside weights, read without building a tree. A value of an unexpected type is
//! skipped, because files of other programs vary.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The longest short text that is kept, in bytes.
const SHORT: usize = 256;

/// A text of at most [`SHORT`] bytes; empty for anything else.
#[derive(Default)]
pub(super) struct Short(pub(super) String);

/// A chat template: the text itself, or the one called `default` of several.
#[derive(Default)]
pub(super) struct Template(pub(super) Option<String>);

/// A whole number of at least 0; `None` for anything else.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(Number)
}

/// The methods of a visitor that skip a value of an unexpected type and give the default.
macro_rules! passes_over {
    ($($kind:ident: $of:ty),*) => {
        $(fn $kind<E>(self, _: $of) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        })*
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
}

macro_rules! passes_over_lists {
    () => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
}

struct Number;

impl<'de> Visitor<'de> for Number {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Option<u64>, E> {
        Ok(Some(number))
    }

    passes_over!(visit_bool: bool, visit_i64: i64, visit_f64: f64, visit_str: &str);
    passes_over_lists!();
}

impl<'de> Deserialize<'de> for Short {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordVisitor;
        impl<'de> Visitor<'de> for WordVisitor {
            type Value = Short;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word")
            }

            fn visit_str<E>(self, text: &str) -> Result<Short, E> {
                Ok(if text.len() <= SHORT { Short(text.to_owned()) } else { Short::default() })
            }

            passes_over!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64);
            passes_over_lists!();
        }
        deserializer.deserialize_any(WordVisitor)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Named {
            #[serde(default)]
            name: Short,
            template: Option<String>,
        }
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Template;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a template, or several with names")
            }

            fn visit_str<E>(self, text: &str) -> Result<Template, E> {
                Ok(Template(Some(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Template, A::Error> {
                let mut found = None;
                while let Some(Named { name: Short(name), template }) = list.next_element()? {
                    if name == "default" && found.is_none() {
                        found = template;
                    }
                }
                Ok(Template(found))
            }

            passes_over!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64);
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}
