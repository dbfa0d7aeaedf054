//! Stop strings in a text that arrives in pieces. Knows text only.

/// Finds stop strings across the borders of pieces, holding back text that may be the start of one.
#[derive(Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    /// The one that came.
    came: Option<usize>,
}

/// Whether a stop string came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The answer is over; everything given out lies before the stop string.
    Yes,
    /// Go on.
    No,
}

impl StopMatcher {
    /// Looks for these strings. Empty ones are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), ..Self::default() }
    }

    /// The text that is certainly part of the answer after one more piece.
    pub fn push(&mut self, piece: &str) -> (String, Stopped) {
        if self.stops.is_empty() {
            return (piece.to_owned(), Stopped::No);
        }
        self.held.push_str(piece);
        let cuts = self.stops.iter().enumerate().filter_map(|(index, stop)| Some((self.held.find(stop)?, index)));
        if let Some((cut, index)) = cuts.min() {
            self.held.truncate(cut);
            self.came = Some(index);
            return (std::mem::take(&mut self.held), Stopped::Yes);
        }
        let held_back = self.stops.iter().map(|stop| longest_start(stop, &self.held)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - held_back);
        (std::mem::replace(&mut self.held, rest), Stopped::No)
    }

    /// The stop string that ended the answer.
    pub fn came(&self) -> Option<&str> {
        self.came.and_then(|index| self.stops.get(index)).map(String::as_str)
    }

    /// The text held back, when the answer ends for another reason.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest proper start of `stop` that `text` ends with.
fn longest_start(stop: &str, text: &str) -> usize {
    let (stop, text) = (stop.as_bytes(), text.as_bytes());
    // Whole characters only come out: a start that ends inside a character cannot be the end of a text.
    (1..stop.len().min(text.len() + 1)).rev().find(|&length| text.ends_with(&stop[..length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Stopped) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = Vec::new();
        for piece in pieces {
            let (text, stopped) = matcher.push(piece);
            out.push(text);
            if stopped == Stopped::Yes {
                return (out, Stopped::Yes);
            }
        }
        out.push(matcher.finish());
        (out, Stopped::No)
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_cut_exactly() {
        let (out, stopped) = run(&["END"], &["one E", "N", "D two"]);
        assert_eq!((out.concat().as_str(), stopped), ("one ", Stopped::Yes));
        assert_eq!(out, ["one ", "", ""]);
    }

    #[test]
    fn text_is_held_back_no_longer_than_needed() {
        let (out, stopped) = run(&["END"], &["E", "NE", "X"]);
        assert_eq!(out, ["", "EN", "EX", ""]);
        assert_eq!(stopped, Stopped::No);
        assert_eq!(run(&["END"], &["bye EN"]).0.concat(), "bye EN", "held text comes out at the end");
    }

    #[test]
    fn the_earliest_of_several_wins() {
        assert_eq!(run(&["cd", "bcde"], &["ab", "cde"]).0.concat(), "a");
        assert_eq!(run(&["世界"], &["你好世", "界!"]).0.concat(), "你好");
        assert_eq!(run(&[""], &["all"]).0.concat(), "all");
    }

    proptest! {
        #[test]
        fn cutting_does_not_depend_on_the_pieces(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
            stops in proptest::collection::vec("[abé]{1,4}", 1..4),
        ) {
            let whole = pieces.concat();
            // A matcher that sees each character in turn stops at the first stop string to be complete.
            let complete = stops.iter().filter_map(|s| whole.find(s.as_str()).map(|at| (at + s.len(), at)));
            let first_end = complete.clone().map(|(end, _)| end).min();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let characters: Vec<String> = whole.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            let (out, stopped) = run(&stops, &characters);
            prop_assert_eq!(stopped == Stopped::Yes, first_end.is_some());
            match first_end {
                None => prop_assert_eq!(out.concat(), whole.clone()),
                Some(end) => {
                    let at = complete.filter(|(e, _)| *e == end).map(|(_, at)| at).min().unwrap();
                    prop_assert_eq!(out.concat(), whole[..at].to_owned());
                }
            }
            // In larger pieces several may complete at once. A stop string is never returned, and no other text is
            // lost.
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, stopped_too) = run(&stops, &pieces);
            prop_assert_eq!(stopped, stopped_too);
            prop_assert!(stops.iter().all(|stop| stopped == Stopped::No || !out.concat().contains(stop)));
            prop_assert!(whole.starts_with(&out.concat()));
        }
    }
}
