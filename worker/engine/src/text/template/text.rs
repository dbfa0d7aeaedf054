//! The methods of Python's texts.

use super::arguments::{Arguments, integer, text};
use super::fault::{RenderFault, RenderResult, refuse};
use super::format;
use super::letters::{is_letter, is_titled, recased};
use super::markup::escaped;
use super::numerals::{decimal, is_digit, is_numeric};
use super::printing::{bounded, is_printable};
use super::value::{MOST_PIECES, PythonValue, TOO_MANY_PIECES};

/// Calls a method of a text.
pub(super) fn call(this: &PythonValue, name: &str, arguments: &Arguments) -> RenderResult<PythonValue> {
    let word = this.as_str().unwrap_or_default();
    let is_marked = matches!(this, PythonValue::Markup(_));
    let same = |text: &str| if is_marked { PythonValue::Markup(text.into()) } else { PythonValue::text(text) };
    let list = |parts: Vec<&str>| {
        if parts.len() > MOST_PIECES {
            return Err(TOO_MANY_PIECES);
        }
        PythonValue::list(parts.into_iter().map(same).collect())
    };
    let plain = || arguments.none();
    Ok(match name {
        "upper" | "lower" | "capitalize" | "title" | "swapcase" | "casefold" => {
            plain()?;
            same(&recased(name, word))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [set] = arguments.bind(["_"], 0)?;
            same(stripped(name, word, set.as_ref())?)
        }
        "split" | "rsplit" => {
            let [mark, most] = arguments.bind(["sep", "maxsplit"], 0)?;
            let most = integer(most.as_ref())?.unwrap_or(-1);
            let mark = match mark.filter(|mark| !mark.is_none()) {
                Some(mark) => Some(text(&mark)?.to_owned()),
                None => None,
            };
            list(split(name == "rsplit", word, mark.as_deref(), usize::try_from(most).unwrap_or(usize::MAX))?)?
        }
        "splitlines" => {
            let [keeps] = arguments.bind(["keepends"], 0)?;
            list(lines(word, keeps.is_some_and(|keeps| keeps.is_true())))?
        }
        "partition" | "rpartition" => {
            let mark = arguments.one()?;
            let mark = text(&mark)?;
            if mark.is_empty() {
                refuse!("empty separator");
            }
            let parts = match name {
                "partition" => word.split_once(mark).map_or([word, "", ""], |(before, after)| [before, mark, after]),
                _ => word.rsplit_once(mark).map_or(["", "", word], |(before, after)| [before, mark, after]),
            };
            PythonValue::tuple(parts.map(same).to_vec())?
        }
        "startswith" | "endswith" => {
            let [mark, start, end] = arguments.bind(["_", "_", "_"], 1)?;
            let part = part(word, start.as_ref(), end.as_ref())?;
            let has = |mark: &PythonValue| {
                let mark = text(mark)?;
                let Some((_, part)) = part else { return Ok(false) };
                Ok(if name == "startswith" { part.starts_with(mark) } else { part.ends_with(mark) })
            };
            PythonValue::Bool(match mark.unwrap_or(PythonValue::None) {
                PythonValue::Tuple(marks) => {
                    let mut any = false;
                    for mark in &marks.values {
                        any = any || has(mark)?;
                    }
                    any
                }
                mark => has(&mark)?,
            })
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(name, word, arguments)?,
        "replace" => {
            let [old, new, most] = arguments.bind(["_", "_", "_"], 2)?;
            let (old, new) = (old.unwrap_or(PythonValue::None), new.unwrap_or(PythonValue::None));
            let most = usize::try_from(integer(most.as_ref())?.unwrap_or(-1)).unwrap_or(usize::MAX);
            let new = if is_marked && !matches!(new, PythonValue::Markup(_)) {
                escaped(text(&new)?)
            } else {
                text(&new)?.into()
            };
            same(&replaced(word, text(&old)?, &new, most)?)
        }
        "join" => joined(this, &arguments.one()?)?,
        "format" => same(&format::braces(word, &arguments.places, &arguments.names)?),
        "format_map" => {
            let PythonValue::Dict(dict) = arguments.one()? else { refuse!("format_map needs a mapping") };
            let named = |(key, value): &(PythonValue, PythonValue)| Some((key.as_str()?.into(), value.clone()));
            let names: Vec<_> = dict.entries().iter().filter_map(named).collect();
            same(&format::braces(word, &[], &names)?)
        }
        "removeprefix" | "removesuffix" => {
            let mark = arguments.one()?;
            let mark = text(&mark)?;
            let rest = if name == "removeprefix" { word.strip_prefix(mark) } else { word.strip_suffix(mark) };
            same(rest.unwrap_or(word))
        }
        "ljust" | "rjust" | "center" | "zfill" => same(&aligned(name, word, arguments)?),
        "expandtabs" => {
            let [size] = arguments.bind(["tabsize"], 0)?;
            same(&expanded(word, usize::try_from(integer(size.as_ref())?.unwrap_or(8)).unwrap_or(0))?)
        }
        "encode" => refuse!("bytes are not supported"),
        "translate" => refuse!("'translate' is not supported"),
        _ => {
            plain()?;
            PythonValue::Bool(is(name, word))
        }
    })
}

/// Python's white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// A text without these characters, or white space, at one end or both.
pub(super) fn stripped<'a>(name: &str, word: &'a str, set: Option<&PythonValue>) -> RenderResult<&'a str> {
    let set = match set.filter(|set| !set.is_none()) {
        Some(set) => Some(text(set)?),
        None => None,
    };
    let goes = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
    Ok(match name {
        "lstrip" => word.trim_start_matches(goes),
        "rstrip" => word.trim_end_matches(goes),
        _ => word.trim_matches(goes),
    })
}

fn split<'a>(from_end: bool, word: &'a str, mark: Option<&str>, most: usize) -> RenderResult<Vec<&'a str>> {
    let most = most.saturating_add(1);
    let mut parts: Vec<&str> = match mark {
        Some("") => refuse!("empty separator"),
        Some(mark) if from_end => word.rsplitn(most, mark).collect(),
        Some(mark) => return Ok(word.splitn(most, mark).collect()),
        None => {
            let (mut parts, mut rest) = (Vec::new(), word);
            loop {
                rest = if from_end { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
                if rest.is_empty() {
                    break;
                }
                if parts.len() + 1 == most {
                    parts.push(rest);
                    break;
                }
                let (part, behind) = match from_end {
                    true => rest.rfind(is_space).map_or((rest, ""), |at| {
                        let behind = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                        (&rest[behind..], &rest[..at])
                    }),
                    false => rest.find(is_space).map_or((rest, ""), |at| rest.split_at(at)),
                };
                parts.push(part);
                rest = behind;
            }
            parts
        }
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts)
}

/// The lines of a text, by any of Python's line ends.
pub(super) fn lines(word: &str, keeps_ends: bool) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = word;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| is_end(*c)) {
        let length = if rest[at..].starts_with("\r\n") { 2 } else { end.len_utf8() };
        lines.push(&rest[..if keeps_ends { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// The part of a text between two places, and the byte where it begins. None where the start is behind the end.
fn part<'a>(
    word: &'a str,
    start: Option<&PythonValue>,
    end: Option<&PythonValue>,
) -> RenderResult<Option<(usize, &'a str)>> {
    let bound = |bound: Option<&PythonValue>| integer(bound.filter(|bound| !bound.is_none()));
    let (start, end) = (bound(start)?, bound(end)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((0, word)));
    }
    let length = word.chars().count() as i128;
    let from_start = |at: i128| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (start.map_or(0, from_start), end.map_or(length, from_start).min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |at: i128| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        word.char_indices().nth(at).map_or(word.len(), |(byte, _)| byte)
    };
    let (start, end) = (byte(start), byte(end));
    Ok(Some((start, &word[start..end])))
}

fn search(name: &str, word: &str, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [mark, start, end] = arguments.bind(["_", "_", "_"], 1)?;
    let mark = mark.unwrap_or(PythonValue::None);
    let mark = text(&mark)?;
    let part = part(word, start.as_ref(), end.as_ref())?;
    if name == "count" {
        let count = |part: &str| if mark.is_empty() { part.chars().count() + 1 } else { part.matches(mark).count() };
        return Ok(PythonValue::Int(part.map_or(0, |(_, part)| count(part)) as i128));
    }
    let found = part.and_then(|(from, part)| {
        let at = if name.starts_with('r') { part.rfind(mark)? } else { part.find(mark)? };
        Some(word[..from + at].chars().count() as i128)
    });
    match found {
        None if name.ends_with("index") => refuse!("substring not found"),
        found => Ok(PythonValue::Int(found.unwrap_or(-1))),
    }
}

/// A text in which the first `most` places of another one were replaced.
pub(super) fn replaced(word: &str, old: &str, new: &str, most: usize) -> RenderResult<String> {
    let places = if old.is_empty() { word.chars().count() + 1 } else { word.matches(old).count() };
    bounded(places.min(most).saturating_mul(new.len()).saturating_add(word.len()))?;
    Ok(if most == usize::MAX { word.replace(old, new) } else { word.replacen(old, new, most) })
}

pub(super) fn joined(this: &PythonValue, items: &PythonValue) -> RenderResult<PythonValue> {
    let (mark, is_marked) = (this.as_str().unwrap_or_default(), matches!(this, PythonValue::Markup(_)));
    let mut out = String::new();
    for (at, item) in items.defined()?.each().enumerate() {
        let item = item?;
        if at > 0 {
            out.push_str(mark);
        }
        match (item.as_str(), is_marked && !matches!(item, PythonValue::Markup(_))) {
            (Some(text), false) => out.push_str(text),
            (Some(text), true) => out.push_str(&escaped(text)),
            (None, _) if is_marked => out.push_str(&escaped(&item.print()?)),
            (None, _) => refuse!("sequence item {at}: expected str instance, {} found", item.kind()),
        }
        bounded(out.len())?;
    }
    Ok(if is_marked { PythonValue::Markup(out.into()) } else { PythonValue::text(out) })
}

fn aligned(name: &str, word: &str, arguments: &Arguments) -> RenderResult<String> {
    let (width, fill) = if name == "zfill" {
        (arguments.one()?, '0')
    } else {
        let [width, fill] = arguments.bind(["_", "_"], 1)?;
        let fill = fill.map(|fill| {
            let mut characters = text(&fill)?.chars();
            match (characters.next(), characters.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(RenderFault::failed("The fill character must be exactly one character long")),
            }
        });
        (width.unwrap_or(PythonValue::None), fill.transpose()?.unwrap_or(' '))
    };
    let width = usize::try_from(integer(Some(&width))?.unwrap_or(0).max(0)).unwrap_or(usize::MAX);
    bounded(width)?;
    let missing = width.saturating_sub(word.chars().count());
    let pad = |count: usize| fill.to_string().repeat(count);
    Ok(match name {
        "ljust" => word.to_owned() + &pad(missing),
        "center" => centered(word, width, &fill.to_string()),
        "zfill" => match word.strip_prefix(['-', '+']) {
            Some(rest) => word[..1].to_owned() + &pad(missing) + rest,
            None => pad(missing) + word,
        },
        _ => pad(missing) + word,
    })
}

/// Python's `center`, whose odd space goes to the left in fields of odd width.
pub(super) fn centered(word: &str, width: usize, fill: &str) -> String {
    let missing = width.saturating_sub(word.chars().count());
    let left = missing / 2 + (missing & width & 1);
    fill.repeat(left) + word + &fill.repeat(missing - left)
}

fn expanded(word: &str, size: usize) -> RenderResult<String> {
    let (mut out, mut column) = (String::new(), 0_usize);
    for c in word.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                bounded(out.len().saturating_add(spaces))?;
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\t' => {}
            c => {
                column = if c == '\n' || c == '\r' { 0 } else { column + 1 };
                out.push(c);
            }
        }
    }
    Ok(out)
}

/// The methods that ask whether a text is of some kind.
fn is(name: &str, word: &str) -> bool {
    let all = |test: fn(char) -> bool| !word.is_empty() && word.chars().all(test);
    match name {
        "isalpha" => all(is_letter),
        "isalnum" => all(is_alphanumeric),
        "isdecimal" => all(|c| decimal(c).is_some()),
        "isdigit" => all(is_digit),
        "isnumeric" => all(is_numeric),
        "isspace" => all(is_space),
        "isascii" => word.is_ascii(),
        "isprintable" => word.chars().all(is_printable),
        "isidentifier" => {
            let mut characters = word.chars();
            characters.next().is_some_and(|c| c == '_' || is_letter(c))
                && characters.all(|c| c == '_' || is_alphanumeric(c))
        }
        "isupper" => word.chars().any(char::is_uppercase) && !word.chars().any(|c| c.is_lowercase() || is_titled(c)),
        "islower" => is_lower(word),
        _ => {
            let (mut behind_letter, mut any) = (false, false);
            for c in word.chars() {
                let is_large = c.is_uppercase() || is_titled(c);
                if is_large && behind_letter || c.is_lowercase() && !behind_letter {
                    return false;
                }
                behind_letter = is_large || c.is_lowercase();
                any |= behind_letter;
            }
            any
        }
    }
}

pub(super) fn is_lower(word: &str) -> bool {
    word.chars().any(char::is_lowercase) && !word.chars().any(|c| c.is_uppercase() || is_titled(c))
}

/// Whether a character is of a word, as Python's texts and expressions have it.
pub(super) fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || is_digit(c) || is_numeric(c)
}

pub(super) fn is_upper(word: &str) -> bool {
    is("isupper", word)
}
