//! Untrusted JSON, measured before it is parsed: its nesting, its number of values, and the memory that a parsed
//! document would take. The measurement is one pass over the bytes, and allocates nothing.

use memchr::memchr2;
use model_boss_config::JsonLimits;
use model_boss_protocol::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::memory::{Admission, HeldMemory, MemoryError};

/// Why a JSON text is not parsed.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Its values nest too deeply.
    #[error("the body nests values more than {0} deep")]
    TooDeep(usize),
    /// It has too many values.
    #[error("the body has more than {0} values; limits.json_values sets how many")]
    TooManyValues(usize),
    /// It is not an object, or not JSON.
    #[error("the body is not a JSON object: {0}")]
    NotAnObject(serde_json::Error),
    /// Parsing it takes more memory than is free.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl From<JsonError> for ApiError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Memory(error) => error.into(),
            JsonError::TooDeep(_) | JsonError::TooManyValues(_) | JsonError::NotAnObject(_) => {
                Self::new(ErrorCode::InvalidRequest, error.to_string())
            }
        }
    }
}

/// Reads an object of JSON, which the error calls `what`. The error names the field that it is about.
pub fn read_object<T: DeserializeOwned>(text: &[u8], what: &str) -> Result<T, ApiError> {
    let refused = |why: &str| ApiError::new(ErrorCode::InvalidRequest, format!("{what} {why}"));
    // Otherwise serde would also accept a list for a struct, field by field.
    if text.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|first| *first != b'{') {
        return Err(refused("is not a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let fault = error.into_inner();
        match field_of(&path, &fault) {
            Some(field) if path != "." => refused(&format!("cannot be read: '{field}': {fault}")).with_param(field),
            Some(field) => refused(&format!("cannot be read: {fault}")).with_param(field),
            None => refused(&format!("cannot be read: {fault}")),
        }
    })?;
    reader.end().map_err(|error| refused(&format!("cannot be read: {error}")))?;
    Ok(read)
}

/// The field that an error is about: the one at the path, or the one in it that is missing or unknown.
fn field_of(path: &str, fault: &serde_json::Error) -> Option<String> {
    if !fault.is_data() {
        return None;
    }
    let message = fault.to_string();
    let named = ["missing field `", "unknown field `"].into_iter().find_map(|start| message.strip_prefix(start));
    let named = named.and_then(|rest| rest.split('`').next());
    match (path, named) {
        (".", named) => named.map(str::to_owned),
        (path, Some(name)) if path != name && !path.ends_with(&format!(".{name}")) => Some(format!("{path}.{name}")),
        (path, _) => Some(path.to_owned()),
    }
}

/// The memory of a parsed document. A `Value` is 32 bytes, and lists grow by doubling. The first field of an object
/// takes a B-tree node for eleven, and nodes are at least half full. Each text is an allocation of its own.
const VALUE: usize = 64;
const OBJECT: usize = 640;
const FIELD: usize = 160;
const TEXT: usize = 32;

/// Counts of a JSON text that may turn out to be invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonShape {
    /// An upper bound of the number of values.
    values: usize,
    objects: usize,
    fields: usize,
    texts: usize,
    bytes: usize,
}

impl JsonShape {
    /// Measures a text. A text that nests too deeply is refused here, before any parser sees it.
    pub(crate) fn of(text: &[u8], limits: JsonLimits) -> Result<Self, JsonError> {
        let mut shape = Self { values: 1, bytes: text.len(), ..Self::default() };
        let (mut depth, mut at) = (0_usize, 0);
        while let Some(byte) = text.get(at) {
            at += 1;
            match byte {
                b'"' => {
                    shape.texts += 1;
                    at = text_end(text, at);
                }
                b'{' | b'[' => {
                    depth += 1;
                    if depth > limits.depth {
                        return Err(JsonError::TooDeep(limits.depth));
                    }
                    shape.objects += usize::from(*byte == b'{');
                    shape.values += 1;
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                b',' => shape.values += 1,
                b':' => shape.fields += 1,
                _ => {}
            }
        }
        Ok(shape)
    }

    /// Measures a text that is to be parsed into a document.
    fn of_document(text: &[u8], limits: JsonLimits) -> Result<Self, JsonError> {
        let shape = Self::of(text, limits)?;
        if shape.values > limits.values {
            return Err(JsonError::TooManyValues(limits.values));
        }
        Ok(shape)
    }

    /// The most bytes that a document of this shape takes.
    const fn document(&self) -> usize {
        self.values * VALUE + self.objects * OBJECT + self.fields * FIELD + self.texts * TEXT + self.bytes
    }
}

/// The index after the closing quote of the text that begins at `at`, or the end of the body.
fn text_end(body: &[u8], mut at: usize) -> usize {
    while let Some(next) = body.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += next + 1;
        if body[at - 1] == b'"' {
            return at;
        }
        // A character after a backslash does not end the text.
        at += 1;
    }
    body.len()
}

/// Holds the memory for parsing a text, and as much again for a second document made of it.
pub fn make_room(
    text: &[u8],
    limits: JsonLimits,
    memory: &mut HeldMemory,
    admission: Admission,
) -> Result<(), JsonError> {
    let shape = JsonShape::of_document(text, limits)?;
    Ok(memory.grow(2 * shape.document() + text.len(), admission)?)
}

/// Parses a text as an object, whose memory is held first.
pub fn object(
    text: &[u8],
    limits: JsonLimits,
    memory: &mut HeldMemory,
    admission: Admission,
) -> Result<Map<String, Value>, JsonError> {
    make_room(text, limits, memory, admission)?;
    serde_json::from_slice(text).map_err(JsonError::NotAnObject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBudget;
    use model_boss_protocol::ByteCount;
    use proptest::prelude::*;

    const LIMITS: JsonLimits = JsonLimits { depth: 64, values: 1_000 };

    #[test]
    fn values_are_counted_and_texts_jumped_over() {
        let shape = JsonShape::of(br#"{"a":[1,2,{"b":"[[[,,,:::\"{{"}],"c":null}"#, LIMITS).unwrap();
        assert_eq!((shape.objects, shape.fields, shape.texts), (2, 3, 4));
        assert!((7..10).contains(&shape.values), "{shape:?}");
    }

    #[test]
    fn op_10_what_is_too_much_is_refused_before_it_takes_memory() {
        let budget = MemoryBudget::new(ByteCount::mib(256));
        let take_apart = |text: &str| object(text.as_bytes(), LIMITS, &mut budget.holder(), Admission::AtDoor);
        for (text, word) in [
            (format!("{}{}", "[".repeat(65), "]".repeat(65)), "64 deep"),
            (format!("{{\"a\":[{}1]}}", "0,".repeat(1_000)), "1000 values"),
            (format!("{{{}\"x\":0}}", "\"a\":0,".repeat(1_000)), "1000 values"),
            (format!("{{\"a\":[{}1]}}", "{},".repeat(1_000)), "1000 values"),
        ] {
            let error = take_apart(&text).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(take_apart("{\"a\":[1,2]}").is_ok());
        assert_eq!(budget.figures().used, ByteCount::ZERO);
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), "\\PC{0,20}".prop_map(Value::from)];
        leaf.prop_recursive(6, 200, 20, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                proptest::collection::btree_map("\\PC{0,6}", inner, 0..20)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn values(value: &Value) -> usize {
        1 + match value {
            Value::Array(list) => list.iter().map(values).sum(),
            Value::Object(fields) => fields.values().map(values).sum(),
            _ => 0,
        }
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Read {
        name: String,
        inner: Option<Inner>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields, expecting = "an object with 'count'")]
    #[allow(dead_code, reason = "only read")]
    struct Inner {
        count: u8,
    }

    #[test]
    fn ru_2_an_error_names_the_field_that_it_is_about() {
        for (text, param, message) in [
            (r#"{"name": 5}"#, Some("name"), "'name': invalid type: integer `5`"),
            (r#"{"name": "`x`", "inner": {"count": "`y`"}}"#, Some("inner.count"), "invalid type: string \"`y`\""),
            (r#"{"name": "a", "inner": {}}"#, Some("inner.count"), "missing field `count`"),
            (r#"{"name": "a", "inner": {"count": 1, "size": 2}}"#, Some("inner.size"), "unknown field `size`"),
            (r#"{"name": "a", "inner": 7}"#, Some("inner"), "expected an object with 'count'"),
            (r#"{}"#, Some("name"), "missing field `name`"),
            (r#"{"name": "a", "other": 1}"#, Some("other"), "unknown field `other`"),
            (r#"{"name": "a"} x"#, None, "trailing characters"),
            (r#"{"name": "a"#, None, "EOF while parsing"),
            (r#"["a"]"#, None, "the order is not a JSON object"),
        ] {
            let error = read_object::<Read>(text.as_bytes(), "the order").unwrap_err();
            assert_eq!(error.param.as_deref(), param, "{text}: {error:?}");
            assert!(error.message.contains(message), "{text}: {}", error.message);
        }
        assert!(read_object::<Read>(b" {\"name\": \"a\"} ", "the order").is_ok());
    }

    proptest! {
        #[test]
        fn no_document_has_more_values_than_were_counted(value in document()) {
            let text = value.to_string();
            let shape = JsonShape::of(text.as_bytes(), LIMITS).unwrap();
            prop_assert!(values(&value) <= shape.values, "{} of {text}", values(&value));
        }
    }
}
