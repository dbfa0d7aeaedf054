//! The current catalog. Edits of manifests and of models' files take effect while requests run (TR-5), and models that
//! clients name by path join it. Every change is reported to the scheduler, in order.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use model_boss_core::ModelDescription;
use model_boss_protocol::{Backend, ModelId};
use nix::time::ClockId;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::ModelRoots;
use super::adapters::AddedAdapters;
use super::by_path::{self, ByPath, PathError};
use super::engines::Engines;
use super::entries::Catalog;
use super::folders::Folders;
use super::manifest_folders::ManifestFolders;
use super::model::{ManifestProblem, Model};
use crate::Asker;

/// The interval between reads of the folder. A change counts after two equal reads, so within half a second. Polling
/// detects every kind of edit on every file system, and weights outside of the folder too; file notifications do not
/// (docs/adr/0005).
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The pause after a read of the folder, as a multiple of the time that the read took.
const REST: u32 = 9;
/// The same, as a multiple of the processor's time that the read took: less than 2 % of a core for any number of
/// models.
const REST_OF_CORE: u32 = 59;

/// The last good catalog of a folder, and the models named by path.
pub struct LiveCatalog {
    folders: ManifestFolders,
    pub(crate) roots: ModelRoots,
    engines: Engines,
    current: RwLock<Arc<Catalog>>,
    /// The models named by path. The lock is held while the catalog changes, because one of two simultaneous changes
    /// would be lost.
    by_path: Mutex<NamedByPath>,
    /// Adapters that were added while the process runs.
    pub(crate) added: AddedAdapters,
    listener: CatalogListener,
}

/// Receives the models of every catalog, in the order of the catalogs.
pub type CatalogListener = Box<dyn Fn(Vec<ModelDescription>) + Send + Sync>;

/// The models that clients named by path. Their number is small, since the scheduler reports which of them to forget.
#[derive(Default)]
struct NamedByPath {
    all: Vec<ByPath>,
    /// The listings of earlier reads, also those of models with manifests.
    folders: Folders,
    /// The number of times that clients have named any model by path.
    namings: u64,
}

impl LiveCatalog {
    /// Reads the folders. The listener receives this catalog and every later one.
    pub fn read(
        from: impl Into<ManifestFolders>,
        roots: ModelRoots,
        engines: Engines,
        listener: CatalogListener,
    ) -> Self {
        let folders = from.into();
        let current = Arc::new(Catalog::read(folders.clone()));
        let by_path = Mutex::default();
        let added = AddedAdapters::default();
        let live =
            Self { folders, roots, engines, current: RwLock::new(Arc::clone(&current)), by_path, added, listener };
        live.announce(&current, &NamedByPath::default());
        live
    }

    /// The current catalog. The holder keeps this version even if files are edited meanwhile.
    pub fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The backend that runs a model.
    pub fn backend(&self, model: &Model) -> Backend {
        self.engines.backend(model)
    }

    /// The engines of this machine.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// The model at an absolute path: an existing one, else a new one that lasts while its files exist and it is in
    /// use. The same path is always the same model. The function reads files, so it may block.
    pub fn add(&self, path: &Path, asker: Asker) -> Result<ModelId, PathError> {
        let mut by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let roots = by_path::roots_for(asker, path, &self.roots);
        let at = by_path::admit_model(path, &roots)?;
        let current = self.current();
        by_path.namings += 1;
        let naming = by_path.namings;
        if let Some(model) = current.models().find(|model| model.is_at(&at)) {
            let id = model.description.id.clone();
            if let Some(known) = by_path.all.iter_mut().find(|one| one.name() == model.manifest.name) {
                known.name_again(naming);
                // The scheduler may be forgetting the model at this moment. It receives this naming before any order
                // for the model.
                self.announce(&current, &by_path);
            }
            return Ok(id);
        }
        let (one, model) = ByPath::new(&at, roots, naming, &current)?;
        let id = model.description.id.clone();
        tracing::info!(model = %id, path = %at.path.display(), "model named by its path");
        by_path.all.push(one);
        let mut catalog = Catalog::clone(&current);
        catalog.add(model);
        self.adopt(Arc::new(catalog), &by_path);
        Ok(id)
    }

    /// Forgets a model that a client named by path, unless it was named again since. The function may wait for a read
    /// of the folder, so it may block.
    pub fn forget(&self, id: &ModelId, named: u64) {
        let mut by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let known = by_path.all.len();
        by_path.all.retain(|one| one.name() != id.as_str() || one.named() != named);
        if by_path.all.len() == known {
            return;
        }
        tracing::info!(model = %id, "model named by its path is forgotten: it was not used");
        let mut catalog = Catalog::clone(&self.current());
        catalog.remove(id);
        self.adopt(Arc::new(catalog), &by_path);
    }

    /// Checks that the files of a model named by path are still those that were checked. The function reads files, so
    /// it may block.
    pub fn check(&self, model: &Model) -> Result<(), PathError> {
        // The fake worker needs no files.
        if model.is_absent && self.backend(model) != Backend::Fake {
            return Err(PathError::NotDownloaded(model.manifest.name.clone()));
        }
        let by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let one = by_path.all.iter().find(|one| one.name() == model.manifest.name).cloned();
        drop(by_path);
        one.map_or(Ok(()), |one| one.check(model))
    }

    /// Follows the folder and the models' files as long as the process runs.
    pub async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut candidate = None;
        loop {
            looks.tick().await;
            let live = Arc::clone(&self);
            let look = move || {
                let (began, computed) = (Instant::now(), thread_time());
                live.look(&mut candidate);
                let computed = thread_time().saturating_sub(computed);
                (candidate, began.elapsed().saturating_mul(REST).max(computed.saturating_mul(REST_OF_CORE)))
            };
            // A read that panicked has no result.
            let (seen, pause) = spawn_blocking(look).await.unwrap_or_default();
            candidate = seen;
            // The pause keeps the share of time spent on reads small, for any number of models and on slow disks. The
            // next tick, which is due 200 ms after the last one, adds nothing to a longer pause.
            sleep(pause).await;
        }
    }

    /// Reads the folder again and adopts it at once, after this process changed it. The function reads files, so it may
    /// block.
    pub fn read_now(&self) {
        let mut candidate = None;
        self.look(&mut candidate);
        self.look(&mut candidate);
    }

    /// Reads the folder again. A change is adopted when the next read is equal, since a half-written file is seen only
    /// once.
    fn look(&self, candidate: &mut Option<Catalog>) -> Option<Arc<Catalog>> {
        let mut by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.current();
        let NamedByPath { all, folders, .. } = &mut *by_path;
        let mut seen = Catalog::read_after(&self.folders, &current, folders);
        for one in all {
            self.look_at(one, &current, &mut seen, folders);
        }
        folders.end_look();
        if seen.agrees_with(&current) {
            *candidate = None;
            return None;
        }
        match candidate.take() {
            Some(earlier) if earlier.agrees_with(&seen) => {
                by_path.all.retain(ByPath::exists);
                for problem in &seen.problems {
                    tracing::warn!("manifest not used: {problem}");
                }
                tracing::info!(models = seen.models().count(), "models read again");
                let seen = Arc::new(seen);
                self.adopt(Arc::clone(&seen), &by_path);
                Some(seen)
            }
            _ => {
                *candidate = Some(seen);
                None
            }
        }
    }

    /// Reads one model named by path. A model whose files were deleted, or whose path now leads to others, is dropped;
    /// an invalid one keeps its last good form.
    fn look_at(&self, one: &ByPath, before: &Catalog, seen: &mut Catalog, folders: &mut Folders) {
        let last_good = before.find(one.name()).filter(|model| model.manifest.name == one.name());
        let model = match one.read(last_good, folders) {
            Ok(model) => Some(model),
            Err(PathError::Absent(_) | PathError::Outside { .. } | PathError::Relative(_)) => return,
            Err(error) => {
                let model = last_good.cloned();
                let file = model.as_ref().map_or_else(PathBuf::new, |model| model.file.clone());
                seen.problems.push(ManifestProblem { file, line: None, message: error.to_string() });
                model
            }
        };
        let Some(model) = model else { return };
        match seen.find(one.name()) {
            Some(other) if other.file != model.file => {
                let message = format!("its name '{}' now belongs to {}", one.name(), other.file.display());
                seen.problems.push(ManifestProblem { file: model.file.clone(), line: None, message });
            }
            _ => seen.add(model),
        }
    }

    fn adopt(&self, catalog: Arc<Catalog>, by_path: &NamedByPath) {
        self.announce(&catalog, by_path);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = catalog;
    }

    fn announce(&self, catalog: &Catalog, by_path: &NamedByPath) {
        let named: HashMap<&str, u64> = by_path.all.iter().map(|one| (one.name(), one.named())).collect();
        let mut models = catalog.descriptions(&self.engines);
        for model in &mut models {
            model.named = named.get(model.id.as_str()).copied();
        }
        (self.listener)(models);
    }
}

/// The processor's time that this thread has used.
fn thread_time() -> Duration {
    nix::time::clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use super::*;
    use crate::Asker;

    fn names(live: &LiveCatalog) -> Vec<String> {
        live.current().models().map(|model| model.manifest.name.clone()).collect()
    }

    fn live(folder: &Path) -> LiveCatalog {
        let roots = ModelRoots::new(&[folder.to_owned()]);
        LiveCatalog::read(folder, roots, Engines::default(), Box::new(drop))
    }

    fn manifest(name: &str) -> String {
        format!("name = \"{name}\"\nsource = {{ path = \"{name}\" }}\n")
    }

    #[test]
    fn tr_5_an_edit_counts_at_the_second_look_that_agrees() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.toml"), manifest("a")).unwrap();
        let live = live(root.path());
        let mut candidate = None;
        assert!(live.look(&mut candidate).is_none());

        fs::write(root.path().join("b.toml"), manifest("b")).unwrap();
        assert!(live.look(&mut candidate).is_none());
        assert_eq!(names(&live), ["a"]);
        assert!(live.look(&mut candidate).is_some());
        assert_eq!(names(&live), ["a", "b"]);

        fs::remove_file(root.path().join("a.toml")).unwrap();
        live.look(&mut candidate);
        assert!(live.look(&mut candidate).is_some());
        assert_eq!(names(&live), ["b"]);
    }

    #[test]
    fn tr_5_a_bad_edit_leaves_the_last_good_model_and_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.toml");
        fs::write(&file, manifest("a")).unwrap();
        let live = live(root.path());
        let mut candidate = None;

        fs::write(&file, "name = \"a\"\ncontex_length = 1\n").unwrap();
        live.look(&mut candidate);
        let adopted = live.look(&mut candidate).unwrap();
        assert_eq!(names(&live), ["a"]);
        assert_eq!(adopted.problems.len(), 1);
        assert_eq!(adopted.problems[0].line, Some(2));

        fs::write(&file, manifest("renamed")).unwrap();
        live.look(&mut candidate);
        let adopted = live.look(&mut candidate).unwrap();
        assert_eq!(names(&live), ["renamed"]);
        assert!(adopted.problems.is_empty());
    }

    #[test]
    fn tr_5_a_folder_that_went_away_takes_no_model_with_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("manifests");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.toml"), manifest("a")).unwrap();
        let live = live(&folder);
        fs::rename(&folder, root.path().join("elsewhere")).unwrap();
        let mut candidate = None;
        live.look(&mut candidate);
        assert_eq!(live.look(&mut candidate).unwrap().problems.len(), 1);
        assert_eq!(names(&live), ["a"]);
    }

    #[test]
    fn bc_5_a_new_tokenizer_or_weight_file_is_a_new_revision() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.toml"), manifest("a")).unwrap();
        let live = live(root.path());
        let revision = |live: &LiveCatalog| live.current().models().next().map(|model| model.description.revision);
        let (mut candidate, first) = (None, revision(&live));
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("a/tokenizer.json"), "{}").unwrap();
        live.look(&mut candidate);
        assert!(live.look(&mut candidate).is_some());
        assert_ne!(revision(&live), first);
    }

    /// A GGUF file and a folder with a manifest that describes another one.
    fn models() -> (tempfile::TempDir, LiveCatalog) {
        let root = tempfile::tempdir().unwrap();
        for folder in ["manifests", "models", "models/known"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        for file in ["x.gguf", "known/model.safetensors", "known/config.json"] {
            fs::write(root.path().join("models").join(file), "one").unwrap();
        }
        let text = "name = \"known\"\nsource = { path = \"../models/known\" }\n";
        fs::write(root.path().join("manifests/known.toml"), text).unwrap();
        let roots = ModelRoots::new(&[root.path().join("models")]);
        let live = LiveCatalog::read(root.path().join("manifests"), roots, Engines::default(), Box::new(drop));
        (root, live)
    }

    #[test]
    fn dm_9_the_same_path_is_the_same_model_whoever_described_it() {
        let (root, live) = models();
        let at = |path: &str| root.path().join("models").join(path);
        assert_eq!(live.add(&at("x.gguf"), Asker::Anybody).unwrap().as_str(), "file:x");
        std::os::unix::fs::symlink("x.gguf", at("y.gguf")).unwrap();
        for path in ["x.gguf", "known/../x.gguf", "y.gguf"] {
            assert_eq!(live.add(&at(path), Asker::Anybody).unwrap().as_str(), "file:x", "{path}");
        }
        assert_eq!(live.add(&at("known"), Asker::Anybody).unwrap().as_str(), "known");
        assert_eq!(names(&live), ["file:x", "known"]);
        fs::write(at("known/x.gguf"), "another").unwrap();
        assert_eq!(live.add(&at("known/x.gguf"), Asker::Anybody).unwrap().as_str(), "file:known/x");
    }

    #[test]
    fn all_parts_of_a_split_model_name_one_model() {
        let (root, live) = models();
        let at = |path: &str| root.path().join(path);
        for part in ["models/m-00001-of-00002.gguf", "models/m-00002-of-00002.gguf"] {
            fs::write(at(part), "x").unwrap();
        }
        for part in [2, 1, 2] {
            let id = live.add(&at(&format!("models/m-{part:05}-of-00002.gguf")), Asker::Anybody).unwrap();
            assert_eq!(id.as_str(), "file:m", "part {part}");
        }
        assert_eq!(names(&live), ["file:m", "known"]);
        assert!(live.current().find("file:m").unwrap().source.ends_with("m-00001-of-00002.gguf"));
        let text = "name = \"late\"\nsource = { path = \"../models/n-00002-of-00002.gguf\" }\n";
        for (file, text) in [
            ("manifests/late.toml", text),
            ("models/n-00001-of-00002.gguf", "x"),
            ("models/n-00002-of-00002.gguf", "x"),
        ] {
            fs::write(at(file), text).unwrap();
        }
        let mut candidate = None;
        live.look(&mut candidate);
        live.look(&mut candidate).unwrap();
        for part in [1, 2] {
            let id = live.add(&at(&format!("models/n-{part:05}-of-00002.gguf")), Asker::Anybody).unwrap();
            assert_eq!(id.as_str(), "late", "part {part}");
        }
    }

    #[test]
    fn a_model_by_path_stays_while_its_file_does_and_follows_it() {
        let (root, live) = models();
        let file = root.path().join("models/x.gguf");
        let id = live.add(&file, Asker::Anybody).unwrap();
        let mut candidate = None;
        assert!(live.look(&mut candidate).is_none(), "nothing changed");
        let revision = || live.current().get(&id).map(|model| model.description.revision);
        let first = revision();

        fs::write(root.path().join("manifests/a.toml"), manifest("a")).unwrap();
        live.look(&mut candidate);
        live.look(&mut candidate).unwrap();
        assert_eq!(names(&live), ["a", "file:x", "known"]);
        assert_eq!(revision(), first);

        fs::write(&file, "longer").unwrap();
        live.look(&mut candidate);
        live.look(&mut candidate).unwrap();
        assert_ne!(revision(), first);

        fs::remove_file(&file).unwrap();
        live.look(&mut candidate);
        live.look(&mut candidate).unwrap();
        assert_eq!(names(&live), ["a", "known"]);
        assert!(live.current().problems.is_empty());
        fs::write(&file, "back").unwrap();
        assert!(live.look(&mut candidate).is_none(), "it has to be named again");
        assert_eq!(live.add(&file, Asker::Anybody).unwrap(), id);
    }

    /// The scheduler's last list: the models by path, with the numbers of their last use of the path.
    fn told(inbox: &mpsc::Receiver<Vec<ModelDescription>>) -> Vec<(String, u64)> {
        let mut last = Vec::new();
        for models in inbox.try_iter() {
            last = models.iter().filter_map(|model| Some((model.id.to_string(), model.named?))).collect();
        }
        last
    }

    #[test]
    fn a_model_by_path_is_forgotten_everywhere_unless_it_was_named_again() {
        let (root, _) = models();
        let (listener, inbox) = mpsc::channel();
        let listener = Box::new(move |models| listener.send(models).unwrap());
        let roots = ModelRoots::new(&[root.path().join("models")]);
        let live = LiveCatalog::read(root.path().join("manifests"), roots, Engines::default(), listener);
        let file = root.path().join("models/x.gguf");
        let id = live.add(&file, Asker::Anybody).unwrap();
        assert_eq!(told(&inbox), [("file:x".to_owned(), 1)]);
        live.add(&file, Asker::Anybody).unwrap();
        assert_eq!(told(&inbox), [("file:x".to_owned(), 2)], "the scheduler gets the model before any order");
        live.forget(&id, 1);
        assert_eq!(names(&live), ["file:x", "known"]);
        live.forget(&id, 2);
        assert_eq!((names(&live), told(&inbox)), (vec!["known".to_owned()], Vec::new()));
        assert!(live.current().find("file:x").is_none());
        let mut candidate = None;
        for _ in 0..3 {
            assert!(live.look(&mut candidate).is_none(), "no look brings it back");
        }
        live.forget(&"known".into(), 1);
        assert_eq!(names(&live), ["known"], "a model with a manifest is never forgotten");
        assert_eq!(live.add(&file, Asker::Anybody).unwrap(), id);
    }

    #[test]
    fn a_folder_of_many_models_is_listed_once_and_not_at_every_look() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["manifests", "models"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        for number in 0..200 {
            let part = format!("m-{number:05}-of-00200.gguf");
            fs::write(root.path().join("models").join(&part), "one").unwrap();
            let text = format!("name = \"m{number}\"\nvram = \"1GiB\"\nsource = {{ path = \"../models/{part}\" }}\n");
            fs::write(root.path().join(format!("manifests/{number}.toml")), text).unwrap();
        }
        let models = fs::File::open(root.path().join("models")).unwrap();
        models.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let live = live(&root.path().join("manifests"));
        let listed = |live: &LiveCatalog| live.by_path.lock().unwrap().folders.listed;
        let mut candidate = None;
        for _ in 0..5 {
            assert!(live.look(&mut candidate).is_none());
        }
        assert_eq!(listed(&live), 1, "for 200 models whose parts lie in it, at five looks");
        fs::write(root.path().join("models/m-00000-of-00200.gguf"), "larger").unwrap();
        live.look(&mut candidate);
        assert!(live.look(&mut candidate).is_some(), "an edit of a file is seen all the same");
        fs::write(root.path().join("models/m-00200-of-00200.gguf"), "another").unwrap();
        live.look(&mut candidate);
        assert!(live.look(&mut candidate).is_some(), "and a new file");
    }

    #[test]
    fn op_5_what_a_worker_would_open_is_looked_at_right_before_it_starts() {
        let (root, live) = models();
        let at = |path: &str| root.path().join(path);
        let id = live.add(&at("models/x.gguf"), Asker::Anybody).unwrap();
        let checked = Arc::clone(live.current().get(&id).unwrap());
        live.check(&checked).unwrap();
        fs::write(at("models/x.gguf"), "others").unwrap();
        assert!(matches!(live.check(&checked), Err(PathError::Changed(_))));
        fs::rename(at("models/x.gguf"), at("x.gguf")).unwrap();
        std::os::unix::fs::symlink("../x.gguf", at("models/x.gguf")).unwrap();
        assert!(matches!(live.check(&checked), Err(PathError::Outside { .. })));
    }

    #[test]
    fn op_5_what_the_owner_names_may_lie_anywhere_and_stays_where_it_was() {
        let (root, live) = models();
        let at = |path: &str| root.path().join(path);
        for folder in ["own", "elsewhere"] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("y.gguf"), "one").unwrap();
        }
        std::os::unix::fs::symlink(at("own/y.gguf"), at("manifests/link.gguf")).unwrap();
        assert!(matches!(live.add(&at("own/y.gguf"), Asker::Anybody), Err(PathError::Outside { .. })));
        let id = live.add(&at("manifests/link.gguf"), Asker::Owner).unwrap();
        let checked = Arc::clone(live.current().get(&id).unwrap());
        live.check(&checked).unwrap();
        fs::remove_file(at("manifests/link.gguf")).unwrap();
        std::os::unix::fs::symlink(at("elsewhere/y.gguf"), at("manifests/link.gguf")).unwrap();
        assert!(matches!(live.check(&checked), Err(PathError::Outside { .. })));
    }

    #[test]
    fn op_5_a_model_by_path_that_leads_out_of_the_roots_later_is_gone() {
        let (root, live) = models();
        let file = root.path().join("models/x.gguf");
        live.add(&file, Asker::Anybody).unwrap();
        fs::rename(&file, root.path().join("x.gguf")).unwrap();
        std::os::unix::fs::symlink("../x.gguf", &file).unwrap();
        let mut candidate = None;
        live.look(&mut candidate);
        live.look(&mut candidate).unwrap();
        assert_eq!(names(&live), ["known"]);
    }

    #[test]
    fn a_look_that_began_before_a_model_was_named_does_not_drop_it() {
        let (root, live) = models();
        fs::write(root.path().join("manifests/a.toml"), manifest("a")).unwrap();
        let mut candidate = None;
        live.look(&mut candidate);
        live.add(&root.path().join("models/x.gguf"), Asker::Anybody).unwrap();
        for _ in 0..3 {
            live.look(&mut candidate);
            assert!(names(&live).contains(&"file:x".to_owned()));
        }
        assert_eq!(names(&live), ["a", "file:x", "known"]);
    }

    #[test]
    fn a_manifest_that_takes_the_name_of_a_model_by_path_wins() {
        let (root, live) = models();
        live.add(&root.path().join("models/x.gguf"), Asker::Anybody).unwrap();
        let text = "name = \"file:x\"\nsource = { path = \"elsewhere\" }\n";
        fs::write(root.path().join("manifests/a.toml"), text).unwrap();
        let mut candidate = None;
        live.look(&mut candidate);
        let seen = live.look(&mut candidate).unwrap();
        assert_eq!(seen.find("file:x").unwrap().file, root.path().join("manifests/a.toml"));
        assert!(seen.problems[0].to_string().contains("now belongs to"), "{:?}", seen.problems);
    }
}
