//! Fields of `preprocessor_config.json`.

use serde_json::Value;

use crate::error::ImagePlanError;
use crate::new_size::NewSize;

/// The longest side that a field may ask for.
const LONGEST_SIDE: u64 = 1 << 14;

/// The fields of a model's images: of `processor_config.json`, where that has them, else of
/// `preprocessor_config.json`. Each is given as its file's text.
pub fn image_processor_fields(
    processor: Option<&[u8]>,
    preprocessor: Option<&[u8]>,
) -> Result<Option<Value>, serde_json::Error> {
    if let Some(text) = processor
        && let Some(fields) = serde_json::from_slice::<Value>(text)?.get_mut("image_processor")
    {
        return Ok(Some(fields.take()));
    }
    preprocessor.map(serde_json::from_slice).transpose()
}

/// A field that is neither absent nor null.
fn given<'a>(fields: &'a Value, field: &str) -> Option<&'a Value> {
    fields.get(field).filter(|value| !value.is_null())
}

pub(crate) fn flag(fields: &Value, field: &str) -> Result<Option<bool>, ImagePlanError> {
    let of = |value: &Value| value.as_bool().ok_or_else(|| ImagePlanError::new(field, "has to be true or false"));
    given(fields, field).map(of).transpose()
}

/// A number.
pub fn number_of(fields: &Value, field: &str) -> Result<Option<f64>, ImagePlanError> {
    let of = |value: &Value| value.as_f64().ok_or_else(|| ImagePlanError::new(field, "has to be a number"));
    given(fields, field).map(of).transpose()
}

/// A whole number from 1 on, as long as a side may be.
pub fn whole_of(fields: &Value, field: &str) -> Result<Option<usize>, ImagePlanError> {
    given(fields, field).map(|value| side(value, field)).transpose()
}

fn side(value: &Value, field: &str) -> Result<usize, ImagePlanError> {
    match value.as_u64() {
        Some(side @ 1..=LONGEST_SIDE) => Ok(side as usize),
        _ => Err(ImagePlanError::new(field, format!("has to have whole numbers from 1 to {LONGEST_SIDE}"))),
    }
}

/// Numbers by colour: three of them, or one for all.
pub fn numbers_of(fields: &Value, field: &str) -> Result<Option<[f32; 3]>, ImagePlanError> {
    let Some(value) = given(fields, field) else { return Ok(None) };
    let wrong = || ImagePlanError::new(field, "has to be a number, or three of them");
    if let Some(number) = value.as_f64() {
        return Ok(Some([number as f32; 3]));
    }
    let numbers: Option<Vec<f32>> = value
        .as_array()
        .map(|all| all.iter().map(|number| number.as_f64().map(|number| number as f32)).collect())
        .ok_or_else(wrong)?;
    numbers.and_then(|numbers| <[f32; 3]>::try_from(numbers).ok()).map(Some).ok_or_else(wrong)
}

/// A size: a number, two in the order of height and width, or an object. One number is both sides' where it is to be
/// square, else the short side's.
pub(crate) fn sides_of(fields: &Value, field: &str, square: bool) -> Result<Option<NewSize>, ImagePlanError> {
    let Some(value) = given(fields, field) else { return Ok(None) };
    let side = |value: &Value| side(value, field);
    if value.is_number() {
        let edge = side(value)?;
        return Ok(Some(if square {
            NewSize::Sides { height: edge, width: edge }
        } else {
            NewSize::Shortest { edge, longest: None }
        }));
    }
    if let Some([height, width]) = value.as_array().map(Vec::as_slice) {
        return Ok(Some(NewSize::Sides { height: side(height)?, width: side(width)? }));
    }
    let of = |name: &str| given(value, name).map(side).transpose();
    let names = ["height", "width", "shortest_edge", "longest_edge", "max_height", "max_width"];
    let mut sides = [None; 6];
    for (side, name) in sides.iter_mut().zip(names) {
        *side = of(name)?;
    }
    Ok(Some(match sides {
        [_, _, Some(edge), longest, _, _] => NewSize::Shortest { edge, longest },
        [_, _, _, _, Some(height), Some(width)] => NewSize::Within { height, width },
        [Some(height), Some(width), ..] => NewSize::Sides { height, width },
        _ => {
            let what = "has to have 'height' and 'width', 'shortest_edge', or 'max_height' and 'max_width'";
            return Err(ImagePlanError::new(field, what));
        }
    }))
}
