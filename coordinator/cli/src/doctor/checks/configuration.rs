//! The settings: whether they are valid, and traps among them.

use std::path::PathBuf;

use super::super::finding::{Area, Finding};

/// The settings as a coordinator started here would read them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigurationFacts {
    /// The file that is read.
    pub(crate) file: Option<PathBuf>,
    /// The faults, each with its place.
    pub(crate) problems: Vec<String>,
    /// How many settings differ from the default.
    pub(crate) set: usize,
    /// Values that were stored while a coordinator ran.
    pub(crate) stored: Vec<String>,
    /// The address on which others can connect.
    pub(crate) open_to: Option<String>,
    pub(crate) has_keys: bool,
    pub(crate) has_tls: bool,
    pub(crate) is_simulated: bool,
}

pub(crate) fn judge(facts: &ConfigurationFacts) -> Vec<Finding> {
    let area = Area::Configuration;
    let mut findings = Vec::new();
    if !facts.problems.is_empty() {
        findings.extend(facts.problems.iter().map(|problem| {
            Finding::failure(area, "settings", problem.clone())
                .why("A coordinator does not start with it. All other checks use what is valid")
                .remedy("Correct it there. `model-boss config show --origin` lists every setting and its source")
        }));
        return findings;
    }
    let source = facts.file.as_ref().map_or_else(|| "no file".to_owned(), |file| file.display().to_string());
    findings.push(Finding::ok(
        area,
        "settings",
        format!("valid: {source}, {} set, the others at their defaults", facts.set),
    ));
    if !facts.stored.is_empty() {
        let found = format!("values stored at run time override the file: {}", facts.stored.join("; "));
        findings.push(
            Finding::note(area, "stored_values", found)
                .why("A changed line in the file may have no effect")
                .remedy("`model-boss config get --origin` shows where each value comes from"),
        );
    }
    if let Some(address) = &facts.open_to {
        findings.push(match (facts.has_keys, facts.has_tls) {
            (true, true) => {
                Finding::ok(area, "open_address", format!("{address} is open to others, with keys and HTTPS"))
            }
            (true, false) => {
                Finding::warning(area, "open_address", format!("{address} is open to others without HTTPS"))
                    .why("Keys and prompts cross the network readable")
                    .remedy("Set tls_cert and tls_key, or put a proxy with HTTPS in front (docs/keys.md)")
            }
            (false, _) => {
                Finding::failure(area, "open_address", format!("{address} is open to others, and there are no keys"))
                    .why("Anybody who reaches the port could use every model, so a coordinator refuses to start")
                    .remedy("`model-boss keys create NAME`, or listen on 127.0.0.1")
            }
        });
    }
    if facts.is_simulated {
        findings.push(
            Finding::note(area, "simulation", "the machine is simulated: `simulate` names a file of GPUs")
                .why("Every model is run by the fake worker and gives canned answers")
                .remedy("Remove `simulate` to use the real machine"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_invalid_settings_are_failures_and_an_open_address_needs_keys() {
        let good = ConfigurationFacts::default();
        assert_eq!(results(&judge(&good)), [("settings", Grade::Ok)]);
        let wrong = ConfigurationFacts { problems: vec!["a".into(), "b".into()], ..good.clone() };
        assert_eq!(results(&judge(&wrong)), [("settings", Grade::Failure); 2]);
        for (has_keys, has_tls, grade) in
            [(true, true, Grade::Ok), (true, false, Grade::Warning), (false, true, Grade::Failure)]
        {
            let facts = ConfigurationFacts { open_to: Some("0.0.0.0".into()), has_keys, has_tls, ..good.clone() };
            assert_eq!(results(&judge(&facts))[1], ("open_address", grade));
        }
        let rest = ConfigurationFacts { stored: vec!["maxQueue = 1".into()], is_simulated: true, ..good };
        assert_eq!(results(&judge(&rest))[1..], [("stored_values", Grade::Note), ("simulation", Grade::Note)]);
    }
}
