//! The settings of a tokenizer's folder, and the spellings of its marks.

use serde_json::Value;

use crate::error::ModelError;
use crate::pictures::component::PipelineFolder;

/// The settings of one folder.
pub(super) struct TokenNames {
    settings: Value,
    map: Value,
}

impl TokenNames {
    /// Reads `tokenizer_config.json` and `special_tokens_map.json`, where they are there.
    pub(super) fn read(folder: &PipelineFolder, component: &str) -> Result<Self, ModelError> {
        Ok(Self {
            settings: folder.json_if_there(component, "tokenizer_config.json")?.unwrap_or_default(),
            map: folder.json_if_there(component, "special_tokens_map.json")?.unwrap_or_default(),
        })
    }

    /// The spelling of a mark.
    pub(super) fn of(&self, name: &str) -> Option<String> {
        let of = |settings: &Value| {
            let value = settings.get(name)?;
            value.as_str().or_else(|| value.get("content").and_then(Value::as_str)).map(str::to_owned)
        };
        of(&self.settings).or_else(|| of(&self.map))
    }

    /// A setting.
    pub(super) fn setting(&self, name: &str) -> Option<&Value> {
        self.settings.get(name)
    }
}
