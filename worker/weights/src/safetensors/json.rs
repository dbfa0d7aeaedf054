//! An incremental JSON reader for untrusted text. It builds no tree, skips unwanted values, and needs a few buffers of
//! fixed size for a text of any length.

use std::io::{self, Read};
use std::ops::Range;

/// Bytes that are read at once.
const AT_ONCE: usize = 64 << 10;
/// The limit on the nesting of lists and tables.
const DEEPEST: usize = 64;

/// A fault of JSON text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JsonFault {
    /// The text could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The text ends in the middle of a value.
    #[error("it ends too early")]
    Ended,
    /// The next character is not the expected one.
    #[error("{wanted} is missing at byte {at}")]
    Unexpected {
        /// The expected value, in words.
        wanted: &'static str,
        /// Offset from the beginning of the text, in bytes.
        at: u64,
    },
    /// A string or a list that is longer than its reader wants.
    #[error("{what} is longer than {most}")]
    TooLong {
        /// The string or list, in words.
        what: &'static str,
        /// The limit, in bytes or elements.
        most: usize,
    },
}

/// A position in a text.
pub(crate) struct JsonReader<R> {
    source: R,
    buffer: Box<[u8]>,
    filled: usize,
    next: usize,
    /// Bytes before the buffer.
    before: u64,
}

impl<R: Read> JsonReader<R> {
    /// Creates a reader at the beginning of a text.
    pub(crate) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; AT_ONCE].into_boxed_slice(), filled: 0, next: 0, before: 0 }
    }

    /// Calls `each` at the value of every field of a table, with the field's name; it must read that value.
    pub(crate) fn table(
        &mut self,
        longest_name: usize,
        mut each: impl FnMut(&mut Self, &str) -> Result<(), JsonFault>,
    ) -> Result<(), JsonFault> {
        self.expect(b'{', "'{'")?;
        if self.next_is(b'}')? {
            return Ok(());
        }
        let mut name = Vec::new();
        loop {
            self.string(&mut name, "a name", longest_name)?;
            self.expect(b':', "':'")?;
            let text = std::str::from_utf8(&name).map_err(|_| self.unexpected("UTF-8"))?;
            each(self, text)?;
            if self.next_is(b'}')? {
                return Ok(());
            }
            self.expect(b',', "',' or '}'")?;
        }
    }

    /// The numbers of a list, at most `most`.
    pub(crate) fn numbers(&mut self, what: &'static str, most: usize) -> Result<Vec<u64>, JsonFault> {
        let mut numbers = Vec::new();
        self.expect(b'[', "'['")?;
        if self.next_is(b']')? {
            return Ok(numbers);
        }
        loop {
            if numbers.len() == most {
                return Err(JsonFault::TooLong { what, most });
            }
            numbers.push(self.number()?);
            if self.next_is(b']')? {
                return Ok(numbers);
            }
            self.expect(b',', "',' or ']'")?;
        }
    }

    /// A whole number of at least 0.
    pub(crate) fn number(&mut self) -> Result<u64, JsonFault> {
        self.blanks()?;
        let mut number: Option<u64> = None;
        while let Some(digit @ b'0'..=b'9') = self.peek()? {
            self.next += 1;
            let longer =
                number.unwrap_or(0).checked_mul(10).and_then(|number| number.checked_add((digit - b'0').into()));
            number = Some(longer.ok_or_else(|| self.unexpected("a number of 64 bits"))?);
        }
        match self.peek()? {
            Some(b'.' | b'e' | b'E') => Err(self.unexpected("a whole number")),
            _ => number.ok_or_else(|| self.unexpected("a whole number")),
        }
    }

    /// A string, its escapes resolved, of limited length.
    pub(crate) fn string(&mut self, into: &mut Vec<u8>, what: &'static str, most: usize) -> Result<(), JsonFault> {
        into.clear();
        self.expect(b'"', "'\"'")?;
        loop {
            if into.len() > most {
                return Err(JsonFault::TooLong { what, most });
            }
            let plain = self.plain_text()?;
            into.extend_from_slice(self.buffer.get(plain).unwrap_or_default());
            if into.len() > most {
                continue;
            }
            match self.byte()? {
                b'"' => return Ok(()),
                b'\\' => self.escape(into)?,
                0..=0x1f => return Err(self.unexpected("an escaped character")),
                plain => into.push(plain),
            }
        }
    }

    /// Skips one value of any type.
    pub(crate) fn skip(&mut self) -> Result<(), JsonFault> {
        let mut open = Vec::new();
        loop {
            self.blanks()?;
            match self.byte()? {
                opening @ (b'{' | b'[') => {
                    if open.len() == DEEPEST {
                        return Err(JsonFault::TooLong { what: "nesting", most: DEEPEST });
                    }
                    open.push(opening);
                    let closing = if opening == b'{' { b'}' } else { b']' };
                    if self.next_is(closing)? {
                        open.pop();
                    } else {
                        self.skip_name(&open)?;
                        continue;
                    }
                }
                b'"' => self.skip_string()?,
                b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.skip_word()?,
                _ => return Err(self.unexpected("a value")),
            }
            // A value has ended; the object or array around it may end with it.
            loop {
                match open.last() {
                    None => return Ok(()),
                    Some(opening) => {
                        let closing = if *opening == b'{' { b'}' } else { b']' };
                        if self.next_is(closing)? {
                            open.pop();
                            continue;
                        }
                        self.expect(b',', "','")?;
                        self.skip_name(&open)?;
                    }
                }
                break;
            }
        }
    }

    /// Skips a string.
    pub(crate) fn skip_text(&mut self) -> Result<(), JsonFault> {
        self.expect(b'"', "'\"'")?;
        self.skip_string()
    }

    /// Checks that only white space is left.
    pub(crate) fn end(&mut self) -> Result<(), JsonFault> {
        self.blanks()?;
        if self.peek()?.is_some() { Err(self.unexpected("the end")) } else { Ok(()) }
    }

    fn skip_name(&mut self, open: &[u8]) -> Result<(), JsonFault> {
        if open.last() == Some(&b'{') {
            self.skip_text()?;
            self.expect(b':', "':'")?;
        }
        Ok(())
    }

    fn skip_string(&mut self) -> Result<(), JsonFault> {
        loop {
            self.plain_text()?;
            match self.byte()? {
                b'"' => return Ok(()),
                b'\\' => drop(self.byte()?),
                0..=0x1f => return Err(self.unexpected("an escaped character")),
                _ => {}
            }
        }
    }

    /// Skips the bytes of a string in the buffer that need no unescaping.
    fn plain_text(&mut self) -> Result<Range<usize>, JsonFault> {
        self.peek()?;
        let rest = self.buffer.get(self.next..self.filled).unwrap_or_default();
        let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(rest.len());
        let plain = self.next..self.next + length;
        self.next = plain.end;
        Ok(plain)
    }

    fn skip_word(&mut self) -> Result<(), JsonFault> {
        while let Some(b'0'..=b'9' | b'a'..=b'z' | b'E' | b'+' | b'-' | b'.') = self.peek()? {
            self.next += 1;
        }
        Ok(())
    }

    fn escape(&mut self, into: &mut Vec<u8>) -> Result<(), JsonFault> {
        let plain = match self.byte()? {
            quoted @ (b'"' | b'\\' | b'/') => quoted,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let c = self.escaped_character()?;
                into.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(self.unexpected("an escape that JSON has")),
        };
        into.push(plain);
        Ok(())
    }

    fn escaped_character(&mut self) -> Result<char, JsonFault> {
        let first = self.four_digits()?;
        let code = if (0xd800..0xdc00).contains(&first) {
            if (self.byte()?, self.byte()?) != (b'\\', b'u') {
                return Err(self.unexpected("the second half of a character"));
            }
            let second = self.four_digits()?;
            if !(0xdc00..0xe000).contains(&second) {
                return Err(self.unexpected("the second half of a character"));
            }
            0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        char::from_u32(code).ok_or_else(|| self.unexpected("a character"))
    }

    fn four_digits(&mut self) -> Result<u32, JsonFault> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = char::from(self.byte()?).to_digit(16).ok_or_else(|| self.unexpected("four digits"))?;
            code = code * 16 + digit;
        }
        Ok(code)
    }

    fn expect(&mut self, wanted: u8, words: &'static str) -> Result<(), JsonFault> {
        self.blanks()?;
        if self.byte()? == wanted { Ok(()) } else { Err(self.unexpected(words)) }
    }

    /// Consumes the next character if it is `wanted`, and returns whether it was.
    fn next_is(&mut self, wanted: u8) -> Result<bool, JsonFault> {
        self.blanks()?;
        let is = self.peek()? == Some(wanted);
        self.next += usize::from(is);
        Ok(is)
    }

    fn blanks(&mut self) -> Result<(), JsonFault> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek()? {
            self.next += 1;
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, JsonFault> {
        let byte = self.peek()?.ok_or(JsonFault::Ended)?;
        self.next += 1;
        Ok(byte)
    }

    fn peek(&mut self) -> Result<Option<u8>, JsonFault> {
        while self.next == self.filled {
            self.before += self.filled as u64;
            (self.next, self.filled) = (0, 0);
            match self.source.read(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(read) => self.filled = read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.buffer.get(self.next).copied())
    }

    fn unexpected(&self, wanted: &'static str) -> JsonFault {
        JsonFault::Unexpected { wanted, at: self.before + self.next as u64 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reader that returns one byte at a time.
    struct Drops<'a>(&'a [u8]);

    impl Read for Drops<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            self.0 = rest;
            into[0] = *first;
            Ok(1)
        }
    }

    fn skips(text: &str) -> bool {
        let mut json = JsonReader::new(Drops(text.as_bytes()));
        json.skip().and_then(|()| json.end()).is_ok()
    }

    #[test]
    fn a_table_is_read_field_by_field() {
        let text = r#" { "a\u00e9\ud83d\ude00" : [1, 22 ,333], "b":{"c":[{},[],"\"]}",-1.5e3,null,true]}, "d":"x" } "#;
        let mut seen = Vec::new();
        let mut json = JsonReader::new(Drops(text.as_bytes()));
        json.table(20, |json, name| {
            seen.push(name.to_owned());
            match name {
                "b" => json.skip(),
                "d" => json.skip_text(),
                _ => json.numbers("the list", 3).map(|numbers| assert_eq!(numbers, [1, 22, 333])),
            }
        })
        .unwrap();
        json.end().unwrap();
        assert_eq!(seen, ["aé😀", "b", "d"]);
    }

    #[test]
    fn nothing_longer_than_wanted_is_held() {
        let name = format!("{{\"{}\":1}}", "n".repeat(11));
        let read = |text: &str, most| JsonReader::new(text.as_bytes()).table(most, |json, _| json.skip());
        assert!(read(&name, 11).is_ok());
        assert!(matches!(read(&name, 10), Err(JsonFault::TooLong { .. })));
        let mut json = JsonReader::new("[1,2,3]".as_bytes());
        assert!(matches!(json.numbers("the list", 2), Err(JsonFault::TooLong { .. })));
        assert!(JsonReader::new("99999999999999999999".as_bytes()).number().is_err());
        assert!(JsonReader::new("1.5".as_bytes()).number().is_err());
        assert!(!skips(&"[".repeat(DEEPEST + 1)) && skips(&format!("{}{}", "[".repeat(DEEPEST), "]".repeat(DEEPEST))));
    }

    #[test]
    fn what_is_no_json_is_no_value() {
        for text in [
            "",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "[1,]",
            "{\"a\":1,}",
            "\"a",
            "\"\\",
            "[1 2]",
            "}",
            "{1:2}",
            "\"\n\"",
            "[}",
            "{]",
        ] {
            assert!(!skips(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_others_read_is_passed_over(value in any::<Vec<(String, i64, Option<bool>)>>()) {
            prop_assert!(skips(&serde_json::to_string(&value).unwrap()));
        }

        #[test]
        fn any_text_ends_in_a_value_or_a_fault(text in "[\\[\\]{}\",:0-9a-u\\\\ ]{0,60}") {
            // The reader does not check words letter by letter: it accepts all texts that serde_json accepts.
            let reference = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert!(!reference || skips(&text), "{}", text);
        }
    }
}
