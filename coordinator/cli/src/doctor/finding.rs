//! The result of one check: what was found, why it matters, and what to do.

use serde::Serialize;

/// The part of a machine that a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Area {
    Configuration,
    Coordinator,
    Programs,
    Gpu,
    Processor,
    Memory,
    Limits,
    Clock,
    Leases,
    State,
    Secrets,
    Models,
    Hub,
    Sandbox,
    Surroundings,
}

/// How good a finding is, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grade {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Works, and will fail or be slow in some case.
    Warning,
    /// Does not work.
    Failure,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) area: Area,
    /// The check's name, for programs.
    pub(crate) check: &'static str,
    pub(crate) result: Grade,
    pub(crate) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to_do: Option<String>,
}

impl Area {
    /// The heading of the area.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Configuration => "Configuration",
            Self::Coordinator => "Coordinator and ports",
            Self::Programs => "Programs",
            Self::Gpu => "GPUs",
            Self::Processor => "Processor",
            Self::Memory => "Memory",
            Self::Limits => "Limits of the process",
            Self::Clock => "Clock",
            Self::Leases => "Lease store",
            Self::State => "State folder",
            Self::Secrets => "Secrets and certificates",
            Self::Models => "Models and tasks",
            Self::Hub => "Downloads",
            Self::Sandbox => "Sandbox",
            Self::Surroundings => "Surroundings",
        }
    }
}

impl Finding {
    fn new(area: Area, check: &'static str, result: Grade, found: impl Into<String>) -> Self {
        Self { area, check, result, found: found.into(), why: None, to_do: None }
    }

    pub(crate) fn ok(area: Area, check: &'static str, found: impl Into<String>) -> Self {
        Self::new(area, check, Grade::Ok, found)
    }

    pub(crate) fn note(area: Area, check: &'static str, found: impl Into<String>) -> Self {
        Self::new(area, check, Grade::Note, found)
    }

    pub(crate) fn warning(area: Area, check: &'static str, found: impl Into<String>) -> Self {
        Self::new(area, check, Grade::Warning, found)
    }

    pub(crate) fn failure(area: Area, check: &'static str, found: impl Into<String>) -> Self {
        Self::new(area, check, Grade::Failure, found)
    }

    /// Why the finding matters.
    pub(crate) fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// The remedy.
    pub(crate) fn remedy(self, to_do: impl Into<String>) -> Self {
        Self { to_do: Some(to_do.into()), ..self }
    }
}

/// The result of each finding with its check, for tests.
#[cfg(test)]
pub(crate) fn results(findings: &[Finding]) -> Vec<(&'static str, Grade)> {
    for finding in findings {
        let needs = finding.result >= Grade::Warning;
        assert!(
            !needs || (finding.why.is_some() && finding.to_do.is_some()),
            "{finding:?} says no reason and no remedy"
        );
    }
    findings.iter().map(|finding| (finding.check, finding.result)).collect()
}
