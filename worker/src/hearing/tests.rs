use std::collections::VecDeque;
use std::thread;

use model_boss_audio::{MelShape, SoundRecording};
use model_boss_engine::Histograms;
use model_boss_engine::speech::TranscriptWish;
use model_boss_engine::speech::fake_speech::{ScriptedSpeech, info};

use super::*;
use crate::threads::ComputeThreads;

struct Letters(Vec<String>);

impl TokenTexts for Letters {
    fn bytes(&self, token: u32) -> &[u8] {
        self.0.get(token as usize).map_or(&[], |text| text.as_bytes())
    }
}

/// The time of so many steps.
fn t(steps: u32) -> u32 {
    109 + steps
}

/// A thread with a model whose texts are all these, one after the other.
fn serving(script: Vec<Vec<u32>>) -> mpsc::Sender<HearJob> {
    let (jobs, inbox) = mpsc::channel(8);
    thread::spawn(move || {
        let script: VecDeque<(Vec<u32>, f32)> = script.into_iter().map(|tokens| (tokens, 20.0)).collect();
        let model = ScriptedSpeech {
            info: info(MelShape { bins: 4, window: 400, hop: 160 }),
            script: Mutex::new(script),
            begun: Mutex::default(),
        };
        let letters = Letters((0..100_u32).map(|at| format!(" {at}")).collect());
        let activity = Activity::new(Histograms::default());
        let shares = tokio::sync::watch::channel(None).1;
        let threads = StepThreads::new(ComputeThreads::anywhere(1), shares);
        serve(&model, Arc::new(letters), threads, inbox, &activity)
    });
    jobs
}

/// A request of so many chunks of a second.
fn job(chunks: usize, priority: u8, wish: TranscriptWish) -> (HearJob, mpsc::UnboundedReceiver<HearEvent>) {
    let (events, inbox) = mpsc::unbounded_channel();
    let recording = Arc::new(SoundRecording { samples: vec![50; 16_000 * chunks] });
    let chunks = (0..chunks).map(|at| at * 16_000..(at + 1) * 16_000).collect();
    let priority = priority.to_string().parse().unwrap();
    let finds_language = wish.language.is_none();
    (HearJob { recording, chunks, wish: Arc::new(wish), finds_language, priority, events }, inbox)
}

/// The news of a request: its languages, its text, and whether it ended well.
async fn told(mut inbox: mpsc::UnboundedReceiver<HearEvent>) -> (Vec<u32>, String, bool) {
    let (mut languages, mut text, mut behind) = (Vec::new(), String::new(), 0.0);
    while let Some(event) = inbox.recv().await {
        match event {
            HearEvent::Language(token) => languages.push(token),
            HearEvent::Segments(segments) => {
                for segment in segments {
                    assert!(segment.start >= behind, "out of order");
                    behind = segment.start;
                    text += &segment.text;
                }
            }
            HearEvent::Done(totals) => return (languages, text, totals.tokens > 0),
            HearEvent::Failed(error) => panic!("{error}"),
        }
    }
    (languages, text, false)
}

#[tokio::test]
async fn rc_28_chunks_are_told_in_order_and_the_first_finds_the_language() {
    let texts: Vec<Vec<u32>> = (1..=5).map(|at| vec![t(0), at, t(40)]).collect();
    let jobs = serving(texts);
    let (request, inbox) = job(5, 5, TranscriptWish::default());
    jobs.send(request).await.unwrap();
    let (languages, text, ended) = told(inbox).await;
    assert_eq!((languages, ended), (vec![103], true));
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    assert_eq!(words, ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn rc_28_silence_is_answered_and_a_client_that_left_is_forgotten() {
    let jobs = serving(vec![vec![t(0), 7, t(40)]]);
    let (silent, inbox) = job(0, 5, TranscriptWish::default());
    jobs.send(silent).await.unwrap();
    assert_eq!(told(inbox).await, (Vec::new(), String::new(), false));
    let (left, gone) = job(3, 5, TranscriptWish::default());
    drop(gone);
    jobs.send(left).await.unwrap();
    let wish = TranscriptWish { language: Some(102), ..TranscriptWish::default() };
    let (request, inbox) = job(1, 5, wish);
    jobs.send(request).await.unwrap();
    assert_eq!(told(inbox).await, (Vec::new(), " 7".to_owned(), true));
}

#[test]
fn rc_28_more_important_requests_go_first_and_all_get_their_turn() {
    let model = ScriptedSpeech {
        info: info(MelShape { bins: 4, window: 400, hop: 160 }),
        script: Mutex::default(),
        begun: Mutex::default(),
    };
    let (jobs, inbox) = mpsc::channel(8);
    let mut desk = HearingDesk::new(inbox, Arc::new(Letters(Vec::new())));
    let activity = Activity::new(Histograms::default());
    let known = TranscriptWish { language: Some(102), ..TranscriptWish::default() };
    let (bulk, _bulk_inbox) = job(9, 8, known.clone());
    jobs.try_send(bulk).unwrap();
    let mut rounds = Vec::new();
    // Both places for windows are the bulk request's.
    for _ in 0..2 {
        let round = desk.next_round(&model, &activity).unwrap();
        assert_eq!(round.priority.number(), 8);
        rounds.push(round);
    }
    assert!(desk.more_important(&model, "8".parse().unwrap()).is_none());
    let (urgent, _urgent_inbox) = job(2, 2, known);
    jobs.try_send(urgent).unwrap();
    let between = desk.more_important(&model, "8".parse().unwrap()).unwrap();
    assert_eq!(between.priority.number(), 2, "in the middle of a window, though no place is free");
    for round in rounds {
        desk.finish(round, &Err(DecoderError::Step("as a test".to_owned())));
    }
    desk.finish(between, &Err(DecoderError::Step("as a test".to_owned())));
    drop(jobs);
    assert!(desk.next_round(&model, &activity).is_none(), "requests that failed are forgotten");
}
