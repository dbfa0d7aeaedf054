//! Runs a template: statements write text, expressions give values, and limits hold for both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::arguments::Arguments;
use super::fault::{RenderFault, RenderResult, refuse};
use super::fuel::Fuel;
use super::macros::MacroHandle;
use super::operators::{self, Comparison, Operator};
use super::scope::NameScope;
use super::tree::{Argument, AssignTarget, ExpressionKind, Flow, For, MacroSource, Statement, TreeExpression};
use super::value::{Dict, LoopState, PythonValue, SharedDict, lock};
use super::{attributes, filters, functions, methods, predicates};

/// The most bytes one rendering may write.
const LONGEST_OUTPUT: usize = 64 << 20;

/// The most statements, expressions and calls inside of one another. Python ends a macro that calls itself sooner.
const DEEPEST: usize = 1000;

/// One rendering.
pub(super) struct Interpreter<'a> {
    /// Variables of the conversation, over those of the template.
    variables: &'a BTreeMap<String, PythonValue>,
    globals: &'a BTreeMap<String, PythonValue>,
    fuel: Fuel,
    depth: usize,
    /// The output, and the texts that blocks capture, the innermost last.
    outputs: Vec<String>,
    /// Namespaces may hold themselves, and are emptied at the end.
    namespaces: Vec<Arc<SharedDict>>,
    /// The macros that were made, with the scopes in which they were.
    macros: Vec<(Arc<MacroSource>, Arc<NameScope>)>,
    /// The recursive loops that are running.
    loops: Vec<(Arc<For>, Arc<NameScope>)>,
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
    body: &[Statement],
    variables: &BTreeMap<String, PythonValue>,
    globals: &BTreeMap<String, PythonValue>,
) -> RenderResult<String> {
    let outputs = vec![String::new()];
    let mut run = Interpreter {
        variables,
        globals,
        fuel: Fuel::default(),
        depth: 0,
        outputs,
        namespaces: Vec::new(),
        macros: Vec::new(),
        loops: Vec::new(),
    };
    let scope = Arc::new(NameScope::default());
    let ended = run.statements(body, &scope);
    ended?;
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

    /// The text that a block writes.
    fn captured(&mut self, body: &[Statement], scope: &Arc<NameScope>) -> RenderResult<String> {
        self.outputs.push(String::new());
        let ended = self.statements(body, scope);
        let text = self.outputs.pop().unwrap_or_default();
        ended.map(|_| text)
    }

    fn statements(&mut self, body: &[Statement], scope: &Arc<NameScope>) -> RenderResult<Flow> {
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
            Statement::Emit(expression) => match self.value(expression, scope)? {
                PythonValue::Text(text) | PythonValue::Markup(text) => self.write(&text)?,
                other => self.write(&other.print()?)?,
            },
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
            Statement::With { assignments, body } => {
                let inner = NameScope::inside(scope);
                for (target, value) in assignments {
                    let value = self.value(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.statements(body, &inner);
            }
            Statement::Set(target, value) => {
                let value = self.value(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Statement::Capture { target, filter, body } => {
                let text = PythonValue::text(self.captured(body, &NameScope::inside(scope))?);
                let value = match filter {
                    Some(filter) => self.filtered(filter, text, scope)?,
                    None => text,
                };
                self.assign(target, value, scope)?;
            }
            Statement::Filtered { filter, body } => {
                let text = PythonValue::text(self.captured(body, &NameScope::inside(scope))?);
                let filtered = self.filtered(filter, text, scope)?;
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
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
            Statement::Refused(why) => refuse!("{why}"),
        }
        Ok(Flow::Next)
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
        self.macros.push((Arc::clone(source), Arc::clone(scope)));
        let parameters = source.parameters.iter().map(|(name, _)| Arc::clone(name)).collect();
        PythonValue::Macro(Arc::new(MacroHandle {
            number,
            name: Arc::clone(&source.name),
            parameters,
            reads: source.reads,
        }))
    }

    fn run_loop(
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
            return self.statements(&source.otherwise, &NameScope::inside(scope));
        }
        let recursion = source.is_recursive.then(|| {
            self.loops.push((Arc::clone(source), Arc::clone(scope)));
            self.loops.len() - 1
        });
        let state = LoopState { items, place: Mutex::new(0), depth, changed: Mutex::default(), recursion };
        let state = Arc::new(state);
        for at in 0..state.items.len() {
            *lock(&state.place) = at;
            let inner = NameScope::inside(scope);
            inner.set(&"loop".into(), PythonValue::Loop(Arc::clone(&state)));
            self.assign(&source.target, state.items[at].clone(), &inner).map_err(|fault| fault.at(line))?;
            if self.statements(&source.body, &inner)? == Flow::Break {
                break;
            }
        }
        if let Some(number) = recursion {
            self.loops.truncate(number);
        }
        Ok(Flow::Next)
    }

    fn assign(&mut self, target: &AssignTarget, value: PythonValue, scope: &Arc<NameScope>) -> RenderResult<()> {
        self.fuel.spend(1)?;
        match target {
            AssignTarget::Name(name) => scope.set(name, value),
            AssignTarget::Attribute(object, name) => match self.value(object, scope)? {
                PythonValue::Namespace(shared) => shared.set(name, value)?,
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
        filters::apply(&mut self.fuel, name, &text, &arguments).map_err(|fault| fault.at(filter.line))
    }

    /// The value of an expression.
    fn value(&mut self, expression: &TreeExpression, scope: &Arc<NameScope>) -> RenderResult<PythonValue> {
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
                filters::apply(&mut self.fuel, name, &value, &arguments)?
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
        operators::slice(&object, values.each_ref())
    }

    fn operation(
        &mut self,
        operator: Operator,
        left: &TreeExpression,
        right: &TreeExpression,
        scope: &Arc<NameScope>,
    ) -> RenderResult<PythonValue> {
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

    fn arguments(&mut self, all: &[Argument], scope: &Arc<NameScope>) -> RenderResult<Arguments> {
        let mut arguments = Arguments::default();
        for argument in all {
            match argument {
                Argument::Place(value) => arguments.places.push(self.value(value, scope)?),
                Argument::Name(name, value) => arguments.names.push((Arc::clone(name), self.value(value, scope)?)),
                Argument::Places(values) => arguments.places.extend(self.value(values, scope)?.items()?),
                Argument::Names(values) => {
                    let PythonValue::Dict(dict) = self.value(values, scope)? else {
                        refuse!("argument after ** must be a mapping")
                    };
                    for (name, value) in dict.entries() {
                        let Some(name) = name.as_str() else { refuse!("keywords must be strings") };
                        arguments.names.push((name.into(), value.clone()));
                    }
                }
            }
        }
        Ok(arguments)
    }

    /// Calls a value.
    pub(super) fn call(&mut self, callee: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
        let made = match callee.defined()? {
            PythonValue::Function(name) => functions::call(name, arguments)?,
            PythonValue::Method(method) => {
                self.fuel.spend(method.this.weight())?;
                methods::call(method, arguments)?
            }
            PythonValue::Joiner(joiner) => functions::join(joiner, arguments)?,
            PythonValue::Macro(made) => self.call_macro(made, arguments)?,
            PythonValue::Loop(state) => self.call_loop(state, arguments)?,
            other => refuse!("'{}' object is not callable", other.kind()),
        };
        if let PythonValue::Namespace(shared) = &made {
            self.namespaces.push(Arc::clone(shared));
        }
        self.fuel.spend(made.size())?;
        Ok(made)
    }

    fn call_loop(&mut self, state: &LoopState, arguments: &Arguments) -> RenderResult<PythonValue> {
        let Some(number) = state.recursion else {
            refuse!("The loop must have the 'recursive' marker to be called recursively.")
        };
        let Some((source, scope)) = self.loops.get(number).cloned() else { refuse!("the loop has ended") };
        let items = arguments.one()?;
        self.outputs.push(String::new());
        let ended = self.run_loop(&source, &items, &scope, state.depth + 1);
        let text = self.outputs.pop().unwrap_or_default();
        ended.map(|_| PythonValue::text(text))
    }

    fn call_macro(&mut self, made: &MacroHandle, arguments: &Arguments) -> RenderResult<PythonValue> {
        let Some((source, around)) = self.macros.get(made.number).cloned() else { refuse!("there is no such macro") };
        let MacroSource { name, parameters, body, reads } = source.as_ref();
        let scope = NameScope::inside(&around);
        let (placed, surplus) = arguments.places.split_at(parameters.len().min(arguments.places.len()));
        if !surplus.is_empty() && !reads.varargs {
            refuse!("macro '{name}' takes not more than {} argument(s)", parameters.len());
        }
        let mut named: Vec<(Arc<str>, PythonValue)> = arguments.names.clone();
        let mut take = |name: &str| {
            let at = named.iter().position(|(known, _)| known.as_ref() == name)?;
            Some(named.remove(at).1)
        };
        let mut defaults = Vec::new();
        for (at, (parameter, default)) in parameters.iter().enumerate() {
            match (placed.get(at), take(parameter)) {
                (Some(_), Some(_)) => refuse!("macro '{name}' got multiple values for argument '{parameter}'"),
                (Some(value), None) => scope.set(parameter, value.clone()),
                (None, Some(value)) => scope.set(parameter, value),
                (None, None) => defaults.push((parameter, default)),
            }
        }
        if reads.caller && !parameters.iter().any(|(name, _)| name.as_ref() == "caller") {
            let caller = take("caller").unwrap_or_else(|| PythonValue::Undefined("No caller defined".into()));
            scope.set(&"caller".into(), caller);
        }
        if reads.kwargs {
            let pairs = named.drain(..).map(|(name, value)| (PythonValue::Text(name), value));
            scope.set(&"kwargs".into(), PythonValue::dict(pairs)?);
        } else if let Some((unknown, _)) = named.first() {
            refuse!("macro '{name}' takes no keyword argument '{unknown}'");
        }
        if reads.varargs {
            scope.set(&"varargs".into(), PythonValue::tuple(surplus.to_vec())?);
        }
        for (parameter, default) in defaults {
            let value = match default {
                Some(default) => self.value(default, &scope)?,
                None => PythonValue::Undefined(format!("parameter '{parameter}' was not provided").into()),
            };
            scope.set(parameter, value);
        }
        Ok(PythonValue::text(self.captured(body, &scope)?))
    }
}
