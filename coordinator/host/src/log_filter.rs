//! The level of the log, changed while the process runs (TR-4's `logLevel`), and the writer of its lines.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use model_boss_config::{LogFormat, LogLevel};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::terminal;

/// Sets the level of the log, and reports whether its lines can be written. The call does nothing where no log was
/// started.
#[derive(Clone, Default)]
pub struct LogFilter {
    set: Option<Arc<dyn Fn(LevelFilter) + Send + Sync>>,
    failed: Arc<Mutex<Failed>>,
}

/// The number of lines that could not be written, and the reason.
#[derive(Default)]
struct Failed {
    /// The error of the last line, unless that line was written.
    why: Option<String>,
    lines: u64,
}

impl LogFilter {
    /// Starts the log on standard error; standard output belongs to the start-up lines.
    pub fn start(level: LogLevel, format: LogFormat) -> Self {
        let failed = Arc::<Mutex<Failed>>::default();
        let (filter, handle) = reload::Layer::new(filter(level));
        let registry = tracing_subscriber::registry().with(filter);
        let colours =
            format == LogFormat::Text && terminal::err_is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let writer = LogWriter { failed: Arc::clone(&failed), colours };
        // A log on a full disk must not end the thread that writes a line, as a failed eprintln! would.
        let lines = tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(writer);
        match format {
            LogFormat::Text => {
                registry.with(lines.with_ansi(colours).with_target(false)).init();
            }
            LogFormat::Json => registry.with(lines.json()).init(),
        }
        let set = move |level| {
            // Reloading fails only if the log was dropped.
            let _ = handle.reload(level);
        };
        Self { set: Some(Arc::new(set)), failed }
    }

    /// Why lines of the log are being lost; `None` while they are written.
    pub fn trouble(&self) -> Option<String> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let why = failed.why.as_ref()?;
        Some(format!("the log on standard error cannot be written: {why}; {} lines of it are lost", failed.lines))
    }

    /// Sets the level from now on.
    pub fn set(&self, level: LogLevel) {
        if let Some(set) = &self.set {
            set(filter(level));
        }
    }
}

/// Writes lines to standard error, and counts the lines that could not be written.
#[derive(Clone)]
struct LogWriter {
    failed: Arc<Mutex<Failed>>,
    /// Whether the log's own colour codes pass the filter.
    colours: bool,
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Write for LogWriter {
    /// Each call writes one line of the log, however many lines its fields have.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = format!("({} lines of this log could not be written)", failed.lines);
        if failed.lines > 0 && terminal::log(missing.as_bytes(), false).is_ok() {
            failed.lines = 0;
        }
        match terminal::log(line, self.colours) {
            Ok(()) => failed.why = None,
            Err(error) => {
                failed.why = Some(error.to_string());
                failed.lines += 1;
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
