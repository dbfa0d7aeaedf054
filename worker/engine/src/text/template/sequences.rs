//! Jinja2's filters for sequences.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::arguments::{Arguments, integer, text};
use super::fault::{RenderFault, RenderResult, refuse};
use super::fuel::Fuel;
use super::operators::{self, Operator};
use super::printing::bounded;
use super::value::{PythonValue, ViewKind};
use super::{attributes, predicates};

/// Applies a filter by its name.
type Filter = fn(&mut Fuel, &str, &PythonValue, &Arguments) -> RenderResult<PythonValue>;

/// The value that a filter for sequences gives. None if it is no such filter.
pub(super) fn apply(
    fuel: &mut Fuel,
    name: &str,
    value: &PythonValue,
    arguments: &Arguments,
    filter: Filter,
) -> RenderResult<Option<PythonValue>> {
    Ok(Some(match name {
        "length" | "count" => {
            arguments.none()?;
            match value.length() {
                Some(length) => PythonValue::Int(length as i128),
                None => refuse!("object of type '{}' has no len()", value.kind()),
            }
        }
        "list" => {
            arguments.none()?;
            PythonValue::list(value.items()?)?
        }
        "first" => {
            arguments.none()?;
            let first = value.each().next().transpose()?;
            first.unwrap_or_else(|| PythonValue::Undefined("No first item, sequence was empty.".into()))
        }
        "last" => {
            arguments.none()?;
            last(value)?
        }
        "reverse" => reverse(value, arguments)?,
        "join" => join(value, arguments)?,
        "items" => {
            arguments.none()?;
            match value {
                PythonValue::Undefined(_) => PythonValue::lazy([])?,
                PythonValue::Dict(dict) => {
                    PythonValue::lazy(PythonValue::View(ViewKind::Items, Arc::clone(dict)).each())?
                }
                _ => PythonValue::lazy([Err(RenderFault::failed("Can only get item pairs from a mapping."))])?,
            }
        }
        "map" => map(fuel, value, arguments, filter)?,
        "select" => chosen(fuel, value, arguments, None, true)?,
        "reject" => chosen(fuel, value, arguments, None, false)?,
        "selectattr" | "rejectattr" => {
            let Some((attribute, rest)) = arguments.places.split_first() else {
                return Ok(Some(PythonValue::lazy([Err(RenderFault::failed(
                    "missing parameter for attribute name",
                ))])?));
            };
            let rest = Arguments { places: rest.to_vec(), names: arguments.names.clone() };
            chosen(fuel, value, &rest, Some(attribute), name == "selectattr")?
        }
        "sort" => sort(value, arguments)?,
        "min" | "max" => extreme(name, value, arguments)?,
        "unique" => unique(value, arguments)?,
        "groupby" => groupby(value, arguments)?,
        "dictsort" => dictsort(value, arguments)?,
        "sum" => sum(fuel, value, arguments)?,
        "batch" => batch(value, arguments)?,
        "slice" => slice(value, arguments)?,
        _ => return Ok(None),
    }))
}

fn last(value: &PythonValue) -> RenderResult<PythonValue> {
    let is_reversible = matches!(
        value,
        PythonValue::Undefined(_)
            | PythonValue::Text(_)
            | PythonValue::Markup(_)
            | PythonValue::List(_)
            | PythonValue::Tuple(_)
            | PythonValue::Dict(_)
            | PythonValue::View(..)
            | PythonValue::Range(_)
    );
    if !is_reversible {
        refuse!("'{}' object is not reversible", value.kind());
    }
    let last = match value {
        PythonValue::List(items) | PythonValue::Tuple(items) => items.values.last().cloned(),
        other => other.items()?.pop(),
    };
    Ok(last.unwrap_or_else(|| PythonValue::Undefined("No last item, sequence was empty.".into())))
}

fn reverse(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    arguments.none()?;
    if let Some(text) = value.as_str() {
        let reversed: String = text.chars().rev().collect();
        return Ok(if matches!(value, PythonValue::Markup(_)) {
            PythonValue::Markup(reversed.into())
        } else {
            PythonValue::text(reversed)
        });
    }
    let mut items = value.items()?;
    items.reverse();
    match value {
        // A generator is read into a list.
        PythonValue::Lazy(_) => PythonValue::list(items),
        _ => PythonValue::lazy(items.into_iter().map(Ok)),
    }
}

fn join(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [separator, attribute] = arguments.bind(["d", "attribute"], 0)?;
    let separator = separator.map_or_else(|| Ok(String::new()), |separator| separator.print())?;
    let path = attribute.filter(|attribute| !attribute.is_none()).map(|attribute| Path::of(&attribute)).transpose()?;
    let mut out = String::new();
    for (at, item) in value.each().enumerate() {
        let item = item?;
        if at > 0 {
            out.push_str(&separator);
        }
        let item = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item, None))?;
        out.push_str(&item.print()?);
        bounded(out.len())?;
    }
    Ok(PythonValue::text(out))
}

/// The longest way to an attribute, in bytes. Each item takes all of it.
const LONGEST_PATH: usize = 256;

/// The way to a part of an item: names and places, between dots.
pub(super) struct Path(Vec<PythonValue>);

impl Path {
    pub(super) fn of(attribute: &PythonValue) -> RenderResult<Self> {
        if attribute.as_str().is_some_and(|text| text.len() > LONGEST_PATH) {
            return Err(RenderFault::Limit("has an attribute of more than 256 bytes"));
        }
        Ok(Self(match attribute.as_str() {
            Some(text) => text
                .split('.')
                .map(|part| match part.parse::<u32>() {
                    Ok(place) if part.bytes().all(|b| b.is_ascii_digit()) => PythonValue::Int(i128::from(place)),
                    _ => PythonValue::text(part),
                })
                .collect(),
            None => vec![attribute.clone()],
        }))
    }

    pub(super) fn get(&self, item: &PythonValue, default: Option<&PythonValue>) -> RenderResult<PythonValue> {
        let mut value = item.clone();
        for part in &self.0 {
            value = attributes::item(&value, part)?;
            if let (Some(default), true) = (default, value.is_undefined()) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

fn map(fuel: &mut Fuel, value: &PythonValue, arguments: &Arguments, filter: Filter) -> RenderResult<PythonValue> {
    if !value.is_true() {
        return PythonValue::lazy([]);
    }
    if arguments.places.is_empty() && arguments.names.iter().any(|(name, _)| name.as_ref() == "attribute") {
        let bound = arguments.bind(["attribute", "default"], 1);
        let made = bound.and_then(|[attribute, default]| {
            let path = Path::of(&attribute.unwrap_or(PythonValue::None))?;
            let default = default.filter(|default| !default.is_none());
            Ok(value.each().map(move |item| path.get(&item?, default.as_ref())).collect::<Vec<_>>())
        });
        return PythonValue::lazy(made.unwrap_or_else(|fault| vec![Err(fault)]));
    }
    let Some((name, rest)) = arguments.places.split_first() else {
        return PythonValue::lazy([Err(RenderFault::failed("map requires a filter argument"))]);
    };
    let rest = Arguments { places: rest.to_vec(), names: arguments.names.clone() };
    let name = match text(name) {
        Ok(name) => name.to_owned(),
        Err(fault) => return PythonValue::lazy([Err(fault)]),
    };
    each(value, |item| {
        fuel.spend(1)?;
        filter(fuel, &name, &item, &rest).map(Some)
    })
}

/// A generator of what a step makes of each item. A fault ends it, and counts only if it is reached; a limit counts
/// at once.
fn each(
    value: &PythonValue,
    mut step: impl FnMut(PythonValue) -> RenderResult<Option<PythonValue>>,
) -> RenderResult<PythonValue> {
    let mut made = Vec::new();
    for item in value.each() {
        match item.and_then(&mut step) {
            Ok(None) => {}
            Ok(Some(item)) => made.push(Ok(item)),
            Err(limit @ RenderFault::Limit(_)) => return Err(limit),
            Err(fault) => {
                made.push(Err(fault));
                break;
            }
        }
    }
    PythonValue::lazy(made)
}

fn chosen(
    fuel: &mut Fuel,
    value: &PythonValue,
    arguments: &Arguments,
    attribute: Option<&PythonValue>,
    keeps: bool,
) -> RenderResult<PythonValue> {
    if !value.is_true() {
        return PythonValue::lazy([]);
    }
    let path = match attribute.map(Path::of).transpose() {
        Ok(path) => path,
        Err(fault) => return PythonValue::lazy([Err(fault)]),
    };
    let test = match arguments.places.split_first() {
        None => None,
        Some((name, rest)) => match text(name) {
            Ok(name) => Some((name, Arguments { places: rest.to_vec(), names: arguments.names.clone() })),
            Err(fault) => return PythonValue::lazy([Err(fault)]),
        },
    };
    each(value, |item| {
        fuel.spend(1)?;
        let tested = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item, None))?;
        let passes = match &test {
            Some((name, arguments)) => predicates::apply(fuel, name, &tested, arguments)?,
            None => tested.is_true(),
        };
        Ok((passes == keeps).then_some(item))
    })
}

/// The key by which items are compared: texts without regard to their case, unless it counts.
fn sort_key(value: PythonValue, case_counts: bool) -> PythonValue {
    match value.as_str() {
        Some(text) if !case_counts => PythonValue::text(text.to_lowercase()),
        _ => value,
    }
}

/// Items in the order of their keys. Items of one key stay in their order.
fn ordered<T>(mut keyed: Vec<(PythonValue, T)>, is_reverse: bool) -> RenderResult<Vec<(PythonValue, T)>> {
    let mut fault = None;
    keyed.sort_by(|(left, _), (right, _)| {
        let order = left.order(right).unwrap_or_else(|refused| {
            fault.get_or_insert(refused);
            None
        });
        let order = order.unwrap_or(Ordering::Equal);
        if is_reverse { order.reverse() } else { order }
    });
    fault.map_or(Ok(keyed), Err)
}

fn sort(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [reverse, case, attribute] = arguments.bind(["reverse", "case_sensitive", "attribute"], 0)?;
    let is_set = |flag: Option<PythonValue>| flag.is_some_and(|flag| flag.is_true());
    let (is_reverse, case_counts) = (is_set(reverse), is_set(case));
    // Several attributes are separated by commas.
    let paths: Vec<Path> = match attribute.filter(|attribute| !attribute.is_none()) {
        None => Vec::new(),
        Some(attribute) => match attribute.as_str() {
            Some(text) => {
                text.split(',').map(|part| Path::of(&PythonValue::text(part))).collect::<RenderResult<_>>()?
            }
            None => vec![Path::of(&attribute)?],
        },
    };
    let mut keyed = Vec::new();
    for item in value.each() {
        let item = item?;
        let key = match paths.as_slice() {
            [] => sort_key(item.clone(), case_counts),
            paths => {
                let parts = paths.iter().map(|path| Ok(sort_key(path.get(&item, None)?, case_counts)));
                PythonValue::list(parts.collect::<RenderResult<_>>()?)?
            }
        };
        keyed.push((key, item));
    }
    PythonValue::list(ordered(keyed, is_reverse)?.into_iter().map(|(_, item)| item).collect())
}

fn extreme(name: &str, value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [case, attribute] = arguments.bind(["case_sensitive", "attribute"], 0)?;
    let case_counts = case.is_some_and(|case| case.is_true());
    let path = attribute.filter(|attribute| !attribute.is_none()).map(|attribute| Path::of(&attribute)).transpose()?;
    let mut best: Option<(PythonValue, PythonValue)> = None;
    for item in value.each() {
        let item = item?;
        let key = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item, None))?;
        let key = sort_key(key, case_counts);
        let is_better = match &best {
            None => true,
            Some((known, _)) => {
                let order = key.order(known)?;
                order == Some(if name == "max" { Ordering::Greater } else { Ordering::Less })
            }
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| PythonValue::Undefined("No aggregated item, sequence was empty.".into()), |(_, item)| item))
}

fn unique(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [case, attribute] = arguments.bind(["case_sensitive", "attribute"], 0)?;
    let case_counts = case.is_some_and(|case| case.is_true());
    let path = attribute.filter(|attribute| !attribute.is_none()).map(|attribute| Path::of(&attribute)).transpose()?;
    let mut seen = BTreeSet::new();
    each(value, |item| {
        let key = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item, None))?;
        Ok(seen.insert(sort_key(key, case_counts).key()?).then_some(item))
    })
}

fn groupby(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [attribute, default, case] = arguments.bind(["attribute", "default", "case_sensitive"], 1)?;
    let path = Path::of(&attribute.unwrap_or(PythonValue::None))?;
    let default = default.filter(|default| !default.is_none());
    let case_counts = case.is_some_and(|case| case.is_true());
    let mut keyed = Vec::new();
    for item in value.each() {
        let item = item?;
        let own = path.get(&item, default.as_ref())?;
        keyed.push((sort_key(own.clone(), case_counts), (own, item)));
    }
    let mut groups: Vec<(PythonValue, PythonValue, Vec<PythonValue>)> = Vec::new();
    for (key, (own, item)) in ordered(keyed, false)? {
        match groups.last_mut() {
            Some((known, _, items)) if known.equals(&key) => items.push(item),
            _ => groups.push((key, own, vec![item])),
        }
    }
    const FIELDS: &[&str] = &["grouper", "list"];
    let made = groups
        .into_iter()
        .map(|(_, own, items)| PythonValue::named_tuple(FIELDS, vec![own, PythonValue::list(items)?]));
    PythonValue::list(made.collect::<RenderResult<_>>()?)
}

fn dictsort(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [case, by, reverse] = arguments.bind(["case_sensitive", "by", "reverse"], 0)?;
    let is_set = |flag: Option<PythonValue>| flag.is_some_and(|flag| flag.is_true());
    let place = match by.as_ref().and_then(PythonValue::as_str) {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(_) => refuse!("You can only sort by either \"key\" or \"value\""),
    };
    let PythonValue::Dict(dict) = value.defined()? else {
        refuse!("'{}' object has no attribute 'items'", value.kind())
    };
    let case_counts = is_set(case);
    let keyed = dict.entries().iter().map(|(key, value)| {
        let by = if place == 0 { key } else { value };
        (sort_key(by.clone(), case_counts), (key.clone(), value.clone()))
    });
    let pairs = ordered(keyed.collect(), is_set(reverse))?.into_iter();
    PythonValue::list(pairs.map(|(_, (key, value))| PythonValue::tuple(vec![key, value])).collect::<RenderResult<_>>()?)
}

fn sum(fuel: &mut Fuel, value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [attribute, start] = arguments.bind(["attribute", "start"], 0)?;
    let path = attribute.filter(|attribute| !attribute.is_none()).map(|attribute| Path::of(&attribute)).transpose()?;
    let mut all = start.unwrap_or(PythonValue::Int(0));
    if all.as_str().is_some() {
        refuse!("sum() can't sum strings [use ''.join(seq) instead]");
    }
    for item in value.each() {
        let item = item?;
        let item = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item, None))?;
        all = operators::apply(Operator::Add, &all, &item)?;
        fuel.spend(all.size() + 1)?;
    }
    Ok(all)
}

fn batch(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [count, fill] = arguments.bind(["linecount", "fill_with"], 1)?;
    let count = integer(count.as_ref())?.unwrap_or(1);
    let fill = fill.filter(|fill| !fill.is_none());
    let mut lines: Vec<Vec<PythonValue>> = Vec::new();
    let mut items = value.each();
    let made = loop {
        let Some(item) = items.next() else { break None };
        match item {
            Ok(item) => match lines.last_mut() {
                Some(line) if line.len() as i128 != count => line.push(item),
                _ => lines.push(vec![item]),
            },
            Err(fault) => break Some(fault),
        }
    };
    if let (Some(fill), Some(line)) = (fill, lines.last_mut()) {
        let count = usize::try_from(count).unwrap_or(0);
        bounded(count.saturating_mul(size_of::<PythonValue>()))?;
        line.resize(count.max(line.len()), fill);
    }
    let lines = lines.into_iter().map(PythonValue::list);
    PythonValue::lazy(lines.chain(made.map(Err)))
}

fn slice(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [count, fill] = arguments.bind(["slices", "fill_with"], 1)?;
    let count = integer(count.as_ref())?.unwrap_or(1);
    let fill = fill.filter(|fill| !fill.is_none());
    let items = match value.items() {
        Ok(items) => items,
        Err(fault) => return PythonValue::lazy([Err(fault)]),
    };
    if count == 0 {
        return PythonValue::lazy([Err(RenderFault::failed("integer division or modulo by zero"))]);
    }
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    bounded(count.saturating_mul(size_of::<PythonValue>()))?;
    let (each, longer) = (items.len() / count.max(1), items.len() % count.max(1));
    let mut items = items.into_iter();
    let mut lines = Vec::new();
    for at in 0..count {
        let mut line: Vec<PythonValue> = items.by_ref().take(each + usize::from(at < longer)).collect();
        if let (Some(fill), true) = (&fill, at >= longer) {
            line.push(fill.clone());
        }
        lines.push(PythonValue::list(line));
    }
    PythonValue::lazy(lines)
}
