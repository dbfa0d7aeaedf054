//! The only way to standard output and standard error. Every text is filtered on the way, so that what others wrote (a
//! label, a name, an answer of a model) cannot steer the terminal; only the codes that are listed here do.

use std::io::{self, IsTerminal, Stderr, Stdout, Write};

use model_boss_protocol::{PrintableWriter, printable_line};

/// What a terminal is told besides text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Bold text.
    Bold,
    /// Faint text.
    Dim,
    /// Text without attributes.
    Plain,
    /// To the beginning of the line, which is emptied.
    ClearLine,
    /// To the first place, and everything below is emptied.
    HomeAndClear,
}

/// A stream of printable text, and codes of our own between it.
pub struct Terminal<W>(PrintableWriter<W>);

/// Standard output.
pub fn out() -> Terminal<Stdout> {
    Terminal::new(io::stdout())
}

/// Standard error.
pub fn err() -> Terminal<Stderr> {
    Terminal::new(io::stderr())
}

/// Whether a person looks at standard output.
pub fn out_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether a person looks at standard error.
pub fn err_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// A line on standard error. Without one nobody reads it.
pub fn say(line: &str) {
    let _ = err().write_all(format!("{line}\n").as_bytes());
}

/// One line of the log, on standard error. With `colours` the log's own pass.
pub fn log(line: &[u8], colours: bool) -> io::Result<()> {
    io::stderr().write_all(printable_line(line, colours).as_bytes())
}

impl<W: Write> Terminal<W> {
    /// Filters what goes to `inner`.
    pub const fn new(inner: W) -> Self {
        Self(PrintableWriter::new(inner))
    }

    /// Writes a code of our own.
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
