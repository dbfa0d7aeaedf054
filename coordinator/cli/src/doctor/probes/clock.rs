//! The clocks of the machine.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use model_boss_host::clocks::unix_seconds;
use nix::time::{ClockId, clock_gettime};

use super::super::checks::clock::ClockFacts;
use super::machine::{processes, text};

/// Programs that keep the time of day.
const SYNCHRONISERS: [&str; 8] =
    ["chronyd", "ntpd", "ntpsec", "openntpd", "systemd-timesyn", "ptp4l", "phc2sys", "vmtoolsd"];

/// Both clocks at one moment.
pub(crate) struct ClockPair(Instant, SystemTime);

impl ClockPair {
    pub(crate) fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// How far the time of day has moved against the monotonic clock.
    fn step(&self) -> Duration {
        let steady = self.0.elapsed();
        let of_day = match SystemTime::now().duration_since(self.1) {
            Ok(forward) => forward,
            Err(backward) => return backward.duration().saturating_add(steady),
        };
        steady.abs_diff(of_day)
    }
}

/// The facts, since `began`.
pub(crate) fn clock(began: &ClockPair, is_of_host: bool) -> ClockFacts {
    let timesync = Path::new("/run/systemd/timesync");
    ClockFacts {
        now: unix_seconds(),
        is_synchronised: timesync.is_dir().then(|| timesync.join("synchronized").exists()),
        synchroniser: processes().map(|(_, name)| name).find(|name| SYNCHRONISERS.contains(&name.as_str())),
        step: began.step(),
        slept: slept(),
        source: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        is_of_host,
    }
}

#[cfg(target_os = "linux")]
fn slept() -> Duration {
    let read = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
    read(ClockId::CLOCK_BOOTTIME).saturating_sub(read(ClockId::CLOCK_MONOTONIC))
}

#[cfg(not(target_os = "linux"))]
fn slept() -> Duration {
    let _ = clock_gettime(ClockId::CLOCK_MONOTONIC);
    Duration::ZERO
}
