//! Letters, as Python's texts know and change them.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, ClassUnicode, HirKind};

/// Unicode's categories of letters. Rust's alphabetic characters have marks and numbers among them.
static LETTERS: LazyLock<ClassUnicode> =
    LazyLock::new(|| match regex_syntax::parse(r"\p{L}").map(|pattern| pattern.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(letters))) => letters,
        _ => ClassUnicode::empty(),
    });

pub(super) fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    let ranges = LETTERS.ranges();
    let at = ranges.partition_point(|range| range.end() < c);
    ranges.get(at).is_some_and(|range| range.start() <= c)
}

/// A text after the method of this name.
pub(super) fn recased(name: &str, word: &str) -> String {
    match name {
        "upper" => word.to_uppercase(),
        "lower" => word.to_lowercase(),
        "casefold" => word.chars().map(folded).collect(),
        "swapcase" => {
            let swapped = |(c, small): (char, &str)| match c {
                c if is_titled(c) => c.to_string(),
                c if c.is_uppercase() => small.to_owned(),
                c => c.to_uppercase().collect(),
            };
            each_with_small(word, &word.to_lowercase()).map(swapped).collect()
        }
        "capitalize" => capitalized(word),
        _ => titled(word),
    }
}

/// The first character large, all others small.
pub(super) fn capitalized(word: &str) -> String {
    let small = word.to_lowercase();
    let mut each = each_with_small(word, &small);
    let first = each.next().map(|(c, _)| title_cased(c)).unwrap_or_default();
    first + &each.map(|(_, small)| small).collect::<String>()
}

/// Each word with a large letter at its beginning: a letter behind another one is small.
fn titled(word: &str) -> String {
    let mut behind_letter = false;
    let mut out = String::new();
    for (c, small) in each_with_small(word, &word.to_lowercase()) {
        if behind_letter {
            out.push_str(small);
        } else {
            out.push_str(&title_cased(c));
        }
        behind_letter = c.is_uppercase() || c.is_lowercase() || is_titled(c);
    }
    out
}

/// Each character with its small form, out of the text's: that of a sigma depends on what is around it.
fn each_with_small<'a>(word: &'a str, small: &'a str) -> impl Iterator<Item = (char, &'a str)> {
    let mut at = 0;
    word.chars().map(move |c| {
        // Both forms of a small sigma have as many bytes.
        let bytes: usize = c.to_lowercase().map(char::len_utf8).sum();
        let own = small.get(at..at + bytes).unwrap_or_default();
        at += bytes;
        (c, own)
    })
}

/// A letter at the beginning of a word: of several letters in one, only the first is large.
fn title_cased(c: char) -> String {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => "ǅ".to_owned(),
        'Ǉ' | 'ǈ' | 'ǉ' => "ǈ".to_owned(),
        'Ǌ' | 'ǋ' | 'ǌ' => "ǋ".to_owned(),
        'Ǳ' | 'ǲ' | 'ǳ' => "ǲ".to_owned(),
        'ŉ' => c.to_uppercase().collect(),
        // Georgian words have no large first letter.
        'ა'..='ჺ' | 'ჽ'..='ჿ' => c.to_string(),
        // Greek letters with an iota below have forms of their own.
        'ᾀ'..='ᾯ' | 'ᾳ' | 'ᾼ' | 'ῃ' | 'ῌ' | 'ῳ' | 'ῼ' => with_iota(c).to_string(),
        'ᾲ' | 'ᾴ' | 'ῂ' | 'ῄ' | 'ῲ' | 'ῴ' | 'ᾷ' | 'ῇ' | 'ῷ' => {
            let upper: Vec<char> = c.to_uppercase().collect();
            // The last capital is the iota, which stays below.
            upper[..upper.len() - 1].iter().collect::<String>() + "\u{345}"
        }
        c => {
            let mut upper = c.to_uppercase();
            let first = upper.next().unwrap_or(c);
            // Accents that are characters of their own have no large form.
            first.to_string() + &upper.map(|c| c.to_lowercase().collect::<String>()).collect::<String>()
        }
    }
}

/// The large form of a Greek letter with an iota below, which Unicode has beside the small one.
fn with_iota(c: char) -> char {
    match c {
        'ᾳ' | 'ᾼ' => 'ᾼ',
        'ῃ' | 'ῌ' => 'ῌ',
        'ῳ' | 'ῼ' => 'ῼ',
        c => char::from_u32(u32::from(c) | 8).unwrap_or(c),
    }
}

/// Whether a letter is of Unicode's category for letters of which the first of several is large.
pub(super) fn is_titled(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | 'ᾈ'..='ᾏ' | 'ᾘ'..='ᾟ' | 'ᾨ'..='ᾯ' | 'ᾼ' | 'ῌ' | 'ῼ')
}

/// A character without its case (Unicode's full case folding).
fn folded(c: char) -> String {
    match c {
        'ı' => c.to_string(),
        'ẞ' => "ss".to_owned(),
        // Cherokee's large letters are the older ones.
        'Ꭰ'..='ᏽ' | 'ꭰ'..='ꮿ' => c.to_uppercase().collect(),
        c => c.to_uppercase().flat_map(char::to_lowercase).collect(),
    }
}
