//! Reading a template: its words become a tree, and what Jinja2 refuses before it renders is refused.

use super::tree::Frame;
use super::{analysis, lexer, parser};

/// The text is no template.
#[derive(Debug, thiserror::Error)]
pub enum SyntaxError {
    /// Jinja2 could not read it either.
    #[error("line {line}: {message}")]
    Unreadable {
        /// The line.
        line: u32,
        /// The reason.
        message: String,
    },
    /// A tag is too long.
    #[error("line {0} has more than 800 operators in one tag")]
    Chain(u32),
    /// Brackets or tags are nested too deep.
    #[error("line {0} nests expressions or tags more than 100 deep")]
    Depth(u32),
    /// A filter, a test or a tag that Jinja2 looks for before it renders.
    #[error("line {line} has the unknown {what} '{name}'")]
    Unknown {
        /// The line.
        line: u32,
        /// "filter", "test" or "tag".
        what: &'static str,
        /// The name.
        name: String,
    },
}

/// A template as a tree.
pub(super) fn read(source: &str) -> Result<Frame, SyntaxError> {
    let mut body = parser::parse(lexer::tokens(source)?)?;
    let unset = analysis::check(&mut body)?;
    Ok(Frame { body, unset })
}
