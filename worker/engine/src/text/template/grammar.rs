//! Expressions, by Jinja2's grammar.

use super::lexer::WordKind;
use super::operators::{Comparison, Operator};
use super::parser::{ParseResult, Parser, described};
use super::tree::{Argument, ExpressionKind, TreeExpression};
use super::value::PythonValue;

fn expression(line: u32, kind: ExpressionKind) -> TreeExpression {
    TreeExpression { line, kind }
}

impl Parser {
    /// A whole expression.
    pub(super) fn expression(&mut self) -> ParseResult<TreeExpression> {
        self.deeper(Self::choice)
    }

    /// `yes if test else no`
    fn choice(&mut self) -> ParseResult<TreeExpression> {
        let line = self.line();
        let mut yes = self.either()?;
        while self.skip_name("if") {
            let test = Box::new(self.either()?);
            let no = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
            yes = expression(line, ExpressionKind::Choice { test, yes: Box::new(yes), no });
        }
        Ok(yes)
    }

    fn either(&mut self) -> ParseResult<TreeExpression> {
        let line = self.line();
        let mut left = self.both()?;
        while self.skip_name("or") {
            left = expression(line, ExpressionKind::Or(Box::new(left), Box::new(self.both()?)));
        }
        Ok(left)
    }

    fn both(&mut self) -> ParseResult<TreeExpression> {
        let line = self.line();
        let mut left = self.not()?;
        while self.skip_name("and") {
            left = expression(line, ExpressionKind::And(Box::new(left), Box::new(self.not()?)));
        }
        Ok(left)
    }

    fn not(&mut self) -> ParseResult<TreeExpression> {
        let line = self.line();
        if self.skip_name("not") {
            let operand = self.deeper(Self::not)?;
            return Ok(expression(line, ExpressionKind::Not(Box::new(operand))));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> ParseResult<TreeExpression> {
        let line = self.line();
        let first = self.sum()?;
        let mut others = Vec::new();
        loop {
            let is_not_in = self.is_name("not") && matches!(self.ahead(1), WordKind::Name(name) if name == "in");
            let comparison = match self.kind() {
                WordKind::Sign("==") => Comparison::Equal,
                WordKind::Sign("!=") => Comparison::NotEqual,
                WordKind::Sign("<") => Comparison::Less,
                WordKind::Sign("<=") => Comparison::LessOrEqual,
                WordKind::Sign(">") => Comparison::Greater,
                WordKind::Sign(">=") => Comparison::GreaterOrEqual,
                WordKind::Name(name) if name == "in" => Comparison::In,
                _ if is_not_in => Comparison::NotIn,
                _ => break,
            };
            self.next();
            if is_not_in {
                self.next();
            }
            others.push((comparison, self.sum()?));
        }
        if others.is_empty() {
            return Ok(first);
        }
        Ok(expression(line, ExpressionKind::Comparison(Box::new(first), others)))
    }

    /// Operands with operators of one rank between them, the left ones first.
    fn operations(
        &mut self,
        operators: &[(&str, Operator)],
        operand: fn(&mut Self) -> ParseResult<TreeExpression>,
    ) -> ParseResult<TreeExpression> {
        let line = self.line();
        let mut left = operand(self)?;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.is_sign(sign)) {
            self.next();
            left = expression(line, ExpressionKind::Operation(*operator, Box::new(left), Box::new(operand(self)?)));
        }
        Ok(left)
    }

    fn sum(&mut self) -> ParseResult<TreeExpression> {
        self.operations(&[("+", Operator::Add), ("-", Operator::Subtract)], Self::concatenation)
    }

    fn concatenation(&mut self) -> ParseResult<TreeExpression> {
        self.operations(&[("~", Operator::Concatenate)], Self::product)
    }

    fn product(&mut self) -> ParseResult<TreeExpression> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        self.operations(&operators, Self::power)
    }

    fn power(&mut self) -> ParseResult<TreeExpression> {
        self.operations(&[("**", Operator::Power)], |parser| parser.signed(true))
    }

    /// An operand with its signs, the parts that are picked from it, and filters and tests where they are allowed.
    fn signed(&mut self, with_filters: bool) -> ParseResult<TreeExpression> {
        let line = self.line();
        let mut value = if self.skip_sign("-") {
            expression(line, ExpressionKind::Negative(Box::new(self.deeper(|parser| parser.signed(false))?)))
        } else if self.skip_sign("+") {
            expression(line, ExpressionKind::Positive(Box::new(self.deeper(|parser| parser.signed(false))?)))
        } else {
            self.primary()?
        };
        value = self.parts(value)?;
        if with_filters {
            loop {
                value = if self.is_sign("|") {
                    self.filters(Some(value), false)?
                } else if self.is_name("is") {
                    self.test(value)?
                } else if self.is_sign("(") {
                    self.call_of(value)?
                } else {
                    break;
                };
            }
        }
        Ok(value)
    }

    /// A name, a literal, or an expression in brackets.
    pub(super) fn primary(&mut self) -> ParseResult<TreeExpression> {
        let line = self.line();
        let kind = match self.kind().clone() {
            WordKind::Name(name) => {
                self.next();
                match name.as_str() {
                    "true" | "True" => ExpressionKind::Constant(PythonValue::Bool(true)),
                    "false" | "False" => ExpressionKind::Constant(PythonValue::Bool(false)),
                    "none" | "None" => ExpressionKind::Constant(PythonValue::None),
                    name => ExpressionKind::Name(name.into()),
                }
            }
            WordKind::Text(mut text) => {
                self.next();
                // Texts beside one another are one.
                while let WordKind::Text(more) = self.kind() {
                    text.push_str(more);
                    self.next();
                }
                ExpressionKind::Constant(PythonValue::text(text))
            }
            WordKind::Integer(number) => {
                self.next();
                ExpressionKind::Constant(PythonValue::Int(number))
            }
            WordKind::Float(number) => {
                self.next();
                ExpressionKind::Constant(PythonValue::Float(number))
            }
            WordKind::Sign("(") => {
                self.next();
                let inside = self.brackets()?;
                self.expect_sign(")")?;
                return Ok(inside);
            }
            WordKind::Sign("[") => {
                self.next();
                let mut items = Vec::new();
                while !self.is_sign("]") {
                    if !items.is_empty() {
                        self.expect_sign(",")?;
                        if self.is_sign("]") {
                            break;
                        }
                    }
                    items.push(self.expression()?);
                }
                self.expect_sign("]")?;
                ExpressionKind::List(items)
            }
            WordKind::Sign("{") => {
                self.next();
                let mut pairs = Vec::new();
                while !self.is_sign("}") {
                    if !pairs.is_empty() {
                        self.expect_sign(",")?;
                        if self.is_sign("}") {
                            break;
                        }
                    }
                    let key = self.expression()?;
                    self.expect_sign(":")?;
                    pairs.push((key, self.expression()?));
                }
                self.expect_sign("}")?;
                ExpressionKind::Dict(pairs)
            }
            other => return self.fail(format!("unexpected {}", described(&other))),
        };
        Ok(expression(line, kind))
    }

    pub(super) fn is_tuple_end(&self) -> bool {
        matches!(self.kind(), WordKind::VariableEnd | WordKind::BlockEnd | WordKind::Sign(")"))
    }

    /// An expression, or several with commas between, which are a tuple. There is at least one.
    pub(super) fn tuple(&mut self, with_choices: bool) -> ParseResult<TreeExpression> {
        match self.listed(with_choices)? {
            Some(made) => Ok(made),
            None => self.fail(format!("Expected an expression, got {}", described(self.kind()))),
        }
    }

    /// The inside of brackets, where nothing is a tuple too.
    fn brackets(&mut self) -> ParseResult<TreeExpression> {
        let line = self.line();
        Ok(self.listed(true)?.unwrap_or_else(|| expression(line, ExpressionKind::Tuple(Vec::new()))))
    }

    fn listed(&mut self, with_choices: bool) -> ParseResult<Option<TreeExpression>> {
        let line = self.line();
        let (mut items, mut is_tuple) = (Vec::new(), false);
        while !self.is_tuple_end() {
            items.push(if with_choices { self.expression()? } else { self.deeper(Self::either)? });
            if !self.skip_sign(",") {
                break;
            }
            is_tuple = true;
        }
        Ok(if is_tuple { Some(expression(line, ExpressionKind::Tuple(items))) } else { items.pop() })
    }

    /// Attributes, items and calls behind a value.
    fn parts(&mut self, mut value: TreeExpression) -> ParseResult<TreeExpression> {
        loop {
            let line = self.line();
            value = if self.skip_sign(".") {
                match self.next() {
                    WordKind::Name(name) => expression(line, ExpressionKind::Attribute(Box::new(value), name.into())),
                    WordKind::Integer(number) => {
                        let place = expression(line, ExpressionKind::Constant(PythonValue::Int(number)));
                        expression(line, ExpressionKind::Item(Box::new(value), Box::new(place)))
                    }
                    _ => return self.fail("expected name or number"),
                }
            } else if self.skip_sign("[") {
                self.items(value, line)?
            } else if self.is_sign("(") {
                self.call_of(value)?
            } else {
                return Ok(value);
            };
        }
    }

    /// The indices between square brackets behind a value. Several indices are a tuple.
    fn items(&mut self, value: TreeExpression, line: u32) -> ParseResult<TreeExpression> {
        if self.is_sign(":") {
            return self.slice(value, None, line);
        }
        let mut indices = Vec::new();
        let mut is_tuple = self.is_sign("]");
        while !self.is_sign("]") {
            if !indices.is_empty() {
                self.expect_sign(",")?;
                is_tuple = true;
            }
            let index = self.expression()?;
            if self.is_sign(":") {
                if is_tuple {
                    return self.fail("several slices at once are not supported");
                }
                return self.slice(value, Some(index), line);
            }
            indices.push(index);
        }
        self.expect_sign("]")?;
        let index = match indices.pop() {
            Some(only) if !is_tuple => only,
            last => {
                indices.extend(last);
                expression(line, ExpressionKind::Tuple(indices))
            }
        };
        Ok(expression(line, ExpressionKind::Item(Box::new(value), Box::new(index))))
    }

    /// A slice, whose first colon is the next word.
    fn slice(
        &mut self,
        value: TreeExpression,
        start: Option<TreeExpression>,
        line: u32,
    ) -> ParseResult<TreeExpression> {
        self.expect_sign(":")?;
        let ends = |parser: &Self| parser.is_sign("]") || parser.is_sign(",");
        let stop = if self.is_sign(":") || ends(self) { None } else { Some(Box::new(self.expression()?)) };
        let has_step = self.skip_sign(":") && !ends(self);
        let step = if has_step { Some(Box::new(self.expression()?)) } else { None };
        if self.is_sign(",") {
            return self.fail("several slices at once are not supported");
        }
        self.expect_sign("]")?;
        Ok(expression(line, ExpressionKind::Slice(Box::new(value), [start.map(Box::new), stop, step])))
    }

    fn call_of(&mut self, callee: TreeExpression) -> ParseResult<TreeExpression> {
        let line = self.line();
        let arguments = self.arguments()?;
        Ok(expression(line, ExpressionKind::Call { callee: Box::new(callee), arguments }))
    }

    /// The arguments of a call: by place, by name, then lists and mappings of more.
    fn arguments(&mut self) -> ParseResult<Vec<Argument>> {
        self.expect_sign("(")?;
        let mut arguments: Vec<Argument> = Vec::new();
        let (mut has_places, mut has_names) = (false, false);
        while !self.is_sign(")") {
            if !arguments.is_empty() {
                self.expect_sign(",")?;
                if self.is_sign(")") {
                    break;
                }
            }
            let is_allowed;
            if self.skip_sign("*") {
                is_allowed = !has_places && !has_names;
                has_places = true;
                arguments.push(Argument::Places(self.expression()?));
            } else if self.skip_sign("**") {
                is_allowed = !has_names;
                has_names = true;
                arguments.push(Argument::Names(self.expression()?));
            } else if let (WordKind::Name(name), WordKind::Sign("=")) = (self.kind().clone(), self.ahead(1)) {
                let is_known =
                    |argument: &Argument| matches!(argument, Argument::Name(known, _) if known.as_ref() == name);
                is_allowed = !has_names && !arguments.iter().any(is_known);
                self.next();
                self.next();
                arguments.push(Argument::Name(name.as_str().into(), self.expression()?));
            } else {
                let is_named = |argument: &Argument| matches!(argument, Argument::Name(..));
                is_allowed = !has_places && !has_names && !arguments.iter().any(is_named);
                arguments.push(Argument::Place(self.expression()?));
            }
            if !is_allowed {
                return self.fail("invalid syntax for function call expression");
            }
        }
        self.expect_sign(")")?;
        Ok(arguments)
    }

    /// The name of a filter or a test, which may have dots.
    fn dotted_name(&mut self) -> ParseResult<String> {
        let mut name = self.expect_name()?;
        while self.skip_sign(".") {
            name = name + "." + &self.expect_name()?;
        }
        Ok(name)
    }

    /// Filters, of a value or of a block's text. The first one of a block may have no bar before it.
    pub(super) fn filters(&mut self, value: Option<TreeExpression>, begins: bool) -> ParseResult<TreeExpression> {
        let (mut value, mut begins) = (value, begins);
        while begins || self.skip_sign("|") {
            begins = false;
            let line = self.line();
            let name = self.dotted_name()?;
            let arguments = if self.is_sign("(") { self.arguments()? } else { Vec::new() };
            let inner = value.map(Box::new);
            value = Some(expression(line, ExpressionKind::Filter { name: name.into(), value: inner, arguments }));
        }
        value.map_or_else(|| self.fail("expected a filter"), Ok)
    }

    /// A test, whose `is` is the next word. One operand may follow its name without brackets.
    fn test(&mut self, value: TreeExpression) -> ParseResult<TreeExpression> {
        self.next();
        let line = self.line();
        let is_negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let has_operand = match self.kind() {
            WordKind::Name(name) => !matches!(name.as_str(), "else" | "or" | "and"),
            WordKind::Text(_) | WordKind::Integer(_) | WordKind::Float(_) | WordKind::Sign("[" | "{") => true,
            _ => false,
        };
        let arguments = if self.is_sign("(") {
            self.arguments()?
        } else if self.is_name("is") {
            return self.fail("You cannot chain multiple tests with is");
        } else if has_operand {
            let operand = self.primary()?;
            vec![Argument::Place(self.parts(operand)?)]
        } else {
            Vec::new()
        };
        let kind = ExpressionKind::Test { name: name.into(), value: Box::new(value), arguments };
        let test = expression(line, kind);
        Ok(if is_negated { expression(line, ExpressionKind::Not(Box::new(test))) } else { test })
    }
}
