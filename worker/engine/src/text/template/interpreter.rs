//! Runs a template: statements write text, expressions give values, and limits hold for both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::arguments::Arguments;
use super::fault::{RenderFault, RenderResult, refuse};
use super::fuel::Fuel;
use super::macros::MacroHandle;
use super::markup::{self, Escapes, Escaping};
use super::operators::{self, Comparison, Operator};
use super::scope::NameScope;
use super::tree::{
    Argument, AssignTarget, ExpressionKind, Flow, For, MacroSource, Statement, TemplateBlock, TemplateFrame,
    TreeExpression,
};
use super::value::{Dict, LoopState, PythonValue, SharedDict, lock};
use super::{attributes, functions, predicates};

/// The most bytes one rendering may write.
const LONGEST_OUTPUT: usize = 64 << 20;

/// The most statements, expressions and calls inside of one another. Python ends a macro that calls itself sooner.
const DEEPEST: usize = 1000;

/// One rendering.
pub(super) struct Interpreter<'a> {
    /// Variables of the conversation, over those of the template.
    variables: &'a BTreeMap<String, PythonValue>,
    globals: &'a BTreeMap<String, PythonValue>,
    pub(super) fuel: Fuel,
    depth: usize,
    /// Whether an expression failed that Jinja2 computes before it renders, and is computed as there.
    is_constant: bool,
    /// The output, and the texts that blocks capture, the innermost last.
    outputs: Vec<String>,
    /// Namespaces may hold themselves, and are emptied at the end.
    pub(super) namespaces: Vec<Arc<SharedDict>>,
    /// The macros that were made, with the scopes in which they were.
    pub(super) macros: Vec<(Arc<MacroSource>, Arc<NameScope>, Escaping)>,
    pub(super) escapes: Escapes,
    /// The recursive loops that are running.
    pub(super) loops: Vec<(Arc<For>, Arc<NameScope>)>,
    /// The template's blocks, by their names.
    pub(super) blocks: BTreeMap<Arc<str>, Arc<TemplateBlock>>,
    /// The names of the template outside of its blocks.
    pub(super) root: Arc<NameScope>,
}

impl Drop for Interpreter<'_> {
    fn drop(&mut self) {
        for namespace in self.namespaces.drain(..) {
            namespace.clear();
        }
    }
}

/// The text that a template writes.
pub(super) fn run(
    tree: &TemplateFrame,
    variables: &BTreeMap<String, PythonValue>,
    globals: &BTreeMap<String, PythonValue>,
) -> RenderResult<String> {
    let root = Arc::new(NameScope::default());
    let mut blocks = BTreeMap::new();
    tree.each_block(&mut |block| {
        blocks.insert(Arc::clone(&block.name), Arc::clone(block));
    });
    let mut run = Interpreter {
        variables,
        globals,
        fuel: Fuel::default(),
        depth: 0,
        is_constant: false,
        outputs: vec![String::new()],
        namespaces: Vec::new(),
        macros: Vec::new(),
        escapes: Escapes::default(),
        loops: Vec::new(),
        blocks,
        root: Arc::clone(&root),
    };
    root.set_unset(&tree.unset);
    run.statements(&tree.body, &root)?;
    Ok(run.outputs.pop().unwrap_or_default())
}

impl Interpreter<'_> {
    fn deeper(&mut self) -> RenderResult<()> {
        self.fuel.spend(1)?;
        self.depth += 1;
        if self.depth > DEEPEST { Err(RenderFault::Limit("nests more than 1,000 steps")) } else { Ok(()) }
    }

    fn write(&mut self, text: &str) -> RenderResult<()> {
        self.fuel.spend((text.len() as u64) / 64)?;
        let Some(out) = self.outputs.last_mut() else { return Ok(()) };
        if out.len() + text.len() > LONGEST_OUTPUT {
            return Err(RenderFault::Limit("writes more than 64 MiB"));
        }
        out.push_str(text);
        Ok(())
    }

    /// The text that a step writes, and where it leads.
    pub(super) fn written(
        &mut self,
        step: impl FnOnce(&mut Self) -> RenderResult<Flow>,
    ) -> RenderResult<(String, Flow)> {
        self.outputs.push(String::new());
        let ended = step(self);
        let text = self.outputs.pop().unwrap_or_default();
        ended.map(|flow| (text, flow))
    }

    /// The text that a frame writes in its own names, and where it leads.
    pub(super) fn captured(&mut self, frame: &TemplateFrame, scope: &Arc<NameScope>) -> RenderResult<(String, Flow)> {
        self.written(|run| run.frame(frame, scope))
    }

    /// Runs statements with names of their own.
    fn frame(&mut self, frame: &TemplateFrame, around: &Arc<NameScope>) -> RenderResult<Flow> {
        self.statements(&frame.body, &NameScope::of(frame, around))
    }

    pub(super) fn statements(&mut self, body: &[Statement], scope: &Arc<NameScope>) -> RenderResult<Flow> {
        self.deeper()?;
        let mut flow = Flow::Next;
        for statement in body {
            flow = self.statement(statement, scope)?;
            if flow != Flow::Next {
                break;
            }
        }
        self.depth -= 1;
        Ok(flow)
    }

    fn statement(&mut self, statement: &Statement, scope: &Arc<NameScope>) -> RenderResult<Flow> {
        match statement {
            Statement::Raw(text) => self.write(text)?,
            Statement::Emit(expression) => {
                let depth = self.depth;
                let mut value = self.value(expression, scope);
                if matches!(value, Err(RenderFault::Failed { .. })) && expression.is_constant() {
                    (self.depth, self.is_constant) = (depth, true);
                    value = self.value(expression, scope);
                    self.is_constant = false;
                }
                match value? {
                    PythonValue::Markup(text) => self.write(&text)?,
                    other if self.escapes_of(expression) => self.write(&markup::escaped(&other.print()?))?,
                    PythonValue::Text(text) => self.write(&text)?,
                    other => self.write(&other.print()?)?,
                }
            }
            Statement::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.value(test, scope)?.is_true() {
                        return self.statements(body, scope);
                    }
                }
                return self.statements(otherwise, scope);
            }
            Statement::For(inside) => {
                let items = self.value(&inside.over, scope)?;
                return self.run_loop(inside, &items, scope, 0);
            }
            Statement::With { assignments, frame } => {
                let inner = NameScope::of(frame, scope);
                for (target, value) in assignments {
                    let value = self.value(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.statements(&frame.body, &inner);
            }
            Statement::Set(target, value) => {
                let value = self.value(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Statement::Capture { target, filter, frame } => {
                let (text, flow) = self.captured(frame, scope)?;
                // The text is lost with the round of the loop.
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let text = self.escapes.text(text);
                let mut value = match filter {
                    Some(filter) => self.filtered(filter, text, scope)?,
                    None => text,
                };
                if self.escapes.running {
                    value = markup::marked(true, value.print()?);
                }
                self.assign(target, value, scope)?;
            }
            Statement::Filtered { filter, frame } => {
                let (text, flow) = self.captured(frame, scope)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let filtered = self.filtered(filter, self.escapes.text(text), scope)?;
                match filtered.as_str() {
                    Some(text) => self.write(text)?,
                    None => refuse!("expected str instance, {} found", filtered.kind()),
                }
            }
            Statement::Macro(source) => {
                let made = self.make_macro(source, scope);
                scope.set(&source.name, made);
            }
            Statement::Call { callee, arguments, caller } => self.call_block(callee, arguments, caller, scope)?,
            Statement::Generation(source) => {
                let made = self.make_macro(source, scope);
                let text = self.call(&made, &Arguments::default())?.print()?;
                self.write(&text)?;
            }
            Statement::AutoEscape(enabled, frame) => return self.autoescape(enabled, frame, scope),
            Statement::Block(block) => self.block(block, scope)?,
            Statement::Break(_) => return Ok(Flow::Break),
            Statement::Continue(_) => return Ok(Flow::Continue),
            Statement::Extends(_) => refuse!("no loader for this environment specified"),
            Statement::Refused(why) => refuse!("{why}"),
        }
        Ok(Flow::Next)
    }

    /// Writes a block in its place.
    fn block(&mut self, block: &TemplateBlock, scope: &Arc<NameScope>) -> RenderResult<()> {
        if block.is_required {
            refuse!("Required block '{}' not found", block.name);
        }
        let around = if block.is_scoped { Arc::clone(scope) } else { Arc::clone(&self.root) };
        self.elsewhere(Escaping::Off, |run| run.frame(&block.frame, &around)).map(|_| ())
    }

    fn call_block(
        &mut self,
        callee: &TreeExpression,
        arguments: &[Argument],
        caller: &Arc<MacroSource>,
        scope: &Arc<NameScope>,
    ) -> RenderResult<()> {
        let made = self.make_macro(caller, scope);
        let called = self.value(callee, scope)?;
        let mut arguments = self.arguments(arguments, scope)?;
        arguments.names.push(("caller".into(), made));
        let text = self.call(&called, &arguments).map_err(|fault| fault.at(callee.line))?.print()?;
        self.write(&text)
    }

    fn make_macro(&mut self, source: &Arc<MacroSource>, scope: &Arc<NameScope>) -> PythonValue {
        let number = self.macros.len();
        self.macros.push((Arc::clone(source), Arc::clone(scope), self.escapes.here));
        let parameters = source.parameters.iter().map(|(name, _)| Arc::clone(name)).collect();
        PythonValue::Macro(Arc::new(MacroHandle {
            number,
            name: Arc::clone(&source.name),
            parameters,
            reads: source.reads,
        }))
    }

    pub(super) fn run_loop(
        &mut self,
        source: &Arc<For>,
        over: &PythonValue,
        scope: &Arc<NameScope>,
        depth: usize,
    ) -> RenderResult<Flow> {
        let line = source.over.line;
        self.fuel.spend(over.size())?;
        let mut items = over.items().map_err(|fault| fault.at(line))?;
        if let Some(filter) = &source.filter {
            let mut kept = Vec::new();
            for item in items {
                let inner = NameScope::inside(scope);
                self.assign(&source.target, item.clone(), &inner)?;
                if self.value(filter, &inner)?.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.frame(&source.otherwise, scope);
        }
        let recursion = source.is_recursive.then(|| {
            self.loops.push((Arc::clone(source), Arc::clone(scope)));
            self.loops.len() - 1
        });
        let state = LoopState { items, place: Mutex::new(0), depth, changed: Mutex::default(), recursion };
        let state = Arc::new(state);
        // Jinja2 leaves the other branch out as soon as one item's turn came to its end.
        let mut has_ended = false;
        for at in 0..state.items.len() {
            *lock(&state.place) = at;
            let inner = NameScope::of(&source.body, scope);
            inner.set(&"loop".into(), PythonValue::Loop(Arc::clone(&state)));
            self.assign(&source.target, state.items[at].clone(), &inner).map_err(|fault| fault.at(line))?;
            match self.statements(&source.body.body, &inner)? {
                Flow::Break => break,
                flow => has_ended |= flow == Flow::Next,
            }
        }
        if let Some(number) = recursion {
            self.loops.truncate(number);
        }
        if !has_ended {
            return self.frame(&source.otherwise, scope);
        }
        Ok(Flow::Next)
    }

    fn assign(&mut self, target: &AssignTarget, value: PythonValue, scope: &Arc<NameScope>) -> RenderResult<()> {
        self.fuel.spend(1)?;
        match target {
            AssignTarget::Name(name) => scope.set(name, value),
            AssignTarget::Attribute(object, name) => match self.value(object, scope)? {
                PythonValue::Namespace(shared) => {
                    functions::stored_attribute(name)?;
                    shared.set(name, value)?;
                }
                _ => refuse!("cannot assign attribute on non-namespace object"),
            },
            AssignTarget::Several(targets) => {
                let values = value.items()?;
                if values.len() != targets.len() {
                    refuse!("cannot unpack {} values into {} names", values.len(), targets.len());
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    fn filtered(
        &mut self,
        filter: &TreeExpression,
        text: PythonValue,
        scope: &Arc<NameScope>,
    ) -> RenderResult<PythonValue> {
        let ExpressionKind::Filter { name, value, arguments } = &filter.kind else { refuse!("it is no filter") };
        let text = match value {
            Some(inner) => self.filtered(inner, text, scope)?,
            None => text,
        };
        let arguments = self.arguments(arguments, scope)?;
        self.apply_filter(name, &text, &arguments).map_err(|fault| fault.at(filter.line))
    }

    /// The value of an expression.
    pub(super) fn value(&mut self, expression: &TreeExpression, scope: &Arc<NameScope>) -> RenderResult<PythonValue> {
        self.deeper()?;
        let value = self.kind(&expression.kind, scope).map_err(|fault| fault.at(expression.line))?;
        self.depth -= 1;
        Ok(value)
    }

    fn kind(&mut self, kind: &ExpressionKind, scope: &Arc<NameScope>) -> RenderResult<PythonValue> {
        Ok(match kind {
            ExpressionKind::Constant(value) => value.clone(),
            ExpressionKind::Name(name) => self.named(name, scope),
            ExpressionKind::List(items) => PythonValue::list(self.values(items, scope)?)?,
            ExpressionKind::Tuple(items) => PythonValue::tuple(self.values(items, scope)?)?,
            ExpressionKind::Dict(pairs) => {
                let mut dict = Dict::default();
                for (key, value) in pairs {
                    dict.insert(self.value(key, scope)?, self.value(value, scope)?)?;
                }
                PythonValue::Dict(Arc::new(dict))
            }
            ExpressionKind::Attribute(object, name) => attributes::attribute(&self.value(object, scope)?, name)?,
            ExpressionKind::Item(object, key) => {
                attributes::item(&self.value(object, scope)?, &self.value(key, scope)?)?
            }
            ExpressionKind::Slice(object, bounds) => self.slice(object, bounds, scope)?,
            ExpressionKind::Not(operand) => PythonValue::Bool(!self.value(operand, scope)?.is_true()),
            ExpressionKind::Negative(operand) => operators::negative(&self.value(operand, scope)?)?,
            ExpressionKind::Positive(operand) => operators::positive(&self.value(operand, scope)?)?,
            ExpressionKind::Operation(operator, left, right) => self.operation(*operator, left, right, scope)?,
            ExpressionKind::And(left, right) => {
                let left = self.value(left, scope)?;
                if left.is_true() { self.value(right, scope)? } else { left }
            }
            ExpressionKind::Or(left, right) => {
                let left = self.value(left, scope)?;
                if left.is_true() { left } else { self.value(right, scope)? }
            }
            ExpressionKind::Comparison(first, others) => self.comparison(first, others, scope)?,
            ExpressionKind::Choice { test, yes, no } => match (self.value(test, scope)?.is_true(), no) {
                (true, _) => self.value(yes, scope)?,
                (false, Some(no)) => self.value(no, scope)?,
                (false, None) if self.is_constant => refuse!("the inline if-expression has no else section"),
                (false, None) => PythonValue::Undefined(
                    "the inline if-expression evaluated to false and no else section was defined.".into(),
                ),
            },
            ExpressionKind::Filter { name, value, arguments } => {
                let value = match value {
                    Some(value) => self.value(value, scope)?,
                    None => refuse!("the filter '{name}' has no value"),
                };
                let arguments = self.arguments(arguments, scope)?;
                self.apply_filter(name, &value, &arguments)?
            }
            ExpressionKind::Test { name, value, arguments } => {
                let value = self.value(value, scope)?;
                let arguments = self.arguments(arguments, scope)?;
                PythonValue::Bool(predicates::apply(&mut self.fuel, name, &value, &arguments)?)
            }
            ExpressionKind::Call { callee, arguments } => {
                let callee = self.value(callee, scope)?;
                let arguments = self.arguments(arguments, scope)?;
                self.call(&callee, &arguments)?
            }
        })
    }

    fn named(&self, name: &str, scope: &NameScope) -> PythonValue {
        let known = || self.variables.get(name).or_else(|| self.globals.get(name)).cloned();
        let found = scope.get(name).or_else(known);
        found.unwrap_or_else(|| {
            if name == "self" {
                return PythonValue::Template(self.blocks.keys().cloned().collect());
            }
            functions::named(name).map_or_else(|| PythonValue::undefined(name), PythonValue::Function)
        })
    }

    fn values(&mut self, all: &[TreeExpression], scope: &Arc<NameScope>) -> RenderResult<Vec<PythonValue>> {
        all.iter().map(|expression| self.value(expression, scope)).collect()
    }

    fn slice(
        &mut self,
        object: &TreeExpression,
        bounds: &[Option<Box<TreeExpression>>; 3],
        scope: &Arc<NameScope>,
    ) -> RenderResult<PythonValue> {
        let object = self.value(object, scope)?;
        let mut values = [PythonValue::None, PythonValue::None, PythonValue::None];
        for (value, bound) in values.iter_mut().zip(bounds) {
            if let Some(bound) = bound {
                *value = self.value(bound, scope)?;
            }
        }
        self.fuel.spend(object.size())?;
        match operators::slice(&object, values.each_ref()) {
            // A slice of constants by the wrong types is undefined there.
            Err(RenderFault::Failed { message, .. })
                if self.is_constant
                    && !object.is_undefined()
                    && (values[2].as_int() != Some(0) || !operators::is_sliceable(&object)) =>
            {
                Ok(PythonValue::Undefined(message.into()))
            }
            sliced => sliced,
        }
    }

    fn operation(
        &mut self,
        operator: Operator,
        left: &TreeExpression,
        right: &TreeExpression,
        scope: &Arc<NameScope>,
    ) -> RenderResult<PythonValue> {
        if operator == Operator::Concatenate && self.escapes.here == Escaping::On {
            return self.concatenated(left, right, scope);
        }
        let (left, right) = (self.value(left, scope)?, self.value(right, scope)?);
        let made = operators::apply(operator, &left, &right)?;
        self.fuel.spend(made.size())?;
        Ok(made)
    }

    fn comparison(
        &mut self,
        first: &TreeExpression,
        others: &[(Comparison, TreeExpression)],
        scope: &Arc<NameScope>,
    ) -> RenderResult<PythonValue> {
        let mut left = self.value(first, scope)?;
        for (comparison, right) in others {
            let right = self.value(right, scope)?;
            self.fuel.spend(left.weight().saturating_add(right.weight()))?;
            if !operators::compare(*comparison, &left, &right)? {
                return Ok(PythonValue::Bool(false));
            }
            left = right;
        }
        Ok(PythonValue::Bool(true))
    }
}
