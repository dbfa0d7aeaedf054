//! Facts about a template that Jinja2 finds out before it renders: unknown filters and tests, tags at wrong places, the
//! special names that macros read, and names that have no value at first.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::macros::SpecialReads;
use super::names;
use super::syntax_error::SyntaxError;
use super::tree::{
    AssignTarget, ExpressionKind, For, MacroSource, Statement, TemplateBlock, TemplateFrame, TreeExpression,
};

/// Checks a template, and notes what its rendering has to know. Returns the names that have no value at first.
pub(super) fn check(statements: &mut [Statement]) -> Result<Vec<Arc<str>>, SyntaxError> {
    let names = FrameNames::of_statements(statements, &[]);
    let unset = names.unset();
    let place = Place { is_top: true, ..Place::default() };
    Checker { frames: vec![names.known] }.statements(statements, place)?;
    Ok(unset)
}

/// Where a statement stands.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Whether an unknown filter or test is refused only when it is used: Jinja2 does so right inside of an `if`.
    is_soft: bool,
    /// Whether `break` ends a loop here.
    can_break: bool,
    /// Whether no statement with names of its own is around.
    is_top: bool,
    is_in_loop: bool,
}

impl Place {
    /// Inside of a statement with names of its own.
    fn inside(self) -> Self {
        Self { is_soft: false, is_top: false, ..self }
    }

    /// Inside of what Python has as a function of its own.
    fn function(self) -> Self {
        Self { can_break: false, ..self.inside() }
    }
}

struct Checker {
    /// The names that the frames around a place know, the outermost first.
    frames: Vec<BTreeSet<Arc<str>>>,
}

fn refused<T>(line: u32, message: &str) -> Result<T, SyntaxError> {
    Err(SyntaxError::Unreadable { line, message: message.to_owned() })
}

impl Checker {
    fn statements(&mut self, statements: &mut [Statement], place: Place) -> Result<(), SyntaxError> {
        statements.iter_mut().try_for_each(|statement| self.statement(statement, place))
    }

    fn statement(&mut self, statement: &mut Statement, place: Place) -> Result<(), SyntaxError> {
        let inside = place.inside();
        match statement {
            Statement::Raw(_) | Statement::Refused(_) => {}
            Statement::Emit(value) => expression(value, place.is_soft)?,
            Statement::If { branches, otherwise } => {
                let soft = Place { is_soft: true, ..place };
                for (test, body) in branches {
                    expression(test, true)?;
                    self.statements(body, soft)?;
                }
                self.statements(otherwise, soft)?;
            }
            Statement::For(source) => {
                // The tree is new, and no one else has it.
                if let Some(source) = Arc::get_mut(source) {
                    self.for_loop(source, place)?;
                }
            }
            Statement::With { assignments, frame } => {
                assignments.iter().try_for_each(|(_, value)| expression(value, place.is_soft))?;
                let targets: Vec<&AssignTarget> = assignments.iter().map(|(target, _)| target).collect();
                let names = FrameNames::of_frame(frame, &targets, &[], &self.frames);
                self.frame(frame, names, inside)?;
            }
            Statement::Set(target, value) => {
                no_loop(target, value.line, place)?;
                expression(value, place.is_soft)?;
            }
            Statement::Capture { target, filter, frame } => {
                let line = filter.as_ref().map_or(0, |filter| filter.line);
                no_loop(target, line, place)?;
                let names = FrameNames::of_frame(frame, &[], &[], &self.frames);
                if let Some(filter) = filter {
                    expression(filter, false)?;
                    let mut is_known = true;
                    filter.each_name(&mut |name| {
                        is_known &= names.known.contains(name) || self.frames.iter().any(|frame| frame.contains(name));
                    });
                    if !is_known {
                        return refused(filter.line, "a filter of a block reads a name that nothing else reads");
                    }
                }
                self.frame(frame, names, inside)?;
            }
            Statement::Filtered { filter, frame } => {
                expression(filter, false)?;
                let names = FrameNames::of_frame(frame, &[], &[filter], &self.frames);
                self.frame(frame, names, inside)?;
            }
            Statement::AutoEscape(enabled, frame) => {
                expression(enabled, place.is_soft)?;
                let names = FrameNames::of_frame(frame, &[], &[enabled], &self.frames);
                self.frame(frame, names, inside)?;
            }
            Statement::Macro(source) => self.macro_source(source, place)?,
            Statement::Call { callee, arguments, caller } => {
                expression(callee, place.is_soft)?;
                arguments.iter().try_for_each(|argument| expression(argument.value(), place.is_soft))?;
                self.macro_source(caller, place)?;
            }
            Statement::Generation(source) => self.macro_source(source, place)?,
            Statement::Block(block) => {
                if let Some(TemplateBlock { frame, .. }) = Arc::get_mut(block) {
                    // It knows none of the names around it.
                    let outer = std::mem::take(&mut self.frames);
                    let names = FrameNames::of_frame(frame, &[], &[], &[]);
                    let checked = self.frame(frame, names, place.function());
                    self.frames = outer;
                    checked?;
                }
            }
            Statement::Break(line) | Statement::Continue(line) if !place.can_break => {
                return refused(*line, "'break' or 'continue' outside of a loop");
            }
            Statement::Break(_) | Statement::Continue(_) => {}
            Statement::Extends(line) if !place.is_top => {
                return refused(*line, "cannot use extend from a non top-level scope");
            }
            Statement::Extends(_) => {}
        }
        Ok(())
    }

    fn frame(&mut self, frame: &mut TemplateFrame, names: FrameNames, place: Place) -> Result<(), SyntaxError> {
        frame.unset = names.unset();
        self.frames.push(names.known);
        let checked = self.statements(&mut frame.body, place);
        self.frames.pop();
        checked
    }

    fn for_loop(&mut self, source: &mut For, place: Place) -> Result<(), SyntaxError> {
        let For { target, over, filter, is_recursive, body, otherwise } = source;
        let place = Place { is_in_loop: true, ..place };
        no_loop(target, over.line, place)?;
        expression(over, place.is_soft)?;
        filter.iter().try_for_each(|filter| expression(filter, false))?;
        let inside = place.inside();
        let names = FrameNames::of_frame(body, &[target], &[], &self.frames);
        self.frame(body, names, Place { can_break: true, ..inside })?;
        let names = FrameNames::of_frame(otherwise, &[], &[], &self.frames);
        self.frame(otherwise, names, Place { can_break: place.can_break && !*is_recursive, ..inside })
    }

    fn macro_source(&mut self, source: &mut Arc<MacroSource>, place: Place) -> Result<(), SyntaxError> {
        let Some(MacroSource { parameters, frame, reads, .. }) = Arc::get_mut(source) else { return Ok(()) };
        let has = |name: &str| parameters.iter().find(|(known, _)| known.as_ref() == name);
        let found = SpecialNames::read_by(&frame.body);
        if found.caller
            && let Some((_, None)) = has("caller")
        {
            return refused(0, "the argument 'caller' of a macro needs a default");
        }
        *reads = SpecialReads {
            varargs: found.varargs && has("varargs").is_none(),
            kwargs: found.kwargs && has("kwargs").is_none(),
            caller: found.caller,
        };
        let targets: Vec<AssignTarget> =
            parameters.iter().map(|(name, _)| AssignTarget::Name(Arc::clone(name))).collect();
        let defaults: Vec<&TreeExpression> = parameters.iter().filter_map(|(_, default)| default.as_ref()).collect();
        defaults.iter().try_for_each(|default| expression(default, false))?;
        let names = FrameNames::of_frame(frame, &targets.iter().collect::<Vec<_>>(), &defaults, &self.frames);
        self.frame(frame, names, place.function())
    }
}

/// Refuses filters and tests that do not exist.
fn expression(value: &TreeExpression, is_soft: bool) -> Result<(), SyntaxError> {
    let unknown = |what, name: &str| Err(SyntaxError::Unknown { line: value.line, what, name: name.to_owned() });
    let is_soft = is_soft || matches!(value.kind, ExpressionKind::Choice { .. });
    match &value.kind {
        ExpressionKind::Filter { name, .. } if !is_soft && !names::FILTERS.contains(&name.as_ref()) => {
            return unknown("filter", name);
        }
        ExpressionKind::Test { name, .. } if !is_soft && !names::TESTS.contains(&name.as_ref()) => {
            return unknown("test", name);
        }
        _ => {}
    }
    let mut checked = Ok(());
    value.each_inside(&mut |inside| {
        if checked.is_ok() {
            checked = expression(inside, is_soft);
        }
    });
    checked
}

/// Refuses a new value for `loop` inside of a loop.
fn no_loop(target: &AssignTarget, line: u32, place: Place) -> Result<(), SyntaxError> {
    let mut stores_loop = false;
    target.each_name(&mut |name| stores_loop |= name.as_ref() == "loop");
    if stores_loop && place.is_in_loop {
        return refused(line, "Can't assign to special loop variable in for-loop");
    }
    Ok(())
}

/// The names of a frame, in the order in which its statements meet them.
#[derive(Default)]
struct FrameNames {
    /// The names that were met and that no frame around it has met.
    known: BTreeSet<Arc<str>>,
    /// Names that were stored before they were loaded.
    unset: BTreeSet<Arc<str>>,
    /// The branches of `if` around a place. A name that only branches store has its value from outside before.
    branches: usize,
}

/// The names of the frames around a frame.
type OuterNames<'a> = &'a [BTreeSet<Arc<str>>];

impl FrameNames {
    /// The names of a frame. `targets` have their values when it begins.
    fn of_frame(
        frame: &TemplateFrame,
        targets: &[&AssignTarget],
        read: &[&TreeExpression],
        outer: OuterNames<'_>,
    ) -> Self {
        let mut names = Self::default();
        for target in targets {
            target.each_name(&mut |name| {
                names.known.insert(Arc::clone(name));
            });
        }
        read.iter().for_each(|value| names.load(value, outer));
        names.statements(&frame.body, outer);
        names
    }

    fn of_statements(statements: &[Statement], outer: OuterNames<'_>) -> Self {
        let mut names = Self::default();
        names.statements(statements, outer);
        names
    }

    fn unset(&self) -> Vec<Arc<str>> {
        self.unset.iter().cloned().collect()
    }

    fn load(&mut self, value: &TreeExpression, outer: OuterNames<'_>) {
        value.each_name(&mut |name| {
            if !outer.iter().any(|frame| frame.contains(name)) {
                self.known.insert(Arc::clone(name));
            }
        });
    }

    fn store(&mut self, name: &Arc<str>, outer: OuterNames<'_>) {
        let is_new = self.known.insert(Arc::clone(name)) && self.branches == 0;
        if is_new && !outer.iter().any(|frame| frame.contains(name)) {
            self.unset.insert(Arc::clone(name));
        }
    }

    fn target(&mut self, target: &AssignTarget, outer: OuterNames<'_>) {
        match target {
            AssignTarget::Name(name) => self.store(name, outer),
            AssignTarget::Attribute(object, _) => self.load(object, outer),
            AssignTarget::Several(targets) => targets.iter().for_each(|target| self.target(target, outer)),
        }
    }

    fn statements(&mut self, statements: &[Statement], outer: OuterNames<'_>) {
        statements.iter().for_each(|statement| self.statement(statement, outer));
    }

    fn statement(&mut self, statement: &Statement, outer: OuterNames<'_>) {
        match statement {
            Statement::Emit(value) => self.load(value, outer),
            Statement::If { branches, otherwise } => {
                self.branches += 1;
                for (test, body) in branches {
                    self.load(test, outer);
                    self.statements(body, outer);
                }
                self.statements(otherwise, outer);
                self.branches -= 1;
            }
            Statement::For(source) => self.load(&source.over, outer),
            Statement::With { assignments, .. } => assignments.iter().for_each(|(_, value)| self.load(value, outer)),
            Statement::Set(target, value) => {
                self.load(value, outer);
                self.target(target, outer);
            }
            Statement::Capture { target, .. } => self.target(target, outer),
            Statement::Filtered { filter, .. } => self.load(filter, outer),
            Statement::Macro(source) => self.store(&source.name, outer),
            Statement::Call { callee, arguments, .. } => {
                self.load(callee, outer);
                arguments.iter().for_each(|argument| self.load(argument.value(), outer));
            }
            Statement::Raw(_)
            | Statement::Generation(_)
            | Statement::AutoEscape(..)
            | Statement::Block(_)
            | Statement::Break(_)
            | Statement::Continue(_)
            | Statement::Extends(_)
            | Statement::Refused(_) => {}
        }
    }
}

/// The special names of macros that a body reads before it stores them.
struct SpecialNames {
    open: BTreeSet<&'static str>,
    varargs: bool,
    kwargs: bool,
    caller: bool,
}

impl SpecialNames {
    fn read_by(body: &[Statement]) -> Self {
        let open = BTreeSet::from(["caller", "kwargs", "varargs"]);
        let mut names = Self { open, varargs: false, kwargs: false, caller: false };
        names.statements(body);
        names
    }

    fn load(&mut self, value: &TreeExpression) {
        value.each_name(&mut |name| {
            if self.open.contains(name.as_ref()) {
                self.varargs |= name.as_ref() == "varargs";
                self.kwargs |= name.as_ref() == "kwargs";
                self.caller |= name.as_ref() == "caller";
            }
        });
    }

    fn store(&mut self, target: &AssignTarget) {
        target.each_name(&mut |name| {
            self.open.remove(name.as_ref());
        });
    }

    fn statements(&mut self, body: &[Statement]) {
        body.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Emit(value) => self.load(value),
            Statement::If { branches, otherwise } => {
                for (test, body) in branches {
                    self.load(test);
                    self.statements(body);
                }
                self.statements(otherwise);
            }
            Statement::For(source) => {
                let For { target, over, filter, body, otherwise, .. } = source.as_ref();
                self.store(target);
                self.load(over);
                self.statements(&body.body);
                self.statements(&otherwise.body);
                filter.iter().for_each(|filter| self.load(filter));
            }
            Statement::With { assignments, frame } => {
                assignments.iter().for_each(|(target, _)| self.store(target));
                assignments.iter().for_each(|(_, value)| self.load(value));
                self.statements(&frame.body);
            }
            // Jinja2 looks at the target first here.
            Statement::Set(target, value) => {
                self.store(target);
                self.load(value);
            }
            Statement::Capture { target, filter, frame } => {
                self.store(target);
                filter.iter().for_each(|filter| self.load(filter));
                self.statements(&frame.body);
            }
            Statement::Filtered { filter, frame } => {
                self.statements(&frame.body);
                self.load(filter);
            }
            Statement::Macro(source) | Statement::Generation(source) => self.macro_source(source),
            Statement::Call { callee, arguments, caller } => {
                self.load(callee);
                arguments.iter().for_each(|argument| self.load(argument.value()));
                self.macro_source(caller);
            }
            Statement::AutoEscape(enabled, frame) => {
                self.load(enabled);
                self.statements(&frame.body);
            }
            Statement::Raw(_)
            | Statement::Block(_)
            | Statement::Break(_)
            | Statement::Continue(_)
            | Statement::Extends(_)
            | Statement::Refused(_) => {}
        }
    }

    fn macro_source(&mut self, source: &MacroSource) {
        for (name, _) in &source.parameters {
            self.open.remove(name.as_ref());
        }
        source.parameters.iter().filter_map(|(_, default)| default.as_ref()).for_each(|default| self.load(default));
        self.statements(&source.frame.body);
    }
}
