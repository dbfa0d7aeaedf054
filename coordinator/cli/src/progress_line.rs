//! The progress of long work on standard error: a bar that is written anew in a terminal, else a line for each step.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use model_boss_host::terminal::{self, Code};
use model_boss_protocol::ByteCount;

/// The characters of the bar.
const BAR: u64 = 24;
/// The longest part of a file's path that is shown.
const LONGEST_FILE: usize = 40;
/// Outside of a terminal: the least time between two lines of one step.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The unit of a progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgressUnit {
    Bytes,
    /// Things that are counted, by their name in the plural.
    Steps(&'static str),
}

/// The progress to show.
pub(super) struct ShownProgress {
    pub(super) stage: String,
    pub(super) file: String,
    pub(super) total: u64,
    pub(super) completed: u64,
    /// Units in each second; 0 where it is not known.
    pub(super) rate: f64,
    pub(super) trouble: Option<String>,
    pub(super) at: Instant,
    pub(super) unit: ProgressUnit,
}

/// The line on standard error.
pub(super) struct ProgressLine {
    is_terminal: bool,
    /// Whether there are lines outside of a terminal.
    is_told: bool,
    /// The step and the file of the last line, and its time.
    last: Option<(String, Instant)>,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self { is_terminal: terminal::err_is_terminal(), is_told: true, last: None }
    }

    /// The line of a command whose output may be for a program: then only a terminal gets the progress.
    pub(super) fn for_output(is_json: bool) -> Self {
        Self { is_told: !is_json, ..Self::new() }
    }

    /// Whether the line is written anew each time.
    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Shows the progress.
    pub(super) fn show(&mut self, progress: &ShownProgress) -> io::Result<()> {
        let step = format!("{} {}", progress.stage, progress.file);
        let is_new = self
            .last
            .as_ref()
            .is_none_or(|(last, at)| *last != step || progress.at.saturating_duration_since(*at) >= LINE_EVERY);
        if self.is_terminal {
            let mut out = terminal::err();
            out.code(Code::ClearLine)?;
            out.write_all(progress.line().as_bytes())?;
            out.flush()?;
        } else if is_new && self.is_told {
            terminal::say(&progress.line());
        }
        if is_new {
            self.last = Some((step, progress.at));
        }
        Ok(())
    }

    /// Removes the line.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.is_terminal && self.last.take().is_some() { terminal::err().code(Code::ClearLine) } else { Ok(()) }
    }
}

impl ShownProgress {
    fn line(&self) -> String {
        let skipped = self.file.chars().count().saturating_sub(LONGEST_FILE);
        let file: String = self.file.chars().skip(skipped).collect();
        let trouble = self.trouble.as_ref();
        if self.total == 0 {
            let trouble = trouble.map(|why| format!(" ({why})")).unwrap_or_default();
            return format!("{} {file}{trouble}", self.stage).trim_end().to_owned();
        }
        let share = |of: u64| u64::try_from(u128::from(self.completed) * u128::from(of) / u128::from(self.total));
        let (filled, percent) = (share(BAR).unwrap_or(BAR).min(BAR), share(100).unwrap_or(100).min(100));
        let bar: String = (0..BAR).map(|at| if at < filled { '#' } else { '-' }).collect();
        let mut line = match self.unit {
            ProgressUnit::Bytes => {
                format!("[{bar}] {percent} % of {}, {}", ByteCount(self.total), ByteCount(self.completed))
            }
            ProgressUnit::Steps(name) => format!("[{bar}] {percent} % of {} {name}", self.total),
        };
        match trouble {
            Some(why) => line += &format!(", trying again: {why}"),
            None => line += &self.pace(),
        }
        format!("{line}, {} {file}", self.stage).trim_end().to_owned()
    }

    /// The rate and the time that is left, where the rate is known.
    fn pace(&self) -> String {
        let left = self.total.saturating_sub(self.completed) as f64 / self.rate;
        match self.unit {
            ProgressUnit::Bytes if self.rate >= 1.0 => {
                format!(", {}/s, {} left", ByteCount(self.rate as u64), span(left as u64))
            }
            ProgressUnit::Steps(_) if self.rate > 0.0 => format!(", {} left", span(left.ceil() as u64)),
            _ => String::new(),
        }
    }
}

/// A time, human-readable.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_6_a_line_says_how_far_and_how_long() {
        let mut progress = ShownProgress {
            stage: "downloading".to_owned(),
            file: "m.gguf".to_owned(),
            total: 4 << 20,
            completed: 1 << 20,
            rate: f64::from(1 << 20),
            trouble: None,
            at: Instant::now(),
            unit: ProgressUnit::Bytes,
        };
        assert_eq!(
            progress.line(),
            "[######------------------] 25 % of 4.00 MiB, 1.00 MiB, 1.00 MiB/s, 3 s left, downloading m.gguf"
        );
        progress.trouble = Some("cut".to_owned());
        assert!(progress.line().ends_with("trying again: cut, downloading m.gguf"), "{}", progress.line());
        let unknown = ShownProgress { total: 0, completed: 0, stage: "listing".to_owned(), ..progress };
        assert_eq!(unknown.line(), "listing m.gguf (cut)");
    }

    #[test]
    fn op_1_steps_are_counted_and_their_time_left_is_told() {
        let progress = ShownProgress {
            stage: "4 streams".to_owned(),
            file: String::new(),
            total: 8,
            completed: 2,
            rate: 0.1,
            trouble: None,
            at: Instant::now(),
            unit: ProgressUnit::Steps("requests"),
        };
        assert_eq!(progress.line(), "[######------------------] 25 % of 8 requests, 1 min left, 4 streams");
        let begins = ShownProgress { completed: 0, rate: 0.0, ..progress };
        assert_eq!(begins.line(), "[------------------------] 0 % of 8 requests, 4 streams");
    }
}
