//! Text marked `safe`, and `autoescape`. No chat template wants text escaped, but models were trained on prompts
//! rendered so.

use super::fault::RenderResult;
use super::printing::bounded;
use super::value::PythonValue;

/// MarkupSafe's five replacements.
pub(super) fn escaped(text: &str) -> String {
    let amp = text.replace('&', "&amp;");
    amp.replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&#34;")
}

/// Where a statement is, as the reference compiles it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Escaping {
    #[default]
    Off,
    On,
    /// As the rendering has it then, but for constants, of which this says it.
    AsItRuns(bool),
}

/// Both switches of `autoescape`: statements, filters and marks of text do not look at the same one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Escapes {
    pub(super) here: Escaping,
    pub(super) running: bool,
}

impl Escapes {
    /// Whether statements here escape what expressions give.
    pub(super) fn is_on(self) -> bool {
        self.here == Escaping::On || (matches!(self.here, Escaping::AsItRuns(_)) && self.running)
    }

    /// Inside of `autoescape` with this value.
    pub(super) fn within(self, is_on: bool, is_constant: bool) -> Self {
        let here = match (is_constant, self.here) {
            (true, Escaping::AsItRuns(_)) => Escaping::AsItRuns(is_on),
            (false, Escaping::AsItRuns(of_constants)) => Escaping::AsItRuns(of_constants),
            (false, here) => Escaping::AsItRuns(here == Escaping::On),
            (true, _) if is_on => Escaping::On,
            _ => Escaping::Off,
        };
        Self { here, running: is_on }
    }

    /// A text that statements here wrote.
    pub(super) fn text(self, text: String) -> PythonValue {
        marked(self.is_on(), text)
    }
}

/// A text, marked or not.
pub(super) fn marked(is_marked: bool, text: String) -> PythonValue {
    if is_marked { PythonValue::Markup(text.into()) } else { PythonValue::text(text) }
}

/// Operands of `~` as one text, which is marked if any of them is.
pub(super) fn concatenated(values: &[PythonValue]) -> RenderResult<PythonValue> {
    let is_marked = values.iter().any(is_markup);
    let mut out = String::new();
    for value in values {
        let text = value.print()?;
        out.push_str(&if is_marked && !is_markup(value) { escaped(&text) } else { text });
        bounded(out.len())?;
    }
    Ok(marked(is_marked, out))
}

/// Whether a value is marked text.
pub(super) fn is_markup(value: &PythonValue) -> bool {
    matches!(value, PythonValue::Markup(_))
}
