//! Parsing: minijinja reads the source, and its tree becomes ours. No other file knows minijinja.

use std::sync::Arc;

use minijinja::machinery::{Token, ast, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;

use super::operators::{Comparison, Operator};
use super::tree::{Argument, AssignTarget, ExpressionKind, For, MacroSource, SpecialReads, Statement, TreeExpression};
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
    /// There are too many branches for the parser.
    #[error("it has more than 1,000 times 'elif'")]
    Branches,
}

/// The statements of a template.
pub(super) fn read(source: &str) -> Result<Vec<Statement>, SyntaxError> {
    // Jinja2 reads every kind of line end as a line feed.
    let source = without_generation_marks(&source.replace("\r\n", "\n").replace('\r', "\n"));
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let pluses = check_chains(&source, syntax.clone())?;
    let source = without_pluses(&source, &pluses);
    let parsed = parse(&source, "chat template", syntax)?;
    let mut reader = TreeReader { reads: Vec::new() };
    match &parsed {
        ast::Stmt::Template(template) => Ok(reader.statements(&template.children)),
        other => Ok(reader.statements(std::slice::from_ref(other))),
    }
}

/// Refuses what the parser's tree would overflow the stack with. Returns the places of `+` without a left side.
fn check_chains(source: &str, syntax: SyntaxConfig) -> Result<Vec<usize>, SyntaxError> {
    let (mut chain, mut branches, mut is_behind_operand, mut pluses) = (0, 0, false, Vec::new());
    for token in tokenize(source, false, syntax) {
        let (token, span) = token?;
        if matches!(token, Token::Plus) && !is_behind_operand {
            pluses.push(span.start_offset as usize);
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
    Ok(pluses)
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

/// The parser knows no `+` in front of an operand. Two signs `-` have its effect, and refuse what it refuses.
fn without_pluses(source: &str, pluses: &[usize]) -> String {
    let (mut out, mut done) = (String::with_capacity(source.len() + pluses.len()), 0);
    for at in pluses {
        out.push_str(source.get(done..*at).unwrap_or_default());
        out.push_str("- -");
        done = at + 1;
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
        let (tag, after) = tag.split_at(end + 2);
        match tag.trim_matches(|c| "{%-+}".contains(c)).trim() {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
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
}

impl TreeReader {
    fn statements(&mut self, all: &[ast::Stmt<'_>]) -> Vec<Statement> {
        all.iter().map(|statement| self.statement(statement)).collect()
    }

    fn statement(&mut self, statement: &ast::Stmt<'_>) -> Statement {
        match statement {
            ast::Stmt::Template(template) => {
                Statement::With { assignments: Vec::new(), body: self.statements(&template.children) }
            }
            ast::Stmt::EmitExpr(emit) => Statement::Emit(self.expression(&emit.expr)),
            ast::Stmt::EmitRaw(raw) => Statement::Raw(raw.raw.into()),
            ast::Stmt::ForLoop(inside) => Statement::For(Arc::new(For {
                target: self.target(&inside.target),
                over: self.expression(&inside.iter),
                filter: inside.filter_expr.as_ref().map(|filter| self.expression(filter)),
                is_recursive: inside.recursive,
                body: self.statements(&inside.body),
                otherwise: self.statements(&inside.else_body),
            })),
            ast::Stmt::IfCond(condition) => self.condition(condition),
            ast::Stmt::WithBlock(with) => Statement::With {
                assignments: with
                    .assignments
                    .iter()
                    .map(|(target, value)| (self.target(target), self.expression(value)))
                    .collect(),
                body: self.statements(&with.body),
            },
            ast::Stmt::Set(set) => Statement::Set(self.target(&set.target), self.expression(&set.expr)),
            ast::Stmt::SetBlock(set) => Statement::Capture {
                target: self.target(&set.target),
                filter: set.filter.as_ref().map(|filter| self.expression(filter)),
                body: self.statements(&set.body),
            },
            ast::Stmt::FilterBlock(block) => {
                Statement::Filtered { filter: self.expression(&block.filter), body: self.statements(&block.body) }
            }
            ast::Stmt::Block(block) => Statement::With { assignments: Vec::new(), body: self.statements(&block.body) },
            ast::Stmt::Macro(made) => Statement::Macro(Arc::new(self.macro_source(made))),
            ast::Stmt::CallBlock(block) => Statement::Call {
                callee: self.expression(&block.call.expr),
                arguments: self.arguments(&block.call.args),
                caller: Arc::new(self.macro_source(&block.macro_decl)),
            },
            ast::Stmt::Continue(_) => Statement::Continue,
            ast::Stmt::Break(_) => Statement::Break,
            ast::Stmt::Do(_) => Statement::Refused("Encountered unknown tag 'do'."),
            ast::Stmt::AutoEscape(_) => Statement::Refused("'autoescape' is not supported"),
            ast::Stmt::Import(_) | ast::Stmt::FromImport(_) | ast::Stmt::Extends(_) | ast::Stmt::Include(_) => {
                Statement::Refused("no loader for this environment specified")
            }
        }
    }

    fn condition(&mut self, condition: &ast::IfCond<'_>) -> Statement {
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
            ast::Expr::IfExpr(choice) => ExpressionKind::Choice {
                test: self.boxed(&choice.test_expr),
                yes: self.boxed(&choice.true_expr),
                no: self.optional(choice.false_expr.as_ref()),
            },
            ast::Expr::Filter(filter) => ExpressionKind::Filter {
                name: filter.name.into(),
                value: self.optional(filter.expr.as_ref()),
                arguments: self.arguments(&filter.args),
            },
            ast::Expr::Test(test) => ExpressionKind::Test {
                name: test.name.into(),
                value: self.boxed(&test.expr),
                arguments: self.arguments(&test.args),
            },
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
