//! The only access to standard output and standard error. Foreign texts, such as names of files, are filtered so that
//! they cannot control a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use model_boss_protocol::{PrintableWriter, printable_line};

/// Prints text on standard output. Errors are ignored: without an output there is no reader.
pub fn print(text: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stdout()), "{text}");
}

/// Prints a line on standard error. Errors are ignored: without an output there is no reader.
pub fn say(line: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stderr()), "{line}");
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
