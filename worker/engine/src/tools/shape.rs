//! The parts of the description of a format.

use super::head::HeadShape;
use super::notation::Notation;
use super::xml_call::Tags;

/// The description of a format.
///
/// Texts may have marks in them that are special tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct CallFormat {
    /// A chat template with all words of one of these lists writes the format.
    pub(super) known_by: &'static [&'static [&'static str]],
    /// A chat template with one of these words writes another format, which is not known here.
    pub(super) unlike: &'static [&'static str],
    /// The first mark of calls, up to which an answer is free text. Without one, calls take the place of text.
    pub(super) first: Option<&'static str>,
    /// Marks behind which a parser reads a call, or a list of calls.
    pub(super) open: &'static [&'static str],
    /// Marks that are no part of the text, and begin no call.
    pub(super) ignored: &'static [&'static str],
    /// Other marks, inside of calls.
    pub(super) inside: &'static [&'static str],
    /// Around all calls of an answer.
    pub(super) all: Around,
    /// Around each call.
    pub(super) each: Around,
    /// Between two calls.
    pub(super) between: Spellings,
    /// The shape of a call.
    pub(super) call: CallShape,
    /// Whether an answer may have several calls.
    pub(super) several: bool,
    /// The identifiers that the templates of the format want.
    pub(super) ids: CallIds,
    /// Whether arguments in JSON may have any white space between their parts.
    pub(super) is_spaced: bool,
}

/// Spellings of one thing. Prompts have the first one.
pub(super) type Spellings = &'static [&'static str];

/// The texts in front of something and behind it.
#[derive(Debug)]
pub(super) struct Around(pub(super) Spellings, pub(super) Spellings);

const NOTHING: Around = Around(&[""], &[""]);

/// The shape of a call.
#[derive(Debug)]
pub(super) enum CallShape {
    /// An object of JSON with the name and the arguments.
    Object(ObjectShape),
    /// The name, and arguments in JSON behind it.
    Head(HeadShape),
    /// The name, and parameters between tags behind it.
    Tags(Tags),
    /// The name and the arguments in a notation of their own.
    Notation(Notation),
}

/// The spelling of a call that is an object of JSON.
#[derive(Debug)]
pub(super) struct ObjectShape {
    pub(super) open: Spellings,
    pub(super) name: &'static str,
    pub(super) between: Spellings,
    pub(super) arguments: &'static str,
    pub(super) close: Spellings,
    /// An expression of more in front of the name.
    pub(super) before: &'static str,
    /// An expression of more behind the arguments.
    pub(super) behind: &'static str,
    /// The end of a fenced block around a list of calls.
    pub(super) fence: &'static str,
    /// Whether the name is the key of the arguments. Then the object has no other fields.
    pub(super) is_keyed: bool,
}

impl ObjectShape {
    /// An object with a name and its arguments.
    pub(super) const PLAIN: Self = Self {
        open: &["{"],
        name: "name",
        between: &[", "],
        arguments: "arguments",
        close: &["}"],
        before: "",
        behind: "",
        fence: "",
        is_keyed: false,
    };
}

/// The identifiers that templates want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIds {
    /// Any.
    Any,
    /// Nine letters and digits: Mistral's templates refuse others.
    Short,
    /// The tool's name, and the number of the call in the conversation: `functions.NAME:0`.
    Numbered,
}

impl CallFormat {
    /// The character with which calls begin that take the place of text.
    pub(super) fn begins(&self) -> char {
        self.all.0.first().and_then(|text| text.chars().next()).unwrap_or('{')
    }

    /// Whether calls are in a list between brackets.
    pub(super) fn is_listed(&self) -> bool {
        self.all.0.iter().any(|text| text.trim_end().ends_with('['))
    }

    /// Whether each call has a mark of its own in front of it.
    pub(super) fn has_marks_each(&self) -> bool {
        self.each.0.iter().any(|text| !text.is_empty())
    }

    /// Most formats have this.
    pub(super) const BASE: Self = Self {
        known_by: &[],
        unlike: &[],
        first: None,
        open: &[],
        ignored: &[],
        inside: &[],
        all: NOTHING,
        each: NOTHING,
        between: &["\n"],
        call: CallShape::Object(ObjectShape::PLAIN),
        several: true,
        ids: CallIds::Any,
        is_spaced: false,
    };
}
