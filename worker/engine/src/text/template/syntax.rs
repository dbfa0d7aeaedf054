//! Parsing: minijinja reads the source, and its tree becomes ours. No other file knows minijinja.

use std::sync::Arc;

use minijinja::machinery::{Span, Token, ast, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;

use super::macros::SpecialReads;
use super::names;
use super::operators::{Comparison, Operator};
use super::tree::{Argument, AssignTarget, ExpressionKind, For, MacroSource, Statement, TreeExpression};
use super::value::PythonValue;

/// The most operators, brackets and dots in one tag. Trees of longer chains would overflow the stack.
const LONGEST_CHAIN: usize = 800;

/// The most `elif` in one template, for the same reason.
const MOST_BRANCHES: usize = 1000;

/// The text is no template.
#[derive(Debug, thiserror::Error)]
pub enum SyntaxError {
    /// The parser's reason.
    #[error(transparent)]
    Parser(#[from] minijinja::Error),
    /// A tag is too long for the parser.
    #[error("line {0} has more than 800 operators in one tag")]
    Chain(u32),
    /// A filter, a test or a tag that Jinja2 looks for before it renders.
    #[error("line {line} has the unknown {what} '{name}'")]
    Unknown {
        /// The line.
        line: u32,
        /// "filter", "test" or "tag".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// There are too many branches for the parser.
    #[error("it has more than 1,000 times 'elif'")]
    Branches,
}

/// The statements of a template.
pub(super) fn read(source: &str) -> Result<Vec<Statement>, SyntaxError> {
    // Jinja2 reads every kind of line end as a line feed.
    let source = without_generation_marks(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let edits = check_chains(&source, syntax.clone())?;
    let source = edited(&source, &edits);
    let parsed = parse(&source, "chat template", syntax)?;
    let mut reader = TreeReader { reads: Vec::new(), is_soft: false, unknown: None };
    let statements = match &parsed {
        ast::Stmt::Template(template) => reader.statements(&template.children),
        other => reader.statements(std::slice::from_ref(other)),
    };
    reader.unknown.map_or(Ok(statements), Err)
}

/// A change of the source, for what the parser does not read.
struct SourceEdit {
    /// The byte where it begins.
    at: usize,
    /// The bytes that it replaces.
    length: usize,
    text: &'static str,
}

/// Refuses what the parser's tree would overflow the stack with. Returns the changes that the parser needs: it knows no
/// `+` in front of an operand, for which two signs `-` have its effect and refuse what it refuses. It knows no tuple
/// without brackets in `{{ }}`, behind `if` and in loops.
fn check_chains(source: &str, syntax: SyntaxConfig) -> Result<Vec<SourceEdit>, SyntaxError> {
    let (mut chain, mut branches, mut is_behind_operand, mut edits) = (0, 0, false, Vec::new());
    // The place where a tuple would begin, the brackets that are open, and whether there was a comma outside of them.
    let (mut begin, mut brackets, mut is_tuple, mut is_first, mut is_loop) = (None, 0_usize, false, false, false);
    for token in tokenize(source, false, syntax) {
        let (token, span) = token?;
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        match token {
            Token::VariableStart => (begin, brackets, is_tuple, is_loop) = (Some((edits.len(), end)), 0, false, false),
            Token::Ident("if" | "elif") if is_first => {
                (begin, brackets, is_tuple) = (Some((edits.len(), end)), 0, false);
            }
            Token::BlockStart => (begin, is_loop) = (None, false),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => brackets += 1,
            Token::BracketClose | Token::ParenClose | Token::BraceClose => brackets = brackets.saturating_sub(1),
            Token::Comma if brackets == 0 => is_tuple = true,
            Token::Ident("for") if is_first => is_loop = true,
            Token::Ident("in") if is_loop && begin.is_none() => {
                (begin, brackets, is_tuple) = (Some((edits.len(), end)), 0, false);
            }
            Token::VariableEnd | Token::BlockEnd | Token::Ident("if" | "recursive")
                if brackets == 0 && (is_loop || !matches!(token, Token::Ident(_))) =>
            {
                is_loop = false;
                if let Some((place, at)) = begin.take().filter(|_| is_tuple) {
                    edits.insert(place, SourceEdit { at, length: 0, text: " (" });
                    edits.push(SourceEdit { at: start, length: 0, text: ") " });
                }
            }
            _ => {}
        }
        is_first = matches!(token, Token::BlockStart);
        if matches!(token, Token::Plus) && !is_behind_operand {
            edits.push(SourceEdit { at: start, length: 1, text: "- -" });
            // It becomes two operators.
            chain += 1;
        }
        is_behind_operand = ends_operand(&token);
        match token {
            Token::BlockStart | Token::VariableStart => chain = 0,
            Token::Ident("elif") => branches += 1,
            Token::Ident("and" | "or" | "not" | "in" | "is" | "if") => chain += 1,
            Token::Ident(_) | Token::Str(_) | Token::String(_) | Token::Comma | Token::Colon => {}
            _ => chain += 1,
        }
        if chain > LONGEST_CHAIN {
            return Err(SyntaxError::Chain(u32::from(span.start_line)));
        }
        if branches > MOST_BRANCHES {
            return Err(SyntaxError::Branches);
        }
    }
    Ok(edits)
}

/// Whether a token may be the last one of an operand.
fn ends_operand(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(word) => {
            !matches!(*word, "and" | "or" | "not" | "in" | "is" | "if" | "elif" | "else" | "recursive")
        }
        Token::Str(_)
        | Token::String(_)
        | Token::Int(_)
        | Token::Int128(_)
        | Token::Float(_)
        | Token::BracketClose
        | Token::ParenClose
        | Token::BraceClose => true,
        _ => false,
    }
}

fn edited(source: &str, edits: &[SourceEdit]) -> String {
    let (mut out, mut done) = (String::with_capacity(source.len() + 2 * edits.len()), 0);
    for SourceEdit { at, length, text } in edits {
        out.push_str(source.get(done..*at).unwrap_or_default());
        out.push_str(text);
        done = at + length;
    }
    out.push_str(source.get(done..).unwrap_or_default());
    out
}

/// `{% generation %}` marks the assistant's words for training masks in `transformers`; it renders its body unchanged,
/// with names of its own.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, mut after) = tag.split_at(end + 2);
        match tag.trim_matches(|c| "{%-+}".contains(c)).trim() {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            "raw" => {
                out.push_str(tag);
                // The parser drops a line feed here, which Jinja2 keeps.
                if after.starts_with('\n') && !tag.ends_with("-%}") {
                    out.push('\n');
                }
                let inside = after.find("endraw").and_then(|at| after[..at].rfind("{%")).unwrap_or(0);
                out.push_str(&after[..inside]);
                after = &after[inside..];
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

struct TreeReader {
    /// The special names that the macros around a place have read so far.
    reads: Vec<SpecialReads>,
    /// Whether an unknown filter or test is refused only when it is used: Jinja2 does so right inside of an `if`.
    is_soft: bool,
    /// The first unknown name.
    unknown: Option<SyntaxError>,
}

impl TreeReader {
    /// Notes a name that is unknown.
    fn unknown(&mut self, what: &'static str, name: &str, span: Span) {
        let line = u32::from(span.start_line);
        self.unknown.get_or_insert_with(|| SyntaxError::Unknown { line, what, name: name.to_owned() });
    }

    /// Reads with another rule for unknown names.
    fn with_softness<T>(&mut self, is_soft: bool, read: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.is_soft, is_soft);
        let made = read(self);
        self.is_soft = before;
        made
    }

    /// The statements of a block with names of its own.
    fn inside(&mut self, all: &[ast::Stmt<'_>]) -> Vec<Statement> {
        self.with_softness(false, |reader| reader.statements(all))
    }

    fn statements(&mut self, all: &[ast::Stmt<'_>]) -> Vec<Statement> {
        all.iter().map(|statement| self.statement(statement)).collect()
    }

    fn statement(&mut self, statement: &ast::Stmt<'_>) -> Statement {
        match statement {
            ast::Stmt::Template(template) => {
                Statement::With { assignments: Vec::new(), body: self.inside(&template.children) }
            }
            ast::Stmt::EmitExpr(emit) => Statement::Emit(self.expression(&emit.expr)),
            ast::Stmt::EmitRaw(raw) => Statement::Raw(raw.raw.into()),
            ast::Stmt::ForLoop(inside) => Statement::For(Arc::new(For {
                target: self.target(&inside.target),
                over: self.expression(&inside.iter),
                filter: self
                    .with_softness(false, |reader| inside.filter_expr.as_ref().map(|filter| reader.expression(filter))),
                is_recursive: inside.recursive,
                body: self.inside(&inside.body),
                otherwise: self.inside(&inside.else_body),
            })),
            ast::Stmt::IfCond(condition) => self.condition(condition),
            ast::Stmt::WithBlock(with) => Statement::With {
                assignments: with
                    .assignments
                    .iter()
                    .map(|(target, value)| (self.target(target), self.expression(value)))
                    .collect(),
                body: self.inside(&with.body),
            },
            ast::Stmt::Set(set) => Statement::Set(self.target(&set.target), self.expression(&set.expr)),
            ast::Stmt::SetBlock(set) => Statement::Capture {
                target: self.target(&set.target),
                filter: self.with_softness(false, |reader| set.filter.as_ref().map(|filter| reader.expression(filter))),
                body: self.inside(&set.body),
            },
            ast::Stmt::FilterBlock(block) => Statement::Filtered {
                filter: self.with_softness(false, |reader| reader.expression(&block.filter)),
                body: self.inside(&block.body),
            },
            ast::Stmt::Block(block) => Statement::With { assignments: Vec::new(), body: self.inside(&block.body) },
            ast::Stmt::Macro(made) => Statement::Macro(Arc::new(self.macro_source(made))),
            ast::Stmt::CallBlock(block) => Statement::Call {
                callee: self.expression(&block.call.expr),
                arguments: self.arguments(&block.call.args),
                caller: Arc::new(self.macro_source(&block.macro_decl)),
            },
            ast::Stmt::Continue(_) => Statement::Continue,
            ast::Stmt::Break(_) => Statement::Break,
            ast::Stmt::Do(tag) => {
                self.unknown("tag", "do", tag.span());
                Statement::Refused("Encountered unknown tag 'do'.")
            }
            ast::Stmt::AutoEscape(block) if is_false(&block.enabled) => {
                Statement::With { assignments: Vec::new(), body: self.inside(&block.body) }
            }
            ast::Stmt::AutoEscape(_) => Statement::Refused("'autoescape' is not supported"),
            ast::Stmt::Import(_) | ast::Stmt::FromImport(_) | ast::Stmt::Extends(_) | ast::Stmt::Include(_) => {
                Statement::Refused("no loader for this environment specified")
            }
        }
    }

    fn condition(&mut self, condition: &ast::IfCond<'_>) -> Statement {
        self.with_softness(true, |reader| reader.branches(condition))
    }

    fn branches(&mut self, condition: &ast::IfCond<'_>) -> Statement {
        let mut branches = Vec::new();
        let mut rest = condition;
        loop {
            branches.push((self.expression(&rest.expr), self.statements(&rest.true_body)));
            match rest.false_body.as_slice() {
                [ast::Stmt::IfCond(next)] => rest = next,
                otherwise => return Statement::If { branches, otherwise: self.statements(otherwise) },
            }
        }
    }

    fn macro_source(&mut self, made: &ast::Macro<'_>) -> MacroSource {
        self.with_softness(false, |reader| reader.macro_parts(made))
    }

    fn macro_parts(&mut self, made: &ast::Macro<'_>) -> MacroSource {
        self.reads.push(SpecialReads::default());
        let required = made.args.len() - made.defaults.len();
        let mut parameters = Vec::new();
        for (at, parameter) in made.args.iter().enumerate() {
            let ast::Expr::Var(name) = parameter else { continue };
            let default = at.checked_sub(required).and_then(|at| made.defaults.get(at));
            parameters.push((name.id.into(), default.map(|default| self.expression(default))));
        }
        let body = self.statements(&made.body);
        let reads = self.reads.pop().unwrap_or_default();
        // A name that is read inside of an inner macro is read by the outer one too.
        if let Some(outer) = self.reads.last_mut() {
            outer.varargs |= reads.varargs;
            outer.kwargs |= reads.kwargs;
            outer.caller |= reads.caller;
        }
        MacroSource { name: made.name.into(), parameters, body, reads }
    }

    fn target(&mut self, target: &ast::Expr<'_>) -> AssignTarget {
        match target {
            ast::Expr::Var(name) => AssignTarget::Name(name.id.into()),
            ast::Expr::GetAttr(attribute) => {
                AssignTarget::Attribute(self.expression(&attribute.expr), attribute.name.into())
            }
            ast::Expr::List(list) => AssignTarget::Several(list.items.iter().map(|item| self.target(item)).collect()),
            ast::Expr::Tuple(list) => AssignTarget::Several(list.items.iter().map(|item| self.target(item)).collect()),
            // The parser makes no other targets.
            _ => AssignTarget::Several(Vec::new()),
        }
    }

    fn boxed(&mut self, expression: &ast::Expr<'_>) -> Box<TreeExpression> {
        Box::new(self.expression(expression))
    }

    fn optional(&mut self, expression: Option<&ast::Expr<'_>>) -> Option<Box<TreeExpression>> {
        expression.map(|expression| self.boxed(expression))
    }

    fn all(&mut self, expressions: &[ast::Expr<'_>]) -> Vec<TreeExpression> {
        expressions.iter().map(|expression| self.expression(expression)).collect()
    }

    fn expression(&mut self, expression: &ast::Expr<'_>) -> TreeExpression {
        let kind = match expression {
            ast::Expr::Const(constant) => ExpressionKind::Constant(constant_value(&constant.value)),
            ast::Expr::Var(name) => {
                if let Some(reads) = self.reads.last_mut() {
                    reads.varargs |= name.id == "varargs";
                    reads.kwargs |= name.id == "kwargs";
                    reads.caller |= name.id == "caller";
                }
                ExpressionKind::Name(name.id.into())
            }
            ast::Expr::Slice(slice) => {
                let bounds = [&slice.start, &slice.stop, &slice.step].map(|bound| self.optional(bound.as_ref()));
                ExpressionKind::Slice(self.boxed(&slice.expr), bounds)
            }
            ast::Expr::UnaryOp(operation) => match operation.op {
                ast::UnaryOpKind::Not => ExpressionKind::Not(self.boxed(&operation.expr)),
                ast::UnaryOpKind::Neg => ExpressionKind::Negative(self.boxed(&operation.expr)),
            },
            ast::Expr::BinOp(operation) => self.operation(operation),
            ast::Expr::Compare(compare) => {
                let others = compare.ops.iter().map(|op| (comparison(op.op), self.expression(&op.expr))).collect();
                ExpressionKind::Comparison(self.boxed(&compare.expr), others)
            }
            ast::Expr::IfExpr(choice) => self.with_softness(true, |reader| ExpressionKind::Choice {
                test: reader.boxed(&choice.test_expr),
                yes: reader.boxed(&choice.true_expr),
                no: reader.optional(choice.false_expr.as_ref()),
            }),
            ast::Expr::Filter(filter) => {
                if !self.is_soft && !names::FILTERS.contains(&filter.name) {
                    self.unknown("filter", filter.name, expression.span());
                }
                ExpressionKind::Filter {
                    name: filter.name.into(),
                    value: self.optional(filter.expr.as_ref()),
                    arguments: self.arguments(&filter.args),
                }
            }
            ast::Expr::Test(test) => {
                if !self.is_soft && !names::TESTS.contains(&test.name) {
                    self.unknown("test", test.name, expression.span());
                }
                ExpressionKind::Test {
                    name: test.name.into(),
                    value: self.boxed(&test.expr),
                    arguments: self.arguments(&test.args),
                }
            }
            ast::Expr::GetAttr(attribute) => {
                ExpressionKind::Attribute(self.boxed(&attribute.expr), attribute.name.into())
            }
            ast::Expr::GetItem(item) => ExpressionKind::Item(self.boxed(&item.expr), self.boxed(&item.subscript_expr)),
            ast::Expr::Call(call) => {
                ExpressionKind::Call { callee: self.boxed(&call.expr), arguments: self.arguments(&call.args) }
            }
            ast::Expr::List(list) => ExpressionKind::List(self.all(&list.items)),
            ast::Expr::Tuple(tuple) => ExpressionKind::Tuple(self.all(&tuple.items)),
            ast::Expr::Map(map) => {
                let pairs = map.keys.iter().zip(&map.values);
                ExpressionKind::Dict(pairs.map(|(key, value)| (self.expression(key), self.expression(value))).collect())
            }
        };
        TreeExpression { line: u32::from(expression.span().start_line), kind }
    }

    fn operation(&mut self, operation: &ast::BinOp<'_>) -> ExpressionKind {
        use ast::BinOpKind::{
            Add, Concat, Div, Eq, FloorDiv, Gt, Gte, In, Lt, Lte, Mul, Ne, Pow, Rem, ScAnd, ScOr, Sub,
        };
        let left = self.boxed(&operation.left);
        let compared = match operation.op {
            Eq => Some(Comparison::Equal),
            Ne => Some(Comparison::NotEqual),
            Lt => Some(Comparison::Less),
            Lte => Some(Comparison::LessOrEqual),
            Gt => Some(Comparison::Greater),
            Gte => Some(Comparison::GreaterOrEqual),
            In => Some(Comparison::In),
            _ => None,
        };
        if let Some(comparison) = compared {
            return ExpressionKind::Comparison(left, vec![(comparison, self.expression(&operation.right))]);
        }
        let right = self.boxed(&operation.right);
        let operator = match operation.op {
            ScAnd => return ExpressionKind::And(left, right),
            ScOr => return ExpressionKind::Or(left, right),
            Add => Operator::Add,
            Sub => Operator::Subtract,
            Mul => Operator::Multiply,
            Div => Operator::Divide,
            FloorDiv => Operator::FloorDivide,
            Rem => Operator::Remainder,
            Pow => Operator::Power,
            Concat | Eq | Ne | Lt | Lte | Gt | Gte | In => Operator::Concatenate,
        };
        ExpressionKind::Operation(operator, left, right)
    }

    fn arguments(&mut self, arguments: &[ast::CallArg<'_>]) -> Vec<Argument> {
        let read = |argument: &ast::CallArg<'_>| match argument {
            ast::CallArg::Pos(value) => Argument::Place(self.expression(value)),
            ast::CallArg::Kwarg(name, value) => Argument::Name((*name).into(), self.expression(value)),
            ast::CallArg::PosSplat(values) => Argument::Places(self.expression(values)),
            ast::CallArg::KwargSplat(values) => Argument::Names(self.expression(values)),
        };
        arguments.iter().map(read).collect()
    }
}

fn comparison(kind: ast::CompareOpKind) -> Comparison {
    match kind {
        ast::CompareOpKind::Eq => Comparison::Equal,
        ast::CompareOpKind::Ne => Comparison::NotEqual,
        ast::CompareOpKind::Lt => Comparison::Less,
        ast::CompareOpKind::Lte => Comparison::LessOrEqual,
        ast::CompareOpKind::Gt => Comparison::Greater,
        ast::CompareOpKind::Gte => Comparison::GreaterOrEqual,
        ast::CompareOpKind::In => Comparison::In,
        ast::CompareOpKind::NotIn => Comparison::NotIn,
    }
}

/// Whether an expression is the literal `false`.
fn is_false(expression: &ast::Expr<'_>) -> bool {
    matches!(expression, ast::Expr::Const(constant) if matches!(constant_value(&constant.value), PythonValue::Bool(false)))
}

/// A literal of the source.
fn constant_value(value: &minijinja::Value) -> PythonValue {
    match value.kind() {
        ValueKind::Bool => PythonValue::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => {
            i128::try_from(value.clone()).map_or(PythonValue::None, PythonValue::Int)
        }
        ValueKind::Number => f64::try_from(value.clone()).map_or(PythonValue::None, PythonValue::Float),
        ValueKind::String => PythonValue::text(value.as_str().unwrap_or_default()),
        _ => PythonValue::None,
    }
}
