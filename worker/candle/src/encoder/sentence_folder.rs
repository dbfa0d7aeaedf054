//! A folder of the package `sentence-transformers`, which says in `modules.json` what is behind the layers. Without
//! such a file, the mean of the tokens is normalised.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_boss_weights::layers_folder;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::folder_file::{bad, file};
use super::pooling::{DenseActivation, DenseFile, PoolStep, Pooling};
use super::text_length::longest_text;
use crate::error::ModelError;
use crate::spec::Activation;

/// A folder of `sentence-transformers`, or another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentenceFolder {
    pub(crate) steps: Vec<PoolStep>,
    /// The longest text, in tokens, if it says so.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) prompts: BTreeMap<String, String>,
    pub(crate) default_prompt: Option<String>,
    /// Whether pooling leaves such a text out.
    pub(crate) leaves_prompts_out: bool,
    /// The class in torch of the function that a judge's numbers pass.
    pub(crate) activation: Option<String>,
    /// The numbers that the last module gives, of a judge whose labels are a module's.
    pub(crate) scores: Option<usize>,
}

/// A module of the list.
#[derive(Deserialize)]
pub(super) struct SentenceModule {
    #[serde(default)]
    pub(super) path: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct PoolingConfig {
    pooling_mode: Option<PoolingMode>,
    include_prompt: Option<bool>,
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
    activation_function: Option<String>,
    #[serde(default)]
    use_residual: bool,
    #[serde(flatten)]
    names: VectorNames,
}

#[derive(Deserialize)]
struct LayerNormConfig {
    dimension: usize,
}

/// The vectors that a module reads and writes.
#[derive(Default, Deserialize)]
struct VectorNames {
    module_input_name: Option<String>,
    module_output_name: Option<String>,
}

impl VectorNames {
    /// Refuses to read others than the one vector of a text, and to write others than what is wanted.
    fn check(&self, path: &Path, wanted: &str) -> Result<(), ModelError> {
        let read = self.module_input_name.as_deref().unwrap_or(ONE_VECTOR);
        let written = self.module_output_name.as_deref().unwrap_or(read);
        let all = [("module_input_name", read, ONE_VECTOR), ("module_output_name", written, wanted)];
        match all.iter().find(|(_, name, known)| name != known) {
            Some((field, name, known)) => {
                Err(bad(format!("{}: {field} '{name}' is not known; '{known}' is", path.display())))
            }
            None => Ok(()),
        }
    }
}

fn yes() -> bool {
    true
}

#[derive(Default, Deserialize)]
struct SentenceSettings {
    #[serde(default)]
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
    activation_fn: Option<String>,
    /// The first numbers of each vector that are kept.
    truncate_dim: Option<usize>,
}

/// The list of modules.
pub(super) const MODULES: &str = "modules.json";

/// The name of a text's one vector.
const ONE_VECTOR: &str = "sentence_embedding";

/// The name of a judge's numbers.
const SCORES: &str = "scores";

/// Prompts that every model has; without a text of the folder's they are empty.
const USUAL_PROMPTS: [&str; 2] = ["query", "document"];

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
        let (steps, leaves_prompts_out) = match file::<Vec<SentenceModule>>(&folder.join(MODULES))? {
            None => (vec![PoolStep::Pool(vec![otherwise]), PoolStep::Normalise], false),
            Some(modules) => steps(folder, &modules, ONE_VECTOR)?,
        };
        let mut read = Self { leaves_prompts_out, ..Self::plain(folder, steps)? };
        for name in USUAL_PROMPTS {
            read.prompts.entry(name.to_owned()).or_default();
        }
        let settings: SentenceSettings = file(&folder.join(SETTINGS))?.unwrap_or_default();
        match settings.truncate_dim {
            Some(0) => return Err(bad(format!("{SETTINGS}: truncate_dim is 0"))),
            Some(count) => read.steps.push(PoolStep::First(count)),
            None => {}
        }
        Ok(read)
    }

    /// The folder of a judge whose modules pool the tokens and make numbers of the one vector; none where the layers
    /// have a classifier.
    pub(crate) fn judging(folder: &Path) -> Result<Option<Self>, ModelError> {
        let modules: Vec<SentenceModule> = file(&folder.join(MODULES))?.unwrap_or_default();
        let Some(last) = modules.last().filter(|module| module.name() == "Dense") else { return Ok(None) };
        let names: VectorNames = file(&inside(folder, &last.path)?.join("config.json"))?.unwrap_or_default();
        if names.module_output_name.as_deref() != Some(SCORES) {
            return Ok(None);
        }
        let (steps, leaves_prompts_out) = steps(folder, &modules, SCORES)?;
        let scores = match steps.last() {
            Some(PoolStep::Dense { shape, .. }) => Some(shape[0]),
            _ => None,
        };
        Ok(Some(Self { leaves_prompts_out, scores, ..Self::plain(folder, steps)? }))
    }

    /// A folder with these steps, whatever its list of modules says.
    pub(crate) fn plain(folder: &Path, steps: Vec<PoolStep>) -> Result<Self, ModelError> {
        let prompts: SentenceSettings = file(&folder.join(SETTINGS))?.unwrap_or_default();
        let texts = prompts.prompts.into_iter().map(|(name, text)| (name, text.unwrap_or_default()));
        let texts: BTreeMap<String, String> = texts.collect();
        let activation = prompts.activation_fn;
        let default_prompt = prompts.default_prompt_name.filter(|name| texts.contains_key(name));
        Ok(Self {
            steps,
            max_tokens: longest_text(&layers_folder(folder))?,
            prompts: texts,
            default_prompt,
            leaves_prompts_out: false,
            activation,
            scores: None,
        })
    }

    /// The numbers of a vector, where the layers have rows of so many.
    pub(crate) fn width(&self, hidden: usize) -> usize {
        self.steps.iter().fold(hidden, |width, step| match step {
            PoolStep::Pool(ways) => width * ways.len(),
            PoolStep::Dense { shape, .. } => shape[0],
            PoolStep::First(count) => width.min(*count),
            PoolStep::Norm { .. } | PoolStep::Normalise => width,
        })
    }
}

impl SentenceModule {
    /// The name of its class.
    pub(super) fn name(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or_default()
    }
}

/// The steps of modules, of which the last one gives what is wanted, and whether they leave prompts out.
fn steps(folder: &Path, modules: &[SentenceModule], wanted: &str) -> Result<(Vec<PoolStep>, bool), ModelError> {
    let (mut steps, mut leaves_prompts_out) = (Vec::new(), false);
    let last = modules.len().saturating_sub(1);
    for (at, module) in modules.iter().enumerate() {
        let inner = inside(folder, &module.path)?;
        match module.name() {
            // The layers themselves.
            "Transformer" | "BERT" | "RoBERTa" if at == 0 => {}
            "Pooling" => {
                let (ways, with_prompts) = pooling(&inner.join("config.json"))?;
                steps.push(PoolStep::Pool(ways));
                leaves_prompts_out |= !with_prompts;
            }
            "Dense" => steps.push(dense(inner, if at == last { wanted } else { ONE_VECTOR })?),
            "LayerNorm" => steps.push(layer_norm(inner)?),
            // It does nothing where nothing is trained.
            "Dropout" => {}
            "Normalize" => steps.push(normalise(&inner)?),
            other => return Err(bad(format!("{MODULES}: the module '{other}' is not known"))),
        }
    }
    if !matches!(steps.first(), Some(PoolStep::Pool(_))) {
        return Err(bad(format!("{MODULES}: the first module behind the layers is no Pooling")));
    }
    Ok((steps, leaves_prompts_out))
}

/// A folder that another one names, within it.
pub(super) fn inside(folder: &Path, path: &str) -> Result<PathBuf, ModelError> {
    let plain = Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if plain { Ok(folder.join(path)) } else { Err(bad(format!("modules.json: the path '{path}' leads elsewhere"))) }
}

/// The ways of a pooling, and whether it takes the tokens of prompts.
fn pooling(config: &Path) -> Result<(Vec<Pooling>, bool), ModelError> {
    let PoolingConfig { pooling_mode, include_prompt, others } = needed(config)?;
    let named = |name: &String| {
        let way = WAYS.iter().find(|(_, new, _)| new == name).map(|(.., way)| *way);
        way.ok_or_else(|| bad(format!("{}: the pooling '{name}' is not known", config.display())))
    };
    let ways: Vec<Pooling> = match &pooling_mode {
        Some(PoolingMode::One(name)) => vec![named(name)?],
        Some(PoolingMode::Several(names)) => names.iter().map(named).collect::<Result<_, _>>()?,
        None => {
            let is_on = |old: &str| others.get(old) == Some(&serde_json::Value::Bool(true));
            let on: Vec<Pooling> = WAYS.iter().filter(|(old, ..)| is_on(old)).map(|(.., way)| *way).collect();
            // The package's own default.
            if on.is_empty() { vec![Pooling::Mean] } else { on }
        }
    };
    if ways.is_empty() {
        return Err(bad(format!("{} names no pooling", config.display())));
    }
    Ok((ways, include_prompt.unwrap_or(true)))
}

fn dense(folder: PathBuf, wanted: &str) -> Result<PoolStep, ModelError> {
    let path = folder.join("config.json");
    let config: DenseConfig = needed(&path)?;
    config.names.check(&path, wanted)?;
    Ok(PoolStep::Dense {
        at: DenseFile::Folder(folder),
        shape: [config.out_features, config.in_features],
        bias: config.bias,
        activation: dense_activation(config.activation_function.as_deref(), &path)?,
        residual: config.use_residual,
    })
}

/// The activation of a product by the path of its class in torch, whose own defaults it has.
fn dense_activation(class: Option<&str>, path: &Path) -> Result<DenseActivation, ModelError> {
    // The package's own default.
    let Some(class) = class else { return Ok(DenseActivation::Tanh) };
    let name = class.strip_prefix("torch.nn.").and_then(|rest| rest.rsplit('.').next());
    Ok(match name.unwrap_or_default() {
        "Identity" => DenseActivation::Identity,
        "Tanh" => DenseActivation::Tanh,
        "Sigmoid" => DenseActivation::Sigmoid,
        "ReLU" => DenseActivation::Of(Activation::Relu),
        "GELU" => DenseActivation::Of(Activation::GeluErf),
        "SiLU" => DenseActivation::Of(Activation::Silu),
        "LeakyReLU" => DenseActivation::LeakyRelu,
        "ELU" => DenseActivation::Elu,
        "ReLU6" => DenseActivation::ReluUpToSix,
        "Softplus" => DenseActivation::Softplus,
        "Mish" => DenseActivation::Mish,
        "Softsign" => DenseActivation::Softsign,
        _ => return Err(bad(format!("{}: the activation '{class}' is not known", path.display()))),
    })
}

fn layer_norm(folder: PathBuf) -> Result<PoolStep, ModelError> {
    let config: LayerNormConfig = needed(&folder.join("config.json"))?;
    Ok(PoolStep::Norm { at: folder, width: config.dimension })
}

/// A length of 1, of a text's one vector alone. Older folders have no file for it.
fn normalise(folder: &Path) -> Result<PoolStep, ModelError> {
    let path = folder.join("config.json");
    file::<VectorNames>(&path)?.unwrap_or_default().check(&path, ONE_VECTOR)?;
    Ok(PoolStep::Normalise)
}

/// A file that has to be there.
fn needed<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    file(path)?.ok_or_else(|| bad(format!("{} is missing", path.display())))
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
        assert_eq!((plain.prompts["query"].as_str(), plain.prompts["document"].as_str()), ("", ""));
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
        write("1_Pooling/config.json", r#"{"pooling_mode_cls_token":false}"#);
        let usual = SentenceFolder::read(folder.path(), Pooling::Mean).unwrap();
        assert_eq!(usual.steps[0], PoolStep::Pool(vec![Pooling::Mean]));
        write("1_Pooling/config.json", r#"{"pooling_mode":"mean","include_prompt":false}"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap().leaves_prompts_out);
        write("1_Pooling/config.json", r#"{"pooling_mode":"magic"}"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap_err().to_string().contains("magic"));
        write("modules.json", r#"[{"path":"../up","type":"x.Pooling"}]"#);
        assert!(SentenceFolder::read(folder.path(), Pooling::Mean).unwrap_err().to_string().contains("../up"));
    }

    #[test]
    fn em_1_modules_behind_the_pooling_are_read_or_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let module = |path: &str, kind: &str| format!(r#"{{"path":"{path}","type":"sentence_transformers.x.{kind}"}}"#);
        let modules = [
            module("", "Transformer"),
            module("1_Pooling", "Pooling"),
            module("2_Dropout", "Dropout"),
            module("3_LayerNorm", "LayerNorm"),
            module("4_Dense", "Dense"),
            module("5_Normalize", "Normalize"),
        ];
        write("modules.json", &format!("[{}]", modules.join(",")));
        write("1_Pooling/config.json", "{}");
        write("3_LayerNorm/config.json", r#"{"dimension":4}"#);
        write("5_Normalize/config.json", r#"{"module_input_name":"sentence_embedding"}"#);
        let dense = |more: &str| {
            write("4_Dense/config.json", &format!(r#"{{"in_features":4,"out_features":2{more}}}"#));
            SentenceFolder::read(folder.path(), Pooling::Mean)
        };
        let read = dense(r#","use_residual":true,"activation_function":"torch.nn.modules.activation.GELU""#).unwrap();
        assert_eq!((read.steps.len(), read.width(4)), (4, 2));
        let is_gelu = |step: &PoolStep| match step {
            PoolStep::Dense { activation, residual, .. } => {
                *residual && *activation == DenseActivation::Of(Activation::GeluErf)
            }
            _ => false,
        };
        assert!(is_gelu(&read.steps[2]) && matches!(read.steps[1], PoolStep::Norm { width: 4, .. }));
        for (more, said) in [
            (r#","activation_function":"transformers.activations.GELUActivation""#, "GELUActivation"),
            (r#","module_input_name":"token_embeddings""#, "token_embeddings"),
            (r#","module_output_name":"scores""#, "scores"),
        ] {
            assert!(dense(more).unwrap_err().to_string().contains(said), "{more}");
        }
        let judge = |path: &str| {
            write("modules.json", &format!("[{}]", [&modules[..2], &[module(path, "Dense")]].concat().join(",")));
            SentenceFolder::judging(folder.path())
        };
        assert!(judge("4_Dense").unwrap().is_some_and(|judge| judge.scores == Some(2) && judge.steps.len() == 2));
        write("modules.json", &format!("[{}]", modules[0]));
        assert_eq!(SentenceFolder::judging(folder.path()).unwrap(), None);
        write("modules.json", &format!("[{}]", modules.join(",")));
        dense("").unwrap();
        write("5_Normalize/config.json", r#"{"module_input_name":"token_embeddings"}"#);
        assert!(dense("").unwrap_err().to_string().contains("token_embeddings"));
    }
}
