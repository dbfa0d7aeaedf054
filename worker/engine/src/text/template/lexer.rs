//! The words of a template's source, as Jinja2 tells them apart: text, tags, and what is inside of tags. White space
//! around tags goes as the options `trim_blocks` and `lstrip_blocks` demand.

use super::syntax_error::SyntaxError;
use super::text::is_space;

/// The most operators, brackets and dots in one tag. Trees of longer chains would overflow the stack.
const LONGEST_CHAIN: usize = 800;

/// A word of the source, and its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Word {
    pub(super) line: u32,
    pub(super) kind: WordKind,
}

/// The kinds of words.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WordKind {
    /// Text between tags.
    Data(String),
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    /// `{{`
    VariableBegin,
    /// `}}`
    VariableEnd,
    Name(String),
    Text(String),
    Integer(i128),
    Float(f64),
    /// An operator or a bracket.
    Sign(&'static str),
    /// The end of the source.
    End,
}

/// The words of a template. The last one is the end.
pub(super) fn tokens(source: &str) -> Result<Vec<Word>, SyntaxError> {
    // Every kind of line end is a line feed, and one at the end of the source does not count.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, starts_line: true, tokens: Vec::new() };
    while lexer.between_tags()? {}
    lexer.push(WordKind::End);
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// Whether the word before ended with a line feed, or there was none.
    starts_line: bool,
    tokens: Vec<Word>,
}

/// The sign beside a tag's bracket, which decides about white space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TrimSign {
    /// `-`: all white space goes.
    Strip,
    /// `+`: all white space stays.
    Keep,
    None,
}

impl TrimSign {
    fn at(rest: &str) -> (Self, usize) {
        match rest.as_bytes().first() {
            Some(b'-') => (Self::Strip, 1),
            Some(b'+') => (Self::Keep, 1),
            _ => (Self::None, 0),
        }
    }
}

/// The bytes of white space at the beginning of a text.
fn spaces(rest: &str) -> usize {
    rest.len() - rest.trim_start_matches(is_space).len()
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn push(&mut self, kind: WordKind) {
        self.tokens.push(Word { line: self.line, kind });
    }

    /// Moves on, and counts the lines.
    fn skip(&mut self, length: usize) {
        let passed = &self.rest()[..length];
        self.line = self.line.saturating_add(passed.matches('\n').count().try_into().unwrap_or(u32::MAX));
        self.starts_line = passed.ends_with('\n');
        self.at += length;
    }

    fn fail<T>(&self, message: &str) -> Result<T, SyntaxError> {
        Err(SyntaxError::Unreadable { line: self.line, message: message.to_owned() })
    }

    /// Reads up to the next tag, and the tag. Returns whether there was one.
    fn between_tags(&mut self) -> Result<bool, SyntaxError> {
        let rest = self.rest();
        let found = rest.match_indices('{').find(|(at, _)| rest[at + 1..].starts_with(['%', '{', '#']));
        let Some((length, _)) = found else {
            if !rest.is_empty() {
                self.push(WordKind::Data(rest.to_owned()));
                self.skip(rest.len());
            }
            return Ok(false);
        };
        let kind = rest.as_bytes()[length + 1];
        let (sign, width) = TrimSign::at(&rest[length + 2..]);
        self.data(&rest[..length], sign, kind != b'{');
        let raw = (kind == b'%').then(|| raw_begin(&rest[length + 2 + width..])).flatten();
        self.skip(length + 2 + width);
        match (raw, kind) {
            (Some(begin), _) => {
                self.skip(begin);
                self.raw()?;
            }
            (None, b'#') => self.comment()?,
            (None, kind) => self.tag(kind == b'%')?,
        }
        Ok(true)
    }

    /// Text in front of a tag, without the white space that the tag takes away.
    fn data(&mut self, text: &str, sign: TrimSign, takes_indent: bool) {
        let kept = match sign {
            TrimSign::Strip => text.trim_end_matches(is_space),
            TrimSign::None if takes_indent => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let is_blank = text[line..].chars().all(is_space);
                if is_blank && (line > 0 || self.starts_line) { &text[..line] } else { text }
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(WordKind::Data(kept.to_owned()));
        }
    }

    /// Passes the end of a comment or of a block: its sign, its bracket, and the white space that goes with it.
    fn skip_end(&mut self, length: usize, sign: TrimSign) {
        self.skip(length);
        let rest = self.rest();
        let more = match sign {
            TrimSign::Strip => spaces(rest),
            TrimSign::Keep => 0,
            TrimSign::None => usize::from(rest.starts_with('\n')),
        };
        if more > 0 {
            self.skip(more);
        }
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        // Jinja2 does not miss the end of what begins at the end of the source.
        if rest.is_empty() {
            return Ok(());
        }
        let Some(end) = rest.find("#}") else { return self.fail("Missing end of comment tag") };
        let sign = match rest.as_bytes()[..end].last() {
            Some(b'-') => TrimSign::Strip,
            Some(b'+') => TrimSign::Keep,
            _ => TrimSign::None,
        };
        self.skip_end(end + 2, sign);
        Ok(())
    }

    /// Text that is no template, up to its end tag.
    fn raw(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        for (at, _) in rest.match_indices("{%") {
            let (sign, width) = TrimSign::at(&rest[at + 2..]);
            let begin = at + 2 + width;
            let inside = &rest[begin + spaces(&rest[begin..])..];
            let Some(behind) = inside.strip_prefix("endraw") else { continue };
            let behind = behind.trim_start_matches(is_space);
            let (end_sign, end_width) = TrimSign::at(behind);
            if behind[end_width..].starts_with("%}") {
                self.data(&rest[..at], sign, true);
                self.skip_end(rest.len() - behind.len() + end_width + 2, end_sign);
                return Ok(());
            }
        }
        if rest.is_empty() { Ok(()) } else { self.fail("Missing end of raw directive") }
    }

    /// The words of a tag, up to its end.
    fn tag(&mut self, is_block: bool) -> Result<(), SyntaxError> {
        self.push(if is_block { WordKind::BlockBegin } else { WordKind::VariableBegin });
        let (mut open, mut chain) = (Vec::new(), 0_usize);
        loop {
            let rest = self.rest();
            if open.is_empty() {
                let (sign, width) = TrimSign::at(rest);
                match (is_block, sign) {
                    (true, _) if rest[width..].starts_with("%}") => {
                        self.push(WordKind::BlockEnd);
                        self.skip_end(width + 2, sign);
                        return Ok(());
                    }
                    (false, TrimSign::Strip | TrimSign::None) if rest[width..].starts_with("}}") => {
                        self.push(WordKind::VariableEnd);
                        self.skip_end(width + 2, if width > 0 { sign } else { TrimSign::Keep });
                        return Ok(());
                    }
                    _ => {}
                }
            }
            if rest.is_empty() {
                return Ok(());
            }
            let blank = spaces(rest);
            if blank > 0 {
                self.skip(blank);
                continue;
            }
            let (length, kind) = self.word(&mut open)?;
            chain += match &kind {
                WordKind::Name(word) => usize::from(matches!(word.as_str(), "and" | "or" | "not" | "in" | "is" | "if")),
                WordKind::Sign(sign) => usize::from(!matches!(*sign, "," | ":")),
                _ => 0,
            };
            if chain > LONGEST_CHAIN {
                return Err(SyntaxError::Chain(self.line));
            }
            self.push(kind);
            self.skip(length);
        }
    }

    /// The next word of a tag, and its bytes.
    fn word(&self, open: &mut Vec<&'static str>) -> Result<(usize, WordKind), SyntaxError> {
        let rest = self.rest();
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            return self.number();
        }
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if length > 0 {
            if !rest.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                return self.fail("Invalid character in identifier");
            }
            return Ok((length, WordKind::Name(rest[..length].to_owned())));
        }
        if let Some(quote @ ('\'' | '"')) = rest.chars().next() {
            let mut is_escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == quote && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            let Some(end) = end else { return self.fail("unexpected char: a text does not end") };
            return Ok((end + 2, WordKind::Text(self.unescaped(&rest[1..=end])?)));
        }
        const SIGNS: [&str; 26] = [
            "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
            "=", ".", ":", "|", ",", ";",
        ];
        let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign)).unwrap_or("");
        match sign {
            "" => return self.fail("unexpected char"),
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(sign) => return self.fail("unexpected closing bracket"),
            _ => {}
        }
        Ok((sign.len(), WordKind::Sign(sign)))
    }

    fn number(&self) -> Result<(usize, WordKind), SyntaxError> {
        let rest = self.rest();
        let whole = digits(rest);
        // A number behind a dot is the name of an item.
        let fraction = rest[whole..].strip_prefix('.').map_or(0, digits);
        let fraction = if fraction > 0 { whole + 1 + fraction } else { whole };
        let exponent = rest[fraction..].strip_prefix(['e', 'E']).map_or(0, |behind| {
            let sign = usize::from(behind.starts_with(['+', '-']));
            let length = digits(&behind[sign..]);
            if length > 0 { 1 + sign + length } else { 0 }
        });
        let end = fraction + exponent;
        let is_item = self.source[..self.at].ends_with('.');
        if end > whole && !is_item {
            let number = rest[..end].replace('_', "").parse();
            return number.map_or_else(|_| self.fail("not a number"), |number| Ok((end, WordKind::Float(number))));
        }
        let (radix, prefix) = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0b") => (2, 2),
            Some("0o") => (8, 2),
            Some("0x") => (16, 2),
            _ => (10, 0),
        };
        let with_prefix = if prefix > 0 { digits_of(&rest[prefix..], radix) } else { 0 };
        let (radix, begin, length) = match (with_prefix, rest.starts_with('0')) {
            // Only zeros may follow a zero.
            (0, true) => (10, 0, digits_that(rest, |c| c == '0')),
            (0, false) => (10, 0, digits_of(rest, 10)),
            (length, _) => (radix, prefix, length),
        };
        let end = begin + length;
        match i128::from_str_radix(&rest[begin..end].replace('_', ""), radix) {
            Ok(number) => Ok((end, WordKind::Integer(number))),
            Err(_) => self.fail("an integer of more than 127 bits"),
        }
    }

    /// A text without its escapes, which are Python's.
    fn unescaped(&self, text: &str) -> Result<String, SyntaxError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let Some(c) = rest.chars().next() else { break };
            rest = &rest[c.len_utf8()..];
            let hex = |length: usize| {
                let digits = rest.get(..length).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
                digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32)
            };
            let length = match c {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match c {
                '\n' => {}
                '\\' | '\'' | '"' => out.push(c),
                'a' => out.push('\x07'),
                'b' => out.push('\x08'),
                'f' => out.push('\x0c'),
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                'v' => out.push('\x0b'),
                'x' | 'u' | 'U' => match hex(length) {
                    Some(c) => {
                        out.push(c);
                        rest = &rest[length..];
                    }
                    None => return self.fail("a text has an escape that is no character"),
                },
                'N' => return self.fail("characters by their names are not supported"),
                '0'..='7' => {
                    let more = rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                    let digits = c.to_string() + &rest[..more];
                    out.extend(u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32));
                    rest = &rest[more..];
                }
                // Jinja2 escapes the character itself before it reads escapes.
                c if !c.is_ascii() => out.push_str(&super::format::ascii(&c.to_string())),
                c => out.extend(['\\', c]),
            }
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// The bytes of a tag `raw` behind its beginning and sign, if it is one.
fn raw_begin(rest: &str) -> Option<usize> {
    let behind = rest.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
    let end = rest.len() - behind.len();
    match behind.strip_prefix("-%}") {
        Some(behind) => Some(end + 3 + spaces(behind)),
        None => behind.starts_with("%}").then_some(end + 2),
    }
}

/// The bytes of digits with single underscores between.
fn digits(rest: &str) -> usize {
    if rest.starts_with('_') { 0 } else { digits_of(rest, 10) }
}

/// The bytes of digits with single underscores before them.
fn digits_of(rest: &str, radix: u32) -> usize {
    digits_that(rest, |c| c.is_ascii() && c.is_digit(radix))
}

fn digits_that(rest: &str, is_digit: impl Fn(char) -> bool) -> usize {
    let (mut length, mut behind) = (0, rest.chars().peekable());
    while let Some(c) = behind.next() {
        match c {
            '_' if behind.peek().is_some_and(|c| is_digit(*c)) => {}
            c if is_digit(c) => {}
            _ => break,
        }
        length += 1;
    }
    length
}
