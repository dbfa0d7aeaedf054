//! A folder of the package `sentence-transformers`, which says in `modules.json` what is behind the layers. Without
//! such a file, the mean of the tokens is normalised.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::folder_file::{bad, file};
use super::pooling::{DenseActivation, DenseFile, PoolStep, Pooling};
use super::text_length::longest_text;
use crate::error::ModelError;

/// A folder of `sentence-transformers`, or another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentenceFolder {
    pub(crate) steps: Vec<PoolStep>,
    /// The longest text, in tokens, if it says so.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) prompts: BTreeMap<String, String>,
    pub(crate) default_prompt: Option<String>,
}

#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct PoolingConfig {
    pooling_mode: Option<PoolingMode>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// Newer files name the ways in a text or a list of texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum PoolingMode {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    #[serde(default)]
    activation_function: String,
}

fn yes() -> bool {
    true
}

#[derive(Default, Deserialize)]
struct SentenceSettings {
    #[serde(default)]
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
    /// The first numbers of each vector that are kept.
    truncate_dim: Option<usize>,
}

/// The settings of the whole model.
const SETTINGS: &str = "config_sentence_transformers.json";

/// The ways in the order in which they are put together, by their older and their newer names.
const WAYS: [(&str, &str, Pooling); 6] = [
    ("pooling_mode_cls_token", "cls", Pooling::First),
    ("pooling_mode_max_tokens", "max", Pooling::Max),
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanOfRoot),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Pooling::Weighted),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

impl SentenceFolder {
    /// Reads a model's folder. Without a list of modules, tokens become one vector in the way that is given.
    pub(crate) fn read(folder: &Path, otherwise: Pooling) -> Result<Self, ModelError> {
        let mut steps = Vec::new();
        match file::<Vec<Module>>(&folder.join("modules.json"))? {
            None => steps.extend([PoolStep::Pool(vec![otherwise]), PoolStep::Normalise]),
            Some(modules) => {
                for Module { path, kind } in modules {
                    let inner = inside(folder, &path)?;
                    match kind.rsplit('.').next().unwrap_or_default() {
                        "Transformer" => {}
                        "Pooling" => steps.push(PoolStep::Pool(ways(&inner.join("config.json"))?)),
                        "Dense" => steps.push(dense(inner)?),
                        "Normalize" => steps.push(PoolStep::Normalise),
                        other => return Err(bad(format!("modules.json: the module '{other}' is not known"))),
                    }
                }
                if !matches!(steps.first(), Some(PoolStep::Pool(_))) {
                    return Err(bad("modules.json: the first module behind the layers is no Pooling".to_owned()));
                }
            }
        }
        let mut read = Self::plain(folder, steps)?;
        let settings: SentenceSettings = file(&folder.join(SETTINGS))?.unwrap_or_default();
        match settings.truncate_dim {
            Some(0) => return Err(bad(format!("{SETTINGS}: truncate_dim is 0"))),
            Some(count) => read.steps.push(PoolStep::First(count)),
            None => {}
        }
        Ok(read)
    }

    /// A folder with these steps, whatever its list of modules says.
    pub(crate) fn plain(folder: &Path, steps: Vec<PoolStep>) -> Result<Self, ModelError> {
        let prompts: SentenceSettings = file(&folder.join(SETTINGS))?.unwrap_or_default();
        let texts = prompts.prompts.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let texts: BTreeMap<String, String> = texts.collect();
        let default_prompt = prompts.default_prompt_name.filter(|name| texts.contains_key(name));
        Ok(Self { steps, max_tokens: longest_text(folder)?, prompts: texts, default_prompt })
    }

    /// The numbers of a vector, where the layers have rows of so many.
    pub(crate) fn width(&self, hidden: usize) -> usize {
        self.steps.iter().fold(hidden, |width, step| match step {
            PoolStep::Pool(ways) => width * ways.len(),
            PoolStep::Dense { shape, .. } => shape[0],
            PoolStep::First(count) => width.min(*count),
            PoolStep::Normalise => width,
        })
    }
}

/// A folder that another one names, within it.
fn inside(folder: &Path, path: &str) -> Result<PathBuf, ModelError> {
    let plain = Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if plain { Ok(folder.join(path)) } else { Err(bad(format!("modules.json: the path '{path}' leads elsewhere"))) }
}

fn ways(config: &Path) -> Result<Vec<Pooling>, ModelError> {
    let PoolingConfig { pooling_mode, others } =
        file(config)?.ok_or_else(|| bad(format!("{} is missing", config.display())))?;
    let named = |name: &String| {
        let way = WAYS.iter().find(|(_, new, _)| new == name).map(|(.., way)| *way);
        way.ok_or_else(|| bad(format!("{}: the pooling '{name}' is not known", config.display())))
    };
    let ways: Vec<Pooling> = match &pooling_mode {
        Some(PoolingMode::One(name)) => vec![named(name)?],
        Some(PoolingMode::Several(names)) => names.iter().map(named).collect::<Result<_, _>>()?,
        None => {
            let is_on = |old: &str| others.get(old) == Some(&serde_json::Value::Bool(true));
            WAYS.iter().filter(|(old, ..)| is_on(old)).map(|(.., way)| *way).collect()
        }
    };
    if ways.is_empty() {
        return Err(bad(format!("{} names no pooling", config.display())));
    }
    Ok(ways)
}

fn dense(folder: PathBuf) -> Result<PoolStep, ModelError> {
    let path = folder.join("config.json");
    let config: DenseConfig = file(&path)?.ok_or_else(|| bad(format!("{} is missing", path.display())))?;
    let activation = match config.activation_function.rsplit('.').next().unwrap_or_default() {
        "Tanh" => DenseActivation::Tanh,
        "Identity" => DenseActivation::Identity,
        // The package's own default.
        "" => DenseActivation::Tanh,
        other => return Err(bad(format!("{}: the activation '{other}' is not known", path.display()))),
    };
    Ok(PoolStep::Dense {
        at: DenseFile::Folder(folder),
        shape: [config.out_features, config.in_features],
        bias: config.bias,
        activation,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_a_folder_says_how_tokens_become_one_vector() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let plain = SentenceFolder::read(folder.path(), Pooling::Mean).unwrap();
        assert_eq!(plain.steps, [PoolStep::Pool(vec![Pooling::Mean]), PoolStep::Normalise]);
        write(
            "modules.json",
            r#"[{"idx":0,"path":"","type":"sentence_transformers.models.Transformer"},
                {"path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
                {"path":"2_Dense","type":"sentence_transformers.models.Dense"},
                {"path":"3_Normalize","type":"sentence_transformers.models.Normalize"}]"#,
        );
        write(
            "1_Pooling/config.json",
            r#"{"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true,"pooling_mode_max_tokens":false}"#,
        );
        write(
            "2_Dense/config.json",
            r#"{"in_features":8,"out_features":5,"bias":false,"activation_function":"torch.nn.modules.linear.Identity"}"#,
        );
        write("sentence_bert_config.json", r#"{"max_seq_length":128,"do_lower_case":false}"#);
        write(
            "config_sentence_transformers.json",
            r#"{"prompts":{"query":"q: ","document":""},"default_prompt_name":"query"}"#,
        );
        let read = SentenceFolder::read(folder.path(), Pooling::Mean).unwrap();
        assert_eq!((read.steps.len(), read.width(4), read.max_tokens), (3, 5, Some(128)));
        assert_eq!(read.steps[0], PoolStep::Pool(vec![Pooling::First, Pooling::Mean]));
        assert_eq!((read.default_prompt.as_deref(), read.prompts["query"].as_str()), (Some("query"), "q: "));
        write("config_sentence_transformers.json", r#"{"truncate_dim":3}"#);
        let short = SentenceFolder::read(folder.path(), Pooling::Mean).unwrap();
        assert_eq!((short.width(4), short.steps.last()), (3, Some(&PoolStep::First(3))));
        write("config_sentence_transformers.json", r#"{"truncate_dim":0}"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap_err().to_string().contains("truncate_dim"));
        write("config_sentence_transformers.json", "{}");
        write("1_Pooling/config.json", r#"{"pooling_mode":"lasttoken"}"#);
        let newer = SentenceFolder::read(folder.path(), Pooling::Mean).unwrap();
        assert_eq!(newer.steps[0], PoolStep::Pool(vec![Pooling::Last]));
        write("1_Pooling/config.json", r#"{"pooling_mode":"magic"}"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap_err().to_string().contains("magic"));
        write("modules.json", r#"[{"path":"../up","type":"x.Pooling"}]"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap_err().to_string().contains("../up"));
    }
}
