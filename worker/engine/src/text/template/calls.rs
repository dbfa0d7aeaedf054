//! Calls: of functions, methods, macros, recursive loops and blocks.

use std::sync::Arc;

use super::arguments::Arguments;
use super::fault::{RenderResult, refuse};
use super::interpreter::Interpreter;
use super::macros::MacroHandle;
use super::markup::{Escapes, Escaping, marked};
use super::printing::bounded;
use super::scope::NameScope;
use super::tree::{Argument, MacroSource};
use super::value::{LoopState, PythonValue};
use super::{functions, methods};

impl Interpreter<'_> {
    pub(super) fn arguments(&mut self, all: &[Argument], scope: &Arc<NameScope>) -> RenderResult<Arguments> {
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
                let weights = arguments.places.iter().map(PythonValue::weight);
                self.fuel.spend(weights.fold(method.this.weight(), u64::saturating_add))?;
                methods::call(method, arguments)?
            }
            PythonValue::Joiner(joiner) => functions::join(joiner, arguments)?,
            PythonValue::Macro(made) => self.call_macro(made, arguments)?,
            PythonValue::Loop(state) => self.call_loop(state, arguments)?,
            PythonValue::Block(name) => {
                arguments.none()?;
                self.call_template_block(name)?
            }
            other => refuse!("'{}' object is not callable", other.kind()),
        };
        bounded(made.as_str().map_or(0, str::len))?;
        if let PythonValue::Namespace(shared) = &made {
            self.namespaces.push(Arc::clone(shared));
        }
        self.fuel.spend(made.size())?;
        Ok(made)
    }

    /// The text of a block, as `self` gives it.
    fn call_template_block(&mut self, name: &str) -> RenderResult<PythonValue> {
        let Some(block) = self.blocks.get(name).cloned() else { refuse!("there is no block '{name}'") };
        if block.is_required {
            refuse!("Required block '{name}' not found");
        }
        let root = Arc::clone(&self.root);
        let text = self.elsewhere(Escaping::Off, |run| run.captured(&block.frame, &root))?.0;
        Ok(marked(self.escapes.running, text))
    }

    fn call_loop(&mut self, state: &LoopState, arguments: &Arguments) -> RenderResult<PythonValue> {
        let Some(number) = state.recursion else {
            refuse!("The loop must have the 'recursive' marker to be called recursively.")
        };
        let Some((source, scope)) = self.loops.get(number).cloned() else { refuse!("the loop has ended") };
        let items = arguments.one()?;
        let depth = state.depth + 1;
        let text = self.written(|run| run.run_loop(&source, &items, &scope, depth))?.0;
        Ok(self.escapes.text(text))
    }

    fn call_macro(&mut self, made: &MacroHandle, arguments: &Arguments) -> RenderResult<PythonValue> {
        let Some((source, around, place)) = self.macros.get(made.number).cloned() else {
            refuse!("there is no such macro")
        };
        let is_marked = self.escapes.running || Escapes { here: place, ..self.escapes }.is_on();
        self.elsewhere(place, |run| run.call_body(&source, &around, arguments)).map(|text| marked(is_marked, text))
    }

    /// The text of a macro.
    fn call_body(
        &mut self,
        source: &MacroSource,
        around: &Arc<NameScope>,
        arguments: &Arguments,
    ) -> RenderResult<String> {
        let MacroSource { name, parameters, frame, reads } = source;
        let scope = NameScope::of(frame, around);
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
            // A parameter with a value by place leaves one by name to the others.
            match placed.get(at).cloned().or_else(|| take(parameter)) {
                Some(value) => scope.set(parameter, value),
                None => {
                    // A default may name a later parameter, which has no value yet.
                    scope.set(parameter, PythonValue::undefined(parameter));
                    defaults.push((parameter, default));
                }
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
        Ok(self.written(|run| run.statements(&frame.body, &scope))?.0)
    }
}
