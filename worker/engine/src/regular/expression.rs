//! Patterns as expressions over the rest of a text, with conjunction and negation, and their derivatives by a
//! character.
//!
//! A node is the set of rests of a text that go on from a place. A part of a pattern is put in front of the node of
//! what follows it, so a look ahead is a conjunction at that place. What is behind a place is followed on its own, and
//! its truth there is given.

use std::collections::HashMap;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::syntax::{Pattern, dot};

/// A node's number.
pub(super) type NodeId = u32;

/// A part's number.
type PartId = u32;

/// Which of the looks behind hold at a place, and whether it is the start.
pub(super) type TextPlace = u32;

/// The place is the start of the text.
const AT_START: TextPlace = 1 << 31;

/// Looks behind of all patterns together.
const MOST_BEHIND: usize = 16;

/// How deep nodes are followed at one place.
const MOST_DEPTH: usize = 300;

/// Kinds of characters that are told apart.
const MOST_KINDS: usize = 200;

/// A part of a pattern. Equal parts are one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PatternPart {
    Class(usize),
    Chain(Vec<PartId>),
    Any(Vec<PartId>),
    Repeat(PartId, u32, Option<u32>),
    Ahead(PartId, bool),
    Behind(usize, bool),
    Start,
    End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RestNode {
    /// No rest.
    Fail,
    /// Any rest.
    All,
    /// The empty rest.
    Over,
    Then(PartId, NodeId),
    /// A repetition that only goes on behind a character: one that repeats nothing would have no end.
    Again(PartId, NodeId),
    Or(Vec<NodeId>),
    And(Vec<NodeId>),
    Not(NodeId),
}

/// The way in which a pattern is read.
#[derive(Clone, Copy)]
struct Sense {
    /// Whether it is what comes before a place.
    is_behind: bool,
    /// Whether more texts may be found than there are: of what must not be found.
    is_wide: bool,
}

impl Sense {
    fn under(self, holds: bool) -> Self {
        Self { is_wide: self.is_wide == holds, ..self }
    }
}

pub(super) const FAIL: NodeId = 0;
pub(super) const ALL: NodeId = 1;
const OVER: NodeId = 2;

/// Nodes, each once.
pub(super) struct Expressions {
    parts: Vec<PatternPart>,
    part_ids: HashMap<PatternPart, PartId>,
    nodes: Vec<RestNode>,
    node_ids: HashMap<RestNode, NodeId>,
    classes: Vec<ClassUnicode>,
    /// Of each kind of characters, the characters, and which classes have them.
    kinds: Vec<(ClassUnicode, Vec<bool>)>,
    /// The nodes that looks behind look for, from the start of the text on.
    behind: Vec<NodeId>,
    derived: HashMap<(NodeId, TextPlace, usize), NodeId>,
    nullable: HashMap<(NodeId, TextPlace), bool>,
    /// Steps that are left.
    left: u64,
}

/// More steps would be needed than are allowed, or a pattern has what cannot be followed.
#[derive(Debug)]
pub(super) struct Beyond;

impl Expressions {
    pub(super) fn new(steps: u64) -> Self {
        let nodes = vec![RestNode::Fail, RestNode::All, RestNode::Over];
        let node_ids = nodes.iter().cloned().zip(0..).collect();
        Self {
            parts: Vec::new(),
            part_ids: HashMap::new(),
            nodes,
            node_ids,
            classes: Vec::new(),
            kinds: Vec::new(),
            behind: Vec::new(),
            derived: HashMap::new(),
            nullable: HashMap::new(),
            left: steps,
        }
    }

    /// Steps that are left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The texts in which a pattern is found, or is not.
    pub(super) fn found(&mut self, pattern: &Pattern, holds: bool) -> Result<NodeId, Beyond> {
        let any = self.part(&Pattern::every(), Sense { is_behind: false, is_wide: !holds })?;
        let part = self.part(pattern, Sense { is_behind: false, is_wide: !holds })?;
        let found = self.then(part, ALL)?;
        let found = self.then(any, found)?;
        Ok(if holds { found } else { self.not(found) })
    }

    /// Finds out which characters need not be told apart. No pattern may be added from then on.
    pub(super) fn tell_kinds(&mut self) -> Result<(), Beyond> {
        let mut starts: Vec<u32> = vec![0];
        for range in self.classes.iter().flat_map(ClassUnicode::ranges) {
            starts.extend([u32::from(range.start()), u32::from(range.end()) + 1]);
        }
        starts.sort_unstable();
        starts.dedup();
        let mut places: HashMap<Vec<bool>, usize> = HashMap::new();
        for (at, start) in starts.iter().enumerate() {
            self.spend(1 + self.classes.len() as u64)?;
            let end = starts.get(at + 1).map_or(u32::from(char::MAX), |next| next - 1);
            // Halves of surrogate pairs are no characters.
            let first = char::from_u32(*start).or_else(|| char::from_u32(0xe000).filter(|c| u32::from(*c) <= end));
            let last = char::from_u32(end).or(char::from_u32(0xd7ff));
            let (Some(first), Some(last)) = (first, last) else { continue };
            if first > last {
                continue;
            }
            let has = |class: &ClassUnicode| class.ranges().iter().any(|r| r.start() <= first && first <= r.end());
            let of: Vec<bool> = self.classes.iter().map(has).collect();
            let place = *places.entry(of.clone()).or_insert(self.kinds.len());
            if place == self.kinds.len() {
                self.kinds.push((ClassUnicode::empty(), of));
            }
            self.kinds[place].0.push(ClassUnicodeRange::new(first, last));
        }
        if self.kinds.len() > MOST_KINDS { Err(Beyond) } else { Ok(()) }
    }

    /// The characters of each kind.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &ClassUnicode> {
        self.kinds.iter().map(|(class, _)| class)
    }

    /// The nodes that looks behind look for at the start of a text.
    pub(super) fn behind(&self) -> Vec<NodeId> {
        self.behind.clone()
    }

    /// The place behind a text that looks behind have followed so far.
    pub(super) fn place(&mut self, behind: &[NodeId], is_start: bool) -> Result<TextPlace, Beyond> {
        let mut place = if is_start { AT_START } else { 0 };
        for (number, node) in behind.iter().enumerate() {
            // One within another one comes first.
            if self.nullable(*node, place, 0)? {
                place |= 1 << number;
            }
        }
        Ok(place)
    }

    fn spend(&mut self, steps: u64) -> Result<(), Beyond> {
        self.left = self.left.checked_sub(steps).ok_or(Beyond)?;
        Ok(())
    }

    fn part_id(&mut self, part: PatternPart) -> PartId {
        let next = self.parts.len() as PartId;
        let id = *self.part_ids.entry(part.clone()).or_insert(next);
        if id == next {
            self.parts.push(part);
        }
        id
    }

    fn node(&mut self, node: RestNode) -> NodeId {
        let next = self.nodes.len() as NodeId;
        let id = *self.node_ids.entry(node.clone()).or_insert(next);
        if id == next {
            self.nodes.push(node);
        }
        id
    }

    fn part(&mut self, pattern: &Pattern, sense: Sense) -> Result<PartId, Beyond> {
        self.spend(1)?;
        let Sense { is_behind, is_wide } = sense;
        let part = match pattern {
            Pattern::Class(class) => self.class(class.clone()),
            Pattern::Dot => self.class(dot(is_wide)),
            Pattern::Chain(parts) => {
                PatternPart::Chain(parts.iter().map(|part| self.part(part, sense)).collect::<Result<_, _>>()?)
            }
            Pattern::Any(ways) => {
                PatternPart::Any(ways.iter().map(|way| self.part(way, sense)).collect::<Result<_, _>>()?)
            }
            Pattern::Repeat(inside, least, most) => PatternPart::Repeat(self.part(inside, sense)?, *least, *most),
            Pattern::Group(_, inside) => return self.part(inside, sense),
            Pattern::Start => PatternPart::Start,
            // Behind a place nothing is known of what comes.
            Pattern::End | Pattern::Ahead(..) if is_behind => return Err(Beyond),
            Pattern::End => PatternPart::End,
            Pattern::Ahead(inside, holds) => PatternPart::Ahead(self.part(inside, sense.under(*holds))?, *holds),
            Pattern::Behind(inside, holds) => {
                let sense = Sense { is_behind: true, ..sense.under(*holds) };
                let any = self.part(&Pattern::every(), sense)?;
                let inside = self.part(inside, sense)?;
                let whole = self.then(inside, OVER)?;
                let whole = self.then(any, whole)?;
                let number = self.behind.iter().position(|known| *known == whole).unwrap_or(self.behind.len());
                if number == self.behind.len() {
                    self.behind.push(whole);
                }
                if number >= MOST_BEHIND {
                    return Err(Beyond);
                }
                PatternPart::Behind(number, *holds)
            }
            Pattern::Same(_) => return Err(Beyond),
        };
        Ok(self.part_id(part))
    }

    fn class(&mut self, class: ClassUnicode) -> PatternPart {
        let known = self.classes.iter().position(|known| *known == class);
        PatternPart::Class(known.unwrap_or_else(|| {
            self.classes.push(class);
            self.classes.len() - 1
        }))
    }

    fn then(&mut self, part: PartId, rest: NodeId) -> Result<NodeId, Beyond> {
        self.spend(1)?;
        if rest == FAIL {
            return Ok(FAIL);
        }
        match &self.parts[part as usize] {
            PatternPart::Chain(parts) => {
                parts.clone().into_iter().rev().try_fold(rest, |rest, part| self.then(part, rest))
            }
            PatternPart::Repeat(_, _, Some(0)) => Ok(rest),
            _ => Ok(self.node(RestNode::Then(part, rest))),
        }
    }

    fn not(&mut self, node: NodeId) -> NodeId {
        match &self.nodes[node as usize] {
            RestNode::Fail => ALL,
            RestNode::All => FAIL,
            RestNode::Not(inside) => *inside,
            _ => self.node(RestNode::Not(node)),
        }
    }

    /// The nodes joined by `or`, or by `and`.
    fn joined(&mut self, nodes: Vec<NodeId>, by_or: bool) -> Result<NodeId, Beyond> {
        let (neutral, absorbing) = if by_or { (FAIL, ALL) } else { (ALL, FAIL) };
        let mut all = Vec::with_capacity(nodes.len());
        for id in nodes {
            match &self.nodes[id as usize] {
                RestNode::Or(inside) if by_or => all.extend_from_slice(inside),
                RestNode::And(inside) if !by_or => all.extend_from_slice(inside),
                _ if id == neutral => {}
                _ => all.push(id),
            }
        }
        all.sort_unstable();
        all.dedup();
        self.spend(1 + all.len() as u64)?;
        let is_opposed = |id: &NodeId| match &self.nodes[*id as usize] {
            RestNode::Not(inside) => all.binary_search(inside).is_ok(),
            _ => *id == absorbing,
        };
        if all.iter().any(is_opposed) {
            return Ok(absorbing);
        }
        Ok(match all.as_slice() {
            [] => neutral,
            [only] => *only,
            _ => self.node(if by_or { RestNode::Or(all) } else { RestNode::And(all) }),
        })
    }

    /// The texts that all of these have.
    pub(super) fn all_of(&mut self, nodes: Vec<NodeId>) -> Result<NodeId, Beyond> {
        self.joined(nodes, false)
    }

    /// A rest that goes on behind a character.
    fn behind_character(&mut self, node: NodeId) -> Result<NodeId, Beyond> {
        self.spend(1)?;
        match self.nodes[node as usize] {
            RestNode::Again(part, rest) => {
                let rest = self.behind_character(rest)?;
                self.then(part, rest)
            }
            RestNode::Then(part, rest) => {
                let next = self.behind_character(rest)?;
                if next == rest { Ok(node) } else { self.then(part, next) }
            }
            _ => Ok(node),
        }
    }

    /// The first step into a part in front of a rest, as another node. `None` for a class.
    fn unfolded(&mut self, part: PartId, rest: NodeId, place: TextPlace) -> Result<NodeId, Beyond> {
        match self.parts[part as usize].clone() {
            PatternPart::Class(_) | PatternPart::End => Err(Beyond),
            PatternPart::Chain(_) => self.then(part, rest),
            PatternPart::Any(ways) => {
                let ways = ways.into_iter().map(|way| self.then(way, rest)).collect::<Result<_, _>>()?;
                self.joined(ways, true)
            }
            PatternPart::Repeat(_, 0, Some(0)) => Ok(rest),
            PatternPart::Repeat(inside, least, most) => {
                let fewer =
                    self.part_id(PatternPart::Repeat(inside, least.saturating_sub(1), most.map(|most| most - 1)));
                if least > 0 {
                    let next = self.then(fewer, rest)?;
                    return self.then(inside, next);
                }
                let again = self.node(RestNode::Again(fewer, rest));
                let more = self.then(inside, again)?;
                self.joined(vec![rest, more], true)
            }
            PatternPart::Ahead(inside, holds) => {
                let found = self.then(inside, ALL)?;
                let found = if holds { found } else { self.not(found) };
                self.joined(vec![found, rest], false)
            }
            PatternPart::Behind(number, holds) => Ok(if (place >> number & 1 == 1) == holds { rest } else { FAIL }),
            PatternPart::Start => Ok(if place & AT_START == 0 { FAIL } else { rest }),
        }
    }

    /// Whether a text may end at a place where this rest is to come.
    pub(super) fn nullable(&mut self, node: NodeId, place: TextPlace, depth: usize) -> Result<bool, Beyond> {
        if let Some(known) = self.nullable.get(&(node, place)) {
            return Ok(*known);
        }
        self.spend(1)?;
        let depth = if depth < MOST_DEPTH { depth + 1 } else { return Err(Beyond) };
        let is = match self.nodes[node as usize].clone() {
            RestNode::Fail | RestNode::Again(..) => false,
            RestNode::All | RestNode::Over => true,
            RestNode::Not(inside) => !self.nullable(inside, place, depth)?,
            RestNode::Or(all) | RestNode::And(all) => {
                let is_or = matches!(self.nodes[node as usize], RestNode::Or(_));
                let mut is = !is_or;
                for inside in all {
                    if self.nullable(inside, place, depth)? == is_or {
                        is = is_or;
                        break;
                    }
                }
                is
            }
            RestNode::Then(part, rest) => match self.parts[part as usize] {
                PatternPart::Class(_) => false,
                PatternPart::End => self.nullable(rest, place, depth)?,
                _ => {
                    let next = self.unfolded(part, rest, place)?;
                    self.nullable(next, place, depth)?
                }
            },
        };
        self.nullable.insert((node, place), is);
        Ok(is)
    }

    /// The rest that is to come behind a character of a kind, at a place where this one is to come.
    pub(super) fn derived(
        &mut self,
        node: NodeId,
        place: TextPlace,
        kind: usize,
        depth: usize,
    ) -> Result<NodeId, Beyond> {
        if let Some(known) = self.derived.get(&(node, place, kind)) {
            return Ok(*known);
        }
        self.spend(1)?;
        let depth = if depth < MOST_DEPTH { depth + 1 } else { return Err(Beyond) };
        let next = match self.nodes[node as usize].clone() {
            RestNode::Fail | RestNode::Over | RestNode::Again(..) => FAIL,
            RestNode::All => ALL,
            RestNode::Not(inside) => {
                let next = self.derived(inside, place, kind, depth)?;
                self.not(next)
            }
            RestNode::Or(all) | RestNode::And(all) => {
                let is_or = matches!(self.nodes[node as usize], RestNode::Or(_));
                let all = all.into_iter().map(|inside| self.derived(inside, place, kind, depth));
                let all = all.collect::<Result<_, _>>()?;
                self.joined(all, is_or)?
            }
            RestNode::Then(part, rest) => match self.parts[part as usize] {
                PatternPart::Class(class) if self.kinds[kind].1[class] => self.behind_character(rest)?,
                PatternPart::Class(_) | PatternPart::End => FAIL,
                _ => {
                    let next = self.unfolded(part, rest, place)?;
                    self.derived(next, place, kind, depth)?
                }
            },
        };
        self.derived.insert((node, place, kind), next);
        Ok(next)
    }
}
