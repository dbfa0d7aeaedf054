//! Numbers within the bounds of a schema, as expressions of their spelling.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::constraint::{INTEGER, NUMBER, TextSet};

/// Keywords that bound numbers.
const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Numbers that are compared digit by digit have no exponent.
const WITHOUT_EXPONENT: &str = r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?";

/// Longer integer parts are greater than any number of these expressions.
const MOST_DIGITS: usize = 20;

/// Bounds with more digits behind the point are not held to.
const MOST_FRACTION: usize = 40;

/// Most last digits by which multiples are known.
const MOST_ENDING: u32 = 3;

/// The numbers that a schema allows. Multiples are held to where they are known by their last digits; for other
/// divisors there are none.
pub(super) fn of_schema(fields: &Map<String, Value>, is_integer: bool) -> TextSet {
    let expression = |text: &str| TextSet::Expression(text.to_owned());
    if !BOUNDS.iter().any(|name| fields.contains_key(*name)) {
        return expression(if is_integer { INTEGER } else { NUMBER });
    }
    let all = expression(if is_integer { INTEGER } else { WITHOUT_EXPONENT });
    let bounds = BOUNDS.into_iter().filter_map(|name| Some(bounded(name, fields.get(name)?, fields)));
    let bounds: Option<Vec<TextSet>> = bounds.collect();
    bounds.map_or_else(TextSet::none, |bounds| TextSet::All([vec![all], bounds].concat()))
}

/// The numbers within one bound; `None` where no expression has them.
fn bounded(name: &str, value: &Value, fields: &Map<String, Value>) -> Option<TextSet> {
    // Draft 4 has these as switches.
    let is_switched = |name: &str| fields.get(name) == Some(&Value::Bool(true));
    if value.is_boolean() {
        return Some(TextSet::every());
    }
    let bound = Decimal::of(value)?;
    match name {
        "minimum" => Some(bound.and_greater(!is_switched("exclusiveMinimum"))),
        "maximum" => Some(bound.and_less(!is_switched("exclusiveMaximum"))),
        "exclusiveMinimum" => Some(bound.and_greater(false)),
        "exclusiveMaximum" => Some(bound.and_less(false)),
        _ => bound.multiples(),
    }
}

/// A number by its digits.
#[derive(Debug)]
struct Decimal {
    is_negative: bool,
    /// Without zeros in front, but for zero itself.
    integer: String,
    /// Without zeros at its end.
    fraction: String,
}

impl Decimal {
    fn of(value: &Value) -> Option<Self> {
        let text = value.as_number()?.to_string();
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text.as_str()), |text| (true, text));
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let exponent: i32 = exponent.parse().ok()?;
        let zeros = "0".repeat(usize::try_from(exponent.unsigned_abs()).ok()?);
        // The point is moved by the exponent.
        let (integer, fraction) = if exponent < 0 {
            let all = zeros + integer;
            let (integer, moved) = all.split_at(all.len() - usize::try_from(exponent.unsigned_abs()).ok()?);
            (integer.to_owned(), moved.to_owned() + fraction)
        } else {
            let all = fraction.to_owned() + &zeros;
            let (moved, fraction) = all.split_at(usize::try_from(exponent).ok()?);
            (integer.to_owned() + moved, fraction.to_owned())
        };
        let integer = match integer.trim_start_matches('0') {
            "" => "0".to_owned(),
            digits => digits.to_owned(),
        };
        let fraction = fraction.trim_end_matches('0').to_owned();
        let is_negative = is_negative && (integer != "0" || !fraction.is_empty());
        (fraction.len() <= MOST_FRACTION).then_some(Self { is_negative, integer, fraction })
    }

    fn is_zero(&self) -> bool {
        self.integer == "0" && self.fraction.is_empty()
    }

    /// The numbers that are greater, and perhaps the number itself.
    fn and_greater(&self, with_itself: bool) -> TextSet {
        TextSet::Expression(if self.is_negative {
            format!(r"[0-9.]*|-({})", self.lower(with_itself))
        } else {
            self.upper(with_itself)
        })
    }

    /// The numbers that are less, and perhaps the number itself.
    fn and_less(&self, with_itself: bool) -> TextSet {
        TextSet::Expression(if self.is_negative {
            format!("-({})", self.upper(with_itself))
        } else if self.is_zero() && !with_itself {
            // Minus zero is zero.
            format!("-({})", self.upper(false))
        } else {
            format!(r"-[0-9.]*|{}", self.lower(with_itself))
        })
    }

    /// An expression of numbers without a sign that are at least as great as this one is without its sign.
    fn upper(&self, with_itself: bool) -> String {
        let length = self.integer.len();
        if length > MOST_DIGITS {
            return NOTHING.to_owned();
        }
        let mut all = vec![format!(r"[1-9][0-9]{{{length},}}(\.[0-9]*)?")];
        for (before, digit, behind) in digits(&self.integer) {
            all.extend(any_of(digit + 1..=9).map(|any| format!(r"{before}{any}[0-9]{{{behind}}}(\.[0-9]*)?")));
        }
        let mut fractions = Vec::new();
        for (before, digit, _) in digits(&self.fraction) {
            fractions.extend(any_of(digit + 1..=9).map(|any| format!("{before}{any}[0-9]*")));
        }
        fractions.push(format!("{}{}", self.fraction, if with_itself { "[0-9]*" } else { "[0-9]*[1-9][0-9]*" }));
        let is_optional = with_itself && self.fraction.is_empty();
        let or_none = if is_optional { "?" } else { "" };
        all.push(format!(r"{}(\.({})){or_none}", self.integer, fractions.join("|")));
        all.join("|")
    }

    /// An expression of numbers without a sign that are at most as great as this one is without its sign.
    fn lower(&self, with_itself: bool) -> String {
        let length = self.integer.len();
        if length > MOST_DIGITS {
            return "[0-9.]*".to_owned();
        }
        let mut all = Vec::new();
        if length > 1 {
            all.push(format!(r"(0|[1-9][0-9]{{0,{}}})(\.[0-9]*)?", length - 2));
        }
        for (before, digit, behind) in digits(&self.integer) {
            let least = u8::from(before.is_empty() && length > 1);
            let less = digit.checked_sub(1).and_then(|most| any_of(least..=most));
            all.extend(less.map(|any| format!(r"{before}{any}[0-9]{{{behind}}}(\.[0-9]*)?")));
        }
        let mut fractions = Vec::new();
        for (before, digit, _) in digits(&self.fraction) {
            let less = digit.checked_sub(1).and_then(|most| any_of(0..=most));
            fractions.extend(less.map(|any| format!("{before}{any}[0-9]*")));
            // Fewer digits are less, since the last one is no zero.
            fractions.extend((!before.is_empty()).then(|| before.to_owned()));
        }
        if with_itself {
            fractions.push(format!("{}0*", self.fraction));
        }
        let is_optional = with_itself || !self.fraction.is_empty();
        match (fractions.is_empty(), is_optional) {
            (true, false) => {}
            (true, true) => all.push(self.integer.clone()),
            (false, _) => all.push(format!(r"{}(\.({}))?", self.integer, fractions.join("|"))),
        }
        if all.is_empty() { NOTHING.to_owned() } else { all.join("|") }
    }

    /// The multiples of the number, where they are known by their last digits.
    fn multiples(&self) -> Option<TextSet> {
        let scale = u32::try_from(self.fraction.len()).ok().filter(|scale| *scale <= MOST_ENDING)?;
        let divisor: u64 = (self.integer.clone() + &self.fraction).parse().ok().filter(|divisor| *divisor > 0)?;
        let length = (scale..=MOST_ENDING).find(|length| 10_u64.pow(*length).is_multiple_of(divisor))?;
        let endings = (0..10_u64.pow(length)).filter(|ending| ending.is_multiple_of(divisor));
        let width = usize::try_from(length).ok()?;
        Some(TextSet::Expression(if scale == 0 {
            let endings: Vec<String> =
                endings.flat_map(|ending| [ending.to_string(), format!("[0-9]+{ending:0width$}")]).collect();
            format!(r"-?({})(\.0*)?", endings.join("|"))
        } else if length == scale {
            let endings = endings.map(|ending| format!("{ending:0width$}").trim_end_matches('0').to_owned() + "0*");
            format!(r"-?[0-9]+(\.({}))?", endings.collect::<Vec<_>>().join("|"))
        } else {
            return None;
        }))
    }
}

/// An expression without any text.
const NOTHING: &str = "[^\\x00-\\u{10FFFF}]";

/// Each digit, with the digits in front of it and the number of those behind it.
fn digits(text: &str) -> impl Iterator<Item = (&str, u8, usize)> {
    let length = text.len();
    text.bytes().enumerate().map(move |(at, digit)| (&text[..at], digit.saturating_sub(b'0'), length - at - 1))
}

/// An expression of one digit of a range; `None` if there is none.
fn any_of(range: RangeInclusive<u8>) -> Option<String> {
    (range.start() <= range.end()).then(|| format!("[{}-{}]", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn has(set: &TextSet, text: &str) -> bool {
        !TextSet::All(vec![set.clone(), TextSet::Literal(text.to_owned())]).is_empty()
    }

    fn set(schema: &Value, is_integer: bool) -> TextSet {
        of_schema(schema.as_object().unwrap(), is_integer)
    }

    #[test]
    fn en_5_numbers_keep_to_their_bounds() {
        for (schema, yes, no) in [
            (json!({"minimum": 0}), &["0", "0.5", "7", "1000000"][..], &["-1", "-0.1", "1e3", "01", ""][..]),
            (
                json!({"minimum": -3, "maximum": 12}),
                &["-3", "-2.9", "0", "12", "12.0"],
                &["-3.1", "12.01", "13", "100"],
            ),
            (json!({"exclusiveMinimum": 0}), &["0.01", "1"], &["0", "0.0", "-1", "-0"]),
            (json!({"exclusiveMaximum": 0}), &["-0.01", "-1"], &["0", "-0", "-0.0", "1"]),
            (json!({"exclusiveMaximum": 1.5}), &["1.49", "1.4", "1", "-9"], &["1.5", "1.50", "1.6", "2"]),
            (json!({"minimum": 0.05, "maximum": 0.1}), &["0.05", "0.1", "0.10", "0.0500"], &["0", "0.04", "0.11", "1"]),
            (json!({"minimum": 1e300}), &[], &["1", "9999999999999999"]),
            (json!({"maximum": 1e300, "minimum": -1e300}), &["1", "-9999999999999999"], &[]),
            (json!({"minimum": 1, "exclusiveMinimum": true}), &["1.1", "2"], &["1", "0"]),
            (json!({"multipleOf": 0.25}), &["0.25", "-3.5", "7", "1.50"], &["0.3", "0.125"]),
            (json!({"multipleOf": 0.01}), &["0.1", "0.99", "3"], &["0.001"]),
            (json!({"multipleOf": 1e-60}), &[], &["1"]),
        ] {
            let set = set(&schema, false);
            for text in yes {
                assert!(has(&set, text), "{schema}: {text}");
            }
            for text in no {
                assert!(!has(&set, text), "{schema}: {text}");
            }
        }
        let integers = set(&json!({"minimum": 5, "multipleOf": 5}), true);
        assert!(["5", "10", "12345"].iter().all(|text| has(&integers, text)));
        assert!(!["0", "7", "5.0", "-5"].iter().any(|text| has(&integers, text)));
        // These multiples are not known by their last digits.
        assert!(set(&json!({"multipleOf": 7}), true).is_empty());
    }

    proptest! {
        #[test]
        fn en_5_a_number_is_within_its_bounds_if_and_only_if_its_spelling_is(
            bound in -20_000_i32..20_000, number in -20_000_i32..20_000, digits in 0_usize..4,
            name in prop::sample::select(vec!["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        ) {
            let bound = f64::from(bound) / 100.0;
            let text = format!("{:.digits$}", f64::from(number) / 100.0);
            let value: f64 = text.parse().unwrap();
            let is_within = match name {
                "minimum" => value >= bound,
                "maximum" => value <= bound,
                "exclusiveMinimum" => value > bound,
                _ => value < bound,
            };
            // Minus zero is left out where zero is a bound.
            prop_assume!(!(value == 0.0 && text.starts_with('-')));
            prop_assert_eq!(has(&set(&json!({ name: bound }), false), &text), is_within, "{} {}: {}", name, bound, text);
        }
    }
}
