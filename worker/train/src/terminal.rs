//! The only way to standard output and standard error. Names of files and words from them are filtered on the way, so that
//! they cannot steer a terminal.

use std::fmt::Display;
use std::io::{self, Write};

use model_boss_protocol::PrintableWriter;

/// Text on standard output. Without one nobody reads it.
pub(crate) fn print(text: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stdout()), "{text}");
}

/// A line on standard error. Without one nobody reads it.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(PrintableWriter::new(io::stderr()), "{line}");
}
