//! How much is logged, changed while the process runs (TR-4's `logLevel`).

use std::io::{self, IsTerminal};
use std::sync::Arc;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogLevel};

/// Sets the level of the log. Without a log it does nothing.
#[derive(Clone, Default)]
pub(crate) struct LogFilter(Option<Arc<dyn Fn(LevelFilter) + Send + Sync>>);

impl LogFilter {
    /// Begins the log, on standard error; standard output belongs to the start-up lines.
    pub(crate) fn start(level: LogLevel, format: LogFormat) -> Self {
        let (filter, handle) = reload::Layer::new(filter(level));
        let registry = tracing_subscriber::registry().with(filter);
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        match format {
            LogFormat::Text => {
                let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
                registry.with(lines.with_ansi(colours).with_target(false)).init();
            }
            LogFormat::Json => registry.with(lines.json()).init(),
        }
        Self(Some(Arc::new(move |level| {
            // It fails only when the log is gone.
            let _ = handle.reload(level);
        })))
    }

    /// Logs so much from now on.
    pub(crate) fn set(&self, level: LogLevel) {
        if let Some(set) = &self.0 {
            set(filter(level));
        }
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
