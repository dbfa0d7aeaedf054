//! Patterns of ECMA-262, read into trees.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange, HirKind};

/// Groups within groups.
const MOST_DEPTH: usize = 60;

/// The largest count of a repetition.
const MOST_TIMES: u32 = 2_000;

/// A pattern.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// A character.
    Class(ClassUnicode),
    /// A character of the line.
    Dot,
    /// One behind the other.
    Chain(Vec<Pattern>),
    /// One of them.
    Any(Vec<Pattern>),
    /// So many times. No bound is `None`.
    Repeat(Box<Pattern>, u32, Option<u32>),
    /// Whether it is found in front of what follows here.
    Ahead(Box<Pattern>, bool),
    /// Whether it is found right behind this place.
    Behind(Box<Pattern>, bool),
    /// The start of the text.
    Start,
    /// The end of the text.
    End,
    /// A group that is counted.
    Group(usize, Box<Pattern>),
    /// The text of a group once more.
    Same(usize),
}

impl Pattern {
    /// All texts.
    pub(super) fn every() -> Self {
        Self::Repeat(Box::new(Self::Class(all())), 0, None)
    }

    /// A text.
    pub(super) fn literal(text: &str) -> Self {
        Self::Chain(text.chars().map(|c| Self::Class(class(&[(c, c)]))).collect())
    }
}

/// The pattern with one text for the groups that it refers back to: each of its texts is one of the pattern. `text_of`
/// gives a text of a group. `None` where a group may have had no text, or a text must not be found.
pub(super) fn with_fixed_groups(pattern: &Pattern, text_of: &dyn Fn(&Pattern) -> Option<String>) -> Option<Pattern> {
    let mut fixed = pattern.clone();
    while let Some(number) = first_reference(&fixed) {
        let group = group(&fixed, number)?;
        let text = text_of(group)?;
        fixed = fix(&fixed, number, &Pattern::literal(&text), &mut false)?;
    }
    Some(fixed)
}

/// The pattern with anything in the places of references, and without the looks around that have some. It has all
/// texts that the pattern has, as far as those looks do not add any.
pub(super) fn without_references(pattern: &Pattern) -> Pattern {
    let inside = |inside: &Pattern| Box::new(without_references(inside));
    match pattern {
        Pattern::Same(_) => Pattern::every(),
        Pattern::Ahead(look, _) | Pattern::Behind(look, _) if first_reference(look).is_some() => Pattern::Chain(vec![]),
        Pattern::Chain(parts) => Pattern::Chain(parts.iter().map(without_references).collect()),
        Pattern::Any(ways) => Pattern::Any(ways.iter().map(without_references).collect()),
        Pattern::Repeat(part, least, most) => Pattern::Repeat(inside(part), *least, *most),
        Pattern::Group(number, part) => Pattern::Group(*number, inside(part)),
        other => other.clone(),
    }
}

fn parts(pattern: &Pattern) -> Vec<&Pattern> {
    match pattern {
        Pattern::Chain(parts) | Pattern::Any(parts) => parts.iter().collect(),
        Pattern::Repeat(part, ..) | Pattern::Ahead(part, _) | Pattern::Behind(part, _) | Pattern::Group(_, part) => {
            vec![part]
        }
        _ => Vec::new(),
    }
}

/// The number of a group that a pattern refers back to.
pub(super) fn first_reference(pattern: &Pattern) -> Option<usize> {
    match pattern {
        Pattern::Same(number) => Some(*number),
        _ => parts(pattern).into_iter().find_map(first_reference),
    }
}

/// Whether a pattern has anything that depends on the place.
pub(super) fn has_looks(pattern: &Pattern) -> bool {
    matches!(pattern, Pattern::Ahead(..) | Pattern::Behind(..) | Pattern::Start | Pattern::End)
        || parts(pattern).into_iter().any(has_looks)
}

fn group(pattern: &Pattern, number: usize) -> Option<&Pattern> {
    match pattern {
        Pattern::Group(own, inside) if *own == number => Some(inside),
        _ => parts(pattern).into_iter().find_map(|part| group(part, number)),
    }
}

/// The pattern with a text in the places of a group and of all references to it. `is_set`: whether the group has
/// certainly matched in front of it, and then behind it.
fn fix(pattern: &Pattern, number: usize, text: &Pattern, is_set: &mut bool) -> Option<Pattern> {
    Some(match pattern {
        Pattern::Group(own, _) if *own == number => {
            *is_set = true;
            text.clone()
        }
        Pattern::Same(own) if *own == number => return is_set.then(|| text.clone()),
        Pattern::Chain(parts) => {
            Pattern::Chain(parts.iter().map(|part| fix(part, number, text, is_set)).collect::<Option<_>>()?)
        }
        Pattern::Any(ways) => {
            let before = *is_set;
            let mut all = Vec::new();
            for way in ways {
                let mut in_way = before;
                all.push(fix(way, number, text, &mut in_way)?);
            }
            Pattern::Any(all)
        }
        Pattern::Repeat(part, least, most) => {
            let mut inside = *is_set;
            let part = fix(part, number, text, &mut inside)?;
            *is_set |= inside && *least > 0;
            Pattern::Repeat(Box::new(part), *least, *most)
        }
        Pattern::Group(own, part) => Pattern::Group(*own, Box::new(fix(part, number, text, is_set)?)),
        Pattern::Ahead(part, true) => Pattern::Ahead(Box::new(fix(part, number, text, is_set)?), true),
        // Fewer texts that must not be found would be more that are.
        Pattern::Ahead(part, false) | Pattern::Behind(part, _)
            if group(part, number).is_some() || has_reference(part, number) =>
        {
            return None;
        }
        other => other.clone(),
    })
}

fn has_reference(pattern: &Pattern, number: usize) -> bool {
    matches!(pattern, Pattern::Same(own) if *own == number)
        || parts(pattern).into_iter().any(|part| has_reference(part, number))
}

/// All characters.
pub(super) fn all() -> ClassUnicode {
    class(&[('\0', char::MAX)])
}

/// Characters of ranges.
pub(super) fn class(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|(first, last)| ClassUnicodeRange::new(*first, *last)))
}

fn negated(mut class: ClassUnicode) -> ClassUnicode {
    class.negate();
    class
}

fn digits() -> ClassUnicode {
    class(&[('0', '9')])
}

fn letters() -> ClassUnicode {
    class(&[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')])
}

fn spaces() -> ClassUnicode {
    class(&[
        ('\t', '\r'),
        (' ', ' '),
        ('\u{a0}', '\u{a0}'),
        ('\u{1680}', '\u{1680}'),
        ('\u{2000}', '\u{200a}'),
        ('\u{2028}', '\u{2029}'),
        ('\u{202f}', '\u{202f}'),
        ('\u{205f}', '\u{205f}'),
        ('\u{3000}', '\u{3000}'),
        ('\u{feff}', '\u{feff}'),
    ])
}

/// The characters of a dot. Of the ends of lines that ECMA-262 has, other readers know the first only: a dot that is
/// wide has the rest.
pub(super) fn dot(is_wide: bool) -> ClassUnicode {
    let others = [('\r', '\r'), ('\u{2028}', '\u{2029}')];
    let mut ends = class(&[('\n', '\n')]);
    if !is_wide {
        ends.union(&class(&others));
    }
    negated(ends)
}

/// The edge of a word, or all other places.
fn edge(is_edge: bool) -> Pattern {
    let letter = || Box::new(Pattern::Class(letters()));
    let way = |behind, ahead| Pattern::Chain(vec![Pattern::Behind(letter(), behind), Pattern::Ahead(letter(), ahead)]);
    Pattern::Any(vec![way(true, !is_edge), way(false, is_edge)])
}

/// The tree of a pattern. `None` for a fault, and for what this reader does not know.
pub(super) fn read(pattern: &str) -> Option<Pattern> {
    let (text, folds) = pattern.strip_prefix("(?i)").map_or((pattern, false), |rest| (rest, true));
    let mut reader = PatternReader { rest: text, depth: 0, groups: 0, names: Vec::new(), folds };
    let read = reader.choice()?;
    reader.rest.is_empty().then_some(read)
}

struct PatternReader<'a> {
    rest: &'a str,
    depth: usize,
    /// Counted groups that have begun.
    groups: usize,
    names: Vec<(&'a str, usize)>,
    /// Whether small and capital letters are the same.
    folds: bool,
}

impl<'a> PatternReader<'a> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn eat(&mut self, mark: &str) -> bool {
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn up_to(&mut self, end: char) -> Option<&'a str> {
        let (name, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(name)
    }

    fn choice(&mut self) -> Option<Pattern> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return None;
        }
        let mut ways = vec![self.chain()?];
        while self.eat("|") {
            ways.push(self.chain()?);
        }
        self.depth -= 1;
        if ways.len() == 1 { ways.pop() } else { Some(Pattern::Any(ways)) }
    }

    fn chain(&mut self) -> Option<Pattern> {
        let mut parts = Vec::new();
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) {
            let part = self.part()?;
            parts.push(self.repeated(part)?);
        }
        if parts.len() == 1 { parts.pop() } else { Some(Pattern::Chain(parts)) }
    }

    fn repeated(&mut self, part: Pattern) -> Option<Pattern> {
        let (least, most) = match self.rest.chars().next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.rest[1..].split_once('}').and_then(|(inside, _)| counts(inside)) {
                Some(counts) => {
                    self.up_to('}')?;
                    self.eat("?");
                    return (counts.0 <= MOST_TIMES && counts.1.is_none_or(|most| counts.0 <= most))
                        .then(|| Pattern::Repeat(Box::new(part), counts.0, counts.1));
                }
                // A bracket that is no count is itself.
                None => return Some(part),
            },
            _ => return Some(part),
        };
        self.next();
        self.eat("?");
        Some(Pattern::Repeat(Box::new(part), least, most))
    }

    fn part(&mut self) -> Option<Pattern> {
        let c = self.next()?;
        Some(match c {
            '^' => Pattern::Start,
            '$' => Pattern::End,
            '.' => Pattern::Dot,
            '(' => return self.group(),
            '[' => Pattern::Class(self.class()?),
            '\\' => return self.escaped(),
            '*' | '+' | '?' => return None,
            c => self.character(c),
        })
    }

    fn character(&self, c: char) -> Pattern {
        Pattern::Class(self.folded(class(&[(c, c)])))
    }

    fn folded(&self, mut class: ClassUnicode) -> ClassUnicode {
        if self.folds {
            // Without tables it stays as it is, and they are there.
            let _ = class.try_case_fold_simple();
        }
        class
    }

    fn group(&mut self) -> Option<Pattern> {
        let wrap: fn(Box<Pattern>) -> Pattern = if self.eat("?:") {
            |inside| *inside
        } else if self.eat("?=") {
            |inside| Pattern::Ahead(inside, true)
        } else if self.eat("?!") {
            |inside| Pattern::Ahead(inside, false)
        } else if self.eat("?<=") {
            |inside| Pattern::Behind(inside, true)
        } else if self.eat("?<!") {
            |inside| Pattern::Behind(inside, false)
        } else {
            self.groups += 1;
            let number = self.groups;
            if self.eat("?<") || self.eat("?P<") {
                let name = self.up_to('>')?;
                self.names.push((name, number));
            } else if self.rest.starts_with('?') {
                return None;
            }
            let inside = self.choice()?;
            return self.eat(")").then(|| Pattern::Group(number, Box::new(inside)));
        };
        let inside = self.choice()?;
        self.eat(")").then(|| wrap(Box::new(inside)))
    }

    fn escaped(&mut self) -> Option<Pattern> {
        let rest = self.rest;
        Some(match self.next()? {
            'b' => edge(true),
            'B' => edge(false),
            'A' => Pattern::Start,
            'Z' | 'z' => Pattern::End,
            'k' => {
                let name = self.rest.strip_prefix('<').and_then(|_| self.up_to('>'))?;
                Pattern::Same(self.names.iter().find(|(known, _)| *known == &name[1..])?.1)
            }
            c @ '1'..='9' => {
                let mut number = c.to_digit(10)?;
                while let Some(digit) = self.rest.chars().next().and_then(|c| c.to_digit(10)) {
                    number = number.checked_mul(10)?.checked_add(digit)?;
                    self.next();
                }
                // A group that comes later has no text yet, and numbers of no group are characters.
                let number = number as usize;
                return (number <= self.groups).then_some(Pattern::Same(number));
            }
            _ => {
                self.rest = rest;
                let escape = self.escape()?;
                Pattern::Class(self.folded(escape))
            }
        })
    }

    /// The characters that an escape means, in a class and outside.
    fn escape(&mut self) -> Option<ClassUnicode> {
        let one = |c: char| class(&[(c, c)]);
        Some(match self.next()? {
            'd' => digits(),
            'D' => negated(digits()),
            'w' => letters(),
            'W' => negated(letters()),
            's' => spaces(),
            'S' => negated(spaces()),
            't' => one('\t'),
            'n' => one('\n'),
            'r' => one('\r'),
            'f' => one('\u{c}'),
            'v' => one('\u{b}'),
            'a' => one('\u{7}'),
            '0' if !self.rest.starts_with(|c: char| c.is_ascii_digit()) => one('\0'),
            'c' => one(char::from(u8::try_from(self.next().filter(char::is_ascii_alphabetic)?).ok()? % 32)),
            'x' if !self.rest.starts_with('{') => self.code(2).map(one)?,
            'u' | 'x' => match self.eat("{") {
                true => one(char::from_u32(u32::from_str_radix(self.up_to('}')?, 16).ok()?)?),
                false => self.code(4).map(one)?,
            },
            'p' => self.property()?,
            'P' => negated(self.property()?),
            c if c.is_ascii_alphanumeric() => return None,
            c => one(c),
        })
    }

    fn code(&mut self, digits: usize) -> Option<char> {
        let code = self.rest.get(..digits)?;
        self.rest = &self.rest[digits..];
        char::from_u32(u32::from_str_radix(code, 16).ok()?)
    }

    /// Unicode's properties are those of the crate for expressions.
    fn property(&mut self) -> Option<ClassUnicode> {
        let name = self.rest.strip_prefix('{').and_then(|_| self.up_to('}'))?;
        let parsed = regex_syntax::parse(&format!(r"\p{name}}}")).ok()?;
        match parsed.into_kind() {
            HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => Some(class),
            _ => None,
        }
    }

    /// The characters between square brackets, of which the first was read.
    fn class(&mut self) -> Option<ClassUnicode> {
        let is_negated = self.eat("^");
        let mut all = ClassUnicode::empty();
        while !self.eat("]") {
            let first = self.class_part()?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            match (only(&first), is_range) {
                (Some(start), true) => {
                    self.next();
                    let end = only(&self.class_part()?)?;
                    if end < start {
                        return None;
                    }
                    all.union(&class(&[(start, end)]));
                }
                _ => all.union(&first),
            }
        }
        let all = self.folded(all);
        Some(if is_negated { negated(all) } else { all })
    }

    fn class_part(&mut self) -> Option<ClassUnicode> {
        match self.next()? {
            '\\' if self.eat("b") => Some(class(&[('\u{8}', '\u{8}')])),
            '\\' => self.escape(),
            c => Some(class(&[(c, c)])),
        }
    }
}

/// The character of a class of one.
fn only(class: &ClassUnicode) -> Option<char> {
    match class.ranges() {
        [range] if range.start() == range.end() => Some(range.start()),
        _ => None,
    }
}

/// The counts of a repetition.
fn counts(inside: &str) -> Option<(u32, Option<u32>)> {
    let number = |text: &str| text.chars().all(|c| c.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
    match inside.split_once(',') {
        None => number(inside).map(|count| (count, Some(count))),
        Some((least, "")) => number(least).map(|least| (least, None)),
        Some((least, most)) => number(least).zip(number(most).map(Some)),
    }
}
