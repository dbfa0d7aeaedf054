//! The steps behind the layers of an encoder: the vectors of a text's tokens become one, as the folder of the package
//! `sentence-transformers` says in `modules.json`. Without such a file, the mean of the tokens is normalised.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{D, Result as CandleResult, Tensor};
use model_boss_weights::{SmallFileError, read_small_file};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ModelError;
use crate::spec::{Activation, ConfigJsonError};

/// The limit on each of the folder's files, in bytes.
const LONGEST: u64 = 4 << 20;

/// One part behind the layers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PoolStep {
    /// The vectors of the tokens become one, by each of these ways, one behind the other.
    Pool(Vec<Pooling>),
    /// A product and an activation.
    Dense { at: DenseFile, shape: [usize; 2], bias: bool, activation: DenseActivation },
    /// A length of 1.
    Normalise,
}

/// The place of a product's matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DenseFile {
    /// A folder of its own.
    Folder(PathBuf),
    /// A tensor of the GGUF file, by its name without `.weight`.
    Gguf(PathBuf, &'static str),
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// The greatest numbers.
    Max,
    /// The mean.
    Mean,
    /// The sum over the root of the number of tokens.
    MeanOfRoot,
    /// The mean, in which the n-th token counts n times.
    Weighted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DenseActivation {
    Identity,
    Tanh,
    Relu,
    /// One that layers have, too.
    Of(Activation),
}

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
struct SentenceConfig {
    max_seq_length: Option<usize>,
}

#[derive(Default, Deserialize)]
struct SentencePrompts {
    #[serde(default)]
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
}

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
        Self::plain(folder, steps)
    }

    /// A folder with these steps, whatever its list of modules says.
    pub(crate) fn plain(folder: &Path, steps: Vec<PoolStep>) -> Result<Self, ModelError> {
        let config: SentenceConfig = file(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
        let prompts: SentencePrompts = file(&folder.join("config_sentence_transformers.json"))?.unwrap_or_default();
        let texts = prompts.prompts.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let texts: BTreeMap<String, String> = texts.collect();
        let default_prompt = prompts.default_prompt_name.filter(|name| texts.contains_key(name));
        Ok(Self { steps, max_tokens: config.max_seq_length, prompts: texts, default_prompt })
    }

    /// The numbers of a vector, where the layers have rows of so many.
    pub(crate) fn width(&self, hidden: usize) -> usize {
        self.steps.iter().fold(hidden, |width, step| match step {
            PoolStep::Pool(ways) => width * ways.len(),
            PoolStep::Dense { shape, .. } => shape[0],
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

/// A file of JSON; none if it does not exist.
fn file<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ModelError> {
    let bytes = read_small_file(path, LONGEST).map_err(|error| match error {
        SmallFileError::Read { path, source } => ModelError::ReadConfig { path, source },
        error => bad(error.to_string()),
    })?;
    let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes);
    bytes.map(read).transpose().map_err(|error| bad(format!("{}: {error}", path.display())))
}

fn bad(what: String) -> ModelError {
    ModelError::Config(ConfigJsonError::Malformed(what))
}

impl Pooling {
    /// The vector of a text's tokens, `[tokens, hidden]` → `[1, hidden]`.
    pub(crate) fn of(self, rows: &Tensor) -> CandleResult<Tensor> {
        let tokens = rows.dim(0)?;
        match self {
            Self::First => rows.narrow(0, 0, 1),
            Self::Last => rows.narrow(0, tokens - 1, 1),
            Self::Max => rows.max_keepdim(0),
            Self::Mean => rows.mean_keepdim(0),
            Self::MeanOfRoot => rows.sum_keepdim(0)? / (tokens as f64).sqrt(),
            Self::Weighted => {
                let all = (tokens * (tokens + 1) / 2) as f32;
                let weights: Vec<f32> = (1..=tokens).map(|token| token as f32 / all).collect();
                rows.broadcast_mul(&Tensor::from_vec(weights, (tokens, 1), rows.device())?)?.sum_keepdim(0)
            }
        }
    }
}

/// Rows of length 1. A row of zeros stays.
pub(crate) fn normalised(rows: &Tensor) -> CandleResult<Tensor> {
    let lengths = rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    rows.broadcast_div(&lengths.maximum(1e-12)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

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
        write("1_Pooling/config.json", r#"{"pooling_mode":"lasttoken"}"#);
        let newer = SentenceFolder::read(folder.path(), Pooling::Mean).unwrap();
        assert_eq!(newer.steps[0], PoolStep::Pool(vec![Pooling::Last]));
        write("1_Pooling/config.json", r#"{"pooling_mode":"magic"}"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap_err().to_string().contains("magic"));
        write("modules.json", r#"[{"path":"../up","type":"x.Pooling"}]"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap_err().to_string().contains("../up"));
    }

    #[test]
    fn em_1_tokens_become_one_vector() {
        let rows = Tensor::new(&[[1.0_f32, -2.0], [3.0, 4.0], [5.0, 1.0]], &Device::Cpu).unwrap();
        let of = |way: Pooling| way.of(&rows).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(
            (of(Pooling::First), of(Pooling::Last), of(Pooling::Max)),
            (vec![1.0, -2.0], vec![5.0, 1.0], vec![5.0, 4.0])
        );
        assert_eq!((of(Pooling::Mean), of(Pooling::Weighted)), (vec![3.0, 1.0], vec![3.666_666_5, 1.5]));
        assert!((of(Pooling::MeanOfRoot)[0] - 9.0 / 3.0_f32.sqrt()).abs() < 1e-6);
        let normal = normalised(&Tensor::new(&[[3.0_f32, 4.0], [0.0, 0.0]], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(normal.to_vec2::<f32>().unwrap(), [[0.6, 0.8], [0.0, 0.0]]);
    }
}
