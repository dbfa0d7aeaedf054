//! Filters where `autoescape` is on: some keep the marks of texts, and escape what has none.

use super::arguments::Arguments;
use super::fault::RenderResult;
use super::fuel::Fuel;
use super::markup::{escaped, is_markup, marked};
use super::sequences::Path;
use super::value::PythonValue;
use super::{filters, sequences, text};

/// The value that a filter makes of another one, where `autoescape` is on.
pub(super) fn apply(
    fuel: &mut Fuel,
    name: &str,
    value: &PythonValue,
    arguments: &Arguments,
) -> RenderResult<PythonValue> {
    if name == "map" {
        fuel.spend(value.size())?;
        let made = sequences::apply(fuel, name, value, arguments, apply)?;
        return filters::finished(fuel, made.unwrap_or(PythonValue::None), false);
    }
    fuel.spend(value.weight())?;
    match (name, filtered(name, value, arguments)?) {
        (_, Some(made)) => filters::finished(fuel, made, false),
        ("xmlattr", None) => Ok(marked(true, filters::apply(fuel, name, value, arguments)?.print()?)),
        _ => filters::apply(fuel, name, value, arguments),
    }
}

/// Filters that look at `autoescape`, where it is on.
fn filtered(name: &str, value: &PythonValue, arguments: &Arguments) -> RenderResult<Option<PythonValue>> {
    let soft = |value: PythonValue| {
        if is_markup(&value) { Ok(value) } else { value.print().map(PythonValue::text) }
    };
    Ok(Some(match name {
        "replace" => {
            let [old, new, count] = arguments.bind(["old", "new", "count"], 2)?;
            let [old, new] = [old, new].map(|value| value.unwrap_or(PythonValue::None));
            let is_escaped = is_markup(&old) || (is_markup(&new) && !is_markup(value));
            let this = match value {
                PythonValue::Markup(_) => value.clone(),
                other => marked(is_escaped, if is_escaped { escaped(&other.print()?) } else { other.print()? }),
            };
            let count = count.filter(|count| !count.is_none()).into_iter();
            let places = [soft(old)?, soft(new)?].into_iter().chain(count).collect();
            text::call(&this, "replace", &Arguments { places, names: Vec::new() })?
        }
        "join" => {
            let [between, attribute] = arguments.bind(["d", "attribute"], 0)?;
            let path = attribute.filter(|name| !name.is_none()).map(|name| Path::of(&name)).transpose()?;
            let mut items = Vec::new();
            for item in value.each() {
                let item = item?;
                items.push(soft(path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item, None))?)?);
            }
            let between = soft(between.unwrap_or_else(|| PythonValue::text("")))?;
            let between = match &between {
                PythonValue::Text(plain) if items.iter().any(is_markup) => PythonValue::Markup(escaped(plain).into()),
                _ => between,
            };
            text::joined(&between, &PythonValue::list(items)?)?
        }
        _ => return Ok(None),
    }))
}
