//! The only way to standard output and standard error. All text is filtered, so that a label, a name or a model's
//! answer cannot control the terminal; only the codes listed here pass.

use std::io::{self, IsTerminal, Stderr, Stdout, Write};

use model_boss_protocol::{PrintableWriter, printable_line};

/// Control codes that this program writes to a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Bold text.
    Bold,
    /// Faint text.
    Dim,
    /// Text without attributes.
    Plain,
    /// Moves to the beginning of the line and empties the line.
    ClearLine,
    /// Moves to the top left corner and empties the screen.
    HomeAndClear,
}

/// A stream that passes printable text and the permitted control codes.
pub struct Terminal<W>(PrintableWriter<W>);

/// The filtered standard output.
pub fn out() -> Terminal<Stdout> {
    Terminal::new(io::stdout())
}

/// The filtered standard error.
pub fn err() -> Terminal<Stderr> {
    Terminal::new(io::stderr())
}

/// Whether standard output is a terminal.
pub fn out_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is a terminal.
pub fn err_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Writes a line to standard error. Errors are ignored: without standard error there is no reader.
pub fn say(line: &str) {
    let _ = err().write_all(format!("{line}\n").as_bytes());
}

/// Writes one line of the log to standard error. With `colours`, the log's own colour codes pass.
pub fn log(line: &[u8], colours: bool) -> io::Result<()> {
    io::stderr().write_all(printable_line(line, colours).as_bytes())
}

impl<W: Write> Terminal<W> {
    /// A filter in front of `inner`.
    pub const fn new(inner: W) -> Self {
        Self(PrintableWriter::new(inner))
    }

    /// Writes a permitted control code.
    pub fn code(&mut self, code: Code) -> io::Result<()> {
        self.0.inner().write_all(match code {
            Code::Bold => b"\x1b[1m",
            Code::Dim => b"\x1b[2m",
            Code::Plain => b"\x1b[0m",
            Code::ClearLine => b"\r\x1b[2K",
            Code::HomeAndClear => b"\x1b[H\x1b[J",
        })
    }
}

impl<W: Write> Write for Terminal<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_10_only_codes_of_our_own_reach_the_terminal() {
        let mut shown = Vec::new();
        let mut terminal = Terminal::new(&mut shown);
        terminal.code(Code::Bold).unwrap();
        terminal.write_all("a\x1b[2Jb\u{9b}31m\u{202e}c\n\td\r\n".as_bytes()).unwrap();
        terminal.code(Code::Plain).unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), "\x1b[1ma\\u001b[2Jb\\u009b31m\\u202ec\n\td\n\x1b[0m");
    }
}
