//! The only way to standard output and standard error. Every text is filtered on the way, so that what others wrote (a
//! label, a name, an answer of a model) cannot steer the terminal; only the codes that are listed here do.

use std::io::{self, IsTerminal, Stderr, Stdout, Write};

use model_boss_protocol::{is_printable, push_printable};

/// A longer line of the log is cut.
const LONGEST_LINE: usize = 64 << 10;

/// What a terminal is told besides text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Bold,
    Dim,
    Plain,
    /// To the beginning of the line, which is emptied.
    ClearLine,
    /// To the first place, and everything below is emptied.
    HomeAndClear,
}

/// A stream of text that shows what is not printable as its number. Line breaks and tabs pass. Bytes that are no UTF-8 are
/// replaced.
pub(crate) struct Terminal<W> {
    inner: W,
    /// The beginning of a character whose rest has not come yet.
    rest: Vec<u8>,
}

/// Standard output.
pub(crate) fn out() -> Terminal<Stdout> {
    Terminal::new(io::stdout())
}

/// Standard error.
pub(crate) fn err() -> Terminal<Stderr> {
    Terminal::new(io::stderr())
}

/// Whether a person looks at standard output.
pub(crate) fn out_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether a person looks at standard error.
pub(crate) fn err_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// A line on standard error. Without one nobody reads it.
pub(crate) fn say(line: &str) {
    let _ = err().write_all(format!("{line}\n").as_bytes());
}

/// One line of the log, on standard error. With `colours` the log's own pass.
pub(crate) fn log(line: &[u8], colours: bool) -> io::Result<()> {
    io::stderr().write_all(log_line(line, colours).as_bytes())
}

fn log_line(line: &[u8], colours: bool) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let mut shown = String::with_capacity(text.len() + 1);
    let mut left = text;
    while let Some(character) = left.chars().next() {
        if shown.len() > LONGEST_LINE {
            shown.push_str(&format!("… ({} bytes more)", left.len()));
            break;
        }
        // Fields come here without escape characters: the log's formatter has written them as text already.
        if let Some(length) = colour(left).filter(|_| colours) {
            shown.push_str(&left[..length]);
            left = &left[length..];
            continue;
        }
        push_printable(&mut shown, character);
        left = &left[character.len_utf8()..];
    }
    shown.push('\n');
    shown
}

/// The length of a colour or style at the beginning of a text (ECMA-48, SGR).
fn colour(text: &str) -> Option<usize> {
    let end = text.strip_prefix("\x1b[")?.find(|character: char| !character.is_ascii_digit() && character != ';')?;
    let end = end + 2;
    text[end..].starts_with('m').then_some(end + 1)
}

impl<W: Write> Terminal<W> {
    /// Filters what goes to `inner`.
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, rest: Vec::new() }
    }

    /// Writes a code of our own.
    pub(crate) fn code(&mut self, code: Code) -> io::Result<()> {
        self.inner.write_all(match code {
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
        self.rest.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.rest);
        // The last character may come in two pieces; anything else that is no UTF-8 is a fault.
        let whole = pending.utf8_chunks().last().map_or(0, |last| {
            let open = last.invalid();
            let may_go_on = open.len() < 4 && std::str::from_utf8(open).is_err_and(|error| error.error_len().is_none());
            if may_go_on { pending.len() - open.len() } else { pending.len() }
        });
        let (now, later) = pending.split_at(whole);
        self.rest = later.to_vec();
        let mut shown = String::with_capacity(now.len());
        let text = String::from_utf8_lossy(now).replace("\r\n", "\n");
        for character in text.chars() {
            match character {
                character if is_printable(character) => shown.push(character),
                '\n' | '\t' => shown.push(character),
                character => push_printable(&mut shown, character),
            }
        }
        self.inner.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let mut terminal = Terminal::new(Vec::new());
        for piece in pieces {
            terminal.write_all(piece).unwrap();
        }
        String::from_utf8(terminal.inner).unwrap()
    }

    #[test]
    fn op_10_only_codes_of_our_own_reach_the_terminal() {
        let mut terminal = Terminal::new(Vec::new());
        terminal.code(Code::Bold).unwrap();
        terminal.write_all("a\x1b[2Jb\u{9b}31m\u{202e}c\n\td\r\n".as_bytes()).unwrap();
        terminal.code(Code::Plain).unwrap();
        let written = String::from_utf8(terminal.inner).unwrap();
        assert_eq!(written, "\x1b[1ma\\u001b[2Jb\\u009b31m\\u202ec\n\td\n\x1b[0m");
    }

    #[test]
    fn characters_in_pieces_are_put_together_and_broken_ones_replaced() {
        assert_eq!(shown(&[b"\xf0\x9f", b"\x91\xa9 \xc3", b"\xbc"]), "👩 ü");
        assert_eq!(shown(&[b"a\xffb", b"\xc3", b"x"]), "a\u{fffd}b\u{fffd}x");
        // The second byte of a C1 control comes alone.
        assert_eq!(shown(&[b"\xc2", b"\x9b31m"]), "\\u009b31m");
    }

    #[test]
    fn op_10_a_line_of_the_log_stays_one_line_and_has_an_end() {
        assert_eq!(log_line(b"INFO a\nERROR forged\n", false), "INFO a\\nERROR forged\n");
        assert_eq!(
            log_line("\x1b[2mINFO\x1b[0m \x1b]0;t\x07\u{9b}\n".as_bytes(), true),
            "\x1b[2mINFO\x1b[0m \\u001b]0;t\\u0007\\u009b\n"
        );
        assert_eq!(log_line(b"\x1b[31mred\n", false), "\\u001b[31mred\n");
        assert!(log_line(&vec![b'x'; 1 << 20], false).len() < LONGEST_LINE + 100);
    }

    /// A new place that prints would bypass the filter.
    #[test]
    fn op_10_nothing_else_in_this_program_prints() {
        fn visit(folder: &std::path::Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    visit(&path, found);
                } else if !path.ends_with("terminal.rs") && path.extension().is_some_and(|kind| kind == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let ways = ["io::stdout", "io::stderr", "println!(", "print!(", "stdout().", "stderr()."];
                    let ways = ways.iter().filter(|way| text.contains(**way));
                    found.extend(ways.map(|way| format!("{} has {way}", path.display())));
                }
            }
        }
        let mut found = Vec::new();
        visit(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        assert!(found.is_empty(), "write to crate::terminal in place of: {found:#?}");
    }
}
