//! The table of expert pages: those in memory, those being read, and the order in which they leave. It is pure and
//! deterministic. It counts bytes, tokens and uses, and reads no clock.
//!
//! Pages leave by LRFU (Lee et al., 2001, "LRFU: a spectrum of policies that subsumes the least recently used and least
//! frequently used policies"). Each use adds its rows to a page's heat, which halves after some tokens. A page keeps
//! its heat while it is away, so one that returns is compared by its whole past. Choosing a page to leave takes time in
//! proportion to the number of pages, which is small beside a read.

use super::plan::LayerPages;

/// Tokens after which a use counts half. Shorter times approach LRU, longer ones LFU. The tests measure it on a trace.
pub(super) const HALF_LIFE: f64 = 128.0;
/// The share of the budget that pages may have which were read for a guess and not used yet.
const AHEAD_SHARE: u64 = 8;
/// The weight of the last guess in the accuracy of guesses.
const LAST_GUESS: f64 = 0.02;
/// The accuracy from which guesses are worth the disk's time.
const WORTH_READING: f64 = 0.5;

/// An expert of a layer: the unit that is read and evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertPage {
    /// The index of the layer in the model.
    pub layer: usize,
    /// The index of the expert in the layer.
    pub expert: usize,
}

/// An expert that a router chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenExpert {
    /// The index of the expert.
    pub expert: usize,
    /// Rows of the step that it computes on.
    pub rows: usize,
}

/// The order in which pages leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PageEviction {
    /// The page whose last use is longest ago.
    LeastRecent,
    /// The page with the least heat.
    LeastHeat {
        /// Tokens after which a use counts half.
        half_life: f64,
    },
}

impl Default for PageEviction {
    fn default() -> Self {
        Self::LeastHeat { half_life: HALF_LIFE }
    }
}

/// The answer to a demand for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageDemand {
    /// It is in memory, and is pinned.
    Here,
    /// It is being read, and is pinned.
    Coming,
    /// It has to be read now. There is room for it, and it is pinned.
    Read,
    /// All memory is pinned or being read into. The demand has to be repeated after a page was released.
    Full,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PageState {
    #[default]
    Away,
    Coming,
    Here,
}

#[derive(Clone, Copy, Debug)]
struct PageEntry {
    state: PageState,
    pins: u32,
    /// Part of a guess about its layer, which has not chosen yet.
    expected: bool,
    /// Read for that guess.
    ahead: bool,
    /// The logarithm to base 2 of the heat, plus the half-lives up to the last use. Heats of different times compare
    /// by it, because they all cool at the same rate.
    heat: f64,
    /// The number of the last use.
    last: u64,
}

/// All pages of some layers.
#[derive(Debug)]
pub struct PageTable {
    layers: Vec<LayerPages>,
    /// The first entry of each layer.
    first: Vec<usize>,
    entries: Vec<PageEntry>,
    /// The last guess for each layer, until its router chooses.
    guesses: Vec<Vec<usize>>,
    /// The share of guessed experts that were chosen, over about the last 50 guesses.
    accuracy: f64,
    eviction: PageEviction,
    budget: u64,
    used: u64,
    ahead: u64,
    tokens: f64,
    uses: u64,
}

impl PageTable {
    /// A table without a page in memory. `layers` are all of the model, by number.
    pub fn new(layers: &[LayerPages], budget: u64, eviction: PageEviction) -> Self {
        let mut count = 0;
        let mut first = Vec::new();
        for layer in layers {
            first.push(count);
            count += layer.experts;
        }
        let entry = PageEntry {
            state: PageState::Away,
            pins: 0,
            expected: false,
            ahead: false,
            heat: f64::NEG_INFINITY,
            last: 0,
        };
        Self {
            layers: layers.to_vec(),
            first,
            entries: vec![entry; count],
            guesses: vec![Vec::new(); layers.len()],
            accuracy: 1.0,
            eviction,
            budget,
            used: 0,
            ahead: 0,
            tokens: 0.0,
            uses: 0,
        }
    }

    /// Number of pages, in memory or not.
    pub fn pages(&self) -> usize {
        self.entries.len()
    }

    /// The position of a page among all, below [`Self::pages`].
    pub fn index(&self, page: ExpertPage) -> usize {
        self.first[page.layer] + page.expert
    }

    /// Notes the choice of a layer's router, and that guesses about it are over.
    pub fn choose(&mut self, layer: usize, chosen: &[ChosenExpert]) {
        let rows: usize = chosen.iter().map(|chosen| chosen.rows).sum();
        let LayerPages { used, experts, .. } = self.layers[layer];
        if self.layers[..layer].iter().all(|before| before.experts == 0) {
            self.tokens += rows as f64 / used.max(1) as f64;
        }
        let guess = std::mem::take(&mut self.guesses[layer]);
        if !guess.is_empty() {
            let right = guess.iter().filter(|guess| chosen.iter().any(|chosen| chosen.expert == **guess)).count();
            self.accuracy += LAST_GUESS * (right as f64 / guess.len() as f64 - self.accuracy);
        }
        for &ChosenExpert { expert, rows } in chosen {
            self.uses += 1;
            let entry = &mut self.entries[self.first[layer] + expert];
            entry.last = self.uses;
            if let PageEviction::LeastHeat { half_life } = self.eviction {
                let now = self.tokens / half_life;
                entry.heat = ((entry.heat - now).exp2() + rows as f64).log2() + now;
            }
        }
        for expert in 0..experts {
            self.end_guess(ExpertPage { layer, expert });
        }
    }

    /// Whether a page is in memory because of a guess about a choice that is still to come.
    pub fn was_foreseen(&self, page: ExpertPage) -> bool {
        self.entries[self.index(page)].ahead
    }

    /// Demands a page for the layer that computes. It is pinned unless there is no room. Pages that leave for it are
    /// added to `evicted`.
    pub fn demand(&mut self, page: ExpertPage, evicted: &mut Vec<ExpertPage>) -> PageDemand {
        let index = self.index(page);
        let demand = match self.entries[index].state {
            PageState::Here => PageDemand::Here,
            PageState::Coming => PageDemand::Coming,
            PageState::Away => {
                let bytes = self.layers[page.layer].bytes;
                // Pages of guesses leave last: the next layer probably needs them.
                if !self.make_room(bytes, false, evicted) && !self.make_room(bytes, true, evicted) {
                    return PageDemand::Full;
                }
                self.used += bytes;
                self.entries[index].state = PageState::Coming;
                PageDemand::Read
            }
        };
        self.entries[index].pins += 1;
        demand
    }

    /// Whether a page is in memory or being read.
    pub fn is_held(&self, page: ExpertPage) -> bool {
        self.entries[self.index(page)].state != PageState::Away
    }

    /// Notes a guess about the next choice of a layer. Returns the pages to be read for it, in the order of the guess.
    pub fn expect(&mut self, layer: usize, guess: &[usize], evicted: &mut Vec<ExpertPage>) -> Vec<ExpertPage> {
        self.guesses[layer] = guess.to_vec();
        let mut reads = Vec::new();
        let bytes = self.layers[layer].bytes;
        let pages = || guess.iter().map(|expert| ExpertPage { layer, expert: *expert });
        for page in pages() {
            let index = self.index(page);
            self.entries[index].expected = true;
        }
        for page in pages() {
            let index = self.index(page);
            if self.entries[index].state != PageState::Away {
                continue;
            }
            let within = self.ahead + bytes <= self.budget / AHEAD_SHARE;
            if self.accuracy < WORTH_READING || !within || !self.make_room(bytes, false, evicted) {
                break;
            }
            self.used += bytes;
            self.ahead += bytes;
            let entry = &mut self.entries[index];
            (entry.state, entry.ahead) = (PageState::Coming, true);
            reads.push(page);
        }
        reads
    }

    /// A page was read.
    pub fn arrived(&mut self, page: ExpertPage) {
        let index = self.index(page);
        self.entries[index].state = PageState::Here;
    }

    /// A page will not be read, after a fault or because it is not wanted any more.
    pub fn failed(&mut self, page: ExpertPage) {
        self.end_guess(page);
        let index = self.index(page);
        self.leave(index, page.layer);
    }

    /// A layer has computed with a page, or waits for it no longer.
    pub fn release(&mut self, page: ExpertPage) {
        let index = self.index(page);
        let entry = &mut self.entries[index];
        entry.pins = entry.pins.saturating_sub(1);
    }

    /// Whether a layer has pinned the page.
    pub fn is_pinned(&self, page: ExpertPage) -> bool {
        self.entries[self.index(page)].pins > 0
    }

    fn end_guess(&mut self, page: ExpertPage) {
        let index = self.index(page);
        self.entries[index].expected = false;
        if std::mem::take(&mut self.entries[index].ahead) {
            self.ahead -= self.layers[page.layer].bytes;
        }
    }

    fn leave(&mut self, index: usize, layer: usize) {
        self.entries[index].state = PageState::Away;
        self.used -= self.layers[layer].bytes;
    }

    /// Evicts pages until there are so many bytes; evicts none if that is not possible.
    fn make_room(&mut self, bytes: u64, guesses_too: bool, evicted: &mut Vec<ExpertPage>) -> bool {
        while self.used + bytes > self.budget {
            let mut free = 0_u64;
            let mut coldest: Option<ExpertPage> = None;
            for (layer, pages) in self.layers.iter().enumerate() {
                let entries = &self.entries[self.first[layer]..][..pages.experts];
                for (expert, entry) in entries.iter().enumerate() {
                    if entry.state != PageState::Here || entry.pins > 0 || entry.expected && !guesses_too {
                        continue;
                    }
                    free += pages.bytes;
                    let colder = |than: ExpertPage| {
                        let than = &self.entries[self.index(than)];
                        (entry.heat, entry.last) < (than.heat, than.last)
                    };
                    if coldest.is_none_or(colder) {
                        coldest = Some(ExpertPage { layer, expert });
                    }
                }
            }
            match coldest {
                Some(page) if self.used - free + bytes <= self.budget => {
                    self.end_guess(page);
                    self.leave(self.index(page), page.layer);
                    evicted.push(page);
                }
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(layer: usize, expert: usize) -> ExpertPage {
        ExpertPage { layer, expert }
    }

    /// Two layers of four pages of ten bytes.
    fn table(budget: u64, eviction: PageEviction) -> PageTable {
        PageTable::new(&[LayerPages { experts: 4, used: 1, bytes: 10 }; 2], budget, eviction)
    }

    /// Computes with an expert; returns the demand's answer and the pages that left.
    fn used(table: &mut PageTable, page: ExpertPage) -> (PageDemand, Vec<ExpertPage>) {
        table.choose(page.layer, &[ChosenExpert { expert: page.expert, rows: 1 }]);
        let mut evicted = Vec::new();
        let demand = table.demand(page, &mut evicted);
        if demand == PageDemand::Read {
            table.arrived(page);
        }
        if demand != PageDemand::Full {
            table.release(page);
        }
        (demand, evicted)
    }

    #[test]
    fn the_page_unused_for_longest_leaves_or_the_one_used_least() {
        for (eviction, leaves) in
            [(PageEviction::LeastRecent, page(0, 0)), (PageEviction::LeastHeat { half_life: 100.0 }, page(0, 1))]
        {
            let mut table = table(30, eviction);
            for of in [page(0, 0), page(0, 0), page(0, 0), page(0, 1), page(1, 2)] {
                used(&mut table, of);
            }
            assert_eq!(used(&mut table, page(1, 3)), (PageDemand::Read, vec![leaves]), "{eviction:?}");
        }
    }

    #[test]
    fn heat_cools() {
        let mut table = table(20, PageEviction::LeastHeat { half_life: 1.0 });
        for of in [page(0, 0), page(0, 0), page(0, 0), page(0, 1), page(0, 1), page(0, 1)] {
            used(&mut table, of);
        }
        assert_eq!(used(&mut table, page(0, 2)), (PageDemand::Read, vec![page(0, 0)]));
    }

    #[test]
    fn pinned_pages_stay_and_a_demand_without_room_changes_nothing() {
        let mut table = table(20, PageEviction::default());
        let mut evicted = Vec::new();
        assert_eq!(table.demand(page(0, 0), &mut evicted), PageDemand::Read);
        assert_eq!(table.demand(page(0, 1), &mut evicted), PageDemand::Read);
        assert_eq!(table.demand(page(0, 1), &mut evicted), PageDemand::Coming);
        assert_eq!(table.demand(page(0, 2), &mut evicted), PageDemand::Full);
        table.arrived(page(0, 0));
        assert_eq!((table.demand(page(0, 2), &mut evicted), evicted.len()), (PageDemand::Full, 0));
        table.release(page(0, 0));
        assert_eq!(table.demand(page(0, 2), &mut evicted), PageDemand::Read);
        assert_eq!(evicted, [page(0, 0)]);
        // A read that fails frees its room.
        table.failed(page(0, 1));
        table.release(page(0, 1));
        assert!(table.is_pinned(page(0, 1)) && !table.is_held(page(0, 1)));
        assert_eq!(table.demand(page(0, 3), &mut evicted), PageDemand::Read);
        assert_eq!(evicted.len(), 1);
    }

    #[test]
    fn guesses_take_an_eighth_and_none_after_many_wrong_ones() {
        let mut table = table(80, PageEviction::default());
        let mut evicted = Vec::new();
        assert_eq!(table.expect(1, &[2, 3], &mut evicted), [page(1, 2)]);
        assert!(table.was_foreseen(page(1, 2)) && evicted.is_empty());
        table.arrived(page(1, 2));
        table.choose(1, &[ChosenExpert { expert: 0, rows: 1 }]);
        assert!(!table.was_foreseen(page(1, 2)));
        for _ in 0..50 {
            table.expect(1, &[2, 3], &mut evicted);
            table.choose(1, &[ChosenExpert { expert: 0, rows: 1 }]);
        }
        assert_eq!(table.expect(1, &[1], &mut evicted), []);
        for _ in 0..50 {
            table.choose(1, &[ChosenExpert { expert: 1, rows: 1 }]);
            table.expect(1, &[1], &mut evicted);
        }
        table.choose(1, &[ChosenExpert { expert: 1, rows: 1 }]);
        assert_eq!(table.expect(1, &[0], &mut evicted), [page(1, 0)], "guesses have been right again");
    }
}
