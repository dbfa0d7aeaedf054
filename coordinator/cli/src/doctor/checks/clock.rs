//! Clocks: the time of day, its synchronisation, and steps against the monotonic clock.

use std::time::Duration;

use super::super::finding::{Area, Finding};

/// 2025-01-01, before which no version of this program existed.
const TOO_EARLY: u64 = 1_735_689_600;
/// A step of the time of day during the checks that no synchronisation makes in small steps.
const STEP: Duration = Duration::from_millis(100);
/// Clock sources that are slow to read or not steady.
const SLOW_SOURCES: [&str; 4] = ["hpet", "acpi_pm", "pit", "jiffies"];

/// Facts about clocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockFacts {
    /// The time of day, in seconds since 1970.
    pub(crate) now: u64,
    /// Whether the system says that the time is synchronised; `None` where it does not say.
    pub(crate) is_synchronised: Option<bool>,
    /// A program that synchronises.
    pub(crate) synchroniser: Option<String>,
    /// How far the time of day moved against the monotonic clock during the checks.
    pub(crate) step: Duration,
    /// How long the machine slept since its start.
    pub(crate) slept: Duration,
    /// The clock source of the kernel.
    pub(crate) source: Option<String>,
    /// Whether the clock is that of a host outside.
    pub(crate) is_of_host: bool,
}

pub(crate) fn judge(facts: &ClockFacts) -> Vec<Finding> {
    let area = Area::Clock;
    let mut findings = Vec::new();
    if facts.now < TOO_EARLY {
        findings.push(
            Finding::failure(area, "time_of_day", "the time of day is before 2025")
                .why("Certificates of hubs and providers count as not yet valid, and days of limits are wrong")
                .remedy("Set the clock, and run chrony or systemd-timesyncd"),
        );
    }
    if facts.step > STEP {
        findings.push(
            Finding::warning(
                area,
                "step",
                format!("the time of day was set by {} ms while the checks ran", facts.step.as_millis()),
            )
            .why("Leases use the monotonic clock and do not mind; times in logs and of daily limits jump")
            .remedy("Find the program that sets the clock; a virtual machine may have two of them"),
        );
    }
    findings.push(match (facts.is_synchronised, &facts.synchroniser) {
        (Some(true), _) => Finding::ok(area, "synchronised", "the time of day is synchronised"),
        (_, Some(program)) => Finding::ok(area, "synchronised", format!("{program} keeps the time of day")),
        (_, None) if facts.is_of_host => {
            Finding::ok(area, "synchronised", "the clock is that of the host outside, which keeps it")
        }
        (said, None) => {
            let found = if said == Some(false) {
                "the time of day is not synchronised"
            } else {
                "no program that keeps the time of day was found"
            };
            Finding::note(area, "synchronised", found)
                .why("Ends of keys and certificates, daily limits and times in logs depend on it")
                .remedy("Run chrony or systemd-timesyncd")
        }
    });
    if let Some(source) = facts.source.as_deref().filter(|source| SLOW_SOURCES.contains(source)) {
        findings.push(
            Finding::note(area, "source", format!("the kernel's clock source is {source}"))
                .why("Each look at the clock is a slow call, which shows at many tokens a second")
                .remedy("See `dmesg | grep clocksource` for why tsc was given up"),
        );
    }
    if facts.slept > Duration::from_secs(1) {
        findings.push(
            Finding::note(
                area,
                "sleep",
                format!("the machine slept for {} min since its start", facts.slept.as_secs().div_ceil(60)),
            )
            .why("Models do not serve in that time, and some GPU drivers lose their memory over a sleep")
            .remedy("`systemctl mask sleep.target suspend.target` on a server"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_clocks_that_lie_are_found() {
        let good = ClockFacts { now: TOO_EARLY, is_synchronised: Some(true), ..ClockFacts::default() };
        assert_eq!(results(&judge(&good)), [("synchronised", Grade::Ok)]);
        let second = Duration::from_secs(1);
        for (facts, expected) in [
            (ClockFacts { now: 0, ..good.clone() }, ("time_of_day", Grade::Failure)),
            (ClockFacts { step: second, ..good.clone() }, ("step", Grade::Warning)),
            (ClockFacts { is_synchronised: Some(false), ..good.clone() }, ("synchronised", Grade::Note)),
            (ClockFacts { is_synchronised: None, ..good.clone() }, ("synchronised", Grade::Note)),
            (ClockFacts { is_synchronised: None, is_of_host: true, ..good.clone() }, ("synchronised", Grade::Ok)),
            (
                ClockFacts { is_synchronised: None, synchroniser: Some("chronyd".into()), ..good.clone() },
                ("synchronised", Grade::Ok),
            ),
            (ClockFacts { source: Some("hpet".into()), ..good.clone() }, ("source", Grade::Note)),
            (ClockFacts { slept: second.saturating_mul(90), ..good.clone() }, ("sleep", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
        assert_eq!(judge(&ClockFacts { source: Some("tsc".into()), ..good }).len(), 1);
    }
}
