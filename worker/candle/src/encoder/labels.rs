//! The labels of a classifier, from `config.json`.

use std::collections::BTreeMap;

use model_boss_engine::LabelShares;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelError;
use crate::spec::ConfigJsonError;

/// The most labels of a classifier.
pub(super) const MOST_LABELS: usize = 1 << 16;

/// The fields about a classifier's labels.
#[derive(Deserialize)]
pub(super) struct LabelFacts {
    #[serde(default)]
    id2label: Value,
    num_labels: Option<usize>,
    problem_type: Option<String>,
    sentence_transformers: Option<JudgeSettings>,
    sbert_ce_default_activation_function: Option<String>,
}

/// The settings of `sentence-transformers` in a `config.json`.
#[derive(Deserialize)]
struct JudgeSettings {
    activation_fn: Option<String>,
}

impl LabelFacts {
    /// The names of the labels in their order, and how their numbers become shares, from the text of a `config.json`.
    pub(super) fn read(json: &[u8]) -> Result<(Vec<String>, LabelShares), ModelError> {
        let bad = |what: String| ModelError::Config(ConfigJsonError::Malformed(what));
        let facts: Self = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        // Some files of models without labels have something else there.
        let names: BTreeMap<String, Value> = serde_json::from_value(facts.id2label).unwrap_or_default();
        let named = names.keys().filter_map(|id| id.parse::<usize>().ok()).max();
        // The library's own number where the file says nothing.
        let count = named.map(|last| last.saturating_add(1)).or(facts.num_labels).unwrap_or(2);
        if !(1..=MOST_LABELS).contains(&count) {
            return Err(bad(format!("{count} labels are not known; 1 to {MOST_LABELS} are")));
        }
        let label = |id: usize| match names.get(&id.to_string()) {
            Some(Value::String(name)) => name.clone(),
            Some(other) => other.to_string(),
            None => format!("LABEL_{id}"),
        };
        let apart = count == 1 || facts.problem_type.as_deref() == Some("multi_label_classification");
        Ok(((0..count).map(label).collect(), shares_of(apart)))
    }
}

/// How a judge's numbers become shares, where its files say so: by the kind of problem, as vLLM has it, by the function
/// that `sentence-transformers` has put into `config.json`, or by that of the whole folder.
pub(super) fn activated(json: &[u8], of_folder: Option<&str>) -> Result<Option<LabelShares>, ModelError> {
    let bad = |what: String| ModelError::Config(ConfigJsonError::Malformed(what));
    let facts: LabelFacts = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
    match facts.problem_type.as_deref() {
        Some("regression") => return Ok(Some(LabelShares::Unchanged)),
        Some("single_label_classification" | "multi_label_classification") => return Ok(None),
        _ => {}
    }
    let own = facts.sentence_transformers.and_then(|settings| settings.activation_fn);
    let own = own.or(facts.sbert_ce_default_activation_function);
    let Some(class) = own.as_deref().or(of_folder) else { return Ok(None) };
    let name = class.strip_prefix("torch.nn.").and_then(|rest| rest.rsplit('.').next());
    match name.unwrap_or_default() {
        "Identity" => Ok(Some(LabelShares::Unchanged)),
        "Sigmoid" => Ok(Some(LabelShares::Apart)),
        "Softmax" => Ok(Some(LabelShares::Together)),
        _ => Err(bad(format!("the activation '{class}' of scores is not known"))),
    }
}

/// The texts in front of inputs that a `config.json` has for tasks.
#[derive(Default, Deserialize)]
pub(super) struct TaskTexts {
    #[serde(default)]
    pub(super) task_instructions: BTreeMap<String, String>,
}

impl TaskTexts {
    pub(super) fn read(json: &[u8]) -> Self {
        serde_json::from_slice(json).unwrap_or_default()
    }
}

/// How the numbers for labels become shares.
pub(super) fn shares_of(apart: bool) -> LabelShares {
    if apart { LabelShares::Apart } else { LabelShares::Together }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_2_files_say_how_numbers_become_shares() {
        let of = |json: &str, folder: Option<&str>| activated(json.as_bytes(), folder).unwrap();
        let identity = "torch.nn.modules.linear.Identity";
        assert_eq!(of("{}", None), None);
        assert_eq!(of("{}", Some("torch.nn.modules.activation.Sigmoid")), Some(LabelShares::Apart));
        let own = format!(r#"{{"sentence_transformers":{{"version":"6","activation_fn":"{identity}"}}}}"#);
        assert_eq!(of(&own, Some("torch.nn.modules.activation.Sigmoid")), Some(LabelShares::Unchanged));
        let older = format!(r#"{{"sbert_ce_default_activation_function":"{identity}"}}"#);
        assert_eq!(of(&older, None), Some(LabelShares::Unchanged));
        assert_eq!(of(r#"{"problem_type":"regression"}"#, None), Some(LabelShares::Unchanged));
        assert_eq!(of(r#"{"problem_type":"multi_label_classification"}"#, Some(identity)), None);
        assert!(activated(b"{}", Some("mine.Odd")).unwrap_err().to_string().contains("mine.Odd"));
    }
}
