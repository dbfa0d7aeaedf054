//! Search for links in requests. An engine would fetch a link from inside the operator's network. Pictures, sounds and
//! files therefore must be `data:` URLs or base64, on every route and for every engine. Texts and arguments of tool
//! calls are not searched: a model may read about links.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Fields of a request that may hold content.
const CONTENT: [&str; 7] = ["input", "inputs", "prompt", "documents", "query", "queries", "content"];
/// Fields that hold a picture, a sound or a file, as OpenAI, Anthropic, vLLM and llama.cpp name them.
const MEDIA: [&str; 14] = [
    "image",
    "images",
    "image_data",
    "audio",
    "audios",
    "video",
    "videos",
    "input_image",
    "input_audio",
    "input_video",
    "input_file",
    "multimodal_data",
    "multi_modal_data",
    "file_data",
];
/// Fields that hold media if their value is an object; a string in them only names a source.
const OBJECTS: [&str; 2] = ["source", "file"];
/// Fields of content whose values are free text or the client's own data.
const FREE: [&str; 4] = ["text", "input", "arguments", "cache_control"];
/// Fields that describe media, such as type and name.
const DESCRIPTIONS: [&str; 12] = [
    "type",
    "detail",
    "format",
    "media_type",
    "mime_type",
    "filename",
    "file_name",
    "file_id",
    "id",
    "name",
    "title",
    "text",
];
/// Least characters of base64 media: every picture or sound is longer, while paths are shorter.
const SHORTEST_MEDIA: usize = 64;
/// Limit in characters for a scheme; all registered ones are shorter.
const LONGEST_SCHEME: usize = 64;

/// Searches one field of a request for links. The result is the place of the first link, relative to the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSearch {
    /// Messages, of which only the content is searched.
    Messages,
    /// Content, as a string or as parts.
    Content,
    /// A field of `OBJECTS`: media if its value is an object.
    Object,
    /// A picture, a sound or a file: base64, or a `data:` URL.
    Media,
    /// Any other field of a media object; a string in it must have no scheme but `data:`.
    Words,
    /// A URL, which must be a `data:` URL.
    Url,
}

impl LinkSearch {
    /// The search for a field at the top of a request; `None`: the field is not searched.
    pub fn in_field(name: &str) -> Option<Self> {
        match name {
            "messages" => Some(Self::Messages),
            _ if CONTENT.contains(&name) => Some(Self::Content),
            _ if is_url(name) => Some(Self::Url),
            _ => MEDIA.contains(&name).then_some(Self::Media),
        }
    }

    /// The search for a field inside another; `None`: the field is not searched.
    fn within(self, name: &str) -> Option<Self> {
        match self {
            Self::Messages if name == "content" => Some(Self::Content),
            Self::Content if FREE.contains(&name) => None,
            Self::Messages | Self::Content if is_url(name) => Some(Self::Url),
            Self::Messages | Self::Content if MEDIA.contains(&name) => Some(Self::Media),
            Self::Messages => None,
            Self::Content if OBJECTS.contains(&name) => Some(Self::Object),
            Self::Content => Some(Self::Content),
            _ if DESCRIPTIONS.contains(&name) => None,
            _ if name == "url" || name == "uri" || is_url(name) => Some(Self::Url),
            _ if name == "data" || MEDIA.contains(&name) => Some(Self::Media),
            // These are further fields of a media object, such as those of Anthropic's links.
            _ => Some(Self::Words),
        }
    }

    fn refuses(self, text: &str) -> bool {
        match self {
            Self::Messages | Self::Content | Self::Object => false,
            Self::Words => has_scheme(text),
            Self::Media => !is_data(text) && !is_base64(text),
            Self::Url => !is_data(text),
        }
    }
}

/// Whether a field holds a link by its name.
fn is_url(name: &str) -> bool {
    name.ends_with("_url") || name.ends_with("_uri")
}

fn is_data(text: &str) -> bool {
    text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

fn is_base64(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_\r\n".contains(&byte);
    text.len() >= SHORTEST_MEDIA && text.bytes().all(known)
}

/// Whether URL parsers would find a scheme other than `data:`. They ignore white space before and within the scheme.
fn has_scheme(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| !c.is_whitespace() && !c.is_control()).take(LONGEST_SCHEME).collect();
    let scheme = plain.split_once(':').map_or("data", |(scheme, _)| scheme);
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
    (is_scheme && !scheme.eq_ignore_ascii_case("data")) || plain.starts_with("//")
}

/// The message for a link at `place`.
pub fn link_refused(place: &str) -> String {
    format!("'{place}' must be a data: URL or base64; links are not followed")
}

/// Whether a text has the form of Ollama's pictures: base64 that URL parsers do not take for a link.
pub(crate) fn is_picture(text: &str) -> bool {
    !LinkSearch::Words.refuses(text)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=-_\r\n".contains(&byte))
}

impl<'de> DeserializeSeed<'de> for LinkSearch {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[derive(Deserialize)]
struct LinkFieldName<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for LinkSearch {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.refuses(text).then(String::new))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut index) = (None, 0_usize);
        while let Some(within) = list.next_element_seed(self)? {
            found = found.or_else(|| within.map(|place| format!("[{index}]{place}")));
            index += 1;
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(LinkFieldName(name)) = map.next_key()? {
            let Some(search) = self.within(&name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let within = map.next_value_seed(search)?;
            found = found.or_else(|| within.map(|place| format!(".{name}{place}")));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn find(field: &str, value: &Value) -> Option<String> {
        let text = value.to_string();
        LinkSearch::in_field(field)?.deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap()
    }

    #[test]
    fn links_are_found_in_every_spelling() {
        let link = "https://example.com/cat.png";
        for (field, value, place) in [
            (
                "messages",
                json!([{ "content": [{ "type": "image_url", "image_url": { "url": link } }] }]),
                "[0].content[0].image_url.url",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "image_url", "image_url": link }] }]),
                "[0].content[0].image_url",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "input_image", "image_url": "file:///etc/passwd" }] }]),
                "[0].content[0].image_url",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "x", "image_url": { "url": "/etc/passwd" } }] }]),
                "[0].content[0].image_url.url",
            ),
            (
                "messages",
                json!([{ "content": [{ "video_url": { "url": " ht\ntp://x" } }] }]),
                "[0].content[0].video_url.url",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "input_audio", "input_audio": { "data": link } }] }]),
                "[0].content[0].input_audio.data",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "input_audio", "input_audio": { "url": link } }] }]),
                "[0].content[0].input_audio.url",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "file", "file": { "file_data": link } }] }]),
                "[0].content[0].file.file_data",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "input_file", "file_url": link }] }]),
                "[0].content[0].file_url",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "image", "source": { "type": "url", "url": link } }] }]),
                "[0].content[0].source.url",
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "document", "source": { "type": "file", "where": "ftp://x" } }] }]),
                "[0].content[0].source.where",
            ),
            (
                "messages",
                json!([{}, { "content": [{ "type": "tool_result", "content": [{ "type": "image", "source": { "url": link } }] }] }]),
                "[1].content[0].content[0].source.url",
            ),
            ("messages", json!([{ "content": { "image_url": link } }]), "[0].content.image_url"),
            ("messages", json!([{ "images": [link] }]), "[0].images[0]"),
            (
                "input",
                json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": link }] }]),
                "[0].content[0].image_url",
            ),
            ("input", json!([{ "image": link }]), "[0].image"),
            ("documents", json!([{ "text": "x" }, { "image": "/srv/secret.png" }]), "[1].image"),
            ("query", json!({ "image": link }), ".image"),
            ("prompt", json!({ "prompt_string": "x", "multimodal_data": [link] }), ".multimodal_data[0]"),
            ("images", json!([link]), "[0]"),
            ("image_url", json!(link), ""),
        ] {
            assert_eq!(find(field, &value).as_deref(), Some(place), "{field}: {value}");
        }
    }

    #[test]
    fn what_is_no_link_goes_through() {
        let data = "A".repeat(80);
        let url = format!("data:image/png;base64,{data}");
        for (field, value) in [
            ("messages", json!([{ "role": "user", "content": "see https://example.com" }])),
            ("messages", json!([{ "content": [{ "type": "text", "text": "https://example.com" }] }])),
            (
                "messages",
                json!([{ "content": [{ "type": "image_url", "image_url": { "url": url, "detail": "low" } }] }]),
            ),
            ("messages", json!([{ "content": [{ "type": "image_url", "image_url": "DATA:image/png;base64,AAAA" }] }])),
            (
                "messages",
                json!([{ "content": [{ "type": "input_audio", "input_audio": { "data": data, "format": "wav" } }] }]),
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": data } }] }]),
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "file", "file": { "file_data": url, "filename": "C:\\a.pdf" } }] }]),
            ),
            (
                "messages",
                json!([{ "content": [{ "type": "tool_use", "name": "fetch", "input": { "image_url": "https://x" } }] }]),
            ),
            (
                "messages",
                json!([{ "tool_calls": [{ "function": { "arguments": "{\"image_url\":\"https://x\"}" } }], "content": null }]),
            ),
            (
                "documents",
                json!([{ "text": "x", "url": "https://x", "source": "https://y", "file": "a.pdf" }, "https://z"]),
            ),
            ("input", json!(["https://x", [1, 2, 3], 4.5, true, null, -1])),
            ("prompt", json!("https://x")),
            ("tools", json!([{ "image_url": "https://x" }])),
        ] {
            assert_eq!(find(field, &value), None, "{field}: {value}");
        }
    }
}
