//! Lists of different values.

use serde_json::Value;

/// Values of which lists are spelled out.
pub(super) const MOST_VALUES: usize = 9;

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
