//! Formats of which the library has too many values, in keywords that it follows.

use serde_json::{Map, Value, json};

/// Days that every year has. Years are of four digits and begin with the first one: calendars of clients have no other.
const DAYS: &str = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|\
                    (?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";

/// Years with a day more, of the Gregorian calendar.
const LEAP_YEARS: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";

/// Times of a day with their distance from UTC (RFC 3339).
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// The least number of 64 bits but a few: the library reads bounds as floats, and loses the very least.
const LEAST_OF_64_BITS: i64 = -(i64::MAX - 1_023);

/// Holds dates to days that there are, and whole numbers of some width to their range.
pub(super) fn followed(fields: &mut Map<String, Value>) {
    let format = fields.get("format").and_then(Value::as_str).unwrap_or_default();
    let date = || format!("(?:{DAYS}|{LEAP_YEARS}-02-29)");
    let pattern = match format {
        "date" => format!("^{}$", date()),
        "date-time" => format!("^{}[tT]{TIME}$", date()),
        "int8" => return within(fields, i8::MIN.into(), i8::MAX.into()),
        "int16" => return within(fields, i16::MIN.into(), i16::MAX.into()),
        "int32" => return within(fields, i32::MIN.into(), i32::MAX.into()),
        "int64" => return within(fields, LEAST_OF_64_BITS, i64::MAX),
        "uint8" => return within(fields, 0, u8::MAX.into()),
        "uint16" => return within(fields, 0, u16::MAX.into()),
        "uint32" => return within(fields, 0, u32::MAX.into()),
        _ => return,
    };
    fields.shift_remove("format");
    if !fields.contains_key("pattern") {
        fields.insert("pattern".to_owned(), pattern.into());
    } else if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| json!([])) {
        all.push(json!({ "pattern": pattern }));
    }
}

/// Bounds of whole numbers, where there are none.
fn within(fields: &mut Map<String, Value>, least: i64, most: i64) {
    if fields.get("type").is_none_or(|kind| kind != "integer") {
        return;
    }
    for (names, bound) in [(["minimum", "exclusiveMinimum"], least), (["maximum", "exclusiveMaximum"], most)] {
        if names.iter().all(|name| !fields.contains_key(*name)) {
            fields.insert(names[0].to_owned(), bound.into());
        }
    }
}
