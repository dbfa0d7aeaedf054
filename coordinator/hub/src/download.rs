//! The download of one file by several connections. Each fetches the next piece that is missing; a connection that
//! breaks gives the rest of its piece back and waits before it tries again.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model_boss_protocol::HubRepo;
use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode, Url};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::client::{FetchTrouble, HubClient, OpenedFile, RequestSubject, host, passing};
use super::error::HubError;
use super::listing::FileIdentity;
use super::part_file::PartFile;
use super::progress::ByteMeter;

/// The bytes that one request asks for.
const PIECE: u64 = 16 << 20;
/// The interval at which the journal is written.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Failures without a byte between them after which the download fails.
const TRIES: u32 = 10;
/// The wait after the first failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// One file that is being downloaded.
pub(crate) struct FileDownload {
    pub(crate) client: Arc<HubClient>,
    /// The address at the hub, which redirects large files to a content network.
    pub(crate) url: Url,
    pub(crate) repo: HubRepo,
    pub(crate) path: String,
    pub(crate) identity: FileIdentity,
    pub(crate) part: Mutex<PartFile>,
    pub(crate) meter: Arc<Mutex<ByteMeter>>,
    /// The address to which the hub redirected last.
    pub(crate) direct: Mutex<Option<Url>>,
}

/// Waits between attempts, until too many in a row brought no byte.
#[derive(Default)]
pub(crate) struct Attempts {
    failures: u32,
}

impl Attempts {
    /// Forgets the failures: bytes came.
    pub(crate) fn succeed(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt. Returns the number of failures once there are too many.
    pub(crate) async fn wait(&mut self, after: Option<Duration>, most: u32) -> Result<(), u32> {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= most {
            return Err(self.failures);
        }
        let doubled = FIRST_WAIT.saturating_mul(1 << self.failures.saturating_sub(1).min(10));
        sleep(after.unwrap_or(doubled.min(LONGEST_WAIT))).await;
        Ok(())
    }
}

/// The end of a piece: the trouble, and whether bytes came before it.
struct BrokenPiece {
    trouble: FetchTrouble,
    came: bool,
}

impl FileDownload {
    /// Downloads the missing bytes. Bytes that came before an error or a cancellation are kept.
    pub(crate) async fn run(self: &Arc<Self>, connections: usize, cancel: &CancellationToken) -> Result<(), HubError> {
        let fetch = self.fetch(connections);
        tokio::pin!(fetch);
        let mut saves = interval(SAVE_EVERY);
        let done = loop {
            tokio::select! {
                done = &mut fetch => break done,
                () = cancel.cancelled() => break Err(HubError::Cancelled),
                _ = saves.tick() => {
                    self.meter().report();
                    if let Err(error) = self.part().save() {
                        break Err(self.disk(error));
                    }
                }
            }
        };
        let saved = self.part().save();
        done.and_then(|()| saved.map_err(|error| self.disk(error)))
    }

    async fn fetch(self: &Arc<Self>, connections: usize) -> Result<(), HubError> {
        let mut attempts = Attempts::default();
        loop {
            // The first request shows whether the server sends ranges.
            let Some(range) = self.part().take(PIECE) else { return Ok(()) };
            let troubled = match self.open(&range).await {
                Ok(opened) if opened.response.status() == StatusCode::PARTIAL_CONTENT => {
                    return self.fetch_pieces(connections, (range, opened)).await;
                }
                Ok(opened) => {
                    self.part().give_back(range);
                    self.whole(opened).await
                }
                Err(trouble) => {
                    self.part().give_back(range);
                    Err(BrokenPiece { trouble, came: false })
                }
            };
            if let Err(broken) = troubled {
                self.endure(&mut attempts, broken).await?;
            }
        }
    }

    async fn fetch_pieces(
        self: &Arc<Self>,
        connections: usize,
        first: (Range<u64>, OpenedFile),
    ) -> Result<(), HubError> {
        let pieces = usize::try_from(self.identity.bytes.div_ceil(PIECE)).unwrap_or(usize::MAX);
        let mut first = Some(first);
        let mut workers = JoinSet::new();
        for _ in 0..connections.clamp(1, pieces.max(1)) {
            workers.spawn(Arc::clone(self).pieces(first.take()));
        }
        while let Some(ended) = workers.join_next().await {
            // A task that panicked leaves its piece missing, which the next pull fetches.
            ended.map_err(|error| HubError::System(io::Error::other(error)))??;
        }
        Ok(())
    }

    /// Fetches pieces until none is missing.
    async fn pieces(self: Arc<Self>, mut first: Option<(Range<u64>, OpenedFile)>) -> Result<(), HubError> {
        let mut attempts = Attempts::default();
        loop {
            let (range, opened) = match first.take() {
                Some((range, opened)) => (range, Some(opened)),
                None => match self.part().take(PIECE) {
                    Some(range) => (range, None),
                    None => return Ok(()),
                },
            };
            match self.piece(range, opened).await {
                Ok(()) => attempts.succeed(),
                Err(broken) => self.endure(&mut attempts, broken).await?,
            }
        }
    }

    /// Waits after a passing trouble.
    async fn endure(&self, attempts: &mut Attempts, broken: BrokenPiece) -> Result<(), HubError> {
        let (why, after) = match broken.trouble {
            FetchTrouble::Lasting(error) => return Err(error),
            FetchTrouble::Passing { why, after } => (why, after),
        };
        if broken.came {
            attempts.succeed();
        }
        tracing::debug!(file = %self.path, "a connection broke: {why}");
        self.meter().set(|now| now.trouble = Some(why.clone()));
        let file = self.path.clone();
        attempts.wait(after, TRIES).await.map_err(|tries| HubError::Broken { file, tries, why })
    }

    /// Fetches one piece; what is missing of it is given back.
    async fn piece(&self, range: Range<u64>, opened: Option<OpenedFile>) -> Result<(), BrokenPiece> {
        let mut at = range.start;
        let done = self.piece_from(&mut at, range.end, opened).await;
        if at < range.end {
            self.part().give_back(at..range.end);
        }
        done.map_err(|trouble| BrokenPiece { trouble, came: at > range.start })
    }

    async fn piece_from(&self, at: &mut u64, end: u64, opened: Option<OpenedFile>) -> Result<(), FetchTrouble> {
        let range = *at..end;
        let opened = match opened {
            Some(opened) => opened,
            None => self.open(&range).await?,
        };
        let mut response = opened.response;
        self.check_range(&response, &range)?;
        while *at < end {
            let piece = response.chunk().await.map_err(|error| passing(&opened.url, error))?;
            let Some(piece) = piece else { return Err(self.cut(&opened.url)) };
            let wanted = usize::try_from(end.saturating_sub(*at)).unwrap_or(usize::MAX).min(piece.len());
            self.keep(*at, piece.get(..wanted).unwrap_or_default())?;
            *at = at.saturating_add(wanted as u64);
        }
        Ok(())
    }

    /// Reads the whole file from a server that sends no ranges.
    async fn whole(&self, opened: OpenedFile) -> Result<(), BrokenPiece> {
        let mut at = 0;
        let done = self.whole_from(&mut at, opened).await;
        done.map_err(|trouble| BrokenPiece { trouble, came: at > 0 })
    }

    async fn whole_from(&self, at: &mut u64, opened: OpenedFile) -> Result<(), FetchTrouble> {
        let (size, mut response) = (self.identity.bytes, opened.response);
        let lost = self.part().reset().map_err(|error| self.disk(error))?;
        self.meter().lost(lost);
        // No other range is asked for meanwhile.
        while self.part().take(u64::MAX).is_some() {}
        let done = loop {
            match response.chunk().await {
                Ok(Some(piece)) if at.saturating_add(piece.len() as u64) <= size => {
                    self.keep(*at, &piece)?;
                    *at = at.saturating_add(piece.len() as u64);
                }
                Ok(Some(_)) => break Err(FetchTrouble::Lasting(self.changed())),
                Ok(None) if *at == size => break Ok(()),
                Ok(None) => break Err(self.cut(&opened.url)),
                Err(error) => break Err(passing(&opened.url, error)),
            }
        };
        if *at < size {
            self.part().give_back(*at..size);
        }
        done
    }

    /// Opens a range: at the address of the last redirect, else at the hub.
    async fn open(&self, range: &Range<u64>) -> Result<OpenedFile, FetchTrouble> {
        let subject = RequestSubject::File(&self.repo, &self.path);
        let direct = self.direct.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(direct) = direct
            && let Ok(opened) = self.client.open(direct, range, subject).await
        {
            return Ok(opened);
        }
        let opened = self.client.open(self.url.clone(), range, subject).await?;
        if opened.checksum.as_ref().is_some_and(|named| named.contradicts(&self.identity.checksum)) {
            return Err(FetchTrouble::Lasting(self.changed()));
        }
        let redirected = Some(opened.url.clone()).filter(|url| !self.client.is_own(url));
        *self.direct.lock().unwrap_or_else(PoisonError::into_inner) = redirected;
        Ok(opened)
    }

    /// Forgets the address of the last redirect.
    pub(crate) fn forget_direct(&self) {
        *self.direct.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Checks that an answer is the range that was asked for, of a file of the listed size.
    fn check_range(&self, response: &Response, range: &Range<u64>) -> Result<(), FetchTrouble> {
        if response.status() != StatusCode::PARTIAL_CONTENT {
            let why = format!("{} sends ranges no more", host(response.url()));
            return Err(FetchTrouble::Passing { why, after: None });
        }
        let text = response.headers().get(CONTENT_RANGE).and_then(|text| text.to_str().ok()).unwrap_or_default();
        let (span, size) = text.trim_start_matches("bytes ").split_once('/').unwrap_or_default();
        let start = span.split_once('-').and_then(|(start, _)| start.parse::<u64>().ok());
        if size != "*" && size.parse() != Ok(self.identity.bytes) {
            return Err(FetchTrouble::Lasting(self.changed()));
        }
        if start == Some(range.start) {
            return Ok(());
        }
        let why = format!("{} sent the range '{text}' in place of one from {}", host(response.url()), range.start);
        Err(FetchTrouble::Passing { why, after: None })
    }

    fn keep(&self, at: u64, bytes: &[u8]) -> Result<(), HubError> {
        self.part().write(at, bytes).map_err(|error| self.disk(error))?;
        self.meter().came(bytes.len() as u64);
        Ok(())
    }

    fn cut(&self, url: &Url) -> FetchTrouble {
        FetchTrouble::Passing { why: format!("{} closed the connection", host(url)), after: None }
    }

    fn changed(&self) -> HubError {
        HubError::Changed { repo: self.repo.clone(), file: self.path.clone() }
    }

    fn disk(&self, error: io::Error) -> HubError {
        HubError::Disk(self.part().path().to_owned(), error)
    }

    pub(crate) fn part(&self) -> MutexGuard<'_, PartFile> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meter(&self) -> MutexGuard<'_, ByteMeter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
