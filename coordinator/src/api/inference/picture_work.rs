//! The amount of work of a request for pictures, by which the time of its answer is expected.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The longest body that is read for it. A longer one has pictures in it, and reading those would hold others up.
const LONGEST: usize = 64 << 10;

/// The fields that tell it, of a request or of a manifest.
#[derive(Default, Deserialize)]
struct WorkFields {
    size: Option<Value>,
    #[serde(alias = "num_inference_steps")]
    steps: Option<Value>,
    n: Option<Value>,
}

/// Pixels of all pictures, times the steps; `None` where neither the request nor the model's manifest tells both.
pub(super) fn picture_work(body: &[u8], params: Option<&BTreeMap<String, Value>>) -> Option<u64> {
    if body.len() > LONGEST {
        return None;
    }
    let asked: WorkFields = serde_json::from_slice(body).ok()?;
    let param = |name: &str| params.and_then(|params| params.get(name));
    let size = asked.size.as_ref().filter(|size| *size != "auto").or_else(|| param("size"))?.as_str()?;
    let (width, height) = size.split_once(['x', 'X'])?;
    let side = |text: &str| text.trim().parse::<u64>().ok().filter(|side| (1..=1 << 16).contains(side));
    let steps = asked.steps.as_ref().or_else(|| param("steps"))?.as_u64().filter(|steps| (1..=1000).contains(steps))?;
    let count = asked.n.as_ref().and_then(Value::as_u64).unwrap_or(1).clamp(1, 10);
    Some(side(width)?.saturating_mul(side(height)?).saturating_mul(steps).saturating_mul(count))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rc_13_the_work_of_pictures_is_their_pixels_times_the_steps() {
        let work = |body: Value, params: Value| {
            let params: BTreeMap<String, Value> = serde_json::from_value(params).unwrap();
            picture_work(body.to_string().as_bytes(), Some(&params))
        };
        let full = json!({ "prompt": "x", "size": "512x256", "steps": 20, "n": 2 });
        assert_eq!(work(full, json!({})), Some(512 * 256 * 40));
        assert_eq!(work(json!({ "size": "8x8" }), json!({ "steps": 3, "size": "9x9" })), Some(192));
        assert_eq!(work(json!({ "size": "auto", "num_inference_steps": 2 }), json!({ "size": "8x8" })), Some(128));
        for unknown in [
            json!({}),
            json!({ "size": "8x8" }),
            json!({ "size": 7, "steps": 1 }),
            json!({ "size": "0x8", "steps": 1 }),
        ] {
            assert_eq!(work(unknown.clone(), json!({})), None, "{unknown}");
        }
        assert_eq!(picture_work(b"no json", None), None);
    }
}
