//! Words of a text with their times: tokens become words, and alignment gives each its moments.

use super::segments::SpokenWord;
use super::vocabulary::{TokenTexts, text_of};

/// Marks that belong to the word behind them, and to the word before them.
const BEFORE: &str = "\"'“¿([{-";
const BEHIND: &str = "\"'.。,，!！?？:：”)]}、";

/// Marks that end a sentence.
const ENDS: &str = ".。!！?？";

/// The longest usual word, in seconds.
const LONGEST_USUAL: f64 = 0.7;

/// Languages that put no spaces between words: their words are single characters here.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// A word: its text, and the number of its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WordTokens {
    pub(super) text: String,
    pub(super) tokens: usize,
}

/// The words of text tokens in this language.
pub(super) fn words_of(texts: &dyn TokenTexts, tokens: &[u32], language: Option<&str>) -> Vec<WordTokens> {
    let pieces = whole_characters(texts, tokens);
    if language.is_some_and(|language| WITHOUT_SPACES.contains(&language)) {
        return pieces;
    }
    let mut words: Vec<WordTokens> = Vec::new();
    for piece in pieces {
        let is_mark = piece.text.trim().chars().all(|c| c.is_ascii_punctuation()) && !piece.text.trim().is_empty();
        match words.last_mut() {
            Some(word) if !piece.text.starts_with(' ') && !is_mark => {
                word.text.push_str(&piece.text);
                word.tokens += piece.tokens;
            }
            _ => words.push(piece),
        }
    }
    words
}

/// The fewest tokens at a time that are whole characters.
fn whole_characters(texts: &dyn TokenTexts, tokens: &[u32]) -> Vec<WordTokens> {
    let (mut pieces, mut bytes, mut count) = (Vec::new(), Vec::new(), 0);
    for token in tokens {
        bytes.extend_from_slice(texts.bytes(*token));
        count += 1;
        if let Ok(text) = str::from_utf8(&bytes) {
            pieces.push(WordTokens { text: text.to_owned(), tokens: count });
            (bytes, count) = (Vec::new(), 0);
        }
    }
    if count > 0 {
        let text = text_of(texts, tokens[tokens.len() - count..].iter().copied());
        pieces.push(WordTokens { text, tokens: count });
    }
    pieces
}

/// Words with times. `starts` has the moment in seconds at which each token begins, and the end behind the last;
/// `probabilities` are of each token.
pub(super) fn timed(words: &[WordTokens], starts: &[f64], probabilities: &[f32]) -> Vec<(SpokenWord, usize)> {
    let mut first = 0;
    let timed = words.iter().map(|word| {
        let tokens = first..first + word.tokens;
        first = tokens.end;
        let of_word = &probabilities[tokens.clone()];
        let probability = of_word.iter().sum::<f32>() / of_word.len().max(1) as f32;
        let (start, end) = (starts[tokens.start], starts[tokens.end]);
        (SpokenWord { word: word.text.clone(), start, end, probability }, word.tokens)
    });
    let mut timed: Vec<(SpokenWord, usize)> = timed.collect();
    shorten(&mut timed);
    merge_marks(timed)
}

/// Makes words beside the end of a sentence as short as usual ones: the pause is not theirs.
fn shorten(words: &mut [(SpokenWord, usize)]) {
    let longest = 2.0 * usual_length(words.iter().map(|(word, _)| word));
    if longest == 0.0 {
        return;
    }
    let ends = |word: &SpokenWord| ENDS.contains(word.word.trim()) && !word.word.trim().is_empty();
    for at in 1..words.len() {
        let (before, word) = (ends(&words[at - 1].0), &mut words[at].0);
        if word.end - word.start > longest {
            if ends(word) {
                word.end = word.start + longest;
            } else if before {
                word.start = word.end - longest;
            }
        }
    }
}

/// The median length of words that have one, up to a limit.
pub(super) fn usual_length<'a>(words: impl Iterator<Item = &'a SpokenWord>) -> f64 {
    let mut lengths: Vec<f64> = words.map(|word| word.end - word.start).filter(|length| *length > 0.0).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    let Some(last) = lengths.len().checked_sub(1) else { return 0.0 };
    f64::midpoint(lengths[last / 2], lengths[lengths.len() / 2]).min(LONGEST_USUAL)
}

/// Joins punctuation to the words that it belongs to. Words keep their own times.
fn merge_marks(words: Vec<(SpokenWord, usize)>) -> Vec<(SpokenWord, usize)> {
    let mut forward: Vec<(SpokenWord, usize)> = Vec::new();
    // From the end: a mark with a space in front opens what follows.
    for (word, tokens) in words.into_iter().rev() {
        let mark = word.word.trim();
        match forward.last_mut() {
            Some((next, count)) if word.word.starts_with(' ') && !mark.is_empty() && BEFORE.contains(mark) => {
                next.word = word.word.clone() + &next.word;
                *count += tokens;
            }
            _ => forward.push((word, tokens)),
        }
    }
    let mut merged: Vec<(SpokenWord, usize)> = Vec::new();
    for (word, tokens) in forward.into_iter().rev() {
        match merged.last_mut() {
            Some((before, count))
                if !before.word.ends_with(' ') && !word.word.is_empty() && BEHIND.contains(&word.word) =>
            {
                before.word.push_str(&word.word);
                *count += tokens;
            }
            _ => merged.push((word, tokens)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pieces(Vec<&'static [u8]>);

    impl TokenTexts for Pieces {
        fn bytes(&self, token: u32) -> &[u8] {
            self.0[token as usize]
        }
    }

    fn texts(words: &[WordTokens]) -> Vec<(&str, usize)> {
        words.iter().map(|word| (word.text.as_str(), word.tokens)).collect()
    }

    #[test]
    fn rc_28_tokens_become_words_at_spaces_and_whole_characters() {
        let pieces = Pieces(vec![b" He", b"llo", b",", b" w", b"\xC3", b"\xB6rld", b"."]);
        let all: Vec<u32> = (0..7).collect();
        assert_eq!(texts(&words_of(&pieces, &all, Some("en"))), [(" Hello", 2), (",", 1), (" wörld", 3), (".", 1)]);
        let each = words_of(&pieces, &all, Some("ja"));
        assert_eq!(each.len(), 6, "the two bytes of one character stay together: {each:?}");
    }

    #[test]
    fn rc_28_marks_join_their_words_and_pauses_are_nobodys() {
        let word = |text: &str| WordTokens { text: text.to_owned(), tokens: 1 };
        let words = [word(" He"), word(" said"), word(" \""), word("Yes"), word("."), word(" Then")];
        let starts = [0.0, 0.2, 0.4, 0.6, 0.8, 3.0, 3.2];
        let timed = timed(&words, &starts, &[0.5; 6]);
        let texts: Vec<&str> = timed.iter().map(|(word, _)| word.word.as_str()).collect();
        assert_eq!(texts, [" He", " said", " \"Yes.", " Then"]);
        assert_eq!(timed.iter().map(|(_, tokens)| tokens).sum::<usize>(), 6);
        assert!((timed[2].0.start - 0.6).abs() < 1e-9 && (timed[3].0.start - 3.0).abs() < 1e-9);
    }
}
