//! Calls in a notation of their own, such as `f(city="Rome")` and `call:f{city:<escape>Rome<escape>}`: the arguments
//! have bare keys, and texts are between quotes or marks. Parameters become JSON one by one.

use serde_json::Value;

/// A notation of calls.
#[derive(Debug)]
pub(super) struct Notation {
    /// In front of the name.
    pub(super) prefix: &'static str,
    /// Around the arguments.
    pub(super) arguments: (&'static str, &'static str),
    /// Between a parameter and its value.
    pub(super) pair: &'static str,
    /// Between a key of an object and its value.
    pub(super) inner_pair: &'static str,
    /// Between two values.
    pub(super) between: &'static str,
    /// The marks or quotes around texts.
    pub(super) texts: TextSpelling,
    /// The words for true, false and null, as templates write them. Models may write JSON's too.
    pub(super) words: [&'static str; 3],
    /// Whether keys come in the order of the alphabet, as Jinja's `dictsort` has them.
    pub(super) is_sorted: bool,
}

/// The spelling of texts.
#[derive(Debug)]
pub(super) enum TextSpelling {
    /// As they are, between two of this mark.
    Marked(&'static [&'static str; 1]),
    /// Between Python's quotes, with its escapes. Keys of objects are between quotes too.
    Quoted,
}

/// Gemma's notation, with texts between this mark.
const fn gemma(mark: &'static [&'static str; 1]) -> Notation {
    Notation {
        prefix: "call:",
        arguments: ("{", "}"),
        pair: ":",
        inner_pair: ":",
        between: ",",
        texts: TextSpelling::Marked(mark),
        // Templates write Python's word for what is neither a text nor a truth value.
        words: ["true", "false", "None"],
        is_sorted: true,
    }
}

pub(super) const FUNCTION_GEMMA: Notation = gemma(&["<escape>"]);
pub(super) const GEMMA: Notation = gemma(&["<|\"|>"]);

/// Calls as Python writes them.
pub(super) const PYTHON: Notation = Notation {
    prefix: "",
    arguments: ("(", ")"),
    pair: "=",
    inner_pair: ": ",
    between: ", ",
    texts: TextSpelling::Quoted,
    words: ["True", "False", "None"],
    is_sorted: false,
};

/// Deeper values are read as text.
const DEEPEST: usize = 64;

/// Follows one value up to its end, from where it was left off.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueScan {
    at: usize,
    depth: usize,
    quote: Option<&'static str>,
}

impl ValueScan {
    /// The length of the value: up to the comma or bracket behind it. `None` while it may go on.
    pub(super) fn length(&mut self, notation: &Notation, text: &str) -> Option<usize> {
        while let Some(c) = text[self.at..].chars().next() {
            let rest = &text[self.at..];
            let quotes = notation.quotes();
            let mut length = c.len_utf8();
            match self.quote {
                Some(_) if c == '\\' && notation.has_escapes() => length += rest[1..].chars().next()?.len_utf8(),
                Some(quote) if rest.starts_with(quote) => (self.quote, length) = (None, quote.len()),
                Some(quote) if quote.starts_with(rest) => return None,
                Some(_) => {}
                None => match quotes.iter().find(|quote| rest.starts_with(**quote)) {
                    Some(&quote) => (self.quote, length) = (Some(quote), quote.len()),
                    None if quotes.iter().any(|quote| quote.starts_with(rest)) => return None,
                    None => match c {
                        '{' | '[' | '(' => self.depth += 1,
                        ',' | '}' | ']' | ')' if self.depth == 0 => return Some(self.at),
                        '}' | ']' | ')' => self.depth -= 1,
                        _ => {}
                    },
                },
            }
            self.at += length;
        }
        None
    }
}

impl Notation {
    fn quotes(&self) -> &'static [&'static str] {
        match self.texts {
            TextSpelling::Marked(mark) => mark,
            TextSpelling::Quoted => &["\"", "'"],
        }
    }

    fn has_escapes(&self) -> bool {
        matches!(self.texts, TextSpelling::Quoted)
    }

    /// A call.
    pub(super) fn written(&self, name: &str, mut parameters: Vec<(String, Value)>) -> String {
        self.sort(&mut parameters);
        let one = |(key, value): &(String, Value)| [key, self.pair, &self.value(value)].concat();
        let all: Vec<String> = parameters.iter().map(one).collect();
        [self.prefix, name, self.arguments.0, &all.join(self.between), self.arguments.1].concat()
    }

    /// Brings keys into their order.
    pub(super) fn sort<T>(&self, fields: &mut [(String, T)]) {
        if self.is_sorted {
            fields.sort_by_cached_key(|(key, _)| key.to_lowercase());
        }
    }

    /// A value.
    pub(super) fn value(&self, value: &Value) -> String {
        let [yes, no, null] = self.words;
        match (value, &self.texts) {
            (Value::Bool(true), _) => yes.to_owned(),
            (Value::Bool(false), _) => no.to_owned(),
            (Value::Null, _) => null.to_owned(),
            (Value::String(text), TextSpelling::Marked([mark])) => [mark, text.as_str(), mark].concat(),
            (Value::String(_) | Value::Number(_), _) => value.to_string(),
            (Value::Array(items), _) => {
                let items: Vec<String> = items.iter().map(|item| self.value(item)).collect();
                format!("[{}]", items.join(self.between))
            }
            (Value::Object(fields), _) => {
                let mut fields: Vec<_> = fields.iter().map(|(key, value)| (key.clone(), value)).collect();
                self.sort(&mut fields);
                let one =
                    |(key, value): &(String, &Value)| [&self.key(key), self.inner_pair, &self.value(value)].concat();
                let fields: Vec<String> = fields.iter().map(one).collect();
                format!("{{{}}}", fields.join(self.between))
            }
        }
    }

    /// A key of an object.
    pub(super) fn key(&self, key: &str) -> String {
        match self.texts {
            TextSpelling::Marked(_) => key.to_owned(),
            TextSpelling::Quoted => Value::from(key).to_string(),
        }
    }

    /// Whether a bare key is read as it is written.
    pub(super) fn is_bare(&self, key: &str) -> bool {
        let is_mark = |c: char| c.is_whitespace() || ",:={}[]()\"'\\".contains(c);
        !key.is_empty() && !key.contains(is_mark) && !self.quotes().iter().any(|quote| key.contains(quote))
    }

    /// A value that was written whole, as JSON. Anything else is a text.
    pub(super) fn read(&self, text: &str) -> String {
        self.read_within(text, DEEPEST).unwrap_or_else(|| Value::from(text.trim()).to_string())
    }

    /// The name of a parameter, which some models put between quotes.
    pub(super) fn read_key(&self, key: &str) -> String {
        let key = key.trim();
        self.text(key).unwrap_or_else(|| key.to_owned())
    }

    fn read_within(&self, text: &str, depth: usize) -> Option<String> {
        let (text, depth) = (text.trim(), depth.checked_sub(1)?);
        if let Some(text) = self.text(text) {
            return Some(Value::String(text).to_string());
        }
        let inside = |open: char, close: char| text.strip_prefix(open)?.strip_suffix(close);
        if let Some(items) = inside('[', ']') {
            let items = self.parts(items).into_iter().map(|item| self.read_within(item, depth));
            return Some(format!("[{}]", items.collect::<Option<Vec<_>>>()?.join(", ")));
        }
        if let Some(fields) = inside('{', '}') {
            let field = |part: &str| {
                let quote = self.quotes().iter().find(|quote| part.trim_start().starts_with(**quote));
                let quoted = quote.map_or(Some(0), |quote| self.quoted_length(part, quote))?;
                let pair = quoted + part[quoted..].find(':')?;
                let key = Value::String(self.read_key(&part[..pair]));
                Some(format!("{key}: {}", self.read_within(&part[pair + 1..], depth)?))
            };
            let fields = self.parts(fields).into_iter().map(field);
            return Some(format!("{{{}}}", fields.collect::<Option<Vec<_>>>()?.join(", ")));
        }
        Some(match text {
            "" => return None,
            "True" => "true".to_owned(),
            "False" => "false".to_owned(),
            "None" => "null".to_owned(),
            // Numbers keep their digits.
            word if serde_json::from_str::<Value>(word).is_ok() => word.to_owned(),
            word => Value::from(word).to_string(),
        })
    }

    /// A text that is between quotes as a whole.
    fn text(&self, text: &str) -> Option<String> {
        let quote = self.quotes().iter().find(|quote| text.starts_with(**quote))?;
        (self.quoted_length(text, quote)? == text.len()).then_some(())?;
        let inside = &text[quote.len()..text.len() - quote.len()];
        Some(if self.has_escapes() { unescaped(inside) } else { inside.to_owned() })
    }

    /// The length of a text with its quotes, and of the spaces in front of it.
    fn quoted_length(&self, text: &str, quote: &str) -> Option<usize> {
        let begin = text.find(quote)? + quote.len();
        let mut at = begin;
        while !text[at..].starts_with(quote) {
            let mut rest = text[at..].chars();
            let c = rest.next()?;
            let escaped = if c == '\\' && self.has_escapes() { rest.next()?.len_utf8() } else { 0 };
            at += c.len_utf8() + escaped;
        }
        Some(at + quote.len())
    }

    /// The parts between commas.
    fn parts<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.trim().is_empty() {
            let end = ValueScan::default().length(self, rest).unwrap_or(rest.len());
            parts.push(&rest[..end]);
            // A bracket without its counterpart is passed over.
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        parts
    }
}

/// A text of Python's without its escapes.
fn unescaped(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        let (c, length) = escape(behind).unwrap_or((Some('\\'), 0));
        plain.extend(c);
        rest = &behind[length..];
    }
    plain + rest
}

/// The character of an escape, if it has one, and the length of the escape behind its backslash.
fn escape(text: &str) -> Option<(Option<char>, usize)> {
    let number = |from: usize, digits: usize| u32::from_str_radix(text.get(from..from + digits)?, 16).ok();
    let plain = |c: char| Some((Some(c), 1));
    match text.chars().next()? {
        'n' => plain('\n'),
        't' => plain('\t'),
        'r' => plain('\r'),
        'b' => plain('\u{8}'),
        'f' => plain('\u{c}'),
        '\n' => Some((None, 1)),
        c @ ('\\' | '\'' | '"' | '/') => plain(c),
        'x' => Some((Some(char::from_u32(number(1, 2)?)?), 3)),
        'U' => Some((Some(char::from_u32(number(1, 8)?)?), 9)),
        'u' => match number(1, 4)? {
            // JSON writes characters beyond these as two escapes.
            high @ 0xd800..0xdc00 => {
                let low = text.get(5..7).filter(|escape| *escape == "\\u").and_then(|_| number(7, 4))?;
                let low = low.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                Some((char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + low), 11))
            }
            code => Some((Some(char::from_u32(code)?), 5)),
        },
        _ => None,
    }
}
