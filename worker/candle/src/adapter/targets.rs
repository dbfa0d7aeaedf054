//! The modules that an adapter is for, as PEFT decides it by their names: lists of endings, or a regular expression;
//! some layers only; all but some.

use fancy_regex::Regex;
use serde::Deserialize;

/// `target_modules`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Targets {
    /// A regular expression, or `all-linear`.
    Text(String),
    Names(Vec<String>),
}

/// A regular expression over the names of modules.
#[derive(Debug)]
pub(crate) struct NamePattern(Regex);

impl NamePattern {
    fn new(text: &str) -> Result<Self, String> {
        Regex::new(text).map(Self).map_err(|error| format!("'{text}' is no regular expression: {error}"))
    }

    /// A pattern for the last parts of a name, or all of it.
    pub(crate) fn ending(text: &str) -> Result<Self, String> {
        // The text by itself is checked first, so that the message quotes what the file has.
        Self::new(text)?;
        Self::new(&format!("^(?:.*\\.)?(?:{text})$"))
    }

    fn whole(text: &str) -> Result<Self, String> {
        Self::new(text)?;
        Self::new(&format!("^(?:{text})$"))
    }

    /// Whether a name fits. A pattern that takes too long fits nothing.
    pub(crate) fn fits(&self, name: &str) -> bool {
        self.0.is_match(name).unwrap_or(false)
    }
}

#[derive(Debug)]
enum TargetNames {
    /// All projections but the last product; or what the file has, where the configuration says nothing.
    All,
    Pattern(NamePattern),
    Endings(Vec<String>),
}

impl TargetNames {
    fn of(targets: Targets) -> Result<Self, String> {
        Ok(match targets {
            Targets::Text(text) if text.eq_ignore_ascii_case("all-linear") => Self::All,
            Targets::Text(text) => Self::Pattern(NamePattern::whole(&text).map_err(|why| format!("{WHERE}: {why}"))?),
            Targets::Names(names) => Self::Endings(names),
        })
    }

    fn have(&self, module: &str) -> bool {
        match self {
            Self::All => true,
            Self::Pattern(pattern) => pattern.fits(module),
            Self::Endings(names) => names.iter().any(|name| ends_with(module, name)),
        }
    }
}

const WHERE: &str = "'target_modules'";

/// The rule by which modules are adapted.
#[derive(Debug)]
pub(crate) struct TargetRule {
    targets: TargetNames,
    excluded: Option<TargetNames>,
    /// The numbers of layers; all where none are named.
    layers: Vec<i64>,
    /// Where the number of a layer is in a name.
    numbers: Vec<NamePattern>,
}

impl TargetRule {
    pub(crate) fn new(
        targets: Option<Targets>,
        excluded: Option<Targets>,
        layers: Option<Vec<i64>>,
        patterns: Option<Vec<String>>,
    ) -> Result<Self, String> {
        let number = |pattern: &String| NamePattern::new(&format!("^(?:.*?\\.)?(?:{pattern})\\.(\\d+)\\."));
        let mut numbers = patterns
            .unwrap_or_default()
            .iter()
            .filter(|pattern| !pattern.is_empty())
            .map(number)
            .collect::<Result<Vec<_>, _>>()?;
        if numbers.is_empty() {
            numbers.push(NamePattern::new(r"^.*?\.[^.]*\.(\d+)\.")?);
        }
        Ok(Self {
            targets: targets.map_or(Ok(TargetNames::All), TargetNames::of)?,
            excluded: excluded.map(TargetNames::of).transpose()?,
            layers: layers.unwrap_or_default(),
            numbers,
        })
    }

    /// Whether the module of this name is adapted.
    pub(crate) fn has(&self, module: &str) -> bool {
        if self.excluded.as_ref().is_some_and(|excluded| excluded.have(module)) || !self.targets.have(module) {
            return false;
        }
        // An expression says itself which layers it means.
        let by_layer = !self.layers.is_empty() && matches!(self.targets, TargetNames::Endings(_));
        !by_layer || self.layer_of(module).is_some_and(|layer| self.layers.contains(&layer))
    }

    fn layer_of(&self, module: &str) -> Option<i64> {
        let found = self.numbers.iter().find_map(|pattern| pattern.0.captures(module).ok().flatten())?;
        // The number is the last group: patterns may have groups of their own.
        found.iter().flatten().last()?.as_str().parse().ok()
    }
}

fn ends_with(module: &str, name: &str) -> bool {
    module == name || module.strip_suffix(name).is_some_and(|before| before.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &str = "model.layers.3.self_attn.q_proj";

    fn rule(targets: &str, excluded: Option<&str>, layers: &[i64], pattern: Option<&str>) -> TargetRule {
        let of = |text: &str| serde_json::from_str::<Targets>(text).unwrap();
        let patterns = pattern.map(|pattern| vec![pattern.to_owned()]);
        TargetRule::new(Some(of(targets)), excluded.map(of), Some(layers.to_vec()), patterns).unwrap()
    }

    #[test]
    fn en_9_targets_are_matched_as_peft_does() {
        assert!(rule("[\"q_proj\"]", None, &[], None).has(QUERY));
        assert!(!rule("[\"proj\"]", None, &[], None).has(QUERY), "names end at dots");
        assert!(rule("\".*\\\\.(q|v)_proj\"", None, &[], None).has(QUERY));
        assert!(!rule("\"(q|v)_proj\"", None, &[], None).has(QUERY), "expressions fit the whole name");
        assert!(rule("\"all-linear\"", None, &[], None).has(QUERY));
        assert!(!rule("\"all-linear\"", Some("[\"q_proj\"]"), &[], None).has(QUERY));
        assert!(!rule("[\"q_proj\"]", Some("\".*layers.3.*\""), &[], None).has(QUERY));
        assert!(rule("[\"q_proj\"]", None, &[1, 3], None).has(QUERY));
        assert!(!rule("[\"q_proj\"]", None, &[1, 2], None).has(QUERY));
        assert!(rule("[\"q_proj\"]", None, &[3], Some("layers")).has(QUERY));
        assert!(!rule("[\"q_proj\"]", None, &[3], Some("blocks")).has(QUERY), "no layer has such a name");
        assert!(rule("[\"gate_proj\"]", None, &[3], None).has("model.layers.3.mlp.experts.7.gate_proj"));
    }
}
