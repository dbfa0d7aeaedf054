//! The only access to standard output and standard error. Foreign texts, such as names of files, are filtered so that
//! they cannot control a terminal.

use std::fmt::Display;
use std::io::{self, Write};

use model_boss_protocol::PrintableWriter;

/// Prints text on standard output. Errors are ignored: without an output there is no reader.
pub(crate) fn print(text: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stdout()), "{text}");
}

/// Prints a line on standard error. Errors are ignored: without an output there is no reader.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stderr()), "{line}");
}
