//! A pull: the hub lists the files of a revision, those that are missing are downloaded and checked, and then all are
//! made visible at once, the one by which the model is recognised last.
//!
//! A pull runs on a thread of its own, since it waits for disks and computes checksums.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use model_boss_protocol::{ByteCount, HubRepo, Source};
use nix::sys::statvfs::statvfs;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::cache::{CachedRepo, HubCache, is_present, remove_if_there};
use super::choice::{ChosenFiles, choose};
use super::client::{FetchTrouble, HubClient};
use super::download::{Attempts, FileDownload};
use super::error::HubError;
use super::listing::{FileIdentity, RevisionListing};
use super::name::HubName;
use super::other_stores;
use super::part_file::{self, PartFile};
use super::progress::{ByteMeter, PullProgress, PullStage};
use super::settings::HubSettings;

/// Listings of a repository that changes while it is read.
const LISTINGS: u32 = 3;
/// Attempts to list the files, and to get a file whose checksum is right.
const LISTING_TRIES: u32 = 7;
const CHECKED_TRIES: u32 = 2;
/// The interval between two attempts to get a lock that another process holds.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A hub and its cache.
#[derive(Clone, Debug)]
pub struct Hub {
    settings: HubSettings,
}

/// A model that is in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The source for a manifest.
    pub source: Source,
    /// The commit of the files.
    pub commit: String,
    /// The path of the model: a file, or a folder.
    pub path: PathBuf,
    /// The number of files.
    pub files: usize,
    /// The bytes of all files.
    pub bytes: ByteCount,
    /// The bytes that were downloaded now.
    pub downloaded: ByteCount,
    /// The bytes that were found in other programs' stores.
    pub linked: ByteCount,
}

/// A pull that runs on its thread.
pub struct RunningPull {
    progress: watch::Receiver<PullProgress>,
    cancel: CancellationToken,
    done: oneshot::Receiver<Result<Pulled, HubError>>,
}

impl RunningPull {
    /// A reader of the progress.
    pub fn progress(&self) -> watch::Receiver<PullProgress> {
        self.progress.clone()
    }

    /// The token that ends the pull. Bytes that came are kept.
    pub fn cancel(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Waits for the end.
    pub async fn done(self) -> Result<Pulled, HubError> {
        let lost = || HubError::System(io::Error::other("its thread ended"));
        self.done.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Hub {
    /// The hub of these settings.
    pub fn new(settings: HubSettings) -> Self {
        Self { settings }
    }

    /// The cache.
    pub fn cache(&self) -> HubCache {
        HubCache::new(&self.settings.cache)
    }

    /// Starts a pull.
    pub fn start(&self, name: HubName) -> Result<RunningPull, HubError> {
        let (meter, progress) = ByteMeter::new();
        let cancel = CancellationToken::new();
        let (sender, done) = oneshot::channel();
        let work = PullWork {
            settings: self.settings.clone(),
            name,
            meter: Arc::new(Mutex::new(meter)),
            cancel: cancel.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HubError::System)?;
        let run = move || {
            // The caller may have gone.
            let _ = sender.send(runtime.block_on(work.run()));
        };
        thread::Builder::new().name("pull".to_owned()).spawn(run).map_err(HubError::System)?;
        Ok(RunningPull { progress, cancel, done })
    }
}

/// One pull.
struct PullWork {
    settings: HubSettings,
    name: HubName,
    meter: Arc<Mutex<ByteMeter>>,
    cancel: CancellationToken,
}

/// One file of the pull.
struct WantedFile {
    path: String,
    identity: FileIdentity,
    blob: PathBuf,
    /// The same file in another program's store.
    elsewhere: Option<PathBuf>,
}

impl WantedFile {
    /// Whether the blob is there and has its size. A blob has its name only after its checksum was found right.
    fn is_there(&self) -> bool {
        fs::metadata(&self.blob).is_ok_and(|about| about.is_file() && about.len() == self.identity.bytes)
    }
}

/// The bytes that a pull got, by their origin.
#[derive(Default)]
struct Gains {
    downloaded: u64,
    linked: u64,
}

impl PullWork {
    async fn run(self) -> Result<Pulled, HubError> {
        if self.settings.offline {
            return self.of_cache();
        }
        let client = Arc::new(HubClient::new(&self.settings)?);
        let mut listings = 1;
        loop {
            match self.pull(&client).await {
                // The revision is listed again, and means another commit now.
                Err(HubError::Changed { .. }) if listings < LISTINGS => listings += 1,
                done => return done,
            }
        }
    }

    /// The model as the cache has it.
    fn of_cache(&self) -> Result<Pulled, HubError> {
        let (repo, revision) = (self.repo(), self.revision());
        let absent = || HubError::Offline { what: self.name.to_string(), folder: self.settings.cache.clone() };
        let commit = repo.commit_of(revision).ok_or_else(absent)?;
        let paths = repo.files(&commit);
        let chosen = choose(&self.name.repo, &self.name.choice, &paths).map_err(|_| absent())?;
        let bytes = |path: &String| fs::metadata(repo.snapshot(&commit).join(path)).map_or(0, |about| about.len());
        let total = chosen.files.iter().map(bytes).sum();
        let pulled = self.pulled(commit, &chosen, total, Gains::default());
        if is_present(&pulled.path) { Ok(pulled) } else { Err(absent()) }
    }

    async fn pull(&self, client: &Arc<HubClient>) -> Result<Pulled, HubError> {
        let repo = self.repo();
        self.meter().set(|now| *now = PullProgress::default());
        let listing = self.listing(client).await?;
        let paths: Vec<String> = listing.files.iter().map(|file| file.path.clone()).collect();
        let chosen = choose(&self.name.repo, &self.name.choice, &paths)?;
        let mut wanted = Vec::new();
        for path in &chosen.files {
            wanted.push(self.wanted(client, &repo, &listing, path).await?);
        }
        let total = wanted.iter().map(|file| file.identity.bytes).sum();
        self.meter().set(|now| now.total = total);
        for folder in [repo.blobs(), repo.lock_folder()] {
            fs::create_dir_all(&folder).map_err(|error| HubError::Disk(folder, error))?;
        }
        self.check_space(&repo, &wanted)?;
        let mut gains = Gains::default();
        for file in &wanted {
            self.bring(client, &repo, &listing.commit, file, &mut gains).await?;
        }
        self.meter().set(|now| now.stage = PullStage::Linking);
        for file in &wanted {
            let linked = repo.link(&listing.commit, &file.path, &file.identity.checksum);
            linked.map_err(|error| HubError::Disk(repo.snapshot(&listing.commit).join(&file.path), error))?;
        }
        let referred = repo.refer(self.revision(), &listing.commit);
        referred.map_err(|error| HubError::Disk(repo.snapshot(&listing.commit), error))?;
        Ok(self.pulled(listing.commit, &chosen, total, gains))
    }

    fn pulled(&self, commit: String, chosen: &ChosenFiles, bytes: u64, gains: Gains) -> Pulled {
        let snapshot = self.repo().snapshot(&commit);
        let path = chosen.file.as_ref().map_or_else(|| snapshot.clone(), |file| snapshot.join(file));
        let source = Source {
            path: None,
            hf: Some(self.name.repo.clone()),
            file: chosen.file.clone(),
            revision: self.name.revision.clone(),
            bytes: Some(ByteCount(bytes)),
        };
        Pulled {
            source,
            commit,
            path,
            files: chosen.files.len(),
            bytes: ByteCount(bytes),
            downloaded: ByteCount(gains.downloaded),
            linked: ByteCount(gains.linked),
        }
    }

    /// Lists the files of the revision.
    async fn listing(&self, client: &HubClient) -> Result<RevisionListing, HubError> {
        let list = async || client.listing(&self.name.repo, self.revision()).await;
        self.patiently(list).await
    }

    /// One file with its size and checksum.
    async fn wanted(
        &self,
        client: &HubClient,
        repo: &CachedRepo,
        listing: &RevisionListing,
        path: &str,
    ) -> Result<WantedFile, HubError> {
        let listed = listing.files.iter().find(|file| file.path == path).and_then(|file| file.identity.clone());
        let identity = match listed {
            Some(identity) => identity,
            None => {
                let ask = async || client.identity(&self.name.repo, &listing.commit, path).await;
                self.patiently(ask).await?
            }
        };
        let blob = repo.blob(&identity.checksum);
        let mut wanted = WantedFile { path: path.to_owned(), identity, blob, elsewhere: None };
        if !wanted.is_there() {
            wanted.elsewhere = other_stores::find(&self.settings, &wanted.identity, &self.cancel);
        }
        Ok(wanted)
    }

    /// Repeats a small request until it is answered.
    async fn patiently<T>(&self, ask: impl AsyncFn() -> Result<T, FetchTrouble>) -> Result<T, HubError> {
        let mut attempts = Attempts::default();
        loop {
            let answered = tokio::select! {
                answered = ask() => answered,
                () = self.cancel.cancelled() => return Err(HubError::Cancelled),
            };
            let (why, after) = match answered {
                Ok(answer) => return Ok(answer),
                Err(FetchTrouble::Lasting(error)) => return Err(error),
                Err(FetchTrouble::Passing { why, after }) => (why, after),
            };
            self.meter().set(|now| now.trouble = Some(why.clone()));
            let waited = tokio::select! {
                waited = attempts.wait(after, LISTING_TRIES) => waited,
                () = self.cancel.cancelled() => return Err(HubError::Cancelled),
            };
            if waited.is_err() {
                let host = self.settings.endpoint.clone();
                return Err(HubError::Unreachable { host, why });
            }
        }
    }

    /// Checks that the disk has room for all bytes that are still to come, before the first of them is asked for.
    fn check_space(&self, repo: &CachedRepo, wanted: &[WantedFile]) -> Result<(), HubError> {
        let missing = wanted.iter().filter(|file| !file.is_there() && file.elsewhere.is_none());
        let needed = missing.map(|file| file.identity.bytes.saturating_sub(part_file::bytes_on_disk(&file.blob))).sum();
        let folder = repo.blobs();
        let free = free_space(&folder).map_err(|error| HubError::Disk(folder.clone(), error))?;
        if needed <= free {
            return Ok(());
        }
        Err(HubError::DiskFull { folder, needed: ByteCount(needed), free: ByteCount(free) })
    }

    /// Brings one file into the cache, under its checksum.
    async fn bring(
        &self,
        client: &Arc<HubClient>,
        repo: &CachedRepo,
        commit: &str,
        file: &WantedFile,
        gains: &mut Gains,
    ) -> Result<(), HubError> {
        let disk = |error: io::Error| self.disk_error(file, error);
        self.meter().set(|now| {
            (now.file, now.digest) = (file.path.clone(), file.identity.checksum.to_string());
            (now.file_total, now.file_completed) = (file.identity.bytes, 0);
        });
        let _lock = if file.is_there() { None } else { Some(self.lock(&repo.lock(&file.identity.checksum)).await?) };
        if file.is_there() {
            self.meter().already_there(file.identity.bytes);
            return Ok(());
        }
        // The link to another program's file may lead nowhere any more.
        remove_if_there(&file.blob).map_err(disk)?;
        if let Some(elsewhere) = &file.elsewhere {
            other_stores::link(elsewhere, &file.blob).map_err(disk)?;
            gains.linked = gains.linked.saturating_add(file.identity.bytes);
            self.meter().already_there(file.identity.bytes);
            return Ok(());
        }
        let part = PartFile::open(&file.blob, file.identity.bytes).map_err(disk)?;
        let before = part.count();
        self.meter().already_there(before);
        let download = Arc::new(FileDownload {
            client: Arc::clone(client),
            url: client.file(&self.name.repo, commit, &file.path)?,
            repo: self.name.repo.clone(),
            path: file.path.clone(),
            identity: file.identity.clone(),
            part: Mutex::new(part),
            meter: Arc::clone(&self.meter),
            direct: Mutex::new(None),
        });
        self.checked(&download, file).await?;
        gains.downloaded = gains.downloaded.saturating_add(file.identity.bytes.saturating_sub(before));
        Ok(())
    }

    /// Downloads a file, and gives it its name if its checksum is right. A wrong one may come from bytes of an earlier
    /// attempt, so the file is downloaded once more.
    async fn checked(&self, download: &Arc<FileDownload>, file: &WantedFile) -> Result<(), HubError> {
        let disk = |error: io::Error| self.disk_error(file, error);
        let mut found = String::new();
        for _ in 0..CHECKED_TRIES {
            self.meter().set(|now| now.stage = PullStage::Downloading);
            let fetched = download.run(self.settings.connections, &self.cancel).await;
            fetched.map_err(|error| match error {
                HubError::Disk(_, error) => disk(error),
                other => other,
            })?;
            self.meter().set(|now| now.stage = PullStage::Verifying);
            let part = download.part().path().to_owned();
            let computed = file.identity.checksum.computed(&part, &self.cancel).map_err(disk)?;
            found = computed.ok_or(HubError::Cancelled)?;
            if found == file.identity.checksum.as_str() {
                return download.part().finish(&file.blob).map_err(disk);
            }
            let lost = download.part().reset().map_err(disk)?;
            self.meter().lost(lost);
            // The hub is asked again, and says if the file is another one by now.
            download.forget_direct();
        }
        part_file::remove(&file.blob).map_err(disk)?;
        let expected = file.identity.checksum.to_string();
        Err(HubError::Checksum { file: file.path.clone(), expected, found })
    }

    /// Waits for the lock of a blob, which another process may hold while it downloads.
    async fn lock(&self, path: &Path) -> Result<fs::File, HubError> {
        let disk = |error: io::Error| HubError::Disk(path.to_owned(), error);
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(disk)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(fs::TryLockError::WouldBlock) => {}
                // A file system without locks: two processes would do the work twice, each in its own part.
                Err(fs::TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(file),
                Err(fs::TryLockError::Error(error)) => return Err(disk(error)),
            }
            self.meter().set(|now| now.stage = PullStage::Waiting);
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                () = self.cancel.cancelled() => return Err(HubError::Cancelled),
            }
        }
    }

    /// An error of the disk. A full one is told with the bytes that are missing.
    fn disk_error(&self, file: &WantedFile, error: io::Error) -> HubError {
        if error.kind() != io::ErrorKind::StorageFull {
            return HubError::Disk(file.blob.clone(), error);
        }
        let folder = file.blob.parent().unwrap_or(&file.blob).to_owned();
        let needed = file.identity.bytes.saturating_sub(part_file::bytes_on_disk(&file.blob));
        HubError::DiskFull { needed: ByteCount(needed), free: ByteCount(free_space(&folder).unwrap_or(0)), folder }
    }

    fn repo(&self) -> CachedRepo {
        HubCache::new(&self.settings.cache).repo(self.repo_name())
    }

    fn repo_name(&self) -> &HubRepo {
        &self.name.repo
    }

    fn revision(&self) -> &str {
        self.name.revision.as_deref().unwrap_or(model_boss_protocol::MAIN_REVISION)
    }

    fn meter(&self) -> MutexGuard<'_, ByteMeter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a folder's disk that this user may still write.
fn free_space(folder: &Path) -> io::Result<u64> {
    let about = statvfs(folder)?;
    // The widths of these fields differ between systems.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "only on some systems")]
    let (blocks, size) = (about.blocks_available() as u64, about.fragment_size() as u64);
    Ok(blocks.saturating_mul(size))
}
