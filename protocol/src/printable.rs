//! Output of foreign texts to a terminal, a log or a shared document. Characters that would move a cursor, hide text
//! or reverse its direction are written as their numbers. Texts in a document have a limit of length.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};

/// Whether a character may be shown as it is. Line breaks and tabs count as not printable, although some texts may
/// contain them.
pub const fn is_printable(character: char) -> bool {
    !matches!(character,
        // C0, DEL and C1 controls: escape sequences begin with one of them.
        '\0'..='\x1f' | '\x7f'..='\u{9f}'
        // Marks, embeddings, overrides and isolates of the bidirectional algorithm.
        | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        // Separators of lines and paragraphs.
        | '\u{2028}' | '\u{2029}'
        // Invisible characters: soft hyphen, fillers, zero-width space, operators, byte order mark, annotations,
        // tags. Joiners are permitted, since Persian and emoji need them.
        | '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{200b}'
        | '\u{3164}' | '\u{ffa0}' | '\u{fffe}' | '\u{ffff}'
        | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// The text with every character that is not printable in JSON's form, `\u001b`: a JSON text keeps its meaning.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    text.chars().for_each(|character| push_printable(&mut shown, character));
    Cow::Owned(shown)
}

/// Adds one character as [`printable`] shows it.
pub fn push_printable(shown: &mut String, character: char) {
    match character {
        character if is_printable(character) => shown.push(character),
        '\n' => shown.push_str("\\n"),
        '\t' => shown.push_str("\\t"),
        '\r' => shown.push_str("\\r"),
        character => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

/// The longest line of a log in bytes; the rest is cut.
const LONGEST_LINE: usize = 64 << 10;

/// One line of a log: printable, without control characters, and of limited length. With `colours` the log's own
/// colours pass.
pub fn printable_line(line: &[u8], colours: bool) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let mut shown = String::with_capacity(text.len() + 1);
    let mut left = text;
    while let Some(character) = left.chars().next() {
        if shown.len() > LONGEST_LINE {
            shown.push_str(&format!("… ({} bytes more)", left.len()));
            break;
        }
        // Fields contain no escape characters here: the log's formatter has written them as text already.
        if let Some(length) = colour(left).filter(|_| colours) {
            shown.push_str(&left[..length]);
            left = &left[length..];
            continue;
        }
        push_printable(&mut shown, character);
        left = &left[character.len_utf8()..];
    }
    shown.push('\n');
    shown
}

/// The length of a colour or style at the beginning of a text (ECMA-48, SGR).
fn colour(text: &str) -> Option<usize> {
    let end = text.strip_prefix("\x1b[")?.find(|character: char| !character.is_ascii_digit() && character != ';')?;
    let end = end + 2;
    text[end..].starts_with('m').then_some(end + 1)
}

/// A writer of text that writes non-printable characters as their numbers. Line breaks and tabs pass. Bytes that are
/// not UTF-8 are replaced.
#[derive(Debug)]
pub struct PrintableWriter<W> {
    inner: W,
    /// The first bytes of a character whose rest was not written yet.
    rest: Vec<u8>,
}

impl<W: Write> PrintableWriter<W> {
    /// A filter in front of `inner`.
    pub const fn new(inner: W) -> Self {
        Self { inner, rest: Vec::new() }
    }

    /// The filtered writer, for permitted control codes.
    pub const fn inner(&mut self) -> &mut W {
        &mut self.inner
    }
}

impl<W: Write> Write for PrintableWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.rest);
        // The last character may arrive in two pieces; any other bytes that are not UTF-8 are a fault.
        let whole = pending.utf8_chunks().last().map_or(0, |last| {
            let open = last.invalid();
            let may_go_on = open.len() < 4 && std::str::from_utf8(open).is_err_and(|error| error.error_len().is_none());
            if may_go_on { pending.len() - open.len() } else { pending.len() }
        });
        let (now, later) = pending.split_at(whole);
        self.rest = later.to_vec();
        let mut shown = String::with_capacity(now.len());
        let text = String::from_utf8_lossy(now).replace("\r\n", "\n");
        for character in text.chars() {
            match character {
                '\n' | '\t' => shown.push(character),
                character => push_printable(&mut shown, character),
            }
        }
        self.inner.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A short human-readable text in a document that others read: printable, and at most [`Label::LIMIT`] bytes. Other
/// texts are escaped and cut, also when a document is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Label(String);

impl Label {
    /// The longest label in bytes.
    pub const LIMIT: usize = 128;

    /// Whether a text can be a label without a change.
    pub fn fits(text: &str) -> bool {
        text.len() <= Self::LIMIT && text.chars().all(is_printable)
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        const CUT: char = '…';
        let shown = printable(text);
        if shown.len() <= Self::LIMIT {
            return Self(shown.into_owned());
        }
        let mut cut = String::with_capacity(Self::LIMIT);
        for character in shown.chars() {
            if cut.len() + character.len_utf8() + CUT.len_utf8() > Self::LIMIT {
                break;
            }
            cut.push(character);
        }
        cut.push(CUT);
        Self(cut)
    }
}

impl From<String> for Label {
    fn from(text: String) -> Self {
        if Self::fits(&text) { Self(text) } else { Self::from(text.as_str()) }
    }
}

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

impl Deref for Label {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_10_what_moves_hides_or_turns_text_is_written_as_its_number() {
        for (text, shown) in [
            ("train.py, größer als 東京 👩‍🔬", "train.py, größer als 東京 👩‍🔬"),
            ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
            ("\u{9b}31m", "\\u009b31m"),
            ("a\nb\tc\rd\x7f", "a\\nb\\tc\\rd\\u007f"),
            ("\u{202e}gpj.exe", "\\u202egpj.exe"),
            ("\u{2066}\u{200f}\u{2028}\u{feff}", "\\u2066\\u200f\\u2028\\ufeff"),
            ("\u{e0041}", "\\udb40\\udc41"),
            ("admin\u{200b}\u{ad}\u{3164}", "admin\\u200b\\u00ad\\u3164"),
        ] {
            assert_eq!(printable(text), shown);
            // The text keeps its meaning in JSON.
            let quoted = printable(&format!("\"{}\"", text.replace(['\n', '\t', '\r'], " "))).into_owned();
            let read: String = serde_json::from_str(&quoted).unwrap();
            assert_eq!(read, text.replace(['\n', '\t', '\r'], " "));
        }
    }

    fn shown(pieces: &[&[u8]]) -> String {
        let mut writer = PrintableWriter::new(Vec::new());
        for piece in pieces {
            writer.write_all(piece).unwrap();
        }
        String::from_utf8(writer.inner).unwrap()
    }

    #[test]
    fn op_10_characters_in_pieces_are_put_together_and_broken_ones_replaced() {
        assert_eq!(shown(&[b"\xf0\x9f", b"\x91\xa9 \xc3", b"\xbc"]), "👩 ü");
        assert_eq!(shown(&[b"a\xffb", b"\xc3", b"x"]), "a\u{fffd}b\u{fffd}x");
        // The second byte of a C1 control arrives alone.
        assert_eq!(shown(&[b"\xc2", b"\x9b31m"]), "\\u009b31m");
    }

    #[test]
    fn op_10_a_line_of_the_log_stays_one_line_and_has_an_end() {
        assert_eq!(printable_line(b"INFO a\nERROR forged\n", false), "INFO a\\nERROR forged\n");
        assert_eq!(
            printable_line("\x1b[2mINFO\x1b[0m \x1b]0;t\x07\u{9b}\n".as_bytes(), true),
            "\x1b[2mINFO\x1b[0m \\u001b]0;t\\u0007\\u009b\n"
        );
        assert_eq!(printable_line(b"\x1b[31mred\n", false), "\\u001b[31mred\n");
        assert!(printable_line(&vec![b'x'; 1 << 20], false).len() < LONGEST_LINE + 100);
    }

    #[test]
    fn op_10_a_label_is_short_and_printable_whatever_it_is_made_of() {
        assert_eq!(&*Label::from("train.py"), "train.py");
        for text in ["x".repeat(1 << 20), "\x1b".repeat(1_000), "ß".repeat(100)] {
            let label = Label::from(text);
            assert!(Label::fits(&label) && label.ends_with('…'), "{label}");
        }
        let read: Label = serde_json::from_str("\"\\u001b[2J\"").unwrap();
        assert_eq!(&*read, "\\u001b[2J");
    }
}
