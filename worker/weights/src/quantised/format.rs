//! A model's way of quantisation, by `quantization_config` of its `config.json`.

use serde_json::Value;

/// The width of stored integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerBits {
    /// Two to a byte.
    Four,
    /// One to a byte.
    Eight,
}

impl IntegerBits {
    pub(super) fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// How a GPTQ file stores the integer that means zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptqZeros {
    /// One less than it is (`gptq`).
    LessOne,
    /// As it is (`gptq_v2`).
    Plain,
}

/// The way in which a model's matrices are quantised. A matrix without the tensors of that way is stored plainly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuantisedFormat {
    /// Packed along the depth, with groups in any order of columns.
    Gptq {
        /// The width.
        bits: IntegerBits,
        /// Columns of a group; none where a row is one group.
        group: Option<usize>,
        /// The stored zeros.
        zeros: GptqZeros,
    },
    /// Packed across rows, interleaved.
    Awq {
        /// Columns of a group; none where a row is one group.
        group: Option<usize>,
    },
    /// The integers of compressed-tensors, packed into words or one to a byte.
    CompressedIntegers {
        /// The width.
        bits: IntegerBits,
    },
    /// FP8 (e4m3) with one scale for a block of rows and columns, for a row, or for the matrix.
    Fp8 {
        /// Rows and columns of a block; none where the scales' shape says it.
        block: Option<[usize; 2]>,
    },
}

/// A model is quantised in a way that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model is quantised in a way that is not supported ({0}); gptq, awq, fp8 and compressed-tensors with 4 or 8 bits \
     are, and a GGUF file of the model runs, too"
)]
pub struct FormatError(String);

impl QuantisedFormat {
    /// Reads a `config.json`; none where nothing is quantised.
    pub fn read(config: &Value) -> Result<Option<Self>, FormatError> {
        let Some(about) = description(config) else { return Ok(None) };
        let format = match about["quant_method"].as_str() {
            Some("gptq") => gptq(about),
            Some("awq") => awq(about),
            Some("fp8") => fp8(about),
            // Meta's FP8 with a scale for each row.
            Some("fbgemm_fp8") => Ok(QuantisedFormat::Fp8 { block: None }),
            // NVIDIA's ModelOpt.
            Some("modelopt") if about["quant_algo"] == "FP8" => Ok(QuantisedFormat::Fp8 { block: None }),
            Some("compressed-tensors") => compressed(about),
            // Only experts are, in tensors of their own kind.
            Some("mxfp4") => return Ok(None),
            Some(other) => Err(format!("quant_method `{}`", other.escape_debug())),
            None => Err("quantization_config without quant_method".to_owned()),
        };
        format.map(Some).map_err(FormatError)
    }
}

/// The part of a configuration that describes the quantisation.
pub(super) fn description(config: &Value) -> Option<&Value> {
    [config, &config["text_config"]].into_iter().find_map(|part| {
        [&part["quantization_config"], &part["compression_config"]].into_iter().find(|about| about.is_object())
    })
}

fn gptq(about: &Value) -> Result<QuantisedFormat, String> {
    let zeros = match about["checkpoint_format"].as_str() {
        None | Some("gptq") => GptqZeros::LessOne,
        Some("gptq_v2") => GptqZeros::Plain,
        Some(other) => return Err(format!("gptq with checkpoint_format `{}`", other.escape_debug())),
    };
    if about["is_marlin_format"] == true {
        return Err("gptq in marlin's order".to_owned());
    }
    Ok(QuantisedFormat::Gptq {
        bits: bits("gptq", &about["bits"])?,
        group: group("gptq", &about["group_size"])?,
        zeros,
    })
}

fn awq(about: &Value) -> Result<QuantisedFormat, String> {
    let either = |first: &str, second: &str| if about[first].is_null() { &about[second] } else { &about[first] };
    if bits("awq", either("bits", "w_bit"))? != IntegerBits::Four {
        return Err("awq with 8 bits".to_owned());
    }
    match about["version"].as_str().map(str::to_lowercase).as_deref() {
        None | Some("gemm") => Ok(QuantisedFormat::Awq { group: group("awq", either("group_size", "q_group_size"))? }),
        Some(other) => Err(format!("awq version `{}`", other.escape_debug())),
    }
}

fn fp8(about: &Value) -> Result<QuantisedFormat, String> {
    match about["fmt"].as_str() {
        None | Some("e4m3") => {}
        Some(other) => return Err(format!("fp8 of the kind `{}`", other.escape_debug())),
    }
    let block = match &about["weight_block_size"] {
        Value::Null => None,
        given => Some(sizes(given).ok_or_else(|| format!("fp8 with weight_block_size {given}"))?),
    };
    Ok(QuantisedFormat::Fp8 { block })
}

fn compressed(about: &Value) -> Result<QuantisedFormat, String> {
    let sparse = about["sparsity_config"]["format"].as_str().filter(|format| *format != "dense");
    if let Some(sparse) = sparse {
        return Err(format!("compressed-tensors, sparse (`{}`)", sparse.escape_debug()));
    }
    let groups = about["config_groups"].as_object().filter(|groups| !groups.is_empty());
    let groups = groups.ok_or("compressed-tensors without config_groups")?;
    // Some groups are of activations alone.
    let weights = groups.values().map(|group| &group["weights"]).filter(|weights| !weights.is_null());
    let mut formats = weights.map(|weights| match weights["type"].as_str() {
        Some("int") => {
            Ok(QuantisedFormat::CompressedIntegers { bits: bits("compressed-tensors", &weights["num_bits"])? })
        }
        Some("float") if weights["num_bits"] == 8 => {
            Ok(QuantisedFormat::Fp8 { block: sizes(&weights["block_structure"]) })
        }
        Some(kind) => {
            Err(format!("compressed-tensors with {} bits of the kind `{}`", weights["num_bits"], kind.escape_debug()))
        }
        None => Err("compressed-tensors without weights".to_owned()),
    });
    let first = formats.next().unwrap_or_else(|| Err("compressed-tensors without config_groups".to_owned()))?;
    for other in formats {
        if other? != first {
            return Err("compressed-tensors with groups of several widths".to_owned());
        }
    }
    Ok(first)
}

fn bits(method: &str, given: &Value) -> Result<IntegerBits, String> {
    match given.as_u64() {
        Some(4) => Ok(IntegerBits::Four),
        Some(8) => Ok(IntegerBits::Eight),
        _ => Err(format!("{method} with {given} bits")),
    }
}

fn group(method: &str, given: &Value) -> Result<Option<usize>, String> {
    match given.as_i64() {
        Some(-1) => Ok(None),
        Some(size) if size > 0 => Ok(usize::try_from(size).ok()),
        _ => Err(format!("{method} with group_size {given}")),
    }
}

fn sizes(given: &Value) -> Option<[usize; 2]> {
    let [rows, columns] = given.as_array()?.as_slice() else { return None };
    let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| *size > 0);
    Some([size(rows)?, size(columns)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(about: &Value) -> Result<Option<QuantisedFormat>, String> {
        QuantisedFormat::read(&json!({"quantization_config": about})).map_err(|error| error.to_string())
    }

    #[test]
    fn every_supported_way_is_read() {
        let four = IntegerBits::Four;
        assert_eq!(QuantisedFormat::read(&json!({})), Ok(None));
        assert_eq!(
            read(&json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true})),
            Ok(Some(QuantisedFormat::Gptq { bits: four, group: Some(128), zeros: GptqZeros::LessOne }))
        );
        assert_eq!(
            read(&json!({"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"})),
            Ok(Some(QuantisedFormat::Gptq { bits: IntegerBits::Eight, group: None, zeros: GptqZeros::Plain }))
        );
        let awq = Ok(Some(QuantisedFormat::Awq { group: Some(64) }));
        assert_eq!(read(&json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"})), awq);
        assert_eq!(
            read(&json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})),
            Ok(Some(QuantisedFormat::Fp8 { block: Some([128, 128]) }))
        );
        let group = |weights: Value| json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}});
        assert_eq!(
            read(&group(json!({"type": "int", "num_bits": 4}))),
            Ok(Some(QuantisedFormat::CompressedIntegers { bits: four }))
        );
        assert_eq!(
            read(&group(json!({"type": "float", "num_bits": 8}))),
            Ok(Some(QuantisedFormat::Fp8 { block: None }))
        );
        assert_eq!(
            read(&json!({"quant_method": "modelopt", "quant_algo": "FP8"})),
            Ok(Some(QuantisedFormat::Fp8 { block: None }))
        );
        let groups =
            json!({"a": {"weights": null, "input_activations": {}}, "b": {"weights": {"type": "int", "num_bits": 4}}});
        assert_eq!(
            read(&json!({"quant_method": "compressed-tensors", "config_groups": groups})),
            Ok(Some(QuantisedFormat::CompressedIntegers { bits: four }))
        );
        let inside = json!({"text_config": {"quantization_config": {"quant_method": "fp8"}}});
        assert_eq!(QuantisedFormat::read(&inside), Ok(Some(QuantisedFormat::Fp8 { block: None })));
    }

    #[test]
    fn other_ways_are_refused_by_name() {
        for (about, name) in [
            (json!({"quant_method": "bitsandbytes"}), "`bitsandbytes`"),
            (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "`modelopt`"),
            (json!({}), "without quant_method"),
            (json!({"quant_method": "gptq", "bits": 3, "group_size": 128}), "gptq with 3 bits"),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "group_size 0"),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "marlin"}), "`marlin`"),
            (json!({"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemv"}), "awq version `gemv`"),
            (json!({"quant_method": "fp8", "fmt": "e5m2"}), "`e5m2`"),
            (json!({"quant_method": "compressed-tensors"}), "without config_groups"),
            (
                json!({"quant_method": "compressed-tensors", "config_groups": {
                    "a": {"weights": {"type": "int", "num_bits": 4}}, "b": {"weights": {"type": "int", "num_bits": 8}}}}),
                "several widths",
            ),
            (
                json!({"quant_method": "compressed-tensors",
                       "config_groups": {"a": {"weights": {"type": "float", "num_bits": 4}}}}),
                "4 bits of the kind `float`",
            ),
        ] {
            let error = read(&about).unwrap_err();
            assert!(error.contains(name), "{about}: {error}");
        }
    }
}
