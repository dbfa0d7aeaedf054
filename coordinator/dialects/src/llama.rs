//! llama-server's own routes: their paths in workers, and the fields of an answer that a client selects.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::error::DialectError;
use crate::{Reshape, nonsense};

/// The path that continues a prompt, with an answer in llama-server's own shape.
pub const COMPLETION: &str = "/completion";

/// The path that fills a gap in a text.
pub const INFILL: &str = "/infill";

/// The path that gives the prompt of a conversation.
pub const APPLY_TEMPLATE: &str = "/apply-template";

/// Whether only our own worker and llama-server have this path.
pub(crate) fn is_native(path: &str) -> bool {
    [COMPLETION, INFILL, APPLY_TEMPLATE].contains(&path)
}

/// Selects fields of an answer: llama-server's `response_fields`. A name such as `generation_settings/n_predict` means
/// a field of a field.
pub struct SelectedFields(pub Vec<String>);

impl SelectedFields {
    fn of(&self, answer: &Value) -> Value {
        let found = |path: &String| {
            let value = path.split('/').try_fold(answer, |value, name| value.get(name))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(self.0.iter().filter_map(found).collect::<Map<_, _>>())
    }
}

impl Reshape for SelectedFields {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            return Ok(body.clone());
        }
        let selected = match serde_json::from_slice(body).map_err(nonsense)? {
            Value::Array(answers) => Value::Array(answers.iter().map(|answer| self.of(answer)).collect()),
            answer => self.of(&answer),
        };
        Ok(Bytes::from(selected.to_string()))
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        // Of a stream, llama-server selects fields of the last event only; ours keeps all.
        Bytes::copy_from_slice(bytes)
    }

    fn end(&mut self) -> Bytes {
        Bytes::new()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn en_7_an_answer_has_the_fields_that_its_client_selects() {
        let answer = json!({ "content": "a", "generation_settings": { "n_predict": 3, "seed": 1 }, "prompt": "b" });
        let select = |answer: &Value, fields: &[&str]| {
            let mut selected = SelectedFields(fields.iter().map(|field| (*field).to_owned()).collect());
            let whole = selected.whole(200, &Bytes::from(answer.to_string())).unwrap();
            serde_json::from_slice::<Value>(&whole).unwrap()
        };
        let fields = ["content", "generation_settings/n_predict", "absent", "prompt/none"];
        let expected = json!({ "content": "a", "generation_settings/n_predict": 3 });
        assert_eq!(select(&answer, &fields), expected);
        assert_eq!(select(&json!([answer, answer]), &fields), json!([expected, expected]));
        let error = Bytes::from_static(b"{\"error\":{}}");
        assert_eq!(SelectedFields(vec!["content".into()]).whole(400, &error).unwrap(), error);
    }
}
