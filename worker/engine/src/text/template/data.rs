//! The values that callers give to a template: data, as JSON has it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::value::PythonValue;

/// A value that a template can see. Deserialises from JSON and keeps the order of keys.
#[derive(Clone)]
pub struct TemplateValue(pub(super) PythonValue);

impl TemplateValue {
    /// A mapping with these pairs, in their order.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        // Data of a request is never as large as a value may be.
        let pairs = pairs.into_iter().map(|(key, value)| (PythonValue::text(key), value.0));
        Self(PythonValue::dict(pairs).unwrap_or(PythonValue::None))
    }

    /// A field of a mapping.
    pub fn get(&self, name: &str) -> Option<Self> {
        let PythonValue::Dict(dict) = &self.0 else { return None };
        dict.named(name).cloned().map(Self)
    }

    /// A mapping with this field, at its place or behind the others. Other values stay as they are.
    #[must_use]
    pub fn with(self, name: &str, value: Self) -> Self {
        let PythonValue::Dict(dict) = &self.0 else { return self };
        let own = dict.entries().iter().cloned();
        Self(PythonValue::dict(own.chain([(PythonValue::text(name), value.0)])).unwrap_or(self.0))
    }

    /// A field of a mapping as text: empty where there is none.
    pub fn field(&self, name: &str) -> String {
        let PythonValue::Dict(dict) = &self.0 else { return String::new() };
        let value = dict.named(name).filter(|value| !value.is_none());
        value.and_then(|value| value.print().ok()).unwrap_or_default()
    }

    /// Its text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }
}

impl fmt::Debug for TemplateValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.repr().unwrap_or_default())
    }
}

impl From<()> for TemplateValue {
    fn from((): ()) -> Self {
        Self(PythonValue::None)
    }
}

impl From<bool> for TemplateValue {
    fn from(yes: bool) -> Self {
        Self(PythonValue::Bool(yes))
    }
}

impl From<u32> for TemplateValue {
    fn from(number: u32) -> Self {
        Self(PythonValue::Int(number.into()))
    }
}

impl From<&str> for TemplateValue {
    fn from(text: &str) -> Self {
        Self(PythonValue::text(text))
    }
}

impl From<String> for TemplateValue {
    fn from(text: String) -> Self {
        Self(PythonValue::text(text))
    }
}

impl From<Vec<TemplateValue>> for TemplateValue {
    fn from(items: Vec<TemplateValue>) -> Self {
        items.into_iter().collect()
    }
}

impl From<BTreeMap<&str, TemplateValue>> for TemplateValue {
    fn from(pairs: BTreeMap<&str, TemplateValue>) -> Self {
        Self::from_pairs(pairs)
    }
}

impl FromIterator<TemplateValue> for TemplateValue {
    fn from_iter<I: IntoIterator<Item = TemplateValue>>(items: I) -> Self {
        let items = items.into_iter().map(|item| item.0).collect();
        Self(PythonValue::list(items).unwrap_or(PythonValue::None))
    }
}

impl Serialize for TemplateValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.0, serializer)
    }
}

fn serialize<S: Serializer>(value: &PythonValue, serializer: S) -> Result<S::Ok, S::Error> {
    struct Inner<'a>(&'a PythonValue);
    impl Serialize for Inner<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serialize(self.0, serializer)
        }
    }
    match value {
        PythonValue::Bool(yes) => serializer.serialize_bool(*yes),
        PythonValue::Int(number) => match (i64::try_from(*number), u64::try_from(*number)) {
            (Ok(number), _) => serializer.serialize_i64(number),
            (_, Ok(number)) => serializer.serialize_u64(number),
            _ => serializer.serialize_f64(*number as f64),
        },
        PythonValue::Float(number) => serializer.serialize_f64(*number),
        PythonValue::Text(text) | PythonValue::Markup(text) => serializer.serialize_str(text),
        PythonValue::List(items) | PythonValue::Tuple(items) => {
            let mut list = serializer.serialize_seq(Some(items.values.len()))?;
            for item in &items.values {
                list.serialize_element(&Inner(item))?;
            }
            list.end()
        }
        PythonValue::Dict(dict) => {
            let mut map = serializer.serialize_map(Some(dict.entries().len()))?;
            for (key, value) in dict.entries() {
                map.serialize_entry(key.as_str().unwrap_or_default(), &Inner(value))?;
            }
            map.end()
        }
        _ => serializer.serialize_unit(),
    }
}

impl<'de> Deserialize<'de> for TemplateValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Self)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = PythonValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_bool<E>(self, yes: bool) -> Result<PythonValue, E> {
        Ok(PythonValue::Bool(yes))
    }

    fn visit_i64<E>(self, number: i64) -> Result<PythonValue, E> {
        Ok(PythonValue::Int(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<PythonValue, E> {
        Ok(PythonValue::Int(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<PythonValue, E> {
        Ok(PythonValue::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<PythonValue, E> {
        Ok(PythonValue::text(text))
    }

    fn visit_unit<E>(self) -> Result<PythonValue, E> {
        Ok(PythonValue::None)
    }

    fn visit_none<E>(self) -> Result<PythonValue, E> {
        Ok(PythonValue::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<PythonValue, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PythonValue, A::Error> {
        let mut values = Vec::new();
        while let Some(TemplateValue(item)) = items.next_element()? {
            values.push(item);
        }
        PythonValue::list(values).map_err(|_| serde::de::Error::custom("a list that is too large"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<PythonValue, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, TemplateValue(value))) = pairs.next_entry::<String, TemplateValue>()? {
            entries.push((PythonValue::text(key), value));
        }
        PythonValue::dict(entries).map_err(|_| serde::de::Error::custom("an object that is too large"))
    }
}
