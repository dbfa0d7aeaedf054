//! Subtitles: SubRip and WebVTT.

use model_boss_engine::speech::SpeechSegment;

/// SubRip.
pub(super) fn srt(segments: &[SpeechSegment]) -> String {
    let cue = |(number, segment): (usize, &SpeechSegment)| {
        let [start, end] = [segment.start, segment.end].map(|seconds| moment(seconds, Hours::Always, ','));
        format!("{}\n{start} --> {end}\n{}\n\n", number + 1, words(segment))
    };
    segments.iter().enumerate().map(cue).collect()
}

/// WebVTT.
pub(super) fn vtt(segments: &[SpeechSegment]) -> String {
    let cue = |segment: &SpeechSegment| {
        let [start, end] = [segment.start, segment.end].map(|seconds| moment(seconds, Hours::IfAny, '.'));
        format!("{start} --> {end}\n{}\n\n", words(segment))
    };
    format!("WEBVTT\n\n{}", segments.iter().map(cue).collect::<String>())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hours {
    Always,
    IfAny,
}

/// The text of a cue: it has no arrow, which begins a cue, and no empty line, which ends one.
fn words(segment: &SpeechSegment) -> String {
    let lines: Vec<&str> = segment.text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("\n").replace("-->", "->")
}

fn moment(seconds: f64, hours: Hours, point: char) -> String {
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let (hour, minute, second, thousandth) = (all / 3_600_000, all / 60_000 % 60, all / 1000 % 60, all % 1000);
    let ahead = if hour > 0 || hours == Hours::Always { format!("{hour:02}:") } else { String::new() };
    format!("{ahead}{minute:02}:{second:02}{point}{thousandth:03}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_cues_have_times_and_text() {
        let segment = |start: f64, end: f64, text: &str| SpeechSegment {
            seek: 0,
            start,
            end,
            text: text.to_owned(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            temperature: 0.0,
            mean_logprob: 0.0,
            compression_ratio: 1.0,
            no_speech: 0.0,
            words: Vec::new(),
        };
        let all = [segment(0.0, 1.5, " One --> two."), segment(3599.9996, 3661.25, " Three\n\nfour")];
        let expected =
            "1\n00:00:00,000 --> 00:00:01,500\nOne -> two.\n\n2\n01:00:00,000 --> 01:01:01,250\nThree\nfour\n\n";
        assert_eq!(srt(&all), expected);
        let expected =
            "WEBVTT\n\n00:00.000 --> 00:01.500\nOne -> two.\n\n01:00:00.000 --> 01:01:01.250\nThree\nfour\n\n";
        assert_eq!(vtt(&all), expected);
    }
}
