//! llama.cpp's notation of grammars, GBNF, as llguidance's variant of Lark.
//!
//! Rules that refer to themselves become rules of Lark, and all others become terminals. Each terminal is one regular
//! expression. A grammar without recursion is therefore one expression, and has exactly the texts of its GBNF.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::literal::literal;

/// Deeper nesting than in any grammar that people write.
const MOST_NESTED: usize = 64;

/// A fault in a grammar, with the line that has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the grammar: {fault}")]
pub struct GbnfError {
    line: usize,
    fault: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    OneOf(Vec<Expression>),
    Sequence(Vec<Expression>),
    Repeat {
        of: Box<Expression>,
        least: usize,
        most: Option<usize>,
    },
    Literal(String),
    Characters {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Rule(String),
    /// A special token, such as `<|im_end|>`.
    Token(String),
}

/// Translates a grammar.
pub fn lark_of_gbnf(grammar: &str) -> Result<String, GbnfError> {
    let rules = Reader { rest: grammar, line: 1, nested: 0 }.rules()?;
    GbnfWriter::new(&rules).write(&rules)
}

type GbnfRules = BTreeMap<String, (usize, Expression)>;

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    nested: usize,
}

impl<'a> Reader<'a> {
    fn rules(mut self) -> Result<GbnfRules, GbnfError> {
        let mut rules = GbnfRules::new();
        self.skip();
        while !self.rest.is_empty() {
            let line = self.line;
            let Some(name) = self.rule_start() else { return Err(self.fault("a rule must begin with 'name ::='")) };
            let expression = self.alternatives()?;
            rules.insert(name, (line, expression));
        }
        if rules.contains_key("root") { Ok(rules) } else { Err(self.fault("there is no rule 'root'")) }
    }

    fn fault(&self, fault: impl Into<String>) -> GbnfError {
        GbnfError { line: self.line, fault: fault.into() }
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            let skipped = self.rest.len() - trimmed.len();
            self.line += self.rest[..skipped].matches('\n').count();
            self.rest = trimmed;
            match trimmed.strip_prefix('#') {
                Some(comment) => self.rest = comment.find('\n').map_or("", |end| &comment[end..]),
                None => return,
            }
        }
    }

    fn name(&self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
        &self.rest[..end.unwrap_or(self.rest.len())]
    }

    /// Takes `name ::=`, if that is next.
    fn rule_start(&mut self) -> Option<String> {
        let name = self.name();
        let behind = self.rest.get(name.len()..)?.trim_start_matches([' ', '\t']);
        let rest = behind.strip_prefix("::=").filter(|_| !name.is_empty())?;
        self.rest = rest;
        self.skip();
        Some(name.to_owned())
    }

    fn is_rule_start(&self) -> bool {
        let name = self.name();
        let behind = self.rest.get(name.len()..).unwrap_or_default().trim_start_matches([' ', '\t']);
        !name.is_empty() && behind.starts_with("::=")
    }

    fn alternatives(&mut self) -> Result<Expression, GbnfError> {
        let mut all = vec![self.sequence()?];
        while let Some(rest) = self.rest.strip_prefix('|') {
            self.rest = rest;
            self.skip();
            all.push(self.sequence()?);
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Expression::OneOf(all) })
    }

    fn sequence(&mut self) -> Result<Expression, GbnfError> {
        let mut all = Vec::new();
        while let Some(first) = self.rest.chars().next() {
            let one = match first {
                '|' | ')' => break,
                '"' => self.literal()?,
                '[' => self.characters()?,
                '.' => {
                    self.rest = &self.rest[1..];
                    Expression::Characters { negated: false, ranges: vec![('\0', char::MAX)] }
                }
                '(' => self.group()?,
                '<' => self.token()?,
                _ if self.is_rule_start() => break,
                _ => {
                    let name = self.name();
                    if name.is_empty() {
                        return Err(self.fault(format!("'{first}' cannot be read here")));
                    }
                    self.rest = &self.rest[name.len()..];
                    Expression::Rule(name.to_owned())
                }
            };
            all.push(self.repeated(one)?);
            self.skip();
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Expression::Sequence(all) })
    }

    fn group(&mut self) -> Result<Expression, GbnfError> {
        self.nested += 1;
        if self.nested > MOST_NESTED {
            return Err(self.fault(format!("groups are nested deeper than {MOST_NESTED}")));
        }
        self.rest = &self.rest[1..];
        self.skip();
        let inside = self.alternatives()?;
        self.rest = self.rest.strip_prefix(')').ok_or_else(|| self.fault("a group has no ')'"))?;
        self.nested -= 1;
        Ok(inside)
    }

    fn token(&mut self) -> Result<Expression, GbnfError> {
        let end = self.rest.find('>').ok_or_else(|| self.fault("a token has no '>'"))?;
        let token = &self.rest[..=end];
        if token.contains(char::is_whitespace) {
            return Err(self.fault(format!("'{token}' is no token")));
        }
        self.rest = &self.rest[end + 1..];
        Ok(Expression::Token(token.to_owned()))
    }

    fn literal(&mut self) -> Result<Expression, GbnfError> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix('"') {
                self.rest = rest;
                return Ok(Expression::Literal(text));
            }
            text.push(self.character("a text has no end")?);
        }
    }

    fn characters(&mut self) -> Result<Expression, GbnfError> {
        const OPEN: &str = "a class of characters has no ']'";
        self.rest = &self.rest[1..];
        let negated = self.rest.starts_with('^');
        self.rest = self.rest.strip_prefix('^').unwrap_or(self.rest);
        let mut ranges = Vec::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix(']') {
                self.rest = rest;
                break;
            }
            let from = self.character(OPEN)?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let to = if is_range {
                self.rest = &self.rest[1..];
                self.character(OPEN)?
            } else {
                from
            };
            if to < from {
                return Err(self.fault(format!("the range '{from}-{to}' is empty")));
            }
            ranges.push((from, to));
        }
        if ranges.is_empty() && !negated {
            return Err(self.fault("a class of characters is empty"));
        }
        Ok(Expression::Characters { negated, ranges })
    }

    fn character(&mut self, without: &str) -> Result<char, GbnfError> {
        let mut characters = self.rest.chars();
        let first = characters.next().filter(|c| *c != '\n').ok_or_else(|| self.fault(without))?;
        if first != '\\' {
            self.rest = characters.as_str();
            return Ok(first);
        }
        let escaped = characters.next().ok_or_else(|| self.fault(without))?;
        self.rest = characters.as_str();
        let digits = match escaped {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escaped),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(self.fault(format!("'\\{escaped}' is no character"))),
        };
        let (code, rest) = self.rest.split_at_checked(digits).ok_or_else(|| self.fault(without))?;
        let code = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
        self.rest = rest;
        code.ok_or_else(|| self.fault(format!("'\\{escaped}' needs {digits} digits of a character")))
    }

    fn repeated(&mut self, mut one: Expression) -> Result<Expression, GbnfError> {
        loop {
            let (least, most) = match self.rest.chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let end = self.rest.find('}').ok_or_else(|| self.fault("a number of repetitions has no '}'"))?;
                    let inside = &self.rest[1..end];
                    self.rest = &self.rest[end..];
                    let number = |text: &str| text.trim().parse::<u16>().ok().map(usize::from);
                    let wrong = || self.fault(format!("'{{{inside}}}' is no number of repetitions"));
                    match inside.split_once(',') {
                        None => {
                            let times = number(inside).ok_or_else(wrong)?;
                            (times, Some(times))
                        }
                        Some((least, most)) => {
                            let most =
                                if most.trim().is_empty() { None } else { Some(number(most).ok_or_else(wrong)?) };
                            let least = if least.trim().is_empty() { 0 } else { number(least).ok_or_else(wrong)? };
                            if most.is_some_and(|most| most < least) {
                                return Err(wrong());
                            }
                            (least, most)
                        }
                    }
                }
                _ => return Ok(one),
            };
            self.rest = &self.rest[1..];
            one = Expression::Repeat { of: Box::new(one), least, most };
        }
    }
}

/// A rule's name in Lark, and the properties that decide about it.
struct KnownRule {
    number: usize,
    is_terminal: bool,
    is_nullable: bool,
}

struct GbnfWriter {
    known: BTreeMap<String, KnownRule>,
    terminals: String,
    rules: String,
    inline: usize,
}

impl GbnfWriter {
    fn new(rules: &GbnfRules) -> Self {
        let known = rules
            .keys()
            .enumerate()
            .map(|(number, name)| (name.clone(), KnownRule { number, is_terminal: false, is_nullable: false }));
        let mut writer = Self { known: known.collect(), terminals: String::new(), rules: String::new(), inline: 0 };
        // Each pass decides about at least one more rule, or ends.
        loop {
            let mut changed = false;
            for (name, (_, expression)) in rules {
                let (is_terminal, is_nullable) = (writer.is_terminal(expression), writer.is_nullable(expression));
                if let Some(known) = writer.known.get_mut(name) {
                    changed |= known.is_terminal != is_terminal || known.is_nullable != is_nullable;
                    (known.is_terminal, known.is_nullable) = (is_terminal, is_nullable);
                }
            }
            if !changed {
                return writer;
            }
        }
    }

    fn is_terminal(&self, expression: &Expression) -> bool {
        match expression {
            Expression::OneOf(all) | Expression::Sequence(all) => all.iter().all(|one| self.is_terminal(one)),
            Expression::Repeat { of, .. } => self.is_terminal(of),
            Expression::Literal(_) | Expression::Characters { .. } => true,
            Expression::Rule(name) => self.known.get(name).is_some_and(|known| known.is_terminal),
            Expression::Token(_) => false,
        }
    }

    fn is_nullable(&self, expression: &Expression) -> bool {
        match expression {
            Expression::OneOf(all) => all.iter().any(|one| self.is_nullable(one)),
            Expression::Sequence(all) => all.iter().all(|one| self.is_nullable(one)),
            Expression::Repeat { of, least, .. } => *least == 0 || self.is_nullable(of),
            Expression::Literal(text) => text.is_empty(),
            Expression::Characters { .. } | Expression::Token(_) => false,
            Expression::Rule(name) => self.known.get(name).is_some_and(|known| known.is_nullable),
        }
    }

    fn write(mut self, rules: &GbnfRules) -> Result<String, GbnfError> {
        for (name, (line, expression)) in rules {
            let Some(&KnownRule { number, is_terminal, .. }) = self.known.get(name) else { continue };
            let at = |fault: String| GbnfError { line: *line, fault };
            if is_terminal {
                let text = self.terminal(expression).map_err(at)?;
                let _ = writeln!(self.terminals, "T{number}: {text}");
            } else {
                let text = self.rule(expression).map_err(at)?;
                let _ = writeln!(self.rules, "r{number}: {text}");
            }
        }
        let root = self.rule(&Expression::Rule("root".to_owned()));
        let root = root.map_err(|fault| GbnfError { line: 1, fault })?;
        Ok(format!("start: {root}\n{}{}", self.rules, self.terminals))
    }

    /// An expression inside a rule.
    fn rule(&mut self, expression: &Expression) -> Result<String, String> {
        if self.is_terminal(expression) {
            if let Expression::Literal(text) = expression
                && !text.is_empty()
            {
                return Ok(literal(text));
            }
            if matches!(expression, Expression::Literal(_)) {
                return Ok("\"\"".to_owned());
            }
            let text = self.terminal(expression)?;
            let number = self.inline;
            self.inline += 1;
            let is_nullable = self.is_nullable(expression);
            // A terminal that may be empty is written as one that may not, and may be left out.
            let (limit, left_out) = if is_nullable { (" & /(?s:.+)/", "?") } else { ("", "") };
            let _ = writeln!(self.terminals, "I{number}: ({text}){limit}");
            return Ok(format!("I{number}{left_out}"));
        }
        let mut each = |all: &[Expression], between: &str| -> Result<String, String> {
            let all: Vec<String> = all.iter().map(|one| self.rule(one)).collect::<Result<_, _>>()?;
            Ok(format!("({})", all.join(between)))
        };
        match expression {
            Expression::OneOf(all) => each(all, " | "),
            Expression::Sequence(all) => {
                // Neighbours without recursion become one terminal.
                let mut runs: Vec<Expression> = Vec::new();
                for one in all {
                    match runs.last_mut() {
                        Some(Expression::Sequence(run))
                            if self.is_terminal(one) && run.iter().all(|r| self.is_terminal(r)) =>
                        {
                            run.push(one.clone());
                        }
                        _ if self.is_terminal(one) => runs.push(Expression::Sequence(vec![one.clone()])),
                        _ => runs.push(one.clone()),
                    }
                }
                let all: Vec<String> = runs.iter().map(|one| self.rule(one)).collect::<Result<_, _>>()?;
                Ok(format!("({})", all.join(" ")))
            }
            Expression::Repeat { of, least, most } => Ok(format!("({}){}", self.rule(of)?, times(*least, *most))),
            Expression::Rule(name) => match self.known.get(name) {
                Some(known) => Ok(format!("r{}", known.number)),
                None => Err(format!("there is no rule '{name}'")),
            },
            Expression::Token(token) => Ok(token.clone()),
            Expression::Literal(_) | Expression::Characters { .. } => self.terminal(expression),
        }
    }

    /// An expression inside a terminal.
    fn terminal(&self, expression: &Expression) -> Result<String, String> {
        let each = |all: &[Expression], between: &str| -> Result<String, String> {
            let all: Vec<String> = all.iter().map(|one| self.terminal(one)).collect::<Result<_, _>>()?;
            Ok(if all.is_empty() { "\"\"".to_owned() } else { format!("({})", all.join(between)) })
        };
        match expression {
            Expression::OneOf(all) => each(all, " | "),
            Expression::Sequence(all) => each(all, " "),
            Expression::Repeat { of, least, most } => Ok(format!("({}){}", self.terminal(of)?, times(*least, *most))),
            Expression::Literal(text) => Ok(literal(text)),
            Expression::Characters { negated, ranges } => Ok(class(*negated, ranges)),
            Expression::Rule(name) => match self.known.get(name) {
                Some(known) => Ok(format!("T{}", known.number)),
                None => Err(format!("there is no rule '{name}'")),
            },
            Expression::Token(token) => Err(format!("the token '{token}' is inside a text")),
        }
    }
}

fn times(least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A class of characters as a regular expression, every character by its code: none has a meaning of its own.
fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let mut text = String::from(if negated { "/[^" } else { "/[" });
    if ranges.is_empty() {
        return "/(?s:.)/".to_owned();
    }
    for (from, to) in ranges {
        let _ = write!(text, "\\x{{{:x}}}", u32::from(*from));
        if from != to {
            let _ = write!(text, "-\\x{{{:x}}}", u32::from(*to));
        }
    }
    text + "]/"
}
