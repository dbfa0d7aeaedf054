//! The models by name, and what the scheduler remembers about each. Knows no requests and no memory.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

use model_boss_protocol::{ApiError, DeviceId, KeepAlive, ModelId, Priority, SlotId};

use crate::admission::History;
use crate::failure::Failures;
use crate::{EngineOptions, LayerOptions, ModelDescription, Moment, SizeEstimate};

/// A model's place in the catalog. Used again for another model when this one is forgotten, which happens only while
/// nothing of it waits, runs or is loaded.
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

/// A model and what is remembered about it.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) description: ModelDescription,
    /// Whether the newest catalog has it.
    pub(crate) listed: bool,
    /// The number of its leave among all leaves: of those that left, the first are forgotten first.
    left: u64,
    /// When it was last wanted, loaded or named.
    pub(crate) used_at: Moment,
    /// An operator's word over the manifest's pin.
    pub(crate) pinned: Option<bool>,
    /// The slot that serves it, or will once it is loaded. One at most (RC-14).
    pub(crate) serving: Option<SlotId>,
    /// All its slots, those on their way out included.
    pub(crate) slots: Vec<SlotId>,
    pub(crate) failures: Failures,
    /// What its last load asked for beyond the manifest.
    pub(crate) wish: LoadWish,
    /// It is on its way out and comes back.
    pub(crate) returns: Option<Return>,
    /// When all others were sent away for another try of its load (MM-4).
    pub(crate) second_try_at: Option<Moment>,
    /// Loads in a row that ended because somebody else listened on the port.
    pub(crate) port_clashes: u32,
    /// The ledger's last refusal, until when it is respected.
    pub(crate) lease_refusal: Option<LeaseRefusal>,
    /// How its worker last went away by itself.
    pub(crate) last_exit: Option<String>,
    /// How long its loads and answers took.
    pub(crate) history: History,
    /// It stands for a provider elsewhere: no slot ever serves it, its requests go out as soon as their clients may.
    pub(crate) cloud: bool,
    /// A provider that said when to come again is not asked before.
    pub(crate) rest: Option<Rest>,
}

/// Until when a provider wants to be left alone, and how it said so.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) until: Moment,
    pub(crate) error: ApiError,
}

/// What a load asked for in place of the manifest's word. Holds until the model is unloaded, left idle or changed, or
/// another load says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadWish {
    pub(crate) device: Option<DeviceId>,
    pub(crate) context: Option<u64>,
    pub(crate) layers: LayerOptions,
    pub(crate) size: Option<SizeEstimate>,
    pub(crate) engine: EngineOptions,
}

/// A model left while idle, to be loaded again at once with all its layers where they live.
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

/// The models there are, and the last of those that left.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    models: Vec<Model>,
    /// Places of models that were forgotten: what stands there is no model.
    vacant: BTreeSet<ModelIndex>,
    /// How often a model left.
    leaves: u64,
    /// Looked up by name; iterated only where the result is sorted.
    ids: HashMap<ModelId, ModelIndex>,
    aliases: HashMap<ModelId, ModelIndex>,
    /// Providers elsewhere. Looked up by name, never iterated.
    providers: HashMap<String, ModelIndex>,
}

/// What a new catalog changed.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CatalogChange {
    /// Models whose revision is another one, or that are back.
    pub(crate) changed: Vec<ModelIndex>,
    /// Models that are gone.
    pub(crate) removed: Vec<ModelIndex>,
}

impl Catalog {
    /// Takes a new full list. Indices of known models stay.
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
                    let index = self.add(Model { used_at: now, ..Model::new(description) });
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
                // The first model that claims an alias has it; the reader of manifests reports the clash.
                self.aliases.entry(alias).or_insert(index);
            }
        }
        change
    }

    /// Takes a model off the list. It is remembered until it is forgotten.
    pub(crate) fn leave(&mut self, index: ModelIndex) {
        self.leaves += 1;
        let left = self.leaves;
        let model = &mut self[index];
        (model.listed, model.left) = (false, left);
        self.aliases.retain(|_, of| *of != index);
    }

    /// The models that left and are more than are to be kept, the first that left first.
    pub(crate) fn left_beyond(&self, kept: usize) -> Vec<ModelIndex> {
        let mut left: Vec<(u64, ModelIndex)> =
            self.iter().filter(|(_, model)| !model.listed).map(|(index, model)| (model.left, index)).collect();
        left.sort_unstable();
        left.truncate(left.len().saturating_sub(kept));
        left.into_iter().map(|(_, index)| index).collect()
    }

    /// Forgets a model that left and of which nothing is in use; its place is another's next. Gives back its slots.
    pub(crate) fn forget(&mut self, index: ModelIndex) -> Vec<SlotId> {
        let nothing = Model { listed: false, ..Model::new(ModelDescription::of_provider("")) };
        let forgotten = std::mem::replace(&mut self[index], nothing);
        self.ids.remove(forgotten.id());
        self.vacant.insert(index);
        forgotten.slots
    }

    /// Places there are, in use or not.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.models.len()
    }

    fn add(&mut self, model: Model) -> ModelIndex {
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

    /// The entry that stands for a provider, made when it is new. Providers come from the configuration: they are few.
    pub(crate) fn provider(&mut self, name: &str) -> ModelIndex {
        if let Some(&index) = self.providers.get(name) {
            return index;
        }
        let index = self.add(Model { cloud: true, ..Model::new(ModelDescription::of_provider(name)) });
        self.providers.insert(name.to_owned(), index);
        index
    }

    /// What is remembered about a provider, if anything was ever sent there.
    pub(crate) fn known_provider(&self, name: &str) -> Option<&Model> {
        self.provider_entry(name).map(|index| &self[index])
    }

    /// The entry of a provider, if anything was ever sent there.
    pub(crate) fn provider_entry(&self, name: &str) -> Option<ModelIndex> {
        self.providers.get(name).copied()
    }

    /// The model of exactly this name, listed or not.
    pub(crate) fn resolve_any(&self, id: &ModelId) -> Option<ModelIndex> {
        self.ids.get(id).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ModelIndex, &Model)> {
        let places = self.models.iter().enumerate().map(|(number, model)| (ModelIndex::new(number), model));
        places.filter(|(index, _)| !self.vacant.contains(index))
    }

    /// At most three known names that look like `name`, the nearest first.
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

impl Index<ModelIndex> for Catalog {
    type Output = Model;
    fn index(&self, index: ModelIndex) -> &Model {
        &self.models[index.get()]
    }
}

impl IndexMut<ModelIndex> for Catalog {
    fn index_mut(&mut self, index: ModelIndex) -> &mut Model {
        &mut self.models[index.get()]
    }
}

impl Model {
    fn new(description: ModelDescription) -> Self {
        Self {
            description,
            listed: true,
            left: 0,
            used_at: Moment::START,
            pinned: None,
            serving: None,
            slots: Vec::new(),
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

    /// Never evicted, never unloaded for idleness (RC-19).
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.unwrap_or(self.description.pin)
    }

    /// Requests it works on at once; a manifest's zero is one.
    pub(crate) fn max_concurrent(&self) -> usize {
        self.description.max_concurrent.max(1) as usize
    }
}

/// How far two names are apart, if near enough to be a slip: one inside the other, or few edits.
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
    // A hint is not worth more than so much of everybody's time.
    *left = left.checked_sub(wanted.len() * known.len())?;
    let distance = edit_distance(wanted.as_bytes(), known.as_bytes());
    (distance <= allowed).then_some(distance)
}

/// Longer names are not compared,
const LONGEST_COMPARED: usize = 64;
/// nor more of them than this for one hint,
const NAMES_COMPARED: usize = 512;
/// nor more cells of the tables for it.
const CELLS_COMPARED: usize = 50_000;

/// Levenshtein's distance by one row of the table.
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
        let mut catalog = Catalog::default();
        let models =
            (0..20_000).map(|n| model(&format!("{}-{n:05}", "qwen-something-rather-long-indeed".repeat(3)), 1));
        catalog.replace([model("guide", 1)].into_iter().chain(models).collect(), Moment::START);
        // Cells are counted, so this says how much was compared, not how fast.
        assert_eq!(catalog.close_names("giude"), ["guide"]);
        assert!(catalog.close_names(&"x".repeat(60)).is_empty());
        assert!(catalog.close_names(&"x".repeat(1 << 20)).is_empty());
        // Names of the same length are the dear ones: one that stands behind thousands of them is not reached.
        let alike = (0..20_000).map(|n| model(&format!("{}{n:05}", "q".repeat(55)), 1));
        catalog.replace(alike.chain([model(&"z".repeat(60), 1)]).collect(), Moment::START);
        assert!(catalog.close_names(&("z".repeat(59) + "y")).is_empty());
        let mut left = 10;
        assert_eq!(likeness("giude", "guide", &mut left), None, "no more work than is left");
    }

    #[test]
    fn names_aliases_and_close_ones() {
        let mut catalog = Catalog::default();
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
        let mut catalog = Catalog::default();
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
