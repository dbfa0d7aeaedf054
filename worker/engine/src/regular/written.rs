//! Automata written as plain patterns: states are left out one by one, and what leads past them is written instead.

use std::collections::BTreeMap;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::automaton::Automaton;

/// Bytes of a pattern while it is written.
const MOST_BYTES: usize = 4_096;

/// States of an automaton that is written.
const MOST_STATES: usize = 160;

/// All characters.
const EVERY: &str = r"[\s\S]";

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WrittenPiece {
    text: String,
    binds: Binds,
}

/// How tightly a piece holds together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Binds {
    Choice,
    Chain,
    One,
}

impl WrittenPiece {
    fn empty() -> Self {
        Self { text: String::new(), binds: Binds::Chain }
    }

    fn within(&self, binds: Binds) -> String {
        if self.binds >= binds { self.text.clone() } else { format!("(?:{})", self.text) }
    }

    fn then(&self, next: &Self) -> Self {
        if self.text.is_empty() {
            return next.clone();
        }
        if next.text.is_empty() {
            return self.clone();
        }
        Self { text: self.within(Binds::Chain) + &next.within(Binds::Chain), binds: Binds::Chain }
    }

    fn or(&self, other: &Self) -> Self {
        let (small, large) = if self.text.is_empty() { (self, other) } else { (other, self) };
        if small == large {
            return self.clone();
        }
        if small.text.is_empty() {
            let is_optional = large.text.ends_with(['?', '*']) && large.binds == Binds::Chain && large.text.len() < 9;
            let text = if is_optional { format!("(?:{})?", large.text) } else { large.within(Binds::One) + "?" };
            return Self { text, binds: Binds::Chain };
        }
        Self { text: format!("{}|{}", self.text, other.text), binds: Binds::Choice }
    }

    fn repeated(&self) -> Self {
        let text = if self.text.is_empty() { String::new() } else { self.within(Binds::One) + "*" };
        Self { text, binds: Binds::Chain }
    }
}

/// The pattern of all texts of an automaton. `None` where it is too long; without any text, there is none.
pub(super) fn written(automaton: &Automaton) -> Option<String> {
    let living = automaton.living();
    if living.iter().filter(|is| **is).count() > MOST_STATES {
        return None;
    }
    // A start and an end of its own.
    let (start, end) = (living.len(), living.len() + 1);
    let mut edges: BTreeMap<(usize, usize), WrittenPiece> = BTreeMap::new();
    edges.insert((start, 0), WrittenPiece::empty());
    for (state, next) in automaton.next.iter().enumerate().filter(|(state, _)| living[*state]) {
        let mut classes: BTreeMap<usize, ClassUnicode> = BTreeMap::new();
        for (kind, next) in next.iter().enumerate().filter(|(_, next)| living[**next]) {
            classes.entry(*next).or_insert_with(ClassUnicode::empty).union(&automaton.kinds[kind]);
        }
        let written = |class| WrittenPiece { text: class_text(class), binds: Binds::One };
        edges.extend(classes.iter().map(|(next, class)| ((state, *next), written(class))));
        if automaton.ends[state] {
            edges.insert((state, end), WrittenPiece::empty());
        }
    }
    let mut left: Vec<usize> = (0..living.len()).filter(|state| living[*state]).collect();
    while let Some(at) = (0..left.len()).min_by_key(|at| weight(&edges, left[*at])) {
        leave_out(&mut edges, left.swap_remove(at))?;
    }
    let whole = edges.remove(&(start, end))?;
    Some(format!("^{}$", whole.within(Binds::Chain)))
}

/// Bytes that are written more where a state is left out.
fn weight(edges: &BTreeMap<(usize, usize), WrittenPiece>, state: usize) -> usize {
    let (mut into, mut out, mut bytes_in, mut bytes_out, mut around) = (0, 0, 0, 0, 0);
    for ((from, to), piece) in edges {
        match (*from == state, *to == state) {
            (true, true) => around = piece.text.len() + 1,
            (true, false) => (out, bytes_out) = (out + 1, bytes_out + piece.text.len() + 1),
            (false, true) => (into, bytes_in) = (into + 1, bytes_in + piece.text.len() + 1),
            (false, false) => {}
        }
    }
    (bytes_in * out + bytes_out * into + around * into * out).saturating_sub(bytes_in + bytes_out + around)
}

fn leave_out(edges: &mut BTreeMap<(usize, usize), WrittenPiece>, state: usize) -> Option<()> {
    let around = edges.remove(&(state, state)).map_or_else(WrittenPiece::empty, |piece| piece.repeated());
    let keys = |is: &dyn Fn(&(usize, usize)) -> bool| edges.keys().copied().filter(is).collect::<Vec<_>>();
    let (into, out) = (keys(&|key| key.1 == state), keys(&|key| key.0 == state));
    let take = |edges: &mut BTreeMap<(usize, usize), WrittenPiece>, key| {
        edges.remove(&key).unwrap_or_else(WrittenPiece::empty)
    };
    let into: Vec<_> = into.into_iter().map(|key| (key.0, take(edges, key))).collect();
    let out: Vec<_> = out.into_iter().map(|key| (key.1, take(edges, key))).collect();
    for (from, before) in &into {
        for (to, behind) in &out {
            let past = before.then(&around).then(behind);
            let joined = edges.get(&(*from, *to)).map_or(past.clone(), |other| other.or(&past));
            if joined.text.len() > MOST_BYTES {
                return None;
            }
            edges.insert((*from, *to), joined);
        }
    }
    Some(())
}

/// A class as a pattern has it: the characters, or those that it has not, whichever is shorter.
fn class_text(class: &ClassUnicode) -> String {
    let ranges = |class: &ClassUnicode| class.ranges().iter().map(range_text).collect::<String>();
    if let [only] = class.ranges()
        && only.start() == only.end()
    {
        return char_text(only.start());
    }
    let mut others = class.clone();
    others.negate();
    if others.ranges().is_empty() {
        return EVERY.to_owned();
    }
    let (own, others) = (ranges(class), ranges(&others));
    if own.len() <= others.len() { format!("[{own}]") } else { format!("[^{others}]") }
}

fn range_text(range: &ClassUnicodeRange) -> String {
    let (first, last) = (range.start(), range.end());
    match u32::from(last) - u32::from(first) {
        0 => char_text(first),
        1 => char_text(first) + &char_text(last),
        _ => format!("{}-{}", char_text(first), char_text(last)),
    }
}

/// A character, as it is written in a class and outside.
fn char_text(c: char) -> String {
    match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '_' | ' ' | '@' | ',' | ':' | ';' | '%' | '=' | '!') => c.into(),
        c if c.is_ascii_graphic() && !matches!(c, '<' | '>' | '\'' | '"' | '`') => format!("\\{c}"),
        '<' | '>' | '\'' | '"' | '`' => c.into(),
        c if u32::from(c) < 0x100 => format!("\\x{:02x}", u32::from(c)),
        c => format!("\\u{{{:x}}}", u32::from(c)),
    }
}
