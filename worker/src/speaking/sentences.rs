//! A text in parts that are spoken one after the other: sentences where they are not too long. The first sound is heard
//! when the first part is spoken, and a part's cost grows faster than its length.

/// Marks behind which a sentence ends.
const ENDS: [char; 10] = ['.', '!', '?', '…', ';', '。', '！', '？', '；', '।'];

/// Marks behind which a long sentence may be cut.
const RESTS: [char; 7] = [',', ':', '–', '—', '、', '，', '：'];

/// Characters up to which a sentence is joined with the next one: a part of a few words has the tune of a list.
const SHORT: usize = 24;

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartOfText<'a> {
    pub(crate) text: &'a str,
    /// Whether a sentence ends with it.
    pub(crate) ends_sentence: bool,
}

/// The parts of a text, none longer than this many characters.
pub(crate) fn parts_of(text: &str, longest: usize) -> Vec<PartOfText<'_>> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (length, ends_sentence) = first_part(rest, longest);
        let (part, behind) = rest.split_at(length);
        let part = part.trim_end();
        if !part.is_empty() {
            parts.push(PartOfText { text: part, ends_sentence: ends_sentence || behind.trim_start().is_empty() });
        }
        rest = behind.trim_start();
    }
    parts
}

/// The bytes of the first part, and whether a sentence ends there.
fn first_part(text: &str, longest: usize) -> (usize, bool) {
    let mut letters = text.char_indices().peekable();
    let (mut rest_at, mut space_at) = (None, None);
    let (mut count, mut is_ending) = (0, false);
    while let Some((at, letter)) = letters.next() {
        // Quotation marks and brackets belong to the sentence that they end.
        if is_ending && !ENDS.contains(&letter) && !is_closing(letter) {
            let is_apart = letter.is_whitespace() || !letter.is_ascii();
            if is_apart && count > SHORT {
                return (at, true);
            }
            is_ending = false;
        }
        if letter == '\n' && count > 0 && letters.peek().is_some_and(|(_, next)| *next == '\n') {
            return (at, true);
        }
        is_ending |= ENDS.contains(&letter);
        if letter.is_whitespace() {
            space_at = Some(at);
        } else if RESTS.contains(&letter) && letters.peek().is_none_or(|(_, next)| next.is_whitespace()) {
            rest_at = Some(at + letter.len_utf8());
        }
        count += 1;
        if count == longest && letters.peek().is_some() {
            // A rest at the very beginning would leave a part of one word.
            let rest_at = rest_at.filter(|at| *at > text.len().min(longest) / 4);
            let end = rest_at.or(space_at).unwrap_or(at + letter.len_utf8());
            return (end, false);
        }
    }
    (text.len(), true)
}

fn is_closing(letter: char) -> bool {
    ['"', '\'', ')', ']', '”', '’', '»', '）', '」'].contains(&letter)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(text: &str) -> Vec<(&str, bool)> {
        parts_of(text, 60).into_iter().map(|part| (part.text, part.ends_sentence)).collect()
    }

    #[test]
    fn rc_28_a_text_is_spoken_sentence_by_sentence() {
        assert_eq!(texts("  Hello.  "), [("Hello.", true)]);
        assert_eq!(
            texts("Yes. It is a quarter past three. Mr."),
            [("Yes. It is a quarter past three.", true), ("Mr.", true)]
        );
        assert_eq!(
            texts("It costs 3.50 at the corner shop, \"cheap!\" He left."),
            [("It costs 3.50 at the corner shop, \"cheap!\"", true), ("He left.", true)]
        );
        assert_eq!(texts("One line\n\nanother"), [("One line", true), ("another", true)]);
        assert_eq!(
            texts("A sentence without any end that goes on, and on, and on for as long as one may read it aloud"),
            [
                ("A sentence without any end that goes on, and on,", false),
                ("and on for as long as one may read it aloud", true)
            ]
        );
        assert_eq!(parts_of("abcdefgh", 3).len(), 3);
        assert!(texts(" \n ").is_empty());
        let chinese = "今天天气很好我们一起去公园散步然后再去喝一杯咖啡吧朋友。明天见。";
        assert_eq!(texts(chinese).len(), 2);
    }

    proptest! {
        #[test]
        fn rc_28_nothing_of_a_text_is_lost(text in "[a-z.!? ,\n\"äß。…]{0,300}", longest in 1_usize..80) {
            let parts = parts_of(&text, longest);
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let joined: String = parts.iter().map(|part| part.text).collect();
            prop_assert_eq!(letters(&joined), letters(&text));
            prop_assert!(parts.iter().all(|part| part.text.chars().count() <= longest && !part.text.is_empty()));
            prop_assert!(parts.last().is_none_or(|part| part.ends_sentence));
        }
    }
}
