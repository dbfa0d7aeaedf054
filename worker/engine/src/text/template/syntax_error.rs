//! The reasons why a text is no template.

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
