//! The desk of parked prefixes: takes them from workers that end, gives them to workers that start, and keeps within
//! the bounds in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use model_boss_catalog::LiveCatalog;
use model_boss_config::{ParkingPlace, ParkingSettings};
use model_boss_host::probe::SpareMemory;
use model_boss_host::state_folder::StateFolder;
use model_boss_http::upstream::Upstream;
use model_boss_protocol::{ByteCount, ModelId, ParkedCounts, ParkedFault, ParkedRefusal, check_parked};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::book::{ParkedBook, ParkedContent, ParkedEntry};
use super::exchange::{fetch, give};
use super::files::{ParkedFileError, ParkedFiles};
use super::report::{ParkedModel, ParkingCounts, ParkingReport};

/// The interval at which ages and free memory are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time beyond the worker's own for the last bytes on their way.
const SLACK: Duration = Duration::from_millis(250);

/// The parts of a desk.
pub(crate) struct ParkingSetup {
    pub(crate) settings: ParkingSettings,
    pub(crate) state: StateFolder,
    /// The free memory of the host.
    pub(crate) spare: SpareMemory,
    /// Told of every event.
    pub(crate) on_change: Box<dyn Fn(&Value) + Send + Sync>,
}

/// The desk.
pub(crate) struct ParkingDesk {
    settings: ParkingSettings,
    files: ParkedFiles,
    state: StateFolder,
    spare: SpareMemory,
    on_change: Box<dyn Fn(&Value) + Send + Sync>,
    shelf: Mutex<Shelf>,
    /// Held while a file is written or removed; taken before the shelf.
    disk: Mutex<()>,
    /// The process is about to end: what is in memory ends with it.
    closing: AtomicBool,
}

#[derive(Default)]
struct Shelf {
    book: ParkedBook,
    counts: ParkingCounts,
}

impl ParkingDesk {
    /// A desk with the files of earlier processes. Without the setting for them, they are removed.
    pub(crate) fn open(setup: ParkingSetup) -> Arc<Self> {
        let ParkingSetup { settings, state, spare, on_change } = setup;
        let files = ParkedFiles::new(&state);
        let mut shelf = Shelf::default();
        if settings.place == ParkingPlace::Files && settings.bytes > ByteCount::ZERO {
            let (found, removed) = files.find();
            if removed > 0 {
                *shelf.counts.refused.entry(ParkedRefusal::Damaged.as_str()).or_default() += removed as u64;
            }
            for file in found {
                let entry = ParkedEntry { content: ParkedContent::File, bytes: file.bytes, counts: None, at: file.at };
                shelf.book.add(file.model, entry);
            }
        } else {
            let removed = files.clear();
            if removed > 0 {
                tracing::info!("{removed} files of parked prefixes are removed: parking.place is not 'files' any more");
            }
        }
        let (shelf, disk, closing) = (Mutex::new(shelf), Mutex::new(()), AtomicBool::new(false));
        let desk = Arc::new(Self { settings, files, state, spare, on_change, shelf, disk, closing });
        desk.keep_bounds();
        desk
    }

    /// Whether workers may park prefixes at all.
    pub(crate) fn is_open(&self) -> bool {
        self.settings.place != ParkingPlace::Off && self.settings.bytes > ByteCount::ZERO
    }

    /// The process is about to end. Prefixes in memory would end with it, so no worker parks any.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// The era of a model's prefixes, which a worker has from its start on.
    pub(crate) fn era(&self, model: &ModelId) -> u64 {
        self.shelf().book.era(model)
    }

    /// Takes the hottest prefixes of a worker that is about to end, and that started in this era. Returns within the
    /// time of the settings, and a moment. Prefixes of the `successor` do not leave for them: they are wanted next.
    pub(crate) async fn park(
        self: &Arc<Self>,
        (model, era): (&ModelId, u64),
        upstream: &Arc<Upstream>,
        successor: Option<&ModelId>,
    ) {
        let in_files = self.settings.place == ParkingPlace::Files;
        let ends = self.closing.load(Ordering::Relaxed) && !in_files;
        if !self.is_open() || ends || self.era(model) != era {
            return;
        }
        let most = self.room().saturating_sub(self.bytes_of(successor));
        if most == 0 {
            return self.refused(model, "no_memory", "there is no room for them");
        }
        let time = self.settings.time;
        let fetched = timeout(time.saturating_add(SLACK), fetch(upstream, most, time)).await;
        let content = match fetched {
            Ok(Ok(Some(content))) => content,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => return self.refused(model, "lost", &error.to_string()),
            Err(_) => return self.refused(model, "late", "the worker did not give them in parking.time"),
        };
        let checked = spawn_blocking(move || check_parked(&content).map(|(_, counts)| (Bytes::from(content), counts)));
        match checked.await.unwrap_or(Err(ParkedFault::Torn)) {
            Ok((_, ParkedCounts { blocks: 0, .. })) => {}
            Ok((content, counts)) => self.keep((model, era), content, counts, successor),
            Err(fault) => self.refused(model, ParkedRefusal::Damaged.as_str(), &fault.to_string()),
        }
    }

    fn keep(
        self: &Arc<Self>,
        (model, era): (&ModelId, u64),
        content: Bytes,
        counts: ParkedCounts,
        successor: Option<&ModelId>,
    ) {
        let bytes = content.len() as u64;
        let (most, at) = (self.room(), SystemTime::now());
        let mut shelf = self.shelf();
        if shelf.book.era(model) != era {
            return;
        }
        // An older file stays until the new one is written over it.
        shelf.book.remove(model);
        let removed = shelf.book.shrink(most.saturating_sub(bytes), successor);
        let entry = ParkedEntry { content: ParkedContent::Memory(content.clone()), bytes, counts: Some(counts), at };
        shelf.book.add(model.clone(), entry);
        shelf.counts.parked += 1;
        drop(shelf);
        self.dropped(removed, "bound");
        let ParkedCounts { tokens, .. } = counts;
        tracing::info!(%model, tokens, bytes, "prefixes parked");
        (self.on_change)(&json!({ "model": model, "what": "parked", "bytes": bytes, "tokens": tokens }));
        if self.settings.place == ParkingPlace::Files {
            self.write(model.clone(), content, era);
        }
    }

    /// Writes a file, beside all else. The prefixes are in memory until then.
    fn write(self: &Arc<Self>, model: ModelId, content: Bytes, era: u64) {
        let (desk, unwritten) = (Arc::clone(self), self.state.unwritten());
        spawn_blocking(move || {
            let _disk = desk.disk();
            let is_wanted = |shelf: &Shelf| {
                let kept = shelf.book.get(&model).map(|entry| &entry.content);
                let same = matches!(kept, Some(ParkedContent::Memory(kept)) if kept.as_ptr() == content.as_ptr());
                same && shelf.book.era(&model) == era
            };
            // Others may have come, or these were forgotten.
            if is_wanted(&desk.shelf()) {
                let written = desk.files.write(&model, &content);
                let mut shelf = desk.shelf();
                if is_wanted(&shelf) {
                    match written {
                        Ok(()) => shelf.book.get_mut(&model).into_iter().for_each(|e| e.content = ParkedContent::File),
                        // Memory is not what was asked for. The file of before is of no use.
                        Err(_) => {
                            shelf.book.remove(&model);
                            desk.files.remove(&model);
                        }
                    }
                }
                desk.note_memory(&shelf);
            }
            drop(unwritten);
        });
    }

    /// Gives a model's prefixes to a worker that has just loaded it. Returns within the time of the settings.
    pub(crate) async fn restore(self: &Arc<Self>, model: &ModelId, upstream: &Arc<Upstream>) {
        let time = self.settings.time.saturating_add(SLACK);
        if !self.is_open() || self.shelf().book.get(model).is_none() {
            return;
        }
        let exchange = async { Some(give(upstream, self.content(model).await?).await) };
        match timeout(time, exchange).await {
            Ok(None) => {}
            Ok(Some(Ok(outcome))) => {
                if let Some(reason) = outcome.refused {
                    self.refused(model, reason.as_str(), &outcome.message);
                }
                if matches!(outcome.refused, Some(ParkedRefusal::Changed | ParkedRefusal::Damaged)) {
                    return self.remove(model);
                }
                let mut shelf = self.shelf();
                shelf.counts.restored += u64::from(outcome.tokens > 0);
                shelf.counts.restored_tokens += outcome.tokens;
                // The worker has them now, and parks them again. A file outlives a crash of both.
                if matches!(shelf.book.get(model), Some(ParkedEntry { content: ParkedContent::Memory(_), .. }))
                    && self.settings.place == ParkingPlace::Memory
                {
                    shelf.book.remove(model);
                }
                self.note_memory(&shelf);
                drop(shelf);
                let tokens = outcome.tokens;
                tracing::info!(%model, tokens, "parked prefixes restored");
                (self.on_change)(&json!({ "model": model, "what": "restored", "tokens": tokens }));
            }
            Ok(Some(Err(error))) => self.refused(model, "lost", &error.to_string()),
            Err(_) => self.refused(model, "late", "the worker did not take them in parking.time"),
        }
    }

    /// The content of a model's prefixes. A damaged file is removed.
    async fn content(self: &Arc<Self>, model: &ModelId) -> Option<Bytes> {
        if let ParkedContent::Memory(content) = &self.shelf().book.get(model)?.content {
            return Some(content.clone());
        }
        let (files, name) = (self.files.clone(), model.clone());
        match spawn_blocking(move || files.read(&name)).await.ok()? {
            Ok(content) => Some(content),
            Err(error) => {
                let reason = match &error {
                    ParkedFileError::Read(_) => "unreadable",
                    ParkedFileError::Damaged(_) | ParkedFileError::OtherModel(_) => ParkedRefusal::Damaged.as_str(),
                };
                tracing::warn!("{} is removed: {error}", self.files.path(model).display());
                self.refused(model, reason, &error.to_string());
                self.remove(model);
                None
            }
        }
    }

    /// Drops the prefixes of a model, and of its workers that run now (`invalidate`). Waits for the disk.
    pub(crate) fn forget(self: &Arc<Self>, model: &ModelId) {
        let disk = self.disk();
        let forgotten = self.shelf().book.forget(model);
        self.files.remove(model);
        drop(disk);
        self.dropped(forgotten.map(|entry| (model.clone(), entry)).into_iter().collect(), "invalidated");
    }

    /// Drops the prefixes of models that are not in the catalog any more.
    fn keep_only(self: &Arc<Self>, known: impl Fn(&ModelId) -> bool) {
        let removed = self.shelf().book.remove_where(|model, _| !known(model));
        self.dropped(removed, "removed");
    }

    /// A model is loaded and takes so much of the host's memory: prefixes in memory give way.
    pub(crate) fn make_room(self: &Arc<Self>, model: &ModelId, bytes: ByteCount) {
        let mut shelf = self.shelf();
        let in_memory = shelf.book.bytes_in_memory();
        let Some(free) = self.spare.free().filter(|_| in_memory > 0) else { return };
        let may_stay = (free.0 + in_memory).saturating_sub(bytes.0);
        let removed = self.shrink_memory(&mut shelf, may_stay, Some(model));
        drop(shelf);
        self.dropped(removed, "memory");
    }

    fn shrink_memory(&self, shelf: &mut Shelf, most: u64, last: Option<&ModelId>) -> Vec<(ModelId, ParkedEntry)> {
        match self.settings.place {
            // Those on their way to a file are in memory for a moment only.
            ParkingPlace::Files | ParkingPlace::Off => Vec::new(),
            ParkingPlace::Memory => shelf.book.shrink(most, last),
        }
    }

    /// Keeps ages and bounds, and the prefixes of the catalog's models alone, for as long as the process runs.
    pub(crate) async fn follow(self: Arc<Self>, catalog: Arc<LiveCatalog>) {
        loop {
            sleep(LOOK_EVERY).await;
            self.keep_bounds();
            let known = catalog.current();
            self.keep_only(|model| known.get(model).is_some());
        }
    }

    fn keep_bounds(self: &Arc<Self>) {
        let mut shelf = self.shelf();
        let expired = shelf.book.expire(SystemTime::now(), self.settings.keep);
        let most = self.settings.bytes.0;
        let beyond = shelf.book.shrink(most, None);
        let free = self.spare.free().map_or(u64::MAX, |free| free.0);
        // Without free memory, other programs need what prefixes have.
        let in_memory = shelf.book.bytes_in_memory();
        let short = if free == 0 { self.shrink_memory(&mut shelf, in_memory / 2, None) } else { Vec::new() };
        drop(shelf);
        self.dropped(expired, "age");
        self.dropped(beyond, "bound");
        self.dropped(short, "memory");
    }

    /// The most bytes that one model may park now. Others leave for them.
    fn room(&self) -> u64 {
        let most = self.settings.bytes.0;
        match self.settings.place {
            ParkingPlace::Off => 0,
            ParkingPlace::Files => most,
            // Unknown is not free.
            ParkingPlace::Memory => {
                let in_memory = self.shelf().book.bytes_in_memory();
                most.min(self.spare.free().map_or(0, |free| free.0.saturating_add(in_memory)))
            }
        }
    }

    fn bytes_of(&self, model: Option<&ModelId>) -> u64 {
        let shelf = self.shelf();
        model.and_then(|model| shelf.book.get(model)).map_or(0, |entry| entry.bytes)
    }

    fn remove(self: &Arc<Self>, model: &ModelId) {
        self.shelf().book.remove(model);
        self.note_memory(&self.shelf());
        self.unlink(model.clone());
    }

    /// Removes the file of a model that has no prefixes any more, beside all else: a disk may hang.
    fn unlink(self: &Arc<Self>, model: ModelId) {
        if self.settings.place != ParkingPlace::Files {
            return;
        }
        let desk = Arc::clone(self);
        spawn_blocking(move || {
            let _disk = desk.disk();
            let is_wanted =
                matches!(desk.shelf().book.get(&model), Some(ParkedEntry { content: ParkedContent::File, .. }));
            if !is_wanted {
                desk.files.remove(&model);
            }
        });
    }

    fn dropped(self: &Arc<Self>, removed: Vec<(ModelId, ParkedEntry)>, reason: &'static str) {
        for (model, entry) in removed {
            *self.shelf().counts.dropped.entry(reason).or_default() += 1;
            tracing::debug!(%model, bytes = entry.bytes, reason, "parked prefixes dropped");
            (self.on_change)(&json!({ "model": model, "what": "dropped", "bytes": entry.bytes, "reason": reason }));
            self.unlink(model);
        }
        self.note_memory(&self.shelf());
    }

    fn refused(&self, model: &ModelId, reason: &'static str, message: &str) {
        *self.shelf().counts.refused.entry(reason).or_default() += 1;
        tracing::debug!(%model, reason, "prefixes were not parked or not restored: {message}");
        (self.on_change)(&json!({ "model": model, "what": "refused", "reason": reason, "message": message }));
    }

    /// The host's probe knows what gives way.
    fn note_memory(&self, shelf: &Shelf) {
        self.spare.taken(ByteCount(shelf.book.bytes_in_memory()));
    }

    fn disk(&self) -> MutexGuard<'_, ()> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The figures.
    pub(crate) fn report(&self) -> ParkingReport {
        let shelf = self.shelf();
        let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let of = |(model, entry): (&ModelId, &ParkedEntry)| ParkedModel {
            model_name: model.clone(),
            place: match entry.content {
                ParkedContent::Memory(_) => "memory",
                ParkedContent::File => "file",
            },
            bytes: ByteCount(entry.bytes),
            tokens: entry.counts.map(|counts| counts.tokens),
            parked_at: seconds(entry.at),
        };
        ParkingReport {
            place: match self.settings.place {
                _ if !self.is_open() => "off",
                ParkingPlace::Memory => "memory",
                ParkingPlace::Files => "files",
                ParkingPlace::Off => "off",
            },
            bytes: ByteCount(shelf.book.bytes()),
            limit: self.settings.bytes,
            models: shelf.book.entries().map(of).collect(),
            counts: shelf.counts.clone(),
        }
    }
}
