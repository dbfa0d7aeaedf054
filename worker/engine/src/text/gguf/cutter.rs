//! Cuts a text into words by regular expressions. Unlike the `tokenizers` library it says when an expression gives up.

use fancy_regex::{Regex, RegexBuilder};

use super::error::VocabularyError;

/// Steps back that an expression may take at one place. White space takes one for each character.
const MOST_STEPS_BACK: usize = 100_000_000;

/// Expressions, applied in turn.
#[derive(Debug)]
pub(super) struct Cutter {
    expressions: Vec<Regex>,
}

impl Cutter {
    pub(super) fn new<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Result<Self, VocabularyError> {
        let compile = |pattern| RegexBuilder::new(pattern).backtrack_limit(MOST_STEPS_BACK).build();
        let expressions = patterns.into_iter().map(compile).collect::<Result<_, _>>();
        Ok(Self { expressions: expressions.map_err(|error| VocabularyError::Build(Box::new(error)))? })
    }

    /// The words of a text. Text between two matches is a word too.
    pub(super) fn words<'t>(&self, text: &'t str) -> Result<Vec<&'t str>, VocabularyError> {
        let mut words = vec![text];
        for expression in &self.expressions {
            let mut cut = Vec::with_capacity(words.len());
            for word in words {
                let mut end = 0;
                for found in expression.find_iter(word) {
                    let found = found.map_err(|error| VocabularyError::Text(Box::new(error)))?;
                    cut.extend(word.get(end..found.start()));
                    cut.push(found.as_str());
                    end = found.end();
                }
                cut.extend(word.get(end..));
            }
            cut.retain(|word| !word.is_empty());
            words = cut;
        }
        Ok(words)
    }
}
