//! Bodies of `multipart/form-data` (RFC 7578), read in place: the coordinator reads the fields that it needs and passes
//! the body on, and the worker reads all. Both have one reader, so that no body means two things.

use std::ops::Range;

/// The most parts of a body.
const MOST_PARTS: usize = 256;

/// Bytes of the headers of one part.
const LONGEST_HEAD: usize = 8 << 10;

/// The longest boundary (RFC 2046).
const LONGEST_BOUNDARY: usize = 70;

/// A part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormPart {
    /// The field's name.
    pub name: String,
    /// The file's name; none for a field of text.
    pub file_name: Option<String>,
    /// The place of the content in the body.
    pub content: Range<usize>,
}

/// The body is no form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The content type names no boundary.
    #[error(
        "the content type has to be multipart/form-data with a boundary, as clients write it for a form with a file"
    )]
    NoBoundary,
    /// The body ends before its last boundary.
    #[error("the multipart body ends before its last boundary")]
    CutOff,
    /// A part's headers cannot be read.
    #[error("the headers of part {0} of the multipart body cannot be read")]
    Head(usize),
    /// Too many parts.
    #[error("the multipart body has more than {MOST_PARTS} parts")]
    TooMany,
}

/// The boundary of a content type.
pub fn form_boundary(content_type: &str) -> Result<String, FormError> {
    let (kind, parameters) = content_type.split_once(';').ok_or(FormError::NoBoundary)?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(FormError::NoBoundary);
    }
    let boundary = parameter(parameters, "boundary").ok_or(FormError::NoBoundary)?;
    let is_usual =
        (1..=LONGEST_BOUNDARY).contains(&boundary.len()) && boundary.bytes().all(|byte| (32..127).contains(&byte));
    if is_usual { Ok(boundary) } else { Err(FormError::NoBoundary) }
}

/// All parts of a body, in its order.
pub fn form_parts(body: &[u8], boundary: &str) -> Result<Vec<FormPart>, FormError> {
    let delimiter = format!("\r\n--{boundary}").into_bytes();
    // The first delimiter may begin the body, without the line's end in front of it.
    let mut at = if body.starts_with(&delimiter[2..]) {
        delimiter.len() - 2
    } else {
        find(body, 0, &delimiter).ok_or(FormError::CutOff)? + delimiter.len()
    };
    let mut parts = Vec::new();
    loop {
        // Spaces may follow a boundary (RFC 2046, 5.1.1).
        while body.get(at).is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            at += 1;
        }
        let behind = &body[at..];
        if behind.starts_with(b"--") {
            return Ok(parts);
        }
        if !behind.starts_with(b"\r\n") {
            return Err(FormError::CutOff);
        }
        if parts.len() == MOST_PARTS {
            return Err(FormError::TooMany);
        }
        let head_error = FormError::Head(parts.len());
        let window = &body[at..body.len().min(at + LONGEST_HEAD)];
        let end = find(window, 0, b"\r\n\r\n").ok_or(head_error.clone())?;
        let head = std::str::from_utf8(&window[..end]).map_err(|_| head_error.clone())?;
        let first = at + end + 4;
        // An empty part's delimiter begins with the end of its headers.
        let content = find(body, first - 2, &delimiter).ok_or(FormError::CutOff)?;
        let (name, file_name) = disposition(head).ok_or(head_error)?;
        parts.push(FormPart { name, file_name, content: first..content.max(first) });
        at = content + delimiter.len();
    }
}

/// The names of a part's `Content-Disposition`.
fn disposition(head: &str) -> Option<(String, Option<String>)> {
    let value = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let (kind, parameters) = value.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return None;
    }
    Some((parameter(parameters, "name")?, parameter(parameters, "filename")))
}

/// A parameter's value, with or without quotes.
fn parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        let (name, behind) = rest.split_once('=')?;
        let behind = behind.trim_start();
        let value;
        if let Some(quoted) = behind.strip_prefix('"') {
            let mut text = String::new();
            let mut letters = quoted.char_indices();
            let end = loop {
                match letters.next()? {
                    (at, '"') => break at,
                    // Browsers quote only these two.
                    (_, '\\') => match letters.next()? {
                        (_, letter @ ('"' | '\\')) => text.push(letter),
                        (_, letter) => text.extend(['\\', letter]),
                    },
                    (_, letter) => text.push(letter),
                }
            };
            (value, rest) = (text, quoted[end + 1..].split_once(';').map_or("", |(_, rest)| rest));
        } else {
            let (text, behind) = behind.split_once(';').unwrap_or((behind, ""));
            (value, rest) = (text.trim().to_owned(), behind);
        }
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
    }
}

fn find(body: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(body.get(from..)?, wanted).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &[u8] = b"--xyz\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--xyz\r\n\
        content-disposition: form-data; name=file; filename=\"a \\\"b\\\".wav\"\r\nContent-Type: audio/wav\r\n\r\nRI\r\n--x\r\n\
        \r\n--xyz  \r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n\r\n--xyz--\r\nmore";

    fn of(body: &[u8]) -> Result<Vec<(String, Option<String>, String)>, FormError> {
        let text = |part: FormPart| {
            let content = String::from_utf8_lossy(&body[part.content]).into_owned();
            (part.name, part.file_name, content)
        };
        Ok(form_parts(body, "xyz")?.into_iter().map(text).collect())
    }

    #[test]
    fn rc_28_a_form_has_its_fields_and_its_file() {
        let part = |name: &str, file: Option<&str>, content: &str| {
            (name.to_owned(), file.map(str::to_owned), content.to_owned())
        };
        let all = [
            part("model", None, "whisper"),
            part("file", Some("a \"b\".wav"), "RI\r\n--x\r\n"),
            part("prompt", None, ""),
        ];
        assert_eq!(of(FORM).unwrap(), all);
        let with_preamble = [b"preamble\r\n".as_slice(), FORM].concat();
        assert_eq!(of(&with_preamble).unwrap(), all);
    }

    #[test]
    fn rc_28_what_is_no_form_is_refused() {
        for end in 0..FORM.len() - 6 {
            assert!(of(&FORM[..end]).is_err(), "{end}");
        }
        assert_eq!(of(b"--xyz\r\nContent-Type: text/plain\r\n\r\nx\r\n--xyz--"), Err(FormError::Head(0)));
        let many = b"--xyz\r\nContent-Disposition: form-data; name=a\r\n\r\nb\r\n".repeat(300);
        assert_eq!(of(&many), Err(FormError::TooMany));
    }

    #[test]
    fn rc_28_a_boundary_is_read_in_each_spelling() {
        let of = |text: &str| form_boundary(text).ok();
        assert_eq!(of("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(of("Multipart/Form-Data; charset=utf-8; boundary=\"a b;c\"").as_deref(), Some("a b;c"));
        for wrong in
            ["application/json", "multipart/form-data", "multipart/mixed; boundary=x", "multipart/form-data; boundary="]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
