//! Sets beside a plain search with backtracking, on all short texts.

use fancy_regex::Regex;
use proptest::prelude::*;

use super::{Regular, RegularSets};

/// All texts of up to so many of these characters.
fn short_texts(letters: &[char], most: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..most {
        last = last.iter().flat_map(|text| letters.iter().map(move |c| format!("{text}{c}"))).collect();
        all.extend_from_slice(&last);
    }
    all
}

/// Whether the demands have the pattern that they should.
fn agree(demands: &[(&str, bool)], letters: &[char], most: usize) -> String {
    let searched: Vec<(Regex, bool)> =
        demands.iter().map(|(pattern, holds)| (Regex::new(pattern).unwrap(), *holds)).collect();
    let is_wanted =
        |text: &str| searched.iter().all(|(regex, holds)| regex.is_match(text).expect("a search ends") == *holds);
    match RegularSets::default().meeting(demands) {
        Regular::Pattern(pattern) => {
            let plain = Regex::new(&pattern).unwrap_or_else(|error| panic!("{demands:?}: {error}"));
            for text in short_texts(letters, most) {
                assert_eq!(plain.is_match(&text).unwrap(), is_wanted(&text), "{demands:?} as {pattern}: {text:?}");
            }
            pattern
        }
        Regular::Nothing => {
            let found = short_texts(letters, most).into_iter().find(|text| is_wanted(text));
            assert_eq!(found, None, "{demands:?}");
            String::new()
        }
        Regular::Unknown => panic!("{demands:?} is not known"),
    }
}

#[test]
fn en_5_patterns_with_looks_around_have_plain_ones() {
    for pattern in [
        "ab",
        "^ab$",
        "a^b",
        "(^|a)b",
        "a(b|$)",
        r"\ba",
        r"a\b",
        r"a\bb",
        r"a\Bb",
        r"\b",
        r"\B",
        "^(?!a)",
        "^(?!a)b",
        "(?!a)b",
        "(?=a)[ab]b",
        "a(?!b)",
        "^(a(?!b)|b)*$",
        "^(?:(?!ab)[ab ])*$",
        "(?<=a)b",
        "(?<!a)b",
        "^(?<!a)b",
        "(?<=^|a)b",
        "(?<=(?<!a)b)a",
        "^(?=.*a)(?=.*b)[ab]{2,3}$",
        "^(?!.*aa)",
        "^(?!.*(?:ab|ba)$).*$",
        "(?!)",
        "(?=)",
        "^((?=a)|b)*$",
        "^(a*)*$",
        "^(a?){2,3}b$",
        "^(a?b?)*$",
        "(?:a|(?=b))+",
        "^(?=(?!a)b|a(?=b))",
        "[^a]",
        "^(?:(?=a)a|(?!a)[b ])+?$",
        "a{2}",
        "^[ab]{1,3}(?<!b)$",
        r"^\w+\b \b\w+$",
        "(?i)AB",
    ] {
        agree(&[(pattern, true)], &['a', 'b', ' '], 5);
        agree(&[(pattern, false)], &['a', 'b', ' '], 5);
    }
}

#[test]
fn en_5_demands_hold_together() {
    let pattern = agree(&[("a", true), ("b", false), ("^ ", false)], &['a', 'b', ' '], 5);
    assert!(pattern.len() < 60, "{pattern}");
    assert_eq!(agree(&[("^a", true), ("a", false)], &['a', 'b'], 4), "");
    assert_eq!(agree(&[("^no", false)], &['n', 'o'], 4), r"^(?:n?|(?:[^n]|n[^o])[\s\S]*)$");
    let sets = RegularSets::default();
    assert_eq!(sets.texts(&[("^(?!a)[ab]+$", true)], (2, 3), 3), ["ba", "bb", "baa"]);
    assert_eq!(sets.texts(&[("^(a|b)*a(a|b){20}$", true)], (0, 40), 1), ["a".repeat(21)]);
}

#[test]
fn en_5_patterns_that_refer_back_have_some_of_their_texts() {
    let sets = RegularSets::default();
    let Regular::Pattern(plain) = sets.meeting(&[(r"^(?<x>[a-c])-(b|c)\k<x>\2$", true)]) else { panic!() };
    let (plain, refers) = (Regex::new(&plain).unwrap(), Regex::new(r"^([a-c])-(b|c)\1\2$").unwrap());
    let both: Vec<String> =
        short_texts(&['a', 'b', 'c', '-'], 5).into_iter().filter(|text| plain.is_match(text).unwrap()).collect();
    assert!(both.len() >= 3 && both.iter().all(|text| refers.is_match(text).unwrap()), "{both:?}");
    for demand in [(r"(a)?\1", true), (r"(a|(b))\2", true), (r"(a)\1", false), (r"^(?!.*(.)\1)", true)] {
        assert_eq!(sets.meeting(&[demand]), Regular::Unknown, "{demand:?}");
    }
    assert_eq!(sets.texts(&[(r"^(?!.*(.)\1)[a-z]{3,}$", true)], (0, 9), 2), ["abc", "abd"]);
    assert_eq!(sets.texts(&[(r"^([a-z])\1", false), ("^[a-z]{2}$", true)], (0, 9), 1), ["ab"]);
}

/// Patterns whose automata have no bound that is worth while end, and others in time.
#[test]
fn en_5_all_texts_of_a_finite_pattern_are_found() {
    let sets = RegularSets::default();
    let all = |pattern: &str| {
        sets.all_texts(pattern, 12).map(|mut texts| {
            texts.sort();
            texts.join(" ")
        })
    };
    assert_eq!(all("^[a-d]$").as_deref(), Some("a b c d"));
    assert_eq!(all("^(x|ab{1,2})?$").as_deref(), Some(" ab abb x"));
    assert_eq!(all("^(?!a)[ab]{2}$").as_deref(), Some("ba bb"));
    for endless in ["^a*$", "a", "^[a-z]$", "^[ab]{5}$"] {
        assert_eq!(all(endless), None, "{endless}");
    }
}

#[test]
fn en_5_hostile_patterns_are_left() {
    let nested = (0..20).fold("a".to_owned(), |inside, _| format!("(?:(?!{inside})[ab])*"));
    let many = (0..40).map(|number| format!("(?=.*{number}x)")).collect::<String>();
    let deep = format!("{}a{}", "(".repeat(5_000), ")".repeat(5_000));
    let sets = RegularSets::default();
    for pattern in [
        "^(a|b)*a(a|b){20}$",
        &nested,
        &many,
        &deep,
        "^(((a{2000}){2000}){2000})$",
        "(?<=a(?<=b(?<=c)))x{9999}",
        r"^(a?){200}a{200}$",
        "(",
        "a**",
        r"(a)\1",
        r"\8",
        "[b-a]",
        "(?<n",
        "^(?=(a+)+$)(?!(b|a)*c)",
    ] {
        for holds in [true, false] {
            let made = sets.meeting(&[(pattern, holds)]);
            assert!(!matches!(&made, Regular::Pattern(text) if text.len() > 4_100), "{pattern}: {made:?}");
            sets.texts(&[(pattern, holds)], (0, usize::MAX), 4);
        }
    }
}

/// A pattern of parts of all kinds.
fn patterns() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec!["a", "b", "[ab]", "[^a]", ".", "^", "$", r"\b", r"\B", " ", r"\w"]);
    leaf.prop_map(str::to_owned).prop_recursive(4, 14, 3, |inside| {
        prop_oneof![
            (inside.clone(), inside.clone()).prop_map(|(a, b)| format!("{a}{b}")),
            (inside.clone(), inside.clone()).prop_map(|(a, b)| format!("(?:{a}|{b})")),
            (inside.clone(), prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}"]))
                .prop_map(|(a, times)| format!("(?:{a}){times}")),
            inside.clone().prop_map(|a| format!("(?={a})")),
            inside.clone().prop_map(|a| format!("(?!{a})")),
            prop::sample::select(vec!["(?<=a)", "(?<!a)", "(?<=^b)", "(?<![ab] )"]).prop_map(str::to_owned),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn en_5_random_patterns_have_plain_ones(pattern in patterns(), holds in any::<bool>()) {
        // The other reader repeats nothing that has no characters.
        if Regex::new(&pattern).is_ok() {
            agree(&[(&pattern, holds)], &['a', 'b', ' '], 4);
        }
    }
}
