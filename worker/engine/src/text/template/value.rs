//! The values of a template, which are Python's: their types, truth, equality and order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::extent::ValueExtent;
use super::fault::{RenderFault, RenderResult, refuse};
use super::macros::MacroHandle;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum PythonValue {
    /// Jinja2's default `Undefined`, with its description.
    Undefined(Arc<str>),
    None,
    /// The content of a message that has none: `None` that prints nothing.
    NoContent,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
    /// Text marked `safe`. What is added to it is escaped for HTML.
    Markup(Arc<str>),
    List(Arc<Items>),
    Tuple(Arc<Items>),
    Dict(Arc<Dict>),
    Range(Range),
    View(ViewKind, Arc<Dict>),
    Lazy(Arc<Lazy>),
    Namespace(Arc<SharedDict>),
    Loop(Arc<LoopState>),
    Macro(Arc<MacroHandle>),
    Joiner(Arc<Joiner>),
    Cycler(Arc<Cycler>),
    /// `self`, with the names of the template's blocks.
    Template(Arc<[Arc<str>]>),
    /// A block of the template, by its name.
    Block(Arc<str>),
    /// A function that every template has, by its name.
    Function(&'static str),
    Method(Arc<Method>),
}

/// The items of a list or a tuple. Both are immutable: the reference's sandbox refuses every change of them.
#[derive(Debug, Default)]
pub(super) struct Items {
    pub(super) values: Vec<PythonValue>,
    /// Names of the values, which are their attributes.
    pub(super) names: &'static [&'static str],
    extent: ValueExtent,
}

/// A mapping in the order of insertion.
#[derive(Clone, Debug, Default)]
pub(super) struct Dict {
    entries: Vec<(PythonValue, PythonValue)>,
    places: BTreeMap<DictKey, usize>,
    extent: ValueExtent,
}

/// The integers of a `range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: i128,
    /// The bound as it was given, which need not be a multiple of the step away.
    pub(super) stop: i128,
    pub(super) length: i128,
    pub(super) step: i128,
}

/// The part of a mapping that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewKind {
    Keys,
    Values,
    Items,
}

/// A generator: each item is given out once, and its fault where it has one.
#[derive(Debug)]
pub(super) struct Lazy {
    items: Mutex<VecDeque<RenderResult<PythonValue>>>,
    extent: ValueExtent,
}

/// A namespace, the one value that templates may change.
#[derive(Debug)]
pub(super) struct SharedDict(Mutex<Dict>);

/// The variable `loop`.
#[derive(Debug)]
pub(super) struct LoopState {
    pub(super) items: Vec<PythonValue>,
    pub(super) place: Mutex<usize>,
    pub(super) depth: usize,
    pub(super) changed: Mutex<Option<Vec<PythonValue>>>,
    /// The number under which the rendering keeps the loop, if the loop may be called.
    pub(super) recursion: Option<usize>,
}

/// `joiner`: a separator from the second call on.
#[derive(Debug)]
pub(super) struct Joiner {
    pub(super) separator: PythonValue,
    pub(super) used: AtomicBool,
}

/// `cycler`: values in turn.
#[derive(Debug)]
pub(super) struct Cycler {
    pub(super) items: Vec<PythonValue>,
    pub(super) place: Mutex<usize>,
}

/// A method with its object.
#[derive(Debug)]
pub(super) struct Method {
    pub(super) this: PythonValue,
    pub(super) name: &'static str,
}

/// A key, equal where Python's keys are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DictKey {
    None,
    Undefined,
    Int(i128),
    Float(u64),
    Text(Arc<str>),
    Tuple(Vec<DictKey>),
    Range(i128, i128, i128),
    /// Functions and objects, by their addresses.
    Object(usize),
    Name(&'static str),
}

/// The most pieces that a text is taken apart into. A text has less weight than its characters would have.
pub(super) const MOST_PIECES: usize = 1 << 22;

/// The fault of a text with more pieces.
pub(super) const TOO_MANY_PIECES: RenderFault =
    RenderFault::Limit("takes a text apart into more than 4 million pieces");

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PythonValue {
    pub(super) fn text(text: impl AsRef<str>) -> Self {
        Self::Text(text.as_ref().into())
    }

    pub(super) fn undefined(name: &str) -> Self {
        Self::Undefined(format!("'{name}' is undefined").into())
    }

    pub(super) fn list(values: Vec<PythonValue>) -> RenderResult<Self> {
        Ok(Self::List(Arc::new(Items {
            extent: ValueExtent::around(values.iter().map(PythonValue::extent))?,
            names: &[],
            values,
        })))
    }

    pub(super) fn tuple(values: Vec<PythonValue>) -> RenderResult<Self> {
        Self::named_tuple(&[], values)
    }

    /// A tuple whose values are attributes too.
    pub(super) fn named_tuple(names: &'static [&'static str], values: Vec<PythonValue>) -> RenderResult<Self> {
        Ok(Self::Tuple(Arc::new(Items {
            extent: ValueExtent::around(values.iter().map(PythonValue::extent))?,
            names,
            values,
        })))
    }

    pub(super) fn dict(pairs: impl IntoIterator<Item = (PythonValue, PythonValue)>) -> RenderResult<Self> {
        let mut dict = Dict::default();
        for (key, value) in pairs {
            dict.insert(key, value)?;
        }
        Ok(Self::Dict(Arc::new(dict)))
    }

    /// A generator of these items, the last of which may be a fault.
    pub(super) fn lazy(items: impl IntoIterator<Item = RenderResult<PythonValue>>) -> RenderResult<Self> {
        let mut queue = VecDeque::new();
        for item in items {
            let failed = item.is_err();
            queue.push_back(item);
            if failed {
                break;
            }
        }
        let extent = ValueExtent::around(queue.iter().filter_map(|item| item.as_ref().ok().map(PythonValue::extent)))?;
        Ok(Self::Lazy(Arc::new(Lazy { items: Mutex::new(queue), extent })))
    }

    pub(super) fn namespace(dict: Dict) -> Self {
        Self::Namespace(Arc::new(SharedDict(Mutex::new(dict))))
    }

    fn extent(&self) -> ValueExtent {
        let leaf = ValueExtent { depth: 0, weight: 1 };
        match self {
            Self::Text(text) | Self::Markup(text) => ValueExtent { depth: 0, weight: 1 + (text.len() as u64) / 64 },
            Self::List(items) | Self::Tuple(items) => items.extent,
            Self::Dict(dict) | Self::View(_, dict) => dict.extent,
            Self::Lazy(lazy) => lazy.extent,
            Self::Namespace(shared) => lock(&shared.0).extent,
            Self::Method(method) => leaf.with(method.this.extent()),
            Self::Joiner(joiner) => leaf.with(joiner.separator.extent()),
            Self::Cycler(cycler) => cycler.items.iter().fold(leaf, |all, item| all.with(item.extent())),
            Self::Loop(state) => state.items.iter().fold(leaf, |all, item| all.with(item.extent())),
            _ => leaf,
        }
    }

    /// The work of walking through the value, in steps.
    pub(super) fn weight(&self) -> u64 {
        self.extent().weight
    }

    /// The work of reading its bytes or copying its items, in steps.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Text(text) | Self::Markup(text) => (text.len() as u64) / 64,
            Self::List(items) | Self::Tuple(items) => items.values.len() as u64,
            Self::Dict(dict) | Self::View(_, dict) => dict.entries.len() as u64,
            Self::Range(range) => u64::try_from(range.length).unwrap_or(0),
            Self::Lazy(lazy) => lock(&lazy.items).len() as u64,
            _ => 0,
        }
    }

    /// Text, marked or not.
    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Markup(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None | Self::NoContent)
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// An integer, which truth values are too.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Bool(yes) => Some(i128::from(*yes)),
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// A number as a float.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            other => other.as_int().map(|number| number as f64),
        }
    }

    /// Fails as `Undefined` does in nearly every operation.
    pub(super) fn defined(&self) -> RenderResult<&Self> {
        match self {
            Self::Undefined(what) => Err(RenderFault::failed(what)),
            defined => Ok(defined),
        }
    }

    /// Python's name of the type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None | Self::NoContent => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Markup(_) => "Markup",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Range(_) => "range",
            Self::View(ViewKind::Keys, _) => "dict_keys",
            Self::View(ViewKind::Values, _) => "dict_values",
            Self::View(ViewKind::Items, _) => "dict_items",
            Self::Lazy(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Loop(_) => "LoopContext",
            Self::Macro(_) => "Macro",
            Self::Joiner(_) => "Joiner",
            Self::Cycler(_) => "Cycler",
            Self::Template(_) => "TemplateReference",
            Self::Block(_) => "BlockReference",
            Self::Function(_) => "function",
            Self::Method(_) => "builtin_function_or_method",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None | Self::NoContent => false,
            Self::Bool(yes) => *yes,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) | Self::Markup(text) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) => !items.values.is_empty(),
            Self::Dict(dict) | Self::View(_, dict) => !dict.entries.is_empty(),
            Self::Range(range) => range.length > 0,
            Self::Loop(state) => !state.items.is_empty(),
            _ => true,
        }
    }

    /// The number of items, where the type knows it.
    pub(super) fn length(&self) -> Option<usize> {
        Some(match self {
            Self::Undefined(_) => 0,
            Self::Text(text) | Self::Markup(text) => text.chars().count(),
            Self::List(items) | Self::Tuple(items) => items.values.len(),
            Self::Dict(dict) | Self::View(_, dict) => dict.entries.len(),
            Self::Range(range) => usize::try_from(range.length).unwrap_or(0),
            Self::Loop(state) => state.items.len(),
            _ => return None,
        })
    }

    /// Whether a loop may run over it.
    pub(super) fn is_iterable(&self) -> bool {
        self.length().is_some() || matches!(self, Self::Lazy(_))
    }

    /// All items. A generator is empty afterwards.
    pub(super) fn items(&self) -> RenderResult<Vec<PythonValue>> {
        self.each().collect()
    }

    /// The items one by one, with the fault that ends them.
    pub(super) fn each(&self) -> Box<dyn Iterator<Item = RenderResult<PythonValue>> + '_> {
        match self {
            Self::Undefined(_) => Box::new(std::iter::empty()),
            // The characters of marked text are not marked.
            Self::Text(text) | Self::Markup(text) => Box::new(text.chars().enumerate().map(|(at, c)| {
                if at >= MOST_PIECES { Err(TOO_MANY_PIECES) } else { Ok(Self::text(c.encode_utf8(&mut [0; 4]))) }
            })),
            Self::List(items) | Self::Tuple(items) => Box::new(items.values.iter().cloned().map(Ok)),
            Self::Dict(dict) | Self::View(ViewKind::Keys, dict) => {
                Box::new(dict.entries.iter().map(|(key, _)| Ok(key.clone())))
            }
            Self::View(ViewKind::Values, dict) => Box::new(dict.entries.iter().map(|(_, value)| Ok(value.clone()))),
            Self::View(ViewKind::Items, dict) => {
                Box::new(dict.entries.iter().map(|(key, value)| Self::tuple(vec![key.clone(), value.clone()])))
            }
            Self::Range(range) => {
                let Range { start, length, step, .. } = *range;
                Box::new((0..length).map(move |at| Ok(Self::Int(start + at * step))))
            }
            Self::Lazy(lazy) => Box::new(std::iter::from_fn(|| lock(&lazy.items).pop_front())),
            // A loop that runs over another one would take its items away.
            Self::Loop(_) => Box::new(std::iter::once(Err(RenderFault::failed("a loop cannot run over 'loop'")))),
            other => {
                let fault = RenderFault::failed(format_args!("'{}' object is not iterable", other.kind()));
                Box::new(std::iter::once(Err(fault)))
            }
        }
    }

    /// The key of a mapping that this value is, if its type can be one.
    pub(super) fn key(&self) -> RenderResult<DictKey> {
        Ok(match self {
            Self::Undefined(_) => DictKey::Undefined,
            Self::None | Self::NoContent => DictKey::None,
            Self::Bool(_) | Self::Int(_) => DictKey::Int(self.as_int().unwrap_or_default()),
            Self::Float(number) if number.fract() == 0.0 && number.abs() < 1e38 => DictKey::Int(*number as i128),
            Self::Float(number) => DictKey::Float(number.to_bits()),
            Self::Text(text) | Self::Markup(text) => DictKey::Text(Arc::clone(text)),
            Self::Tuple(items) => DictKey::Tuple(items.values.iter().map(Self::key).collect::<RenderResult<_>>()?),
            Self::Range(range) => DictKey::Range(range.start, range.length, range.step),
            Self::Namespace(shared) => DictKey::Object(Arc::as_ptr(shared).addr()),
            Self::Macro(made) => DictKey::Object(Arc::as_ptr(made).addr()),
            Self::Lazy(lazy) => DictKey::Object(Arc::as_ptr(lazy).addr()),
            Self::Joiner(joiner) => DictKey::Object(Arc::as_ptr(joiner).addr()),
            Self::Cycler(cycler) => DictKey::Object(Arc::as_ptr(cycler).addr()),
            Self::Loop(state) => DictKey::Object(Arc::as_ptr(state).addr()),
            Self::Function(name) => DictKey::Name(name),
            Self::Template(_) => DictKey::Name("self"),
            Self::Block(name) => DictKey::Tuple(vec![DictKey::Name("self"), DictKey::Text(Arc::clone(name))]),
            Self::Method(method) => {
                let this = match &method.this {
                    Self::List(items) => DictKey::Object(Arc::as_ptr(items).addr()),
                    Self::Dict(dict) => DictKey::Object(Arc::as_ptr(dict).addr()),
                    this => this.key()?,
                };
                DictKey::Tuple(vec![this, DictKey::Name(method.name)])
            }
            // Views of keys and items are sets.
            Self::View(ViewKind::Values, dict) => DictKey::Object(Arc::as_ptr(dict).addr()),
            Self::List(_) | Self::Dict(_) | Self::View(..) => refuse!("unhashable type: '{}'", self.kind()),
        })
    }
}

impl Dict {
    pub(super) fn insert(&mut self, key: PythonValue, value: PythonValue) -> RenderResult<()> {
        let place = key.key()?;
        self.extent = self.extent.with(key.extent()).with(value.extent()).checked()?;
        match self.places.get(&place) {
            Some(at) => self.entries[*at].1 = value,
            None => {
                self.places.insert(place, self.entries.len());
                self.entries.push((key, value));
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &DictKey) -> Option<&PythonValue> {
        self.places.get(key).map(|at| &self.entries[*at].1)
    }

    pub(super) fn named(&self, name: &str) -> Option<&PythonValue> {
        // Most mappings have a few keys, and comparing them is cheaper than making a key.
        if self.entries.len() <= 16 {
            let found = self.entries.iter().find(|(key, _)| key.as_str() == Some(name));
            return found.map(|(_, value)| value);
        }
        self.get(&DictKey::Text(name.into()))
    }

    pub(super) fn entries(&self) -> &[(PythonValue, PythonValue)] {
        &self.entries
    }

    /// The keys in an order of their own, with the values.
    pub(super) fn by_key(&self) -> impl Iterator<Item = (&DictKey, &PythonValue)> {
        self.places.iter().map(|(key, at)| (key, &self.entries[*at].1))
    }
}

impl LoopState {
    pub(super) fn place(&self) -> usize {
        *lock(&self.place)
    }
}

impl SharedDict {
    pub(super) fn get(&self, name: &str) -> Option<PythonValue> {
        lock(&self.0).named(name).cloned()
    }

    pub(super) fn set(&self, name: &str, value: PythonValue) -> RenderResult<()> {
        // The value may be this namespace itself, so its extent is read before the lock is taken.
        let held = value.extent();
        let mut dict = lock(&self.0);
        let key = PythonValue::text(name);
        let place = key.key()?;
        // The value before is no part of the weight, but nothing needs that to be exact.
        let weight = dict.extent.weight.max(held.weight.saturating_add(1));
        dict.extent = ValueExtent { depth: dict.extent.depth.max(held.depth + 1), weight }.checked()?;
        match dict.places.get(&place).copied() {
            Some(at) => dict.entries[at].1 = value,
            None => {
                let at = dict.entries.len();
                dict.places.insert(place, at);
                dict.entries.push((key, value));
            }
        }
        Ok(())
    }

    pub(super) fn entries(&self) -> Vec<(PythonValue, PythonValue)> {
        lock(&self.0).entries.clone()
    }

    /// Drops what it holds, which may be itself.
    pub(super) fn clear(&self) {
        let held = std::mem::take(&mut *lock(&self.0));
        drop(held);
    }
}
