//! The steps of a grammar's lexer in tables, and how many bytes it takes until two of its states differ.

use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;
use llguidance::{HashMap, HashSet};

use super::text_kinds::{ByteClass, TextKinds};

/// A state of the lexer that has a row in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row(u32);

/// The effect of a byte in a state of the lexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LexerStep {
    Inside(Row),
    /// It is the last byte of a lexeme.
    Last,
    /// The lexeme ended in front of it.
    Behind,
    Dead,
}

/// The lexemes that may end in a state, as far as the parser's answer depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LexemeEnd {
    /// No other lexeme is possible.
    Of(usize),
    /// One of several, which only the lexer tells apart.
    In(StateID),
}

/// Steps that were asked for. A grammar has one lexer, whose states keep their numbers.
pub(super) struct LexerSteps {
    rows: HashMap<StateID, Row>,
    states: Vec<StateID>,
    ends: Vec<LexemeEnd>,
    /// 256 cells for each row.
    cells: Vec<Cell>,
    /// [`ByteClass::COUNT`] cells for each row.
    class_cells: Vec<Cell>,
    /// The last distances that were found, each at the place of its key.
    distances: Vec<Distance>,
    /// Rows that were made by comparisons so far.
    compared: usize,
}

/// A step in four bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cell(u32);

/// The number of bytes in the shortest of some texts that two states treat differently is at least this.
#[derive(Clone, Copy)]
struct Distance {
    key: (Row, Row, TextKinds),
    least: usize,
    is_exact: bool,
}

/// Work that may be spent to compare states for one mask.
pub(super) struct CompareBudget {
    /// Pairs of rows to be compared.
    pairs: usize,
    /// Rows that no token led to yet. Each may cost a derivative for every class of bytes, and the library ends the
    /// answer if they cost too much.
    new_rows: usize,
}

/// Texts longer than this are not looked at: few tokens have as many bytes.
const FARTHEST: usize = 32;

/// Most comparisons are about texts that are not longer.
const NEAR: usize = 8;

/// The library ends an answer whose lexer has too many states. Comparisons use only a part of them.
const MOST_COMPARED: usize = 8_192;

/// A grammar's rows that are kept from one mask to the next: two and a half megabytes.
const MOST_ROWS: usize = 2_048;

/// A grammar's distances that are kept: a hundred kilobytes.
const DISTANCES: usize = 4_096;

impl Row {
    /// The row of a state that goes on with any text.
    pub(super) const ANY: Self = Self(0);
}

impl Cell {
    const MISSING: Self = Self(0);
    const LAST: Self = Self(1);
    const BEHIND: Self = Self(2);
    const DEAD: Self = Self(3);
    /// Bytes of a class have several effects.
    const MIXED: Self = Self(4);
    const FIRST_ROW: u32 = 5;

    fn of(step: LexerStep) -> Self {
        match step {
            LexerStep::Inside(Row(row)) => Self(row + Self::FIRST_ROW),
            LexerStep::Last => Self::LAST,
            LexerStep::Behind => Self::BEHIND,
            LexerStep::Dead => Self::DEAD,
        }
    }

    fn step(self) -> LexerStep {
        match self {
            Self::LAST => LexerStep::Last,
            Self::BEHIND => LexerStep::Behind,
            Self::DEAD | Self::MISSING | Self::MIXED => LexerStep::Dead,
            Self(row) => LexerStep::Inside(Row(row - Self::FIRST_ROW)),
        }
    }
}

impl CompareBudget {
    fn is_spent(&self) -> bool {
        self.pairs == 0 || self.new_rows == 0
    }
}

impl LexerSteps {
    /// The row of a state.
    pub(super) fn row(&mut self, parser: &ParserRecognizer<'_>, state: StateID) -> Row {
        *self.rows.entry(state).or_insert_with(|| {
            let mut possible = parser.lexer().possible_lexemes(state).iter();
            let end = match (possible.next(), possible.next()) {
                (Some(only), None) => LexemeEnd::Of(only.as_usize()),
                _ => LexemeEnd::In(state),
            };
            self.states.push(state);
            self.ends.push(end);
            self.cells.resize(self.states.len() << 8, Cell::MISSING);
            self.class_cells.resize(self.states.len() * ByteClass::COUNT, Cell::MISSING);
            Row(self.states.len() as u32 - 1)
        })
    }

    /// The effect of a byte.
    #[inline]
    pub(super) fn step(&mut self, parser: &mut ParserRecognizer<'_>, row: Row, byte: u8) -> LexerStep {
        match self.cells[place(row, byte)] {
            Cell::MISSING => self.first_step(parser, row, byte),
            known => known.step(),
        }
    }

    /// As `Lexer::advance` defines it: its result can be used, but not named.
    #[cold]
    fn first_step(&mut self, parser: &mut ParserRecognizer<'_>, row: Row, byte: u8) -> LexerStep {
        let state = self.states[row.0 as usize];
        let lexer = parser.lexer_mut();
        let next = lexer.transition_start_state(state, Some(byte), &None);
        let step = match () {
            () if next.is_dead() && lexer.advance(state, byte, false, &None).is_error() => LexerStep::Dead,
            () if next.is_dead() => LexerStep::Behind,
            () if next.has_lowest_match() => LexerStep::Last,
            () => LexerStep::Inside(self.row(parser, next)),
        };
        self.cells[place(row, byte)] = Cell::of(step);
        step
    }

    /// The effect of all bytes of a class; `None` if they have several.
    #[inline]
    pub(super) fn class_step(
        &mut self,
        parser: &mut ParserRecognizer<'_>,
        row: Row,
        class: ByteClass,
    ) -> Option<LexerStep> {
        match self.class_cells[class_place(row, class)] {
            Cell::MISSING => self.first_class_step(parser, row, class),
            Cell::MIXED => None,
            known => Some(known.step()),
        }
    }

    #[cold]
    fn first_class_step(&mut self, parser: &mut ParserRecognizer<'_>, row: Row, class: ByteClass) -> Option<LexerStep> {
        let (first, others) = class.bytes().split_first()?;
        let step = self.step(parser, row, *first);
        let is_one = others.iter().all(|byte| self.step(parser, row, *byte) == step);
        self.class_cells[class_place(row, class)] = if is_one { Cell::of(step) } else { Cell::MIXED };
        Some(step).filter(|_| is_one)
    }

    /// Number of bytes that are known to have the same effect in a row and a state.
    pub(super) fn equal_steps(&self, Row(one): Row, other: StateID) -> usize {
        let cells = |row: u32| self.cells.get((row as usize) << 8..(row as usize + 1) << 8).unwrap_or_default();
        let other = self.rows.get(&other).map(|row| cells(row.0)).unwrap_or_default();
        cells(one).iter().zip(other).filter(|(one, other)| one == other && **one != Cell::MISSING).count()
    }

    /// The lexemes that may end in a state.
    pub(super) fn end(&self, row: Row) -> LexemeEnd {
        self.ends[row.0 as usize]
    }

    /// Whether a byte has the same effect in both states. `Err`: it leads to these two.
    pub(super) fn compare(
        &mut self,
        parser: &mut ParserRecognizer<'_>,
        one: Row,
        other: Row,
        byte: u8,
    ) -> Result<bool, (Row, Row)> {
        let steps = (self.step(parser, one, byte), self.step(parser, other, byte));
        self.compare_steps(one, other, steps)
    }

    /// The same for all bytes of a class; `None` if they have several effects.
    pub(super) fn compare_class(
        &mut self,
        parser: &mut ParserRecognizer<'_>,
        one: Row,
        other: Row,
        class: ByteClass,
    ) -> Option<Result<bool, (Row, Row)>> {
        let steps = (self.class_step(parser, one, class)?, self.class_step(parser, other, class)?);
        Some(self.compare_steps(one, other, steps))
    }

    fn compare_steps(&self, one: Row, other: Row, steps: (LexerStep, LexerStep)) -> Result<bool, (Row, Row)> {
        match steps {
            (LexerStep::Inside(one), LexerStep::Inside(other)) if one != other => Err((one, other)),
            (LexerStep::Behind, LexerStep::Behind) => Ok(self.end(one) == self.end(other)),
            (one, other) => Ok(one == other),
        }
    }

    /// The cost that comparisons for one mask may have.
    pub(super) fn budget(&self) -> CompareBudget {
        CompareBudget { pairs: 64, new_rows: MOST_COMPARED.saturating_sub(self.compared).min(32) }
    }

    /// Whether no text of up to so many bytes is treated differently. `false` if that would cost too much to find out.
    pub(super) fn are_alike(
        &mut self,
        parser: &mut ParserRecognizer<'_>,
        (one, other): (Row, Row),
        texts: TextKinds,
        bytes: usize,
        budget: &mut CompareBudget,
    ) -> bool {
        if one == other || bytes == 0 {
            return true;
        }
        if !texts.are_known() {
            return false;
        }
        let known = &self.distances[distance_place((one, other, texts))];
        if known.key == (one, other, texts) {
            if bytes < known.least {
                return true;
            }
            if known.is_exact {
                return false;
            }
        }
        if bytes > FARTHEST || budget.is_spent() {
            return false;
        }
        bytes < self.distance(parser, (one, other), texts, bytes.max(NEAR).next_power_of_two(), budget)
    }

    /// As far as is known, all of the texts that are shorter are treated the same.
    pub(super) fn least(&self, (one, other): (Row, Row), texts: TextKinds) -> usize {
        let known = &self.distances[distance_place((one, other, texts))];
        if known.key == (one, other, texts) { known.least } else { 0 }
    }

    /// Goes through the pairs of states that the same texts lead to, the shortest first.
    fn distance(
        &mut self,
        parser: &mut ParserRecognizer<'_>,
        (one, other): (Row, Row),
        texts: TextKinds,
        farthest: usize,
        budget: &mut CompareBudget,
    ) -> usize {
        let first = (one, other, texts.character());
        let (mut seen, mut layer, mut is_exact) = (HashSet::default(), vec![first], false);
        seen.insert(first);
        let mut least = 1;
        'found: while least <= farthest {
            let mut next = Vec::new();
            for (one, other, character) in layer {
                if budget.is_spent() {
                    break 'found;
                }
                budget.pairs -= 1;
                let rows = self.states.len();
                for class in texts.classes(character) {
                    let Some(character) = class.bytes().first().and_then(|byte| character.with(*byte)) else {
                        continue;
                    };
                    let of_all = self.compare_class(parser, one, other, class);
                    let bytes = if of_all.is_some() { &[] } else { class.bytes() };
                    let of_each = bytes.iter().map(|byte| self.compare(parser, one, other, *byte));
                    for compared in of_all.into_iter().chain(of_each) {
                        match compared {
                            Ok(true) => {}
                            Ok(false) => {
                                is_exact = true;
                                break 'found;
                            }
                            Err((one, other)) => {
                                let pair = (one, other, character);
                                if seen.insert(pair) {
                                    next.push(pair);
                                }
                            }
                        }
                    }
                }
                let new_rows = self.states.len() - rows;
                self.compared += new_rows;
                budget.new_rows = budget.new_rows.saturating_sub(new_rows);
            }
            if next.is_empty() {
                least = usize::MAX;
                break;
            }
            layer = next;
            least += 1;
        }
        let key = (one, other, texts);
        let known = &mut self.distances[distance_place(key)];
        if known.key != key || known.least < least || is_exact {
            *known = Distance { key, least, is_exact };
        }
        known.least
    }

    /// Forgets all if there is more than may be kept.
    pub(super) fn bound(&mut self) {
        if self.states.len() > MOST_ROWS {
            *self = Self { compared: self.compared, ..Self::default() };
        }
    }
}

impl Default for LexerSteps {
    /// One row, in which all bytes are inside of a lexeme and lead to it again.
    fn default() -> Self {
        Self {
            rows: HashMap::default(),
            states: vec![StateID::MISSING],
            ends: vec![LexemeEnd::In(StateID::MISSING)],
            cells: vec![Cell::of(LexerStep::Inside(Row::ANY)); 256],
            class_cells: vec![Cell::of(LexerStep::Inside(Row::ANY)); ByteClass::COUNT],
            distances: vec![
                Distance { key: (Row::ANY, Row::ANY, TextKinds::none(None)), least: 0, is_exact: false };
                DISTANCES
            ],
            compared: 0,
        }
    }
}

fn place(row: Row, byte: u8) -> usize {
    (row.0 as usize) << 8 | usize::from(byte)
}

fn class_place(row: Row, class: ByteClass) -> usize {
    row.0 as usize * ByteClass::COUNT + class.number()
}

fn distance_place((Row(one), Row(other), texts): (Row, Row, TextKinds)) -> usize {
    texts.place(u64::from(one) << 32 | u64::from(other), DISTANCES)
}
