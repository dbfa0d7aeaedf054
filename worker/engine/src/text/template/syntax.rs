//! Reading a template: its words become a tree, and what Jinja2 refuses before it renders is refused.

use super::syntax_error::SyntaxError;
use super::tree::TemplateFrame;
use super::{analysis, lexer, parser};

/// A template as a tree.
pub(super) fn read(source: &str) -> Result<TemplateFrame, SyntaxError> {
    let mut body = parser::parse(lexer::tokens(source)?)?;
    let unset = analysis::check(&mut body)?;
    Ok(TemplateFrame { body, unset })
}
