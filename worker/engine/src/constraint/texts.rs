//! Sets of texts as terminals of a grammar.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use regex_syntax::hir::{Dot, Hir, HirKind, Look, Repetition};

use super::literal::literal;

/// A set of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextSet {
    /// The texts that match an expression as a whole.
    Expression(String),
    /// One text.
    Literal(String),
    /// The texts that all of these sets have.
    All(Vec<TextSet>),
    /// The texts that one of these sets has.
    Any(Vec<TextSet>),
    /// All texts but these.
    Not(Box<TextSet>),
    /// A text of each set, one behind the other.
    Chain(Vec<TextSet>),
}

/// Most work to find out whether a set has any text.
const EMPTY_BUDGET: u64 = 200_000;

/// The library's own bound of that work, for texts of a schema.
const LIBRARY_BUDGET: u64 = 10_000;

impl TextSet {
    /// All texts.
    pub(crate) fn every() -> Self {
        Self::Expression("(?s:.*)".to_owned())
    }

    /// No text.
    pub(crate) fn none() -> Self {
        Self::Any(Vec::new())
    }

    /// All texts but these.
    pub(crate) fn but(texts: Self) -> Self {
        Self::Not(Box::new(texts))
    }

    /// TextSet with another one in them.
    pub(crate) fn with(part: &str) -> Self {
        Self::Chain(vec![Self::every(), Self::Literal(part.to_owned()), Self::every()])
    }

    /// TextSet of so many characters.
    pub(crate) fn of_length(least: u64, most: Option<u64>) -> Self {
        Self::Expression(format!("(?s:.{{{least},{}}})", most.map_or(String::new(), |most| most.to_string())))
    }

    /// TextSet in which the pattern of a schema is found.
    pub(crate) fn with_pattern(pattern: &str) -> Result<Self, String> {
        // Classes have ASCII's characters, as in ECMAScript.
        let parsed = regex_syntax::parse(&regex_to_lark(pattern, "dw"));
        let expression = parsed.map_err(|error| {
            let words = error.to_string();
            let words = words.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("the 'pattern' {pattern:?} cannot be read: {words}")
        })?;
        let whole = open(open(expression, Side::Start), Side::End);
        if !whole.properties().look_set().is_empty() {
            return Err(format!(
                "the 'pattern' {pattern:?} has '^', '$' or '\\b' in a place where none can be held to"
            ));
        }
        Ok(Self::Expression(whole.to_string()))
    }

    /// Whether it is known that there is no such text.
    pub(crate) fn is_empty(&self) -> bool {
        let mut builder = RegexBuilder::new();
        let made = builder.mk(&self.tree()).and_then(|set| builder.to_regex_limited(set, EMPTY_BUDGET));
        made.is_ok_and(|mut set| set.always_empty())
    }

    /// Whether it was put together without any text.
    fn is_none(&self) -> bool {
        match self {
            Self::Any(sets) => sets.iter().all(Self::is_none),
            Self::All(sets) | Self::Chain(sets) => sets.iter().any(Self::is_none),
            Self::Expression(_) | Self::Literal(_) | Self::Not(_) => false,
        }
    }

    /// The set as an expression of a terminal of Lark. A set that is empty has none.
    pub(crate) fn terminal(&self) -> String {
        let joined = |sets: &[Self], by: &str| {
            let sets: Vec<_> = sets.iter().map(Self::terminal).collect();
            format!("({})", sets.join(by))
        };
        match self {
            Self::Expression(expression) => format!("/{}/", regex_to_lark(expression, "")),
            Self::Literal(text) => literal(text),
            Self::All(sets) => joined(sets, " & "),
            // Without any set in it, Lark's brackets have the empty text.
            Self::Any(sets) => joined(&sets.iter().filter(|set| !set.is_none()).cloned().collect::<Vec<_>>(), " | "),
            Self::Not(set) if set.is_none() => Self::every().terminal(),
            Self::Not(set) => format!("~{}", set.terminal()),
            Self::Chain(sets) => joined(sets, " "),
        }
    }

    fn tree(&self) -> RegexAst {
        let trees = |sets: &[Self]| sets.iter().map(Self::tree).collect();
        match self {
            Self::Expression(expression) => RegexAst::Regex(expression.clone()),
            Self::Literal(text) => RegexAst::Literal(text.clone()),
            Self::All(sets) => RegexAst::And(trees(sets)),
            Self::Any(sets) => RegexAst::Or(trees(sets)),
            Self::Not(set) => RegexAst::Not(Box::new(set.tree())),
            Self::Chain(sets) => RegexAst::Concat(trees(sets)),
        }
    }
}

/// Whether the library finds out within its bounds that there are texts with patterns and of a length.
pub(crate) fn can_be_met(patterns: &[&str], least: u64, most: Option<u64>) -> bool {
    let searched = patterns.iter().map(|pattern| RegexAst::SearchRegex(regex_to_lark(pattern, "dw")));
    let TextSet::Expression(counted) = TextSet::of_length(least, most) else { return false };
    let all = RegexAst::And(searched.chain([RegexAst::Regex(counted)]).collect());
    let mut builder = RegexBuilder::new();
    let Ok(all) = builder.mk(&all) else { return false };
    builder.exprset().is_positive(all)
        || builder.to_regex_limited(all, LIBRARY_BUDGET).is_ok_and(|mut set| !set.always_empty())
}

/// An end of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Start,
    End,
}

/// The expression with any text at one side of it, but where it is anchored there.
fn open(expression: Hir, side: Side) -> Hir {
    match expression.kind() {
        HirKind::Look(Look::Start) if side == Side::Start => Hir::empty(),
        HirKind::Look(Look::End) if side == Side::End => Hir::empty(),
        HirKind::Concat(parts) => {
            let mut parts = parts.clone();
            let outer = if side == Side::Start { parts.first_mut() } else { parts.last_mut() };
            if let Some(outer) = outer {
                *outer = open(outer.clone(), side);
            }
            Hir::concat(parts)
        }
        HirKind::Alternation(branches) => {
            Hir::alternation(branches.iter().map(|branch| open(branch.clone(), side)).collect())
        }
        HirKind::Capture(capture) => open((*capture.sub).clone(), side),
        _ => {
            let any = Box::new(Hir::dot(Dot::AnyChar));
            let any = Hir::repetition(Repetition { min: 0, max: None, greedy: true, sub: any });
            Hir::concat(if side == Side::Start { vec![any, expression] } else { vec![expression, any] })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a set has a text.
    fn has(set: &TextSet, text: &str) -> bool {
        !TextSet::All(vec![set.clone(), TextSet::Literal(text.to_owned())]).is_empty()
    }

    #[test]
    fn en_5_patterns_are_found_anywhere_unless_they_are_anchored() {
        for (pattern, yes, no) in [
            ("b", &["b", "abc", "a\nb"][..], &["", "ac"][..]),
            ("^b", &["b", "bc"], &["ab"]),
            ("b$", &["b", "ab"], &["bc"]),
            ("^b$", &["b"], &["", "ab", "bb"]),
            ("^a|b$", &["a", "ax", "xb"], &["xa", "bx"]),
            ("(^a|b)c", &["ac", "xbc", "acx"], &["xac"]),
            ("^(ab|cd)+$", &["ab", "abcd"], &["abc", ""]),
            (r"^\d{2}/\w$", &["12/a"], &["12/é", "1/a"]),
            ("^[^/\n]*$", &["", "é"], &["/", "\n"]),
            ("", &["", "x"], &[]),
        ] {
            let set = TextSet::with_pattern(pattern).unwrap();
            assert!(yes.iter().all(|text| has(&set, text)), "{pattern}: {set:?}");
            assert!(!no.iter().any(|text| has(&set, text)), "{pattern}: {set:?}");
        }
        for pattern in ["(", "a^b", r"\bword", "(?=a)b", r"(a)\1"] {
            assert!(TextSet::with_pattern(pattern).unwrap_err().contains("'pattern'"), "{pattern}");
        }
    }

    #[test]
    fn en_5_sets_without_a_text_are_left_out_of_a_terminal() {
        let a = || TextSet::Literal("a".to_owned());
        let none = || TextSet::All(vec![TextSet::every(), TextSet::none()]);
        assert_eq!(TextSet::Any(vec![none(), a()]).terminal(), "(\"a\")");
        assert_eq!(TextSet::All(vec![a(), TextSet::but(none())]).terminal(), "(\"a\" & /(?s:.*)/)");
        assert_eq!(TextSet::Chain(vec![a(), TextSet::Any(vec![a(), TextSet::none()])]).terminal(), "(\"a\" (\"a\"))");
    }

    #[test]
    fn en_5_sets_without_a_text_are_known() {
        let letters = TextSet::with_pattern("^[a-z]{3}$").unwrap();
        assert!(TextSet::none().is_empty() && !letters.is_empty() && !TextSet::every().is_empty());
        assert!(TextSet::All(vec![letters.clone(), TextSet::of_length(4, None)]).is_empty());
        assert!(TextSet::All(vec![letters.clone(), TextSet::but(letters)]).is_empty());
        assert!(TextSet::All(vec![TextSet::with("ab"), TextSet::of_length(0, Some(1))]).is_empty());
    }
}
