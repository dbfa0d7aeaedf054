//! Automata of expressions: made within bounds, with as few states as there can be, and walked for texts.

use std::collections::{HashMap, VecDeque};

use regex_syntax::hir::ClassUnicode;

use super::expression::{ALL, Beyond, Expressions, FAIL, NodeId};

/// States before equal ones are joined.
const MOST_STATES: usize = 1_500;

/// States that are met on a walk for texts.
const MOST_WALKED: usize = 3_000;

/// Characters of one kind that are tried at a place.
const MOST_LETTERS: usize = 3;

/// A state: the rest that is to come, the progress of looks behind, and whether it is the start.
type StateKey = (NodeId, Vec<NodeId>, bool);

/// States of an automaton, of which the first one is the start.
pub(super) struct Automaton {
    /// The characters of each kind.
    pub(super) kinds: Vec<ClassUnicode>,
    /// For each state and kind, the state that comes next.
    pub(super) next: Vec<Vec<usize>>,
    /// Whether a text may end in a state.
    pub(super) ends: Vec<bool>,
}

/// Finds the states of an expression, as they are asked for.
struct Walker<'a> {
    of: &'a mut Expressions,
    keys: Vec<StateKey>,
    numbers: HashMap<StateKey, usize>,
}

impl<'a> Walker<'a> {
    fn new(of: &'a mut Expressions, root: NodeId) -> Self {
        let behind = of.behind();
        let mut walker = Self { of, keys: Vec::new(), numbers: HashMap::new() };
        walker.number((root, behind, true));
        walker
    }

    fn number(&mut self, mut key: StateKey) -> usize {
        if matches!(key.0, ALL | FAIL) {
            // All that comes is known, whatever is behind.
            key = (key.0, Vec::new(), false);
        }
        let next = self.keys.len();
        let number = *self.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            self.keys.push(key);
        }
        number
    }

    /// Whether a text may end in a state, and the states behind it.
    fn step(&mut self, state: usize, kinds: usize) -> Result<(bool, Vec<usize>), Beyond> {
        let (node, behind, is_start) = self.keys[state].clone();
        let place = self.of.place(&behind, is_start)?;
        let ends = self.of.nullable(node, place, 0)?;
        let mut next = Vec::with_capacity(kinds);
        for kind in 0..kinds {
            let derived = self.of.derived(node, place, kind, 0)?;
            let behind = behind.iter().map(|node| self.of.derived(*node, place, kind, 0));
            let behind = behind.collect::<Result<_, _>>()?;
            next.push(self.number((derived, behind, false)));
        }
        Ok((ends, next))
    }
}

impl Automaton {
    /// The automaton of a node.
    pub(super) fn new(of: &mut Expressions, root: NodeId) -> Result<Self, Beyond> {
        let kinds: Vec<ClassUnicode> = of.kinds().cloned().collect();
        let (mut next, mut ends) = (Vec::new(), Vec::new());
        let mut walker = Walker::new(of, root);
        let mut at = 0;
        while at < walker.keys.len() {
            if at >= MOST_STATES {
                return Err(Beyond);
            }
            let (is_end, behind) = walker.step(at, kinds.len())?;
            ends.push(is_end);
            next.push(behind);
            at += 1;
        }
        Ok(Self { kinds, next, ends }.smallest())
    }

    /// Joins states from which the same texts go on.
    fn smallest(self) -> Self {
        let mut groups: Vec<usize> = self.ends.iter().map(|is_end| usize::from(*is_end)).collect();
        let mut count = 0;
        loop {
            let mut numbers = HashMap::new();
            let of = |(state, next): (usize, &Vec<usize>)| {
                let key = (groups[state], next.iter().map(|next| groups[*next]).collect::<Vec<_>>());
                let number = numbers.len();
                *numbers.entry(key).or_insert(number)
            };
            groups = self.next.iter().enumerate().map(of).collect();
            if numbers.len() == count {
                break;
            }
            count = numbers.len();
        }
        let (mut next, mut ends) = (vec![Vec::new(); count], vec![false; count]);
        for (state, group) in groups.iter().enumerate() {
            next[*group] = self.next[state].iter().map(|next| groups[*next]).collect();
            ends[*group] = self.ends[state];
        }
        Self { kinds: self.kinds, next, ends }
    }

    /// All texts, where there are at most so many.
    pub(super) fn all_texts(&self, most: usize) -> Option<Vec<String>> {
        let living = self.living();
        let mut found = Vec::new();
        let mut left = VecDeque::from([(0, String::new())]);
        while let Some((state, text)) = left.pop_front() {
            // More letters than states: one comes again, and again.
            if !living[state] || text.chars().count() > self.next.len() {
                if living[state] {
                    return None;
                }
                continue;
            }
            found.extend(self.ends[state].then(|| text.clone()));
            for (kind, next) in self.kinds.iter().zip(&self.next[state]).filter(|(_, next)| living[**next]) {
                let letters = kind.ranges().iter().flat_map(|range| range.start()..=range.end());
                // Every way goes on to a text of its own.
                left.extend(letters.take(most + 1).map(|letter| (*next, format!("{text}{letter}"))));
            }
            if found.len().max(left.len()) > most {
                return None;
            }
        }
        Some(found)
    }

    /// For each state, whether any text goes on from it to an end.
    pub(super) fn living(&self) -> Vec<bool> {
        let mut living = self.ends.clone();
        loop {
            let before = living.iter().filter(|is| **is).count();
            for state in 0..living.len() {
                living[state] |= self.next[state].iter().any(|next| living[*next]);
            }
            if living.iter().filter(|is| **is).count() == before {
                return living;
            }
        }
    }
}

/// Some texts of a node, of lengths within bounds: short ones first, and long ones where no short ones are found.
pub(super) fn texts(of: &mut Expressions, root: NodeId, lengths: (usize, usize), most: usize) -> Vec<String> {
    let letters: Vec<Vec<char>> = of.kinds().map(letters).collect();
    // Readable characters are tried first.
    let mut order: Vec<usize> = (0..letters.len()).collect();
    order.sort_by_key(|kind| match letters[*kind][0] {
        'a'..='z' => 0,
        'A'..='Z' | '0'..='9' => 1,
        ' '..='~' => 2,
        _ => 3,
    });
    let mut found = Vec::new();
    for is_short in [true, false] {
        let mut walker = Walker::new(of, root);
        let mut left: VecDeque<(usize, String)> = VecDeque::from([(0, String::new())]);
        let mut seen: HashMap<(usize, usize), usize> = HashMap::new();
        let mut walked = 0;
        while let Some((state, text)) = if is_short { left.pop_front() } else { left.pop_back() } {
            walked += 1;
            let length = text.chars().count();
            // A state is gone through a few times, so that the texts are not all of one kind.
            let times = seen.entry((state, length.min(lengths.0))).or_default();
            *times += 1;
            if walked > MOST_WALKED || *times > most {
                continue;
            }
            let Ok((is_end, next)) = walker.step(state, letters.len()) else { break };
            if is_end && length >= lengths.0 && !found.contains(&text) {
                found.push(text.clone());
                if found.len() >= most {
                    return found;
                }
            }
            if length < lengths.1 {
                let steps = order.iter().filter(|kind| walker.keys[next[**kind]].0 != FAIL);
                // Characters of a text differ where they may.
                let more = if is_short { MOST_LETTERS } else { 1 };
                let of = |kind: &usize| {
                    let (next, all) = (next[*kind], &letters[*kind]);
                    let some = (length..length + more.min(all.len())).map(|at| all[at % all.len()]);
                    some.map(|c| (next, format!("{text}{c}"))).collect::<Vec<_>>()
                };
                let steps: Vec<_> = steps.flat_map(of).collect();
                if is_short {
                    left.extend(steps);
                } else {
                    left.extend(steps.into_iter().rev());
                }
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    found
}

/// Characters of a class that are well read, or its first one.
fn letters(class: &ClassUnicode) -> Vec<char> {
    let has = |c: char| class.ranges().iter().any(|range| range.start() <= c && c <= range.end());
    let of = |c: std::ops::RangeInclusive<char>| c.filter(|c| has(*c)).collect::<Vec<_>>();
    let kinds = [of('a'..='z'), of('0'..='9'), of('A'..='Z'), of(' '..='~')];
    let first = || vec![class.ranges().first().map_or(' ', |range| range.start())];
    kinds.into_iter().find(|all| !all.is_empty()).unwrap_or_else(first)
}
