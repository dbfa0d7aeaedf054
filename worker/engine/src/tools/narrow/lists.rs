//! Lists of different values.

use serde_json::{Map, Value, json};

/// Values of which lists are spelled out.
pub(super) const MOST_VALUES: usize = 9;

/// First items of a list that are told apart.
const MOST_FIRST: usize = 32;

/// Lists that are spelled out.
const MOST_LISTS: usize = 400;

/// Lists of different values: in any order, or in the order of the values where those are too many.
pub(super) fn lists_of(values: &[Value], least: usize, most: usize) -> Option<Vec<Value>> {
    let most = most.min(values.len());
    if values.len() > MOST_VALUES {
        return None;
    }
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut last: Vec<Vec<usize>> = vec![Vec::new()];
    let mut in_order = false;
    for length in 0..=most {
        if length >= least {
            all.extend(last.iter().cloned());
        }
        if all.len() + last.len() > MOST_LISTS {
            in_order = true;
            break;
        }
        last = last
            .iter()
            .flat_map(|list| {
                let others = (0..values.len()).filter(|value| !list.contains(value));
                others.map(|value| [list.as_slice(), &[value]].concat()).collect::<Vec<_>>()
            })
            .collect();
    }
    if in_order {
        let of = |set: u32| (0..values.len()).filter(move |value| set & (1 << value) != 0).collect::<Vec<_>>();
        let sets = (0..1_u32 << values.len()).map(of);
        all = sets.filter(|set| (least..=most).contains(&set.len())).collect();
    }
    (!all.is_empty()).then(|| all.iter().map(|list| list.iter().map(|at| values[*at].clone()).collect()).collect())
}

/// Schemas of so many first items that differ: shares of the values, or of the range of an integer.
pub(super) fn apart(items: &Map<String, Value>, values: Option<&[Value]>, count: usize) -> Option<Vec<Value>> {
    if !(2..=MOST_FIRST).contains(&count) {
        return None;
    }
    if let Some(values) = values {
        let share = values.len() / count;
        return (share > 0).then(|| values.chunks(share).take(count).map(|share| json!({ "enum": share })).collect());
    }
    let bound = |name: &str| items.get(name).and_then(Value::as_i64);
    if items.get("type").is_none_or(|kind| kind != "integer") || items.contains_key("multipleOf") {
        return None;
    }
    let least = bound("minimum").or_else(|| bound("exclusiveMinimum")?.checked_add(1))?;
    let most = bound("maximum").or_else(|| bound("exclusiveMaximum")?.checked_sub(1))?;
    let share = most.checked_sub(least)?.checked_add(1)? / count as i64;
    let of = |number: i64| {
        // Shares are within the range, which has no more than an integer's values.
        let first = least + number * share;
        json!({ "type": "integer", "minimum": first, "maximum": first + share - 1 })
    };
    (share > 0).then(|| (0..count as i64).map(of).collect())
}
