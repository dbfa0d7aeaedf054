//! The only access to standard output and standard error. Foreign texts, such as names of files, are filtered so that
//! they cannot control a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use std::time::{Duration, Instant};

use model_boss_protocol::{FileProgress, PrintableWriter, printable_line};

/// The least time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Prints text on standard output. Errors are ignored: without an output there is no reader.
pub fn print(text: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stdout()), "{text}");
}

/// Prints a line on standard error. Errors are ignored: without an output there is no reader.
pub fn say(line: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stderr()), "{line}");
}

/// Standard output of a keeper, whose reader is the worker: samples as they are.
pub fn sound() -> impl Write {
    io::stdout().lock()
}

/// Standard error for the messages of another program.
pub fn messages() -> impl Write {
    PrintableWriter::new(io::stderr())
}

/// A receiver of progress that writes lines on standard error, if the program's caller asked for them.
pub fn file_progress() -> impl FnMut(u64, u64, &str) {
    let is_asked = std::env::var_os(FileProgress::VARIABLE).is_some();
    let mut last: Option<Instant> = None;
    move |completed, total, part| {
        if is_asked && last.is_none_or(|last| last.elapsed() >= PROGRESS_EVERY) {
            last = Some(Instant::now());
            say(FileProgress { completed, total, part: part.to_owned() }.to_line());
        }
    }
}

/// Whether a person looks at standard error.
pub fn err_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Writes lines of the log to standard error. With `colours` the log's own pass.
#[derive(Clone, Copy, Debug)]
pub struct LogLines {
    /// Whether the log's own colours pass.
    pub colours: bool,
}

impl Write for LogLines {
    /// Each call has one line, however many lines its fields have.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(printable_line(line, self.colours).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
