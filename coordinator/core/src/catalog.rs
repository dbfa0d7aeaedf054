//! The models by name, and the scheduler's state for each. Requests and memory are kept in other modules.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

use model_boss_protocol::{DeviceId, KeepAlive, ModelId, Priority, SlotId};

use crate::admission::History;
use crate::failure::Failures;
use crate::refusal::Refusal;
use crate::{EngineOptions, LayerOptions, ModelDescription, Moment, SizeEstimate};

/// A model's index in the catalog. It is reused for another model after this one is forgotten, which happens only
/// while the model is neither waited for, running nor loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModelIndex(u32);

impl ModelIndex {
    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(crate) const fn get(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// A model and its state in the scheduler.
#[derive(Debug)]
pub(crate) struct ScheduledModel {
    pub(crate) description: ModelDescription,
    /// Whether the newest catalog lists the model.
    pub(crate) listed: bool,
    /// The position of the model's departure among all departures: models that left first are forgotten first.
    left: u64,
    /// The moment of the model's last request, load or mention by path.
    pub(crate) used_at: Moment,
    /// An operator's pin or unpin, which overrides the manifest's.
    pub(crate) pinned: Option<bool>,
    /// The slot that serves the model, or will once it is loaded. There is at most one (RC-14).
    pub(crate) serving: Option<SlotId>,
    /// All the model's slots, stopping ones included.
    pub(crate) slots: Vec<SlotId>,
    /// The end of the time for which the model, once evicted, takes no place of another that is wanted (RC-18).
    pub(crate) away_until: Moment,
    pub(crate) failures: Failures,
    /// Options of the model's last load beyond the manifest.
    pub(crate) wish: LoadWish,
    /// The load that follows, while the model stops in order to be loaded again.
    pub(crate) returns: Option<Return>,
    /// The moment when all other models were evicted for a second try of its load (MM-4).
    pub(crate) second_try_at: Option<Moment>,
    /// Loads in a row that failed because another process listened on the port.
    pub(crate) port_clashes: u32,
    /// The ledger's last refusal, with the time of the next request for a lease.
    pub(crate) lease_refusal: Option<LeaseRefusal>,
    /// The last exit of the model's worker that the scheduler did not order.
    pub(crate) last_exit: Option<String>,
    /// The durations of the model's loads and answers.
    pub(crate) history: History,
    /// Whether the entry is a cloud provider. No slot serves a provider: its requests are dispatched as soon as their
    /// clients' limits allow.
    pub(crate) cloud: bool,
    /// The pause that the provider's last error requires.
    pub(crate) rest: Option<Rest>,
}

/// The end of a provider's pause, and the error that began it.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) until: Moment,
    pub(crate) error: Refusal,
}

/// Options of a load in place of the manifest's. They hold until the model is unloaded, idle for its stay-warm time
/// or changed, or until another load sets them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadWish {
    pub(crate) device: Option<DeviceId>,
    pub(crate) context: Option<u64>,
    pub(crate) layers: LayerOptions,
    pub(crate) size: Option<SizeEstimate>,
    pub(crate) engine: EngineOptions,
}

/// Properties of a slot that was stopped while idle, for its reload with all layers resident.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Return {
    pub(crate) priority: Priority,
    pub(crate) keep_alive: Option<KeepAlive>,
}

#[derive(Clone, Debug)]
pub(crate) struct LeaseRefusal {
    pub(crate) reason: String,
    pub(crate) until: Moment,
}

/// The present models, and the last of those that left.
#[derive(Debug, Default)]
pub(crate) struct KnownModels {
    models: Vec<ScheduledModel>,
    /// Indices of forgotten models, whose entries are unused.
    vacant: BTreeSet<ModelIndex>,
    /// The number of departures so far.
    leaves: u64,
    /// Indices by name; iterated only where the result is sorted.
    ids: HashMap<ModelId, ModelIndex>,
    aliases: HashMap<ModelId, ModelIndex>,
    /// Entries of cloud providers by name, never iterated.
    providers: HashMap<String, ModelIndex>,
}

/// The differences that a new catalog makes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CatalogChange {
    /// Models with a new revision, and models that are listed again.
    pub(crate) changed: Vec<ModelIndex>,
    /// Models that are not listed any more.
    pub(crate) removed: Vec<ModelIndex>,
}

impl KnownModels {
    /// Replaces the list of models. Indices of known models stay the same.
    pub(crate) fn replace(&mut self, descriptions: Vec<ModelDescription>, now: Moment) -> CatalogChange {
        let mut change = CatalogChange::default();
        let mut listed = BTreeSet::new();
        self.aliases.clear();
        for description in descriptions {
            let index = match self.ids.get(&description.id) {
                Some(&index) => {
                    let model = &mut self[index];
                    if model.description.revision != description.revision || !model.listed {
                        change.changed.push(index);
                    }
                    if model.description.named != description.named {
                        model.used_at = now;
                    }
                    model.description = description;
                    index
                }
                None => {
                    let id = description.id.clone();
                    let index = self.add(ScheduledModel { used_at: now, ..ScheduledModel::new(description) });
                    self.ids.insert(id, index);
                    index
                }
            };
            listed.insert(index);
        }
        let left: Vec<ModelIndex> = self
            .iter()
            .filter(|(index, model)| model.listed && !model.cloud && !listed.contains(index))
            .map(|(index, _)| index)
            .collect();
        for &index in &left {
            self.leave(index);
        }
        change.removed = left;
        for index in listed {
            self[index].listed = true;
            for alias in self[index].description.aliases.clone() {
                // The first model that claims an alias gets it; the reader of manifests reports the conflict.
                self.aliases.entry(alias).or_insert(index);
            }
        }
        change
    }

    /// Removes a model from the list. Its state is kept until the model is forgotten.
    pub(crate) fn leave(&mut self, index: ModelIndex) {
        self.leaves += 1;
        let left = self.leaves;
        let model = &mut self[index];
        (model.listed, model.left) = (false, left);
        self.aliases.retain(|_, of| *of != index);
    }

    /// The models that left, first departure first, without the last `kept`.
    pub(crate) fn left_beyond(&self, kept: usize) -> Vec<ModelIndex> {
        let mut left: Vec<(u64, ModelIndex)> =
            self.iter().filter(|(_, model)| !model.listed).map(|(index, model)| (model.left, index)).collect();
        left.sort_unstable();
        left.truncate(left.len().saturating_sub(kept));
        left.into_iter().map(|(_, index)| index).collect()
    }

    /// Forgets a model that left and of which nothing is in use. Its index is free for another model. Returns its
    /// slots.
    pub(crate) fn forget(&mut self, index: ModelIndex) -> Vec<SlotId> {
        let nothing = ScheduledModel { listed: false, ..ScheduledModel::new(ModelDescription::of_provider("")) };
        let forgotten = std::mem::replace(&mut self[index], nothing);
        self.ids.remove(forgotten.id());
        self.vacant.insert(index);
        forgotten.slots
    }

    /// The number of entries, in use or not.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.models.len()
    }

    fn add(&mut self, model: ScheduledModel) -> ModelIndex {
        if let Some(index) = self.vacant.pop_first() {
            self[index] = model;
            return index;
        }
        self.models.push(model);
        ModelIndex::new(self.models.len() - 1)
    }

    /// The listed model of this name or alias.
    pub(crate) fn resolve(&self, name: &str) -> Option<ModelIndex> {
        let listed = |index: &&ModelIndex| self[**index].listed;
        self.ids.get(name).filter(listed).or_else(|| self.aliases.get(name)).copied()
    }

    /// The entry of a provider, created on first use. Providers come from the configuration, so they are few.
    pub(crate) fn provider(&mut self, name: &str) -> ModelIndex {
        if let Some(&index) = self.providers.get(name) {
            return index;
        }
        let index =
            self.add(ScheduledModel { cloud: true, ..ScheduledModel::new(ModelDescription::of_provider(name)) });
        self.providers.insert(name.to_owned(), index);
        index
    }

    /// The state of a provider; `None` before the first request to it.
    pub(crate) fn known_provider(&self, name: &str) -> Option<&ScheduledModel> {
        self.provider_entry(name).map(|index| &self[index])
    }

    /// The entry of a provider; `None` before the first request to it.
    pub(crate) fn provider_entry(&self, name: &str) -> Option<ModelIndex> {
        self.providers.get(name).copied()
    }

    /// The model of exactly this name, listed or not.
    pub(crate) fn resolve_any(&self, id: &ModelId) -> Option<ModelIndex> {
        self.ids.get(id).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ModelIndex, &ScheduledModel)> {
        let places = self.models.iter().enumerate().map(|(number, model)| (ModelIndex::new(number), model));
        places.filter(|(index, _)| !self.vacant.contains(index))
    }

    /// At most three known names similar to `name`, the nearest first.
    pub(crate) fn close_names(&self, name: &str) -> Vec<&str> {
        let wanted = name.to_lowercase();
        let mut left = CELLS_COMPARED;
        let ids = self.models.iter().filter(|m| m.listed && !m.cloud).map(|m| m.description.id.as_str());
        let mut near: Vec<_> = ids
            .chain(self.aliases.keys().map(ModelId::as_str))
            .filter(|known| wanted.len().abs_diff(known.len()) <= LONGEST_COMPARED)
            .take(NAMES_COMPARED)
            .filter_map(|known| likeness(&wanted, &known.to_lowercase(), &mut left).map(|distance| (distance, known)))
            .collect();
        near.sort_unstable();
        near.dedup();
        near.into_iter().take(3).map(|(_, known)| known).collect()
    }
}

impl Index<ModelIndex> for KnownModels {
    type Output = ScheduledModel;
    fn index(&self, index: ModelIndex) -> &ScheduledModel {
        &self.models[index.get()]
    }
}

impl IndexMut<ModelIndex> for KnownModels {
    fn index_mut(&mut self, index: ModelIndex) -> &mut ScheduledModel {
        &mut self.models[index.get()]
    }
}

impl ScheduledModel {
    fn new(description: ModelDescription) -> Self {
        Self {
            description,
            listed: true,
            left: 0,
            used_at: Moment::START,
            pinned: None,
            serving: None,
            slots: Vec::new(),
            away_until: Moment::START,
            failures: Failures::default(),
            wish: LoadWish::default(),
            returns: None,
            second_try_at: None,
            port_clashes: 0,
            lease_refusal: None,
            last_exit: None,
            history: History::default(),
            cloud: false,
            rest: None,
        }
    }

    pub(crate) fn id(&self) -> &ModelId {
        &self.description.id
    }

    /// A pinned model is never evicted, nor unloaded when idle (RC-19).
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.unwrap_or(self.description.pin)
    }

    /// The number of concurrent requests, at least one; a manifest's zero counts as one.
    pub(crate) fn max_concurrent(&self) -> usize {
        self.description.max_concurrent.max(1) as usize
    }
}

/// The distance of two names that are near enough to be a typing error: one contains the other, or few edits separate
/// them.
fn likeness(wanted: &str, known: &str, left: &mut usize) -> Option<usize> {
    if wanted.len() > LONGEST_COMPARED || known.len() > LONGEST_COMPARED || wanted.is_empty() {
        return None;
    }
    let apart = wanted.len().abs_diff(known.len());
    if wanted.len().min(known.len()) >= 3 && (known.contains(wanted) || wanted.contains(known)) {
        return Some(apart.min(2));
    }
    let allowed = (wanted.len().max(known.len()) + 1) / 3;
    if apart > allowed {
        return None;
    }
    // A hint must not delay other requests: its cost is bounded.
    *left = left.checked_sub(wanted.len() * known.len())?;
    let distance = edit_distance(wanted.as_bytes(), known.as_bytes());
    (distance <= allowed).then_some(distance)
}

/// The longest name that is compared for a hint.
const LONGEST_COMPARED: usize = 64;
/// The number of names compared for one hint.
const NAMES_COMPARED: usize = 512;
/// The number of table cells computed for one hint.
const CELLS_COMPARED: usize = 50_000;

/// The Levenshtein distance, computed with one row of the table.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::model;

    #[test]
    fn a_hint_costs_little_however_many_and_long_the_names_are() {
        let mut catalog = KnownModels::default();
        let models =
            (0..20_000).map(|n| model(&format!("{}-{n:05}", "qwen-something-rather-long-indeed".repeat(3)), 1));
        catalog.replace([model("guide", 1)].into_iter().chain(models).collect(), Moment::START);
        // The limit counts cells of the tables, so the test does not depend on speed.
        assert_eq!(catalog.close_names("giude"), ["guide"]);
        assert!(catalog.close_names(&"x".repeat(60)).is_empty());
        assert!(catalog.close_names(&"x".repeat(1 << 20)).is_empty());
        // The search is expensive among names of the same length, and is stopped before a match after thousands of
        // them.
        let alike = (0..20_000).map(|n| model(&format!("{}{n:05}", "q".repeat(55)), 1));
        catalog.replace(alike.chain([model(&"z".repeat(60), 1)]).collect(), Moment::START);
        assert!(catalog.close_names(&("z".repeat(59) + "y")).is_empty());
        let mut left = 10;
        assert_eq!(likeness("giude", "guide", &mut left), None, "no more work than is left");
    }

    #[test]
    fn names_aliases_and_close_ones() {
        let mut catalog = KnownModels::default();
        let mut guide = model("guide", 1);
        guide.aliases = vec!["default".into()];
        catalog.replace(vec![guide, model("qwen3-8b", 1), model("qwen3-32b", 1)], Moment::START);
        assert_eq!(catalog.resolve("default"), catalog.resolve("guide"));
        assert_eq!(catalog.resolve("Guide"), None);
        assert_eq!(catalog.close_names("giude"), ["guide"]);
        assert_eq!(catalog.close_names("QWEN3-8B"), ["qwen3-8b", "qwen3-32b"]);
        assert!(catalog.close_names("llama").is_empty());
    }

    #[test]
    fn a_new_list_says_what_changed_and_keeps_places() {
        let mut catalog = KnownModels::default();
        catalog.replace(vec![model("a", 1), model("b", 1), model("c", 1)], Moment::START);
        let b = catalog.resolve("b").unwrap();
        let mut changed = model("b", 1);
        changed.revision = 2;
        let change = catalog.replace(vec![changed.clone(), model("d", 1), model("a", 1)], Moment::START);
        assert_eq!(change.changed, [b]);
        assert_eq!(change.removed.len(), 1);
        assert_eq!(catalog.resolve("c"), None);
        assert_eq!(catalog.resolve("b"), Some(b));
        let back = catalog.replace(vec![changed, model("a", 1), model("c", 1)], Moment::START);
        assert_eq!(back.changed.len(), 1);
    }
}
