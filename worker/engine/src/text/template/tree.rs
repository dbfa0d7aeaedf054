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
    Positive(Box<TreeExpression>),
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
        frame: TemplateFrame,
    },
    Set(AssignTarget, TreeExpression),
    Capture {
        target: AssignTarget,
        filter: Option<TreeExpression>,
        frame: TemplateFrame,
    },
    Filtered {
        filter: TreeExpression,
        frame: TemplateFrame,
    },
    Macro(Arc<MacroSource>),
    Call {
        callee: TreeExpression,
        arguments: Vec<Argument>,
        caller: Arc<MacroSource>,
    },
    /// Words that a model was trained to say.
    Generation(Arc<MacroSource>),
    /// Whether what expressions write is escaped for HTML.
    AutoEscape(TreeExpression, TemplateFrame),
    Block(Arc<TemplateBlock>),
    /// The line is that of the tag.
    Break(u32),
    Continue(u32),
    Extends(u32),
    /// A tag that the reference refuses in a chat template.
    Refused(&'static str),
}

/// Statements with names of their own.
#[derive(Debug, Default)]
pub(super) struct TemplateFrame {
    pub(super) body: Vec<Statement>,
    /// Names that have no value until they get one here, whatever they are outside: no name outside of the frame is in
    /// the template, and the frame stores before it loads.
    pub(super) unset: Vec<Arc<str>>,
}

impl TemplateFrame {
    pub(super) fn new(body: Vec<Statement>) -> Self {
        Self { body, unset: Vec::new() }
    }
}

impl TemplateFrame {
    /// Calls this for each block inside.
    pub(super) fn each_block(&self, visit: &mut dyn FnMut(&Arc<TemplateBlock>)) {
        self.body.iter().for_each(|statement| statement.each_block(visit));
    }
}

impl Statement {
    fn each_block(&self, visit: &mut dyn FnMut(&Arc<TemplateBlock>)) {
        match self {
            Self::If { branches, otherwise } => {
                let bodies = branches.iter().map(|(_, body)| body).chain([otherwise]);
                bodies.flatten().for_each(|statement| statement.each_block(visit));
            }
            Self::For(source) => {
                source.body.each_block(visit);
                source.otherwise.each_block(visit);
            }
            Self::With { frame, .. }
            | Self::Capture { frame, .. }
            | Self::Filtered { frame, .. }
            | Self::AutoEscape(_, frame) => frame.each_block(visit),
            Self::Macro(source) | Self::Generation(source) | Self::Call { caller: source, .. } => {
                source.frame.each_block(visit);
            }
            Self::Block(block) => {
                visit(block);
                block.frame.each_block(visit);
            }
            Self::Raw(_)
            | Self::Emit(_)
            | Self::Set(..)
            | Self::Break(_)
            | Self::Continue(_)
            | Self::Extends(_)
            | Self::Refused(_) => {}
        }
    }
}

/// A block that other templates could replace.
#[derive(Debug)]
pub(super) struct TemplateBlock {
    pub(super) name: Arc<str>,
    /// Whether it knows the names around it. Otherwise it knows those of the template.
    pub(super) is_scoped: bool,
    pub(super) is_required: bool,
    pub(super) frame: TemplateFrame,
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
    pub(super) body: TemplateFrame,
    pub(super) otherwise: TemplateFrame,
}

/// A macro's definition.
#[derive(Debug)]
pub(super) struct MacroSource {
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<(Arc<str>, Option<TreeExpression>)>,
    pub(super) frame: TemplateFrame,
    pub(super) reads: SpecialReads,
}

impl MacroSource {
    pub(super) fn new(name: &str, parameters: Vec<(Arc<str>, Option<TreeExpression>)>, frame: TemplateFrame) -> Self {
        Self { name: name.into(), parameters, frame, reads: SpecialReads::default() }
    }
}

impl TreeExpression {
    /// Calls this for each expression directly inside of it.
    pub(super) fn each_inside<'a>(&'a self, visit: &mut dyn FnMut(&'a TreeExpression)) {
        match &self.kind {
            ExpressionKind::Constant(_) | ExpressionKind::Name(_) => {}
            ExpressionKind::List(items) | ExpressionKind::Tuple(items) => items.iter().for_each(visit),
            ExpressionKind::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
                visit(key);
                visit(value);
            }),
            ExpressionKind::Attribute(inner, _)
            | ExpressionKind::Not(inner)
            | ExpressionKind::Negative(inner)
            | ExpressionKind::Positive(inner) => visit(inner),
            ExpressionKind::Item(left, right)
            | ExpressionKind::Operation(_, left, right)
            | ExpressionKind::And(left, right)
            | ExpressionKind::Or(left, right) => {
                visit(left);
                visit(right);
            }
            ExpressionKind::Slice(value, bounds) => {
                visit(value);
                bounds.iter().flatten().for_each(|bound| visit(bound));
            }
            ExpressionKind::Comparison(first, others) => {
                visit(first);
                others.iter().for_each(|(_, other)| visit(other));
            }
            ExpressionKind::Choice { test, yes, no } => {
                visit(test);
                visit(yes);
                no.iter().for_each(|no| visit(no));
            }
            ExpressionKind::Filter { value, arguments, .. } => {
                value.iter().for_each(|value| visit(value));
                arguments.iter().for_each(|argument| visit(argument.value()));
            }
            ExpressionKind::Test { value, arguments, .. } => {
                visit(value);
                arguments.iter().for_each(|argument| visit(argument.value()));
            }
            ExpressionKind::Call { callee, arguments } => {
                visit(callee);
                arguments.iter().for_each(|argument| visit(argument.value()));
            }
        }
    }

    /// Whether Jinja2 computes it before it renders: it has no names and calls, and no filter that needs a context.
    pub(super) fn is_constant(&self) -> bool {
        let is_open = match &self.kind {
            ExpressionKind::Name(_) | ExpressionKind::Call { .. } => true,
            ExpressionKind::Filter { name, value, .. } => {
                value.is_none()
                    || matches!(name.as_ref(), "map" | "select" | "reject" | "selectattr" | "rejectattr" | "random")
            }
            _ => false,
        };
        let mut is_constant = !is_open;
        self.each_inside(&mut |inside| is_constant = is_constant && inside.is_constant());
        is_constant
    }

    /// Whether it has a filter or a test.
    pub(super) fn has_filters(&self) -> bool {
        let mut has = matches!(self.kind, ExpressionKind::Filter { .. } | ExpressionKind::Test { .. });
        self.each_inside(&mut |inside| has = has || inside.has_filters());
        has
    }

    /// Calls this for each name that it reads.
    pub(super) fn each_name<'a>(&'a self, visit: &mut dyn FnMut(&'a Arc<str>)) {
        match &self.kind {
            ExpressionKind::Name(name) => visit(name),
            _ => self.each_inside(&mut |inside| inside.each_name(visit)),
        }
    }
}

impl Argument {
    /// The expression of its value.
    pub(super) fn value(&self) -> &TreeExpression {
        match self {
            Self::Place(value) | Self::Name(_, value) | Self::Places(value) | Self::Names(value) => value,
        }
    }
}

impl AssignTarget {
    /// Calls this for each name that gets a value.
    pub(super) fn each_name<'a>(&'a self, visit: &mut dyn FnMut(&'a Arc<str>)) {
        match self {
            Self::Name(name) => visit(name),
            Self::Attribute(..) => {}
            Self::Several(targets) => targets.iter().for_each(|target| target.each_name(visit)),
        }
    }
}

/// The place of an assignment.
#[derive(Debug)]
pub(super) enum AssignTarget {
    Name(Arc<str>),
    /// An attribute of a namespace.
    Attribute(TreeExpression, Arc<str>),
    Several(Vec<AssignTarget>),
}
