//! Patterns of ECMA-262 that the library does not read, and texts that must not match, as patterns that it does read.

use serde_json::{Map, Value, json};

use super::super::joined::{any, types};
use crate::constraint::{TextSet, can_be_met};
use crate::regular::{Regular, RegularSets};

/// Texts that stand for a pattern which has no short form.
const MOST_TEXTS: usize = 8;

/// Longest texts of those.
const LONGEST_TEXT: usize = 100;

/// Counts of characters that are written within a pattern.
const MOST_COUNTED: u64 = 64;

/// Patterns of keys that are told apart.
const MOST_KEYS: usize = 4;

/// Replaces a pattern that cannot be read by one that can, or by some of its texts.
pub(super) fn readable_pattern(fields: &mut Map<String, Value>, also: &mut Vec<Value>, sets: &RegularSets) {
    let Some(pattern) = fields.get("pattern").and_then(Value::as_str).map(str::to_owned) else { return };
    if is_readable(&pattern) {
        return;
    }
    fields.shift_remove("pattern");
    let demands = demands_of(&pattern);
    let readable = demands.iter().map(|(demand, holds)| {
        if *holds && is_readable(demand) { Regular::Pattern(demand.clone()) } else { sets.meeting(&[(demand, *holds)]) }
    });
    let found: Vec<Regular> = readable.collect();
    if found.contains(&Regular::Unknown) {
        return match sets.meeting(&[(&pattern, true)]) {
            Regular::Pattern(plain) => drop(fields.insert("pattern".to_owned(), plain.into())),
            Regular::Nothing => also.push(no_text(fields)),
            Regular::Unknown => also.extend(some_texts(&[(&pattern, true)], fields, sets)),
        };
    }
    for part in found {
        match part {
            Regular::Pattern(plain) if !fields.contains_key("pattern") => {
                fields.insert("pattern".to_owned(), plain.into());
            }
            Regular::Pattern(plain) => also.push(json!({ "pattern": plain })),
            _ => also.push(no_text(fields)),
        }
    }
}

/// Patterns of keys as those that can be read, of which no two have a key in common. Where one has no such form it is
/// left out, and with it are all keys that no schema names: they might be such keys.
pub(super) fn readable_keys(fields: &mut Map<String, Value>, sets: &RegularSets) {
    let Some(Value::Object(patterns)) = fields.get_mut("patternProperties") else { return };
    let mut readable = Map::new();
    let mut lost = false;
    for (pattern, schema) in std::mem::take(patterns) {
        let is_known = is_readable(&pattern);
        // Of one that refers back, some keys are left out.
        lost |= !is_known && sets.refers_back(&pattern);
        match if is_known { Regular::Pattern(pattern) } else { sets.meeting(&[(&pattern, true)]) } {
            Regular::Pattern(plain) => drop(readable.insert(plain, schema)),
            Regular::Nothing => {}
            Regular::Unknown => lost = true,
        }
    }
    *patterns = match apart(&readable, sets) {
        Some(apart) => apart,
        None => readable,
    };
    if patterns.is_empty() {
        fields.shift_remove("patternProperties");
    }
    if lost {
        fields.insert("additionalProperties".to_owned(), json!(false));
    }
}

/// Patterns of keys of which no two have a key in common. `None` where they are so already, or it is not known.
fn apart(patterns: &Map<String, Value>, sets: &RegularSets) -> Option<Map<String, Value>> {
    let keys: Vec<&String> = patterns.keys().collect();
    let mut pairs =
        keys.iter().enumerate().flat_map(|(at, a)| keys[..at].iter().map(move |b| (a.as_str(), b.as_str())));
    if keys.len() > MOST_KEYS || pairs.all(|(a, b)| sets.meeting(&[(a, true), (b, true)]) == Regular::Nothing) {
        return None;
    }
    let mut all = Map::new();
    for chosen in 1..1_u32 << keys.len() {
        let demands: Vec<_> =
            keys.iter().enumerate().map(|(at, key)| (key.as_str(), chosen & (1 << at) != 0)).collect();
        let schemas: Vec<&Value> =
            demands.iter().zip(patterns.values()).filter(|((_, is), _)| *is).map(|(_, schema)| schema).collect();
        match sets.meeting(&demands) {
            Regular::Pattern(plain) if schemas.len() == 1 => drop(all.insert(plain, schemas[0].clone())),
            Regular::Pattern(plain) => drop(all.insert(plain, json!({ "allOf": schemas }))),
            Regular::Nothing => {}
            Regular::Unknown => return None,
        }
    }
    Some(all)
}

/// Texts in which a pattern is not found.
pub(super) fn without(pattern: &str, within: &Map<String, Value>, sets: &RegularSets) -> Option<Value> {
    match sets.meeting(&[(pattern, false)]) {
        Regular::Pattern(plain) => Some(json!({ "type": "string", "pattern": plain })),
        Regular::Nothing => None,
        Regular::Unknown => {
            let also = within.get("pattern").and_then(Value::as_str).map(|pattern| (pattern, true));
            let demands: Vec<_> = also.into_iter().chain([(pattern, false)]).collect();
            let texts = sets.texts(&demands, lengths(within), MOST_TEXTS);
            (!texts.is_empty()).then(|| json!({ "enum": texts }))
        }
    }
}

/// Whether no text has both patterns.
pub(super) fn are_apart(a: &Map<String, Value>, b: &Map<String, Value>, sets: &RegularSets) -> bool {
    let pattern = |schema: &Map<String, Value>| schema.get("pattern").and_then(Value::as_str).map(str::to_owned);
    let (Some(a), Some(b)) = (pattern(a), pattern(b)) else { return false };
    // Without the texts that a back-reference leaves out, they might seem to be apart.
    !sets.refers_back(&a) && !sets.refers_back(&b) && sets.meeting(&[(&a, true), (&b, true)]) == Regular::Nothing
}

/// One pattern of the texts that a schema of texts allows, by its patterns and counts.
pub(super) fn of_texts(fields: &Map<String, Value>, sets: &RegularSets) -> Option<String> {
    let patterns = patterns_of(fields);
    match (patterns.as_slice(), counted(fields)) {
        ([], _) => None,
        ([only], None) => Some((*only).to_owned()),
        (patterns, counted) => {
            let all = patterns.iter().copied().chain(counted.as_deref()).map(|pattern| (pattern, true));
            match sets.meeting(&all.collect::<Vec<_>>()) {
                Regular::Pattern(plain) => Some(plain),
                _ => None,
            }
        }
    }
}

/// Joins patterns of a schema, where the library would not find out that there are such texts. Returns what holds
/// beside.
pub(super) fn settle(fields: &mut Map<String, Value>, sets: &RegularSets) -> Option<Value> {
    let patterns = patterns_of(fields);
    let counts = [fields.get("minLength"), fields.get("maxLength")].map(|count| count.and_then(Value::as_u64));
    let [least, most] = counts;
    if patterns.is_empty() || (patterns.len() == 1 && counts == [None, None]) || !sets.afford_check() {
        return None;
    }
    if can_be_met(&patterns, least.unwrap_or(0), most) {
        return None;
    }
    let counted = counted(fields);
    let demands: Vec<_> = patterns.iter().copied().chain(counted.as_deref()).map(|pattern| (pattern, true)).collect();
    let also = match sets.meeting(&demands) {
        Regular::Pattern(plain) if counted.is_some() || can_be_met(&[&plain], least.unwrap_or(0), most) => {
            json!({ "pattern": plain })
        }
        Regular::Nothing => no_text(fields),
        _ => some_texts(&demands, fields, sets)?,
    };
    let is_counted = counted.is_some();
    fields.shift_remove("pattern");
    if let Some(Value::Array(all)) = fields.get_mut("allOf") {
        // A type holds still.
        all.iter_mut().filter(|part| is_pattern(part)).for_each(|part| {
            part.as_object_mut().map(|part| part.shift_remove("pattern"));
        });
    }
    if is_counted || also.get("pattern").is_none() {
        fields.shift_remove("minLength");
        fields.shift_remove("maxLength");
    }
    Some(also)
}

/// The patterns of a schema and of those that hold beside it.
fn patterns_of(fields: &Map<String, Value>) -> Vec<&str> {
    let beside = fields.get("allOf").and_then(Value::as_array).into_iter().flatten().filter(|part| is_pattern(part));
    let all = fields.get("pattern").into_iter().chain(beside.filter_map(|part| part.get("pattern")));
    all.filter_map(Value::as_str).collect()
}

/// Whether a schema is a pattern alone.
fn is_pattern(schema: &Value) -> bool {
    schema.as_object().is_some_and(|fields| {
        fields.contains_key("pattern")
            && fields.iter().all(|(name, value)| name == "pattern" || (name == "type" && value == "string"))
    })
}

/// The counts of characters as a pattern, where they are small.
fn counted(fields: &Map<String, Value>) -> Option<String> {
    let count = |name: &str| fields.get(name).and_then(Value::as_u64);
    let (least, most) = (count("minLength"), count("maxLength"));
    let is_small = least.is_none_or(|least| least <= MOST_COUNTED) && most.is_none_or(|most| most <= MOST_COUNTED);
    let most = most.map(|most| most.to_string()).unwrap_or_default();
    (is_small && fields.keys().any(|name| name == "minLength" || name == "maxLength"))
        .then(|| format!(r"^[\s\S]{{{},{most}}}$", least.unwrap_or(0)))
}

/// The values of a schema that are no texts.
fn no_text(fields: &Map<String, Value>) -> Value {
    let others: Vec<&str> = types(fields).into_iter().filter(|name| *name != "string").collect();
    if others.is_empty() { Value::Bool(false) } else { json!({ "type": others }) }
}

/// Some texts with patterns and counts, beside the values that are no texts.
fn some_texts(demands: &[(&str, bool)], fields: &Map<String, Value>, sets: &RegularSets) -> Option<Value> {
    let texts = sets.texts(demands, lengths(fields), MOST_TEXTS);
    if texts.is_empty() {
        return None;
    }
    any(vec![json!({ "enum": texts }), no_text(fields)])
}

fn lengths(fields: &Map<String, Value>) -> (usize, usize) {
    let count = |name: &str| fields.get(name).and_then(Value::as_u64).map(|count| count as usize);
    (count("minLength").unwrap_or(0), count("maxLength").unwrap_or(LONGEST_TEXT))
}

fn is_readable(pattern: &str) -> bool {
    TextSet::with_pattern(pattern).is_ok()
}

/// A pattern as several that hold at once: what looks ahead from the start, and the rest.
fn demands_of(pattern: &str) -> Vec<(String, bool)> {
    let (mut rest, mut all) = (pattern, Vec::new());
    if let Some(mut behind) = pattern.strip_prefix('^') {
        while behind.starts_with("(?=") || behind.starts_with("(?!") {
            let Some(length) = group_length(behind) else { break };
            all.push((format!("^(?:{})", &behind[3..length - 1]), behind.starts_with("(?=")));
            behind = &behind[length..];
        }
        rest = behind;
    }
    // Ways and numbers of groups are those of the whole.
    if !pattern.starts_with('^') || has_ways(rest) || refers(pattern) || rest.starts_with(['*', '+', '?', '{']) {
        return vec![(pattern.to_owned(), true)];
    }
    let (rest, behind) = without_end(rest);
    all.extend(behind);
    if !rest.is_empty() {
        all.insert(0, (format!("^{rest}"), true));
    }
    all
}

/// A pattern without what looks behind from its end, and that by itself.
fn without_end(pattern: &str) -> (String, Option<(String, bool)>) {
    let last = pattern.strip_suffix(")$").and_then(|_| {
        let starts = marks(pattern).filter(|(_, c)| *c == '(').map(|(at, _)| at);
        starts.filter(|at| group_length(&pattern[*at..]).map(|length| at + length + 1) == Some(pattern.len())).last()
    });
    let group = last.map(|at| &pattern[at..pattern.len() - 2]);
    let looks = |mark: &str| group.and_then(|group| group.strip_prefix(mark));
    match (last, looks("(?<="), looks("(?<!")) {
        (Some(at), Some(inside), _) => (format!("{}$", &pattern[..at]), Some((format!("(?:{inside})$"), true))),
        (Some(at), _, Some(inside)) => (format!("{}$", &pattern[..at]), Some((format!("(?:{inside})$"), false))),
        _ => (pattern.to_owned(), None),
    }
}

fn refers(pattern: &str) -> bool {
    let mut escapes = pattern.split('\\').skip(1);
    escapes.any(|escape| escape.starts_with(|c: char| c == 'k' || ('1'..='9').contains(&c)))
}

/// Whether a pattern is one of several ways.
fn has_ways(pattern: &str) -> bool {
    let mut depth = 0_i64;
    marks(pattern).any(|(_, c)| {
        depth += i64::from(c == '(') - i64::from(c == ')');
        c == '|' && depth == 0
    })
}

/// Bytes of the group that a pattern begins with.
fn group_length(pattern: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in marks(pattern) {
        match c {
            '(' => depth += 1,
            ')' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The characters of a pattern that are no escapes and in no class, with their places.
fn marks(pattern: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut is_in_class, mut is_escaped) = (false, false);
    pattern.char_indices().filter(move |(_, c)| {
        let is_mark = !is_escaped && !is_in_class && *c != '\\';
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            _ => {}
        }
        is_mark
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(schema: Value) -> (Value, Vec<Value>) {
        let mut fields = schema.as_object().unwrap().clone();
        let mut also = Vec::new();
        readable_pattern(&mut fields, &mut also, &RegularSets::default());
        (fields.into(), also)
    }

    #[test]
    fn en_5_patterns_of_ecmascript_become_those_that_can_be_held_to() {
        for (pattern, first, others) in [
            (r"^(?=.*[0-9])(?=.{4,})[a-z0-9(?=]+$", Some("^[a-z0-9(?=]+$"), vec!["^(?:.*[0-9])", "^(?:.{4,})"]),
            (r"^(?!no)[a-z-]+$", Some("^[a-z-]+$"), vec![r"^(?:n?|(?:[^n]|n[^o])[\s\S]*)$"]),
            (r"^(?!a)b|c", Some(r"^(?:[bc]|[^bc][^c]*c)[\s\S]*$"), vec![]),
            (r"^a(?=b)", Some(r"^ab[\s\S]*$"), vec![]),
            ("a(?<!b)\\cJ", Some(r"^(?:[^a]|aa*[^\x0aa])*aa*\x0a[\s\S]*$"), vec![]),
            ("^(?!a)[ab]{1,9}(?<!b)$", Some("^[ab]{1,9}$"), vec![r"^(?:[^a][\s\S]*)?$", r"^(?:[^b]|bb*[^b])*$"]),
            ("^plain$", Some("^plain$"), vec![]),
            ("*.txt", None, vec![]),
        ] {
            let (fields, also) = made(json!({ "pattern": pattern }));
            let also: Vec<&str> = also.iter().filter_map(|part| part["pattern"].as_str()).collect();
            assert_eq!((fields["pattern"].as_str(), also), (first, others), "{pattern}");
        }
        assert_eq!(made(json!({"type": "string", "pattern": "(?!)"})).1, [json!(false)]);
        let texts = made(json!({"type": "string", "pattern": "^(?!.*(.)\\1)[a-z]+$", "minLength": 3})).1;
        assert_eq!(texts[0]["enum"][0], "abc");
    }

    #[test]
    fn en_5_keys_by_patterns_are_told_apart() {
        let of = |patterns: Value| {
            let mut fields = json!({ "patternProperties": patterns }).as_object().unwrap().clone();
            readable_keys(&mut fields, &RegularSets::default());
            Value::Object(fields)
        };
        assert_eq!(of(json!({"^(?=a)": {}, "^b": {}})), json!({"patternProperties": {r"^a[\s\S]*$": {}, "^b": {}}}));
        assert_eq!(
            of(json!({r"(?!.*(a)\1)": {}, "^b": {}})),
            json!({"patternProperties": {"^b": {}}, "additionalProperties": false})
        );
        let both = of(json!({"^a": {"minimum": 1}, "b$": {"maximum": 3}}));
        let both = both["patternProperties"].as_object().unwrap();
        assert_eq!(both.len(), 3, "{both:?}");
        assert!(both.values().any(|schema| *schema == json!({"allOf": [{"minimum": 1}, {"maximum": 3}]})));
    }

    #[test]
    fn en_5_patterns_that_cannot_be_met_together_are_joined_or_have_no_text() {
        let sets = RegularSets::default();
        let settled = |schema: Value| {
            let mut fields = schema.as_object().unwrap().clone();
            let also = settle(&mut fields, &sets);
            (Value::Object(fields), also)
        };
        let fine = json!({"pattern": "^a", "maxLength": 5});
        assert_eq!(settled(fine.clone()), (fine, None));
        let (_, also) = settled(json!({"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]}));
        assert_eq!(also, Some(json!(false)));
    }
}
