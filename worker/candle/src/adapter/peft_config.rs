//! `adapter_config.json`, as PEFT writes it: the scale of each module's product, and what else the adapter needs.

use std::fmt;

use model_boss_engine::AdapterError;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Value;

use super::targets::{NamePattern, TargetRule, Targets};

/// The file's name, for messages.
const FILE: &str = "adapter_config.json";

/// The way out of an initialisation that changes the base's weights.
const CONVERT: &str = "save the adapter with PEFT's path_initial_model_for_weight_conversion, which makes a plain one";

/// The way out of every other method.
const MERGE: &str = "merge the adapter into the model (merge_and_unload) and load that";

/// A LoRA's configuration.
#[derive(Debug)]
pub(crate) struct PeftConfig {
    rank: f64,
    alpha: f64,
    by_root: bool,
    pub(crate) is_dora: bool,
    ranks: Vec<(NamePattern, f64)>,
    alphas: Vec<(NamePattern, f64)>,
    pub(crate) rule: TargetRule,
    /// Names of modules that the adapter replaces.
    pub(crate) replaced: Vec<String>,
    pub(crate) base: Option<String>,
}

/// The fields that are read.
#[derive(Deserialize)]
struct PeftFields {
    peft_type: Option<String>,
    r: Option<f64>,
    lora_alpha: Option<f64>,
    #[serde(default)]
    use_rslora: Option<bool>,
    #[serde(default)]
    use_dora: Option<bool>,
    #[serde(default)]
    rank_pattern: Option<Pairs>,
    #[serde(default)]
    alpha_pattern: Option<Pairs>,
    #[serde(default)]
    target_modules: Option<Targets>,
    #[serde(default)]
    exclude_modules: Option<Targets>,
    #[serde(default)]
    layers_to_transform: Option<OneOrMany<i64>>,
    #[serde(default)]
    layers_pattern: Option<OneOrMany<String>>,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    init_lora_weights: Value,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn into_list(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// A map in the order of the file: the first name that fits counts.
struct Pairs(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from names of modules to numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Pairs, E> {
                Ok(Pairs(Vec::new()))
            }
        }
        deserializer.deserialize_any(InOrder)
    }
}

/// Fields of methods that this build does not know. Each is off where it is absent, null, false or empty.
const UNKNOWN_METHODS: [&str; 12] = [
    "use_qalora",
    "alora_invocation_tokens",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "megatron_config",
    "ensure_weight_tying",
];

/// Initialisations that leave the base's weights as they are.
const PLAIN_STARTS: [&str; 4] = ["gaussian", "eva", "orthogonal", "true"];

fn malformed(what: String) -> AdapterError {
    AdapterError::Malformed { file: FILE, what }
}

impl PeftConfig {
    pub(crate) fn read(json: &[u8]) -> Result<Self, AdapterError> {
        let whole: Value = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let fields: PeftFields = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let kind = fields.peft_type.as_deref().unwrap_or("LORA");
        if kind != "LORA" {
            return Err(AdapterError::Unsupported { what: format!("'peft_type' = \"{kind}\""), remedy: MERGE });
        }
        for field in UNKNOWN_METHODS {
            let is_off = match whole.get(field) {
                None | Some(Value::Null | Value::Bool(false)) => true,
                Some(Value::Array(list)) => list.is_empty(),
                Some(Value::Object(map)) => map.is_empty(),
                Some(_) => false,
            };
            if !is_off {
                return Err(AdapterError::Unsupported { what: format!("'{field}'"), remedy: MERGE });
            }
        }
        if let Value::String(start) = &fields.init_lora_weights
            && !PLAIN_STARTS.contains(&start.to_ascii_lowercase().as_str())
        {
            let what = format!("'init_lora_weights' = \"{start}\", which changes the weights of the base");
            return Err(AdapterError::Unsupported { what, remedy: CONVERT });
        }
        if let Some(bias) = fields.bias.as_deref().filter(|bias| *bias != "none") {
            return Err(AdapterError::Unsupported { what: format!("'bias' = \"{bias}\""), remedy: MERGE });
        }
        let number = |field: &str, number: Option<f64>| {
            let number = number.ok_or_else(|| malformed(format!("'{field}' is missing")))?;
            let fits = number.is_finite() && (field != "r" || number >= 1.0);
            if fits { Ok(number) } else { Err(malformed(format!("'{field}' = {number} is no such number"))) }
        };
        let patterns = |field: &str, pairs: Option<Pairs>| {
            let pattern = |(name, number): (String, f64)| {
                let pattern = NamePattern::ending(&name);
                pattern.map(|pattern| (pattern, number)).map_err(|why| malformed(format!("'{field}': {why}")))
            };
            pairs.map_or_else(Vec::new, |pairs| pairs.0).into_iter().map(pattern).collect::<Result<Vec<_>, _>>()
        };
        let replaced = fields.modules_to_save.unwrap_or_default();
        let rule = TargetRule::new(
            fields.target_modules,
            fields.exclude_modules,
            fields.layers_to_transform.map(OneOrMany::into_list),
            fields.layers_pattern.map(OneOrMany::into_list),
        );
        Ok(Self {
            rank: number("r", fields.r)?,
            alpha: number("lora_alpha", fields.lora_alpha)?,
            by_root: fields.use_rslora.unwrap_or(false),
            is_dora: fields.use_dora.unwrap_or(false),
            ranks: patterns("rank_pattern", fields.rank_pattern)?,
            alphas: patterns("alpha_pattern", fields.alpha_pattern)?,
            rule: rule.map_err(malformed)?,
            replaced,
            base: fields.base_model_name_or_path.filter(|base| !base.is_empty()),
        })
    }

    /// The rank of a module's matrices.
    pub(crate) fn rank(&self, module: &str) -> f64 {
        first(&self.ranks, module).unwrap_or(self.rank)
    }

    /// The factor on a module's product: `alpha / rank`, or `alpha / sqrt(rank)` (rsLoRA: Kalajdzievski, 2023, arXiv
    /// 2312.03732).
    pub(crate) fn scale(&self, module: &str) -> f64 {
        let (rank, alpha) = (self.rank(module), first(&self.alphas, module).unwrap_or(self.alpha));
        if self.by_root { alpha / rank.sqrt() } else { alpha / rank }
    }
}

fn first(patterns: &[(NamePattern, f64)], module: &str) -> Option<f64> {
    patterns.iter().find(|(pattern, _)| pattern.fits(module)).map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(fields: &str) -> Result<PeftConfig, AdapterError> {
        PeftConfig::read(format!("{{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16{fields}}}").as_bytes())
    }

    #[test]
    fn en_9_scales_follow_patterns_in_the_order_of_the_file() {
        let plain = config("").unwrap();
        assert_eq!((plain.scale("model.layers.0.self_attn.q_proj"), plain.rank("x")), (2.0, 8.0));
        let by_root = config(",\"use_rslora\":true,\"r\":16").map(|config| config.scale("x"));
        assert!(by_root.is_err(), "a field twice is malformed");
        let patterns = config(
            ",\"use_rslora\":true,\"rank_pattern\":{\"z_proj\":2,\"layers.1.self_attn.q_proj\":4,\"q_proj\":16},\
             \"alpha_pattern\":{\"^model.layers.[01].self_attn.q_proj\":32}",
        )
        .unwrap();
        assert_eq!(patterns.rank("model.layers.1.self_attn.q_proj"), 4.0);
        assert_eq!(patterns.rank("model.layers.11.self_attn.q_proj"), 16.0);
        assert_eq!(patterns.scale("model.layers.1.self_attn.q_proj"), 32.0 / 2.0);
        assert_eq!(patterns.scale("model.layers.11.self_attn.q_proj"), 16.0 / 4.0);
    }

    #[test]
    fn en_9_what_is_not_done_is_refused_by_name() {
        for (fields, named) in [
            (",\"bias\":\"all\"", "'bias' = \"all\""),
            (",\"init_lora_weights\":\"pissa_niter_4\"", "pissa_niter_4"),
            (",\"use_qalora\":true", "'use_qalora'"),
            (",\"target_parameters\":[\"mlp.experts.gate_up_proj\"]", "'target_parameters'"),
            (",\"trainable_token_indices\":[1]", "'trainable_token_indices'"),
            (",\"rank_pattern\":{\"(\":1}", "'rank_pattern'"),
        ] {
            let error = config(fields).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let other = PeftConfig::read(b"{\"peft_type\":\"LOHA\",\"r\":8,\"lora_alpha\":16}").unwrap_err();
        assert!(other.to_string().contains("LOHA"), "{other}");
        assert!(PeftConfig::read(b"{\"lora_alpha\":16}").unwrap_err().to_string().contains("'r' is missing"));
        assert!(config(",\"bias\":\"none\",\"layer_replication\":null,\"init_lora_weights\":\"gaussian\"").is_ok());
    }
}
