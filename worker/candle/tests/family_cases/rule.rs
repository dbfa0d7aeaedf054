//! Weights by the rule of `scripts/reference/families.py`, so that cases need not store them.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// A tensor's name, its shape, and the range of its numbers: the middle and half of the width, or for bytes the first
/// and how many.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum TensorRule {
    Floats(String, Vec<usize>, f64, f64),
    #[allow(dead_code, reason = "encoders have none")]
    Bytes(String, Vec<usize>, f64, f64, IgnoredAny),
}

/// A file of safetensors.
#[allow(dead_code, reason = "encoders have files of other types, too")]
pub(crate) fn safetensors(tensors: &[TensorRule], seed: u64) -> Vec<u8> {
    safetensors_as(tensors, seed, ("F32", &|float, data| data.extend(float.to_le_bytes())))
}

/// Adds the bytes of a number.
type PutFloat<'a> = &'a dyn Fn(f32, &mut Vec<u8>);

/// The same with floats of another type, by its name and the bytes of a number.
pub(crate) fn safetensors_as(tensors: &[TensorRule], seed: u64, (float, put): (&str, PutFloat<'_>)) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let first = data.len();
        let (name, shape, dtype) = match tensor {
            TensorRule::Floats(name, shape, mean, scale) => {
                let floats = floats(name, shape, (*mean, *scale), seed);
                floats.into_iter().for_each(|number| put(number, &mut data));
                (name, shape, float)
            }
            TensorRule::Bytes(name, shape, low, count, _) => {
                let bytes = numbers(name, seed).take(shape.iter().product());
                data.extend(bytes.map(|number| *low as u8 + ((number * *count as u64) >> 24) as u8));
                (name, shape, "U8")
            }
        };
        let about = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [first, data.len()]});
        header.insert(name.clone(), about);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(data);
    file
}

/// The numbers of a tensor of floats.
pub(crate) fn floats(name: &str, shape: &[usize], (mean, scale): (f64, f64), seed: u64) -> Vec<f32> {
    let value = |number: u64| {
        let unit = number as f32 / (1 << 24) as f32;
        mean as f32 + scale as f32 * (2.0 * unit - 1.0)
    };
    numbers(name, seed).take(shape.iter().product()).map(value).collect()
}

/// Numbers of 24 bits for a tensor: FNV-1a of the name with the seed, then SplitMix64 (Steele et al., 2014).
fn numbers(name: &str, seed: u64) -> impl Iterator<Item = u64> {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    let base = name.bytes().fold(0xCBF2_9CE4_8422_2325, hash) ^ seed.wrapping_mul(STEP);
    (1_u64..).map(move |at| {
        let mut z = base.wrapping_add(at.wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) >> 40
    })
}
