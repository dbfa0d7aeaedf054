//! Segments of a window's text, by the times among its tokens.

use super::model::SpeechInfo;
use super::text::WindowText;

/// A piece of text with its times, in seconds from the recording's beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechSegment {
    /// The frame of the recording that the segment's window begins with.
    pub seek: usize,
    /// The first moment.
    pub start: f64,
    /// The moment behind it.
    pub end: f64,
    /// The text, with the space in front that most languages have.
    pub text: String,
    /// The tokens, times included.
    pub tokens: Vec<u32>,
    /// The logarithm of each token's probability.
    pub logprobs: Vec<f32>,
    /// The temperature that it was drawn at.
    pub temperature: f32,
    /// The mean logarithm of the probabilities of the window's tokens.
    pub mean_logprob: f32,
    /// The ratio of the window's text to its compressed form.
    pub compression_ratio: f32,
    /// The probability that the window has no speech.
    pub no_speech: f32,
    /// The words; none unless they were wished for.
    pub words: Vec<SpokenWord>,
}

/// A word with its times, in seconds from the recording's beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct SpokenWord {
    /// The word, with spaces and punctuation.
    pub word: String,
    /// The first moment.
    pub start: f64,
    /// The moment behind it.
    pub end: f64,
    /// The mean probability of its tokens.
    pub probability: f32,
}

/// Tokens of a segment: their place in the window's text, and times within the window, counted in steps of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentTokens {
    pub(super) tokens: std::ops::Range<usize>,
    /// The times; none for the end where the text has none.
    pub(super) times: (u32, Option<u32>),
}

/// The segments of a text, and the step of time up to which it is complete; none if that is the whole window.
pub(super) fn segments_of(info: &SpeechInfo, text: &WindowText) -> (Vec<SegmentTokens>, Option<u32>) {
    let first = info.tokens.first_time();
    let tokens = &text.tokens;
    let is_time = |at: usize| tokens[at] >= first;
    let time = |at: usize| tokens[at] - first;
    let count = tokens.len();
    // Two times beside each other: a segment ends, and the next begins.
    let mut ends: Vec<usize> = (1..count).filter(|at| is_time(at - 1) && is_time(*at)).collect();
    // One time at the end: nothing is said behind it.
    let ends_alone = count >= 2 && is_time(count - 1) && !is_time(count - 2);
    if ends.is_empty() {
        let begin = if count > 0 && is_time(0) { time(0) } else { 0 };
        let end = (1..count).rfind(|at| is_time(*at)).map(time).filter(|end| *end > begin);
        return (vec![SegmentTokens { tokens: 0..count, times: (begin, end) }], None);
    }
    if ends_alone {
        ends.push(count);
    }
    let mut behind = 0;
    let segment = |end: &usize| {
        let tokens = behind..*end;
        behind = *end;
        SegmentTokens { times: (time(tokens.start), Some(time(tokens.end - 1))), tokens }
    };
    let segments: Vec<SegmentTokens> = ends.iter().map(segment).collect();
    // Without progress the window would be heard forever.
    let complete = ends.last().map(|end| time(end - 1)).filter(|complete| !ends_alone && *complete > 0);
    (segments, complete)
}

#[cfg(test)]
mod tests {
    use model_boss_audio::MelShape;

    use super::*;
    use crate::speech::fake_speech::info;
    use crate::speech::text::TranscriptWish;

    /// Text is below 100, and times are from 101 on.
    fn of(tokens: &[u32]) -> (Vec<SegmentTokens>, Option<u32>) {
        let info = info(MelShape { bins: 4, window: 400, hop: 160 });
        let mut text = WindowText::new(&info, &TranscriptWish::default(), None, &[]);
        let first = info.tokens.first_time();
        text.tokens = tokens.iter().map(|token| if *token >= 1000 { first + token - 1000 } else { *token }).collect();
        segments_of(&info, &text)
    }

    fn segment(tokens: std::ops::Range<usize>, start: u32, end: impl Into<Option<u32>>) -> SegmentTokens {
        SegmentTokens { tokens, times: (start, end.into()) }
    }

    #[test]
    fn rc_28_times_divide_a_text() {
        // A time is 1000 and its steps.
        assert_eq!(of(&[]), (vec![segment(0..0, 0, None)], None));
        assert_eq!(of(&[1000, 5, 6, 1090]), (vec![segment(0..4, 0, 90)], None));
        assert_eq!(of(&[1010, 5, 6]), (vec![segment(0..3, 10, None)], None), "cut off at the longest text");
        assert_eq!(of(&[1, 2]), (vec![segment(0..2, 0, None)], None), "without times");
        let two = of(&[1000, 5, 1030, 1030, 6, 1070]);
        assert_eq!(two, (vec![segment(0..3, 0, 30), segment(3..6, 30, 70)], None), "nothing is said behind the last");
        let open = of(&[1000, 5, 1030, 1030, 6]);
        assert_eq!(open, (vec![segment(0..3, 0, 30)], Some(30)), "the rest is heard again");
        let closed = of(&[1000, 5, 1030, 1040, 6, 1070, 1070]);
        assert_eq!(closed, (vec![segment(0..3, 0, 30), segment(3..6, 40, 70)], Some(70)));
    }
}
