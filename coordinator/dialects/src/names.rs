//! The client's names for the fields of a translated request. An error about the translation is rewritten with these
//! names, so that it points to the client's own fields.

use std::borrow::Cow;
use std::collections::BTreeMap;

use model_boss_protocol::ErrorCode;
use serde_json::Value;

/// Fields of a translated request whose name or place differs in the client's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Keys are places in the translation, such as `messages[1].content`.
    origins: BTreeMap<String, FieldOrigin>,
}

/// The place in the client's request from which a place of the translation was made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FieldOrigin {
    /// The value was copied: places below it map to places below the client's.
    Moved(String),
    /// The value was computed: places below it all map to the client's place itself.
    Made(String),
}

impl Names {
    /// Records that the value at `ours` was copied from the client's `theirs`.
    pub(crate) fn moved(&mut self, ours: impl Into<String>, theirs: impl Into<String>) {
        self.origins.insert(ours.into(), FieldOrigin::Moved(theirs.into()));
    }

    /// Records a copy, but only if its place differs. Most places are equal in both requests and need no record. A
    /// place below another record needs [`Self::moved`].
    pub(crate) fn moved_if_elsewhere(&mut self, ours: &str, theirs: &str) {
        if ours != theirs {
            self.moved(ours, theirs);
        }
    }

    /// Records that the value at `ours` was computed from the client's `theirs`.
    pub(crate) fn made(&mut self, ours: impl Into<String>, theirs: impl Into<String>) {
        self.origins.insert(ours.into(), FieldOrigin::Made(theirs.into()));
    }

    /// The client's name for a place of the translation.
    pub fn place<'a>(&self, ours: &'a str) -> Cow<'a, str> {
        self.renamed(ours).map_or(Cow::Borrowed(ours), Cow::Owned)
    }

    /// Puts the client's names into an error: into its message, and into the field that it is about.
    pub fn put_back(&self, code: ErrorCode, message: &mut String, field: &mut Option<String>) {
        if self.origins.is_empty() || !is_about_fields(code.as_str(), field.as_deref()) {
            return;
        }
        *message = self.words(message, field.as_deref());
        *field = field.take().map(|field| self.place(&field).into_owned());
    }

    /// The body of an error with the client's names, whichever process wrote it.
    pub(crate) fn put_back_body(&self, mut body: Value) -> Value {
        match body.get_mut("error") {
            Some(Value::String(message)) => *message = self.words(message, None),
            Some(Value::Object(error)) => {
                let text = |name: &str| error.get(name).and_then(Value::as_str);
                let param = text("param").map(str::to_owned);
                if !is_about_fields(text("code").unwrap_or_default(), param.as_deref()) {
                    return body;
                }
                if let Some(Value::String(message)) = error.get_mut("message") {
                    *message = self.words(message, param.as_deref());
                }
                if let Some(param) = param {
                    error.insert("param".to_owned(), self.place(&param).into());
                }
            }
            _ => {}
        }
        body
    }

    fn renamed(&self, ours: &str) -> Option<String> {
        let mut known = ours;
        loop {
            match self.origins.get(known) {
                Some(FieldOrigin::Moved(theirs)) => return Some(format!("{theirs}{}", &ours[known.len()..])),
                Some(FieldOrigin::Made(theirs)) => return Some(theirs.clone()),
                None => known = &known[..known.rfind(['.', '['])?],
            }
        }
    }

    /// A message with the client's names of its fields. A word counts as a field if it is in quotes or contains an
    /// underscore.
    fn words(&self, message: &str, param: Option<&str>) -> String {
        let mut out = String::with_capacity(message.len());
        let mut rest = message;
        while let Some(start) = rest.find(is_of_place) {
            out.push_str(&rest[..start]);
            let quote = out.chars().next_back().filter(|quote| QUOTES.contains(quote));
            let word = &rest[start..];
            let word = &word[..word.find(|c| !is_of_place(c)).unwrap_or(word.len())];
            rest = &rest[start + word.len()..];
            let place = word.trim_end_matches('.');
            let is_field = match quote {
                Some(quote) => rest.starts_with(quote),
                None => place.contains('_'),
            };
            out.push_str(&if is_field { self.word(place, param) } else { Cow::Borrowed(place) });
            out.push_str(&word[place.len()..]);
        }
        out + rest
    }

    /// The client's name for a field in a message. The field is a whole place, or the last part of `param`, which the
    /// message is about.
    fn word<'a>(&self, word: &'a str, param: Option<&str>) -> Cow<'a, str> {
        if let Some(theirs) = self.renamed(word) {
            return Cow::Owned(theirs);
        }
        let theirs = param.filter(|param| last(param) == word).and_then(|param| self.renamed(param));
        theirs.map_or(Cow::Borrowed(word), |theirs| Cow::Owned(last(&theirs).to_owned()))
    }
}

/// Whether the quoted words of an error are fields. In errors with other codes, quoted words are names of models, which
/// may look like fields.
fn is_about_fields(code: &str, param: Option<&str>) -> bool {
    use ErrorCode::{ContextLengthExceeded, InvalidRequest, TemplateFailed, UnsupportedByModel};
    let known = ErrorCode::ALL.iter().find(|known| known.as_str() == code);
    let about = [InvalidRequest, UnsupportedByModel, ContextLengthExceeded, TemplateFailed];
    known.is_none_or(|known| about.contains(known)) && param != Some("model")
}

/// An error's message for an API whose errors have no `param`: with the field in front.
pub(crate) fn message_with_field(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or("the request failed");
    let is_about_the_field = matches!(error["code"].as_str(), Some("invalid_request" | "unsupported_by_model"));
    match error["param"].as_str().filter(|param| is_about_the_field && !message.contains(*param)) {
        Some(param) => format!("'{param}': {message}"),
        None => message.to_owned(),
    }
}

const QUOTES: [char; 3] = ['\'', '"', '`'];

fn is_of_place(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.[]".contains(c)
}

fn last(place: &str) -> &str {
    place.rsplit('.').next().unwrap_or(place)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    fn put_back(names: &Names, code: ErrorCode, message: &str, field: Option<&str>) -> (String, Option<String>) {
        let (mut message, mut field) = (message.to_owned(), field.map(str::to_owned));
        names.put_back(code, &mut message, &mut field);
        (message, field)
    }

    /// The value at a place of a document.
    fn at<'a>(document: &'a Value, place: &str) -> Option<&'a Value> {
        document.pointer(&format!("/{}", place.replace(']', "").replace(['.', '['], "/")))
    }

    fn places(value: &Value, place: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                let dot = if place.is_empty() { "" } else { "." };
                fields.iter().for_each(|(name, value)| places(value, &format!("{place}{dot}{name}"), found));
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{place}[{index}]"), found));
            }
            _ => {}
        }
        if !place.is_empty() {
            found.push(place.to_owned());
        }
    }

    /// Checks that every place of a translation maps to an existing place of the client's request.
    pub(crate) fn check_every_place(names: &Names, translation: &Value, client: &Value) {
        let mut found = Vec::new();
        places(translation, "", &mut found);
        for ours in found {
            let theirs = names.place(&ours);
            assert!(at(client, &theirs).is_some(), "'{ours}' is called '{theirs}', which is not in {client}");
            let said = put_back(names, ErrorCode::InvalidRequest, &format!("'{ours}' is wrong"), Some(&ours));
            assert_eq!(said, (format!("'{theirs}' is wrong"), Some(theirs.into_owned())));
        }
    }

    fn names() -> Names {
        let mut names = Names::default();
        names.moved("stop", "stop_sequences");
        names.moved("max_tokens", "options.num_predict");
        names.made("messages[0]", "system");
        names.moved("messages[1]", "messages[0]");
        names.moved("messages[1].content[0].image_url.url", "messages[0].content[0].source.data");
        names
    }

    #[test]
    fn a_message_alone_names_the_field() {
        for (code, message, said) in [
            ("invalid_request", "an image must be a text", "'images[0]': an image must be a text"),
            ("unsupported_by_model", "cannot see", "'images[0]': cannot see"),
            ("invalid_request", "'images[0]' is wrong", "'images[0]' is wrong"),
            ("context_length_exceeded", "too long", "too long"),
        ] {
            let error = json!({ "message": message, "code": code, "param": "images[0]" });
            assert_eq!(message_with_field(&error), said);
        }
        assert_eq!(message_with_field(&json!({ "message": "no", "code": "invalid_request", "param": null })), "no");
        assert_eq!(message_with_field(&json!(null)), "the request failed");
    }

    #[test]
    fn a_place_has_the_name_of_the_nearest_known_place_above_it() {
        for (ours, theirs) in [
            ("stop", "stop_sequences"),
            ("stop[3]", "stop_sequences[3]"),
            ("stops", "stops"),
            ("messages", "messages"),
            ("messages[0].content[2].text", "system"),
            ("messages[1].content[0].text", "messages[0].content[0].text"),
            ("messages[1].content[0].image_url.url", "messages[0].content[0].source.data"),
            ("messages[11]", "messages[11]"),
        ] {
            assert_eq!(names().place(ours), theirs);
        }
    }

    #[test]
    fn messages_name_fields_as_the_client_did_and_keep_all_other_words() {
        for (ours, theirs) in [
            ("'stop' has 9 entries; stop that", "'stop_sequences' has 9 entries; stop that"),
            (
                "max_tokens is large. Leave out max_tokens.",
                "options.num_predict is large. Leave out options.num_predict.",
            ),
            ("'stop[2]': expected a text", "'stop_sequences[2]': expected a text"),
            ("the user's 'stop and go'", "the user's 'stop and go'"),
            ("\"max_tokens\" or `stop`", "\"options.num_predict\" or `stop_sequences`"),
            ("größer: 'stop' …", "größer: 'stop_sequences' …"),
        ] {
            let said = put_back(&names(), ErrorCode::InvalidRequest, ours, Some("stop"));
            assert_eq!(said, (theirs.to_owned(), Some("stop_sequences".to_owned())));
        }
        let url = "messages[1].content[0].image_url.url";
        let said = put_back(&names(), ErrorCode::InvalidRequest, "'url' must be data", Some(url));
        assert_eq!(said.0, "'data' must be data");
        let body = json!({
            "error": { "message": "no model", "type": "not_found_error", "param": null, "code": "model_not_found" },
            "source": "worker",
        });
        assert_eq!(names().put_back_body(body.clone()), body);
        assert_eq!(names().put_back_body(json!({ "error": "'stop' is long" }))["error"], "'stop_sequences' is long");
        for (code, param) in
            [("model_not_found", Some("model")), ("unsupported_by_model", Some("model")), ("draining", None)]
        {
            let body = json!({ "error": { "message": "the model 'stop' cannot", "code": code, "param": param } });
            assert_eq!(names().put_back_body(body.clone()), body, "a model may have the name of a field");
        }
        let words = "the model 'stop' did not load";
        assert_eq!(put_back(&names(), ErrorCode::ModelLoadFailed, words, None), (words.to_owned(), None));
        for odd in [json!(null), json!("stop"), json!([{}]), json!({ "error": null }), json!({ "error": [7] })] {
            assert_eq!(names().put_back_body(odd.clone()), odd);
        }
    }
}
