//! Differences between Python's types and minijinja's: which values are sequences, and which operations `None`
//! refuses.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, ValueKind};
use minijinja::{Environment, Error, State, filters};

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_test("none", is_none);
    environment.add_test("iterable", |value: &Value| !is_none(value) && value.try_iter().is_ok());
    // Jinja2 calls a sequence whatever has a length and can be indexed: texts and mappings too.
    environment.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined => true,
        // Lists added to one another are of this kind here.
        ValueKind::Iterable => value.downcast_object_ref::<Generator>().is_none(),
        _ => false,
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain && !is_none(value));
    environment.add_filter("builtin select", filters::select);
    environment.add_filter("builtin reject", filters::reject);
    environment.add_filter("builtin selectattr", filters::selectattr);
    environment.add_filter("builtin rejectattr", filters::rejectattr);
    environment.add_filter("builtin map", filters::map);
    lazy(environment, "select", "builtin select");
    lazy(environment, "reject", "builtin reject");
    lazy(environment, "selectattr", "builtin selectattr");
    lazy(environment, "rejectattr", "builtin rejectattr");
    lazy(environment, "map", "builtin map");
}

/// Jinja2's filters that give a generator. They take nothing for an empty list; their result can be looped over or made
/// a list, but is none.
fn lazy(environment: &mut Environment<'static>, name: &'static str, builtin: &'static str) {
    let filter = move |state: &mut State, value: Value, args: Rest<Value>, options: Kwargs| -> Result<Value, Error> {
        if is_none(&value) {
            return Ok(Value::from_object(Generator(Vec::new())));
        }
        let mut arguments = vec![value];
        arguments.extend(args.iter().cloned());
        if options.args().next().is_some() {
            arguments.push(Value::from(options));
        }
        let items = state.apply_filter(builtin, &arguments)?;
        Ok(Value::from_object(Generator(items.try_iter()?.collect())))
    };
    environment.add_filter(name, filter);
}

/// Items that come one after another and have no length.
#[derive(Debug)]
pub(super) struct Generator(Vec<Value>);

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(self.0.clone().into_iter()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// Python's `None` for values that the caller did not give. minijinja's own `none` loops like an empty list. Python
/// refuses that, and so must a template that needs an absent value.
#[derive(Debug)]
struct NoneObject;

impl Object for NoneObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        false
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("None")
    }
}

/// The content of a message that has none. Python would write `None` into the prompt, which no model was trained on.
#[derive(Debug)]
struct NoContentObject;

impl Object for NoContentObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        false
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// The content to give to a template for a message that has none.
pub(super) fn no_content_for(source: &str) -> Value {
    if compares_with_none(source) { Value::from(()) } else { Value::from_object(NoContentObject) }
}

/// The nothing to give to a template. One that compares with `none` gets minijinja's own, because objects of ours are
/// equal to nothing else.
pub(super) fn none_for(source: &str) -> Value {
    if compares_with_none(source) { Value::from(()) } else { Value::from_object(NoneObject) }
}

fn compares_with_none(source: &str) -> bool {
    ["== none", "== None", "!= none", "!= None"].iter().any(|comparison| source.contains(comparison))
}

/// Whether a value is nothing, in either form.
pub(super) fn is_none(value: &Value) -> bool {
    value.is_none()
        || value.downcast_object_ref::<NoneObject>().is_some()
        || value.downcast_object_ref::<NoContentObject>().is_some()
}
