//! Descriptions of quantisation in a file of their own, as folders have them from before `config.json` had any: those
//! of AutoGPTQ and of AutoAWQ.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::small_file::{SmallFileError, read_small_file};

/// The files, and the way of quantisation where they name none.
const FILES: [(&str, &str); 2] = [("quantize_config.json", "gptq"), ("quant_config.json", "awq")];

/// A longer description is none.
const LONGEST_DESCRIPTION: u64 = 1 << 20;

/// The reason why a description beside a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] SmallFileError),
    /// The file is no JSON object.
    #[error("{} is no JSON object", .0.display())]
    Malformed(PathBuf),
}

/// Adds the description in a folder to a `config.json` that has none.
pub fn add_description(config: &mut Value, folder: &Path) -> Result<(), DescriptionError> {
    if super::format::description(config).is_some() || !config.is_object() {
        return Ok(());
    }
    for (name, method) in FILES {
        let path = folder.join(name);
        let Some(bytes) = read_small_file(&path, LONGEST_DESCRIPTION)? else { continue };
        let Ok(Value::Object(mut about)) = serde_json::from_slice(&bytes) else {
            return Err(DescriptionError::Malformed(path));
        };
        about.entry("quant_method").or_insert_with(|| json!(method));
        config["quantization_config"] = Value::Object(about);
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantised::{GptqZeros, IntegerBits, QuantisedFormat};

    fn read(config: &Value, file: &str, text: &str) -> Result<Option<QuantisedFormat>, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(file), text).unwrap();
        let mut config = config.clone();
        add_description(&mut config, folder.path()).map_err(|error| error.to_string())?;
        QuantisedFormat::read(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn fa_2_descriptions_beside_a_configuration_are_read() {
        let gptq = r#"{"bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": true, "sym": true}"#;
        let of_gptq = QuantisedFormat::Gptq { bits: IntegerBits::Four, group: Some(128), zeros: GptqZeros::LessOne };
        assert_eq!(read(&json!({}), "quantize_config.json", gptq), Ok(Some(of_gptq)));
        let newer = r#"{"bits": 4, "group_size": -1, "quant_method": "gptq", "checkpoint_format": "gptq_v2"}"#;
        let of_newer = QuantisedFormat::Gptq { bits: IntegerBits::Four, group: None, zeros: GptqZeros::Plain };
        assert_eq!(read(&json!({}), "quantize_config.json", newer), Ok(Some(of_newer)));
        let awq = r#"{"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}"#;
        assert_eq!(read(&json!({}), "quant_config.json", awq), Ok(Some(QuantisedFormat::Awq { group: Some(64) })));
        assert_eq!(read(&json!({}), "other.json", awq), Ok(None));
    }

    #[test]
    fn a_configuration_with_a_description_has_the_last_word() {
        let fp8 = QuantisedFormat::Fp8 { block: None };
        for config in [
            json!({"quantization_config": {"quant_method": "fp8"}}),
            json!({"text_config": {"quantization_config": {"quant_method": "fp8"}}}),
        ] {
            assert_eq!(read(&config, "quantize_config.json", "{}"), Ok(Some(fp8.clone())));
        }
        for malformed in ["[]", "{", ""] {
            let error = read(&json!({}), "quantize_config.json", malformed).unwrap_err();
            assert!(error.ends_with("quantize_config.json is no JSON object"), "{error}");
        }
        let error = read(&json!({}), "quantize_config.json", r#"{"bits": 3, "group_size": 128}"#).unwrap_err();
        assert!(error.contains("gptq with 3 bits"), "{error}");
    }
}
