//! `response_format`, OpenAI's field for the form of an answer, in requests of other APIs. Their clients send it where
//! the API's own field is meant, and an answer that ignores it would be wrong (EN-6).

use serde_json::{Map, Value};

/// The field's name, in chats too.
pub(crate) const FIELD: &str = "response_format";

/// The field's value, if it demands a form. `own` is the place of the API's own field, if that demands one too. The
/// engine or provider that serves the request meets or refuses the form.
///
/// Errors: both fields demand a form, in words for the client.
pub(crate) fn demanded<'a>(request: &'a Map<String, Value>, own: Option<&str>) -> Result<Option<&'a Value>, String> {
    let given = request.get(FIELD).filter(|format| !format.is_null() && format["type"] != "text");
    match (given, own) {
        (Some(_), Some(own)) => {
            Err(format!("'{FIELD}' and '{own}' both demand a form of the answer; send '{own}' alone"))
        }
        (given, _) => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn en_6_a_form_in_openais_field_is_found_unless_it_is_text_and_two_forms_are_one_too_many() {
        let object = |value: Value| value.as_object().unwrap().clone();
        for nothing in [json!({}), json!({ FIELD: null }), json!({ FIELD: { "type": "text" } })] {
            assert_eq!(demanded(&object(nothing), Some("format")), Ok(None));
        }
        // The engine names the fault of a value that is no form.
        for form in [json!({ "type": "json_object" }), json!({ "type": "regex", "pattern": "x" }), json!("json")] {
            let request = object(json!({ FIELD: form }));
            assert_eq!(demanded(&request, None), Ok(Some(&form)));
            let message = demanded(&request, Some("text.format")).unwrap_err();
            assert!(message.contains("'response_format'") && message.contains("send 'text.format'"), "{message}");
        }
    }
}
