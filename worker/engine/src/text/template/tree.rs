//! A template as a tree of statements and expressions.

use std::sync::Arc;

use super::macros::SpecialReads;
use super::operators::{Comparison, Operator};
use super::value::PythonValue;

/// An expression, and its line in the source.
#[derive(Debug)]
pub(super) struct TreeExpression {
    pub(super) line: u32,
    pub(super) kind: ExpressionKind,
}

/// The kinds of expressions.
#[derive(Debug)]
pub(super) enum ExpressionKind {
    Constant(PythonValue),
    Name(Arc<str>),
    List(Vec<TreeExpression>),
    Tuple(Vec<TreeExpression>),
    Dict(Vec<(TreeExpression, TreeExpression)>),
    Attribute(Box<TreeExpression>, Arc<str>),
    Item(Box<TreeExpression>, Box<TreeExpression>),
    Slice(Box<TreeExpression>, [Option<Box<TreeExpression>>; 3]),
    Not(Box<TreeExpression>),
    Negative(Box<TreeExpression>),
    Operation(Operator, Box<TreeExpression>, Box<TreeExpression>),
    And(Box<TreeExpression>, Box<TreeExpression>),
    Or(Box<TreeExpression>, Box<TreeExpression>),
    Comparison(Box<TreeExpression>, Vec<(Comparison, TreeExpression)>),
    Choice {
        test: Box<TreeExpression>,
        yes: Box<TreeExpression>,
        no: Option<Box<TreeExpression>>,
    },
    /// Without a value, the filter is applied to the text of its block.
    Filter {
        name: Arc<str>,
        value: Option<Box<TreeExpression>>,
        arguments: Vec<Argument>,
    },
    Test {
        name: Arc<str>,
        value: Box<TreeExpression>,
        arguments: Vec<Argument>,
    },
    Call {
        callee: Box<TreeExpression>,
        arguments: Vec<Argument>,
    },
}

/// An argument of a call.
#[derive(Debug)]
pub(super) enum Argument {
    Place(TreeExpression),
    Name(Arc<str>, TreeExpression),
    Places(TreeExpression),
    Names(TreeExpression),
}

/// A statement.
#[derive(Debug)]
pub(super) enum Statement {
    Raw(Arc<str>),
    Emit(TreeExpression),
    If {
        branches: Vec<(TreeExpression, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    For(Arc<For>),
    With {
        assignments: Vec<(AssignTarget, TreeExpression)>,
        body: Vec<Statement>,
    },
    Set(AssignTarget, TreeExpression),
    Capture {
        target: AssignTarget,
        filter: Option<TreeExpression>,
        body: Vec<Statement>,
    },
    Filtered {
        filter: TreeExpression,
        body: Vec<Statement>,
    },
    Macro(Arc<MacroSource>),
    Call {
        callee: TreeExpression,
        arguments: Vec<Argument>,
        caller: Arc<MacroSource>,
    },
    Break,
    Continue,
    /// A tag that the reference refuses in a chat template.
    Refused(&'static str),
}

/// Where a statement leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

/// A loop.
#[derive(Debug)]
pub(super) struct For {
    pub(super) target: AssignTarget,
    pub(super) over: TreeExpression,
    pub(super) filter: Option<TreeExpression>,
    pub(super) is_recursive: bool,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
}

/// A macro's definition.
#[derive(Debug)]
pub(super) struct MacroSource {
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<(Arc<str>, Option<TreeExpression>)>,
    pub(super) body: Vec<Statement>,
    pub(super) reads: SpecialReads,
}

/// The place of an assignment.
#[derive(Debug)]
pub(super) enum AssignTarget {
    Name(Arc<str>),
    /// An attribute of a namespace.
    Attribute(TreeExpression, Arc<str>),
    Several(Vec<AssignTarget>),
}
