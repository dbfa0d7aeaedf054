//! The order in which requests for the text of sound are computed. Knows chunks and what they need next, no arithmetic.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use model_boss_engine::speech::{ChunkSound, ChunkSpeech, ChunkState, SpeechModel, SpeechSegment, TokenTexts};
use model_boss_engine::{Activity, DecoderError};
use model_boss_protocol::Priority;
use tokio::sync::mpsc;

use super::job::{HearError, HearEvent, HearJob, HearTotals};

/// Rounds that a request is passed over in favour of more important ones before it has its turn.
const MOST_PASSED: u32 = 32;

/// All requests that are not answered yet.
pub(super) struct HearingDesk {
    inbox: mpsc::Receiver<HearJob>,
    texts: Arc<dyn TokenTexts>,
    /// By their numbers, in the order of their arrival.
    jobs: BTreeMap<u64, OpenJob>,
    arrived: u64,
}

/// A request of which some chunks are open.
struct OpenJob {
    job: HearJob,
    language: Option<u32>,
    /// Chunks that are not open yet, with their numbers.
    waiting: VecDeque<(usize, Range<usize>)>,
    /// Open chunks that nobody computes with now.
    open: Vec<OpenPart>,
    /// Chunks that a round has.
    lent: usize,
    /// Segments of chunks that come later than the next one.
    early: BTreeMap<usize, ChunkText>,
    /// The chunk whose segments are told next.
    next: usize,
    /// Windows heard so far.
    served: u64,
    passed: u32,
    begun: Option<Instant>,
    tokens: usize,
}

#[derive(Default)]
struct ChunkText {
    segments: Vec<SpeechSegment>,
    is_done: bool,
}

/// A chunk that is open.
pub(super) struct OpenPart {
    job: u64,
    number: usize,
    pub(super) chunk: ChunkSpeech,
}

/// The next work.
pub(super) struct Round {
    /// Of the requests that it is for.
    pub(super) priority: Priority,
    pub(super) work: RoundWork,
}

/// The work of a round.
pub(super) enum RoundWork {
    /// A window is heard.
    Hear(OpenPart),
    /// A text becomes segments.
    Settle(OpenPart),
    /// Texts go on by a token.
    Read(Vec<OpenPart>),
}

impl RoundWork {
    fn parts(self) -> Vec<OpenPart> {
        match self {
            Self::Hear(part) | Self::Settle(part) => vec![part],
            Self::Read(parts) => parts,
        }
    }
}

impl HearingDesk {
    pub(super) fn new(inbox: mpsc::Receiver<HearJob>, texts: Arc<dyn TokenTexts>) -> Self {
        Self { inbox, texts, jobs: BTreeMap::new(), arrived: 0 }
    }

    /// The next round, once there is a request; none when no request can come any more.
    pub(super) fn next_round(&mut self, model: &dyn SpeechModel, activity: &Activity) -> Option<Round> {
        loop {
            self.collect();
            // Published before the round, so that one that never ends is visible with its requests.
            let active = self.jobs.values().filter(|job| job.begun.is_some()).count();
            activity.occupied(active, self.jobs.len() - active);
            let mut ranks: Vec<Priority> = self.jobs.values().map(OpenJob::rank).collect();
            ranks.sort_unstable();
            if let Some(round) = ranks.into_iter().find_map(|rank| self.round(model, rank)) {
                for job in self.jobs.values_mut() {
                    job.passed = if job.job.priority == round.priority { 0 } else { job.passed + 1 };
                }
                return Some(round);
            }
            let job = self.inbox.blocking_recv()?;
            self.push(job);
        }
    }

    /// A round of requests that are more important than this.
    pub(super) fn more_important(&mut self, model: &dyn SpeechModel, than: Priority) -> Option<Round> {
        self.collect();
        let best = self.jobs.values().map(|job| job.job.priority).filter(|priority| *priority < than).min()?;
        self.round(model, best)
    }

    /// A round of the requests of this rank.
    fn round(&mut self, model: &dyn SpeechModel, rank: Priority) -> Option<Round> {
        let of_rank = |job: &OpenJob| job.rank() == rank || job.job.priority == rank;
        let find = |state: ChunkState, jobs: &BTreeMap<u64, OpenJob>| {
            let mut found = Vec::new();
            for (number, job) in jobs.iter().filter(|(_, job)| of_rank(job)) {
                let of_job = job.open.iter().enumerate().filter(|(_, part)| part.chunk.state() == state);
                found.extend(of_job.map(|(at, _)| (*number, at)));
            }
            found
        };
        if let Some((number, at)) = find(ChunkState::Settles, &self.jobs).first() {
            let part = self.lend(*number, *at)?;
            return Some(Round { priority: self.priority_of(*number), work: RoundWork::Settle(part) });
        }
        // Requests without a window get one, if windows of less important ones take all places: these stay open.
        let (mut windows, mut own) = (0, 0);
        for job in self.jobs.values() {
            windows += job.windows();
            own += if of_rank(job) { job.windows() } else { 0 };
        }
        if (windows < model.info().most_windows || own == 0)
            && let Some(number) = self.next_to_hear(&of_rank)
        {
            let at = self.open_next(model, number)?;
            let part = self.lend(number, at)?;
            return Some(Round { priority: self.priority_of(number), work: RoundWork::Hear(part) });
        }
        let read = find(ChunkState::Reads, &self.jobs);
        let priority = self.priority_of(read.first()?.0);
        let mut parts = Vec::with_capacity(read.len());
        // From the end, so that places stay.
        for (number, at) in read.into_iter().rev() {
            parts.extend(self.lend(number, at));
        }
        Some(Round { priority, work: RoundWork::Read(parts) })
    }

    fn priority_of(&self, job: u64) -> Priority {
        self.jobs.get(&job).map_or(Priority::LOWEST, |job| job.job.priority)
    }

    /// The request that was heard least, of those that have a window to hear.
    fn next_to_hear(&self, of_rank: &dyn Fn(&OpenJob) -> bool) -> Option<u64> {
        let hears = |job: &OpenJob| {
            let next = job.open.iter().any(|part| part.chunk.state() == ChunkState::Hears);
            next || !job.waiting.is_empty() && job.may_open()
        };
        let jobs = self.jobs.iter().filter(|(_, job)| of_rank(job) && hears(job));
        jobs.min_by_key(|(number, job)| (job.served, **number)).map(|(number, _)| *number)
    }

    /// The place of a request's chunk that hears next; it is opened if need be.
    fn open_next(&mut self, model: &dyn SpeechModel, number: u64) -> Option<usize> {
        let texts = Arc::clone(&self.texts);
        let job = self.jobs.get_mut(&number)?;
        job.served += 1;
        job.begun.get_or_insert_with(Instant::now);
        let hears = |part: &OpenPart| part.chunk.state() == ChunkState::Hears;
        if let Some(at) = job.open.iter().position(hears) {
            return Some(at);
        }
        let (place, samples) = job.waiting.pop_front()?;
        let sound = ChunkSound { recording: Arc::clone(&job.job.recording), samples };
        let chunk = ChunkSpeech::new(model, sound, Arc::clone(&job.job.wish), texts, job.language);
        job.open.push(OpenPart { job: number, number: place, chunk });
        Some(job.open.len() - 1)
    }

    fn lend(&mut self, number: u64, at: usize) -> Option<OpenPart> {
        let job = self.jobs.get_mut(&number)?;
        job.lent += 1;
        Some(job.open.swap_remove(at))
    }

    /// Takes the chunks of a round back, and tells what they have become. If it failed, so did their requests.
    pub(super) fn finish(&mut self, round: Round, done: &Result<(), DecoderError>) {
        for part in round.work.parts() {
            let number = part.job;
            // Its client may be gone.
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            if let Err(error) = done {
                // The client may be gone.
                let _ = job.job.events.send(HearEvent::Failed(HearError::of(error)));
                self.jobs.remove(&number);
                continue;
            }
            job.lent -= 1;
            job.took_back(part);
            if job.is_done() {
                let took = job.begun.map_or_else(Default::default, |begun| begun.elapsed());
                let _ = job.job.events.send(HearEvent::Done(HearTotals { tokens: job.tokens, took }));
                self.jobs.remove(&number);
            }
        }
    }

    /// Takes requests in that have come, and drops those whose clients are gone.
    fn collect(&mut self) {
        while let Ok(job) = self.inbox.try_recv() {
            self.push(job);
        }
        self.jobs.retain(|_, job| !job.job.events.is_closed());
    }

    fn push(&mut self, job: HearJob) {
        if job.chunks.is_empty() {
            // Silence has no text.
            let _ = job.events.send(HearEvent::Done(HearTotals::default()));
            return;
        }
        let open = OpenJob {
            language: job.wish.language,
            waiting: job.chunks.iter().cloned().enumerate().collect(),
            open: Vec::new(),
            lent: 0,
            early: BTreeMap::new(),
            next: 0,
            served: 0,
            passed: 0,
            begun: None,
            tokens: 0,
            job,
        };
        self.jobs.insert(self.arrived, open);
        self.arrived += 1;
    }
}

impl OpenJob {
    /// The priority, or the highest for a request that was passed over often.
    fn rank(&self) -> Priority {
        if self.passed >= MOST_PASSED { Priority::HIGHEST } else { self.job.priority }
    }

    /// Whether a further chunk may be opened: the first one finds the language for all.
    fn may_open(&self) -> bool {
        !self.job.finds_language || self.language.is_some() || self.open.is_empty() && self.lent == 0
    }

    /// Windows whose keys and values are held.
    fn windows(&self) -> usize {
        let has_window = |part: &&OpenPart| matches!(part.chunk.state(), ChunkState::Reads | ChunkState::Settles);
        self.open.iter().filter(has_window).count() + self.lent
    }

    fn took_back(&mut self, mut part: OpenPart) {
        if self.language.is_none()
            && let Some(language) = part.chunk.language()
        {
            self.language = Some(language);
            let _ = self.job.events.send(HearEvent::Language(language));
        }
        let new = part.chunk.take().segments;
        let is_done = part.chunk.state() == ChunkState::Done;
        if is_done {
            self.tokens += part.chunk.computed();
        }
        let text = self.early.entry(part.number).or_default();
        text.segments.extend(new);
        text.is_done = is_done;
        if !is_done {
            self.open.push(part);
        }
        // Those whose turn it is are told at once.
        while let Some(text) = self.early.get_mut(&self.next) {
            let segments = std::mem::take(&mut text.segments);
            if !segments.is_empty() {
                let _ = self.job.events.send(HearEvent::Segments(segments));
            }
            if !text.is_done {
                break;
            }
            self.early.remove(&self.next);
            self.next += 1;
        }
    }

    fn is_done(&self) -> bool {
        self.next == self.job.chunks.len()
    }
}
