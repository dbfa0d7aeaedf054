//! A skewed trace of routers' choices, and the policies of eviction measured on it. The seed is part of the source, so
//! the trace is always the same.
//!
//! Real routers choose few experts often, and others in turn with the topic of a text. Here each layer has topics, with
//! an order of the experts for each. A token's experts are drawn without replacement by Zipf's law in the order of the
//! topic, which changes slowly.

use super::plan::LayerPages;
use super::table::{ChosenExpert, ExpertPage, HALF_LIFE, PageDemand, PageEviction, PageTable};

const SEED: u64 = 0x5eed_0049;
const LAYERS: usize = 12;
const EXPERTS: usize = 64;
const USED: usize = 4;
const TOPICS: usize = 6;
/// Tokens of a topic, on average.
const TOPIC_TOKENS: u64 = 200;
const TOKENS: usize = 3_000;
/// Tokens after which hits are counted, so that every policy begins with full memory.
const WARM: usize = 500;

/// SplitMix64 (Steele et al., 2014).
struct TraceRandom(u64);

impl TraceRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The experts of each layer, token by token.
fn trace() -> Vec<Vec<Vec<usize>>> {
    let mut random = TraceRandom(SEED);
    let mut shuffled = || {
        let mut order: Vec<(u64, usize)> = (0..EXPERTS).map(|expert| (random.next(), expert)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, expert)| expert).collect::<Vec<_>>()
    };
    let orders: Vec<Vec<Vec<usize>>> = (0..LAYERS).map(|_| (0..TOPICS).map(|_| shuffled()).collect()).collect();
    let mut topic = 0;
    let mut tokens = Vec::new();
    for _ in 0..TOKENS {
        if random.below(TOPIC_TOKENS) == 0 {
            topic = random.below(TOPICS as u64) as usize;
        }
        let mut of_layer = |orders: &Vec<Vec<usize>>| {
            let mut left: Vec<(f64, usize)> =
                orders[topic].iter().enumerate().map(|(rank, expert)| (1.0 / (rank + 1) as f64, *expert)).collect();
            let mut chosen = Vec::new();
            for _ in 0..USED {
                let mut at = random.share() * left.iter().map(|(weight, _)| weight).sum::<f64>();
                let past = |(weight, _): &(f64, usize)| {
                    at -= weight;
                    at <= 0.0
                };
                let place = left.iter().position(past).unwrap_or(left.len() - 1);
                chosen.push(left.remove(place).1);
            }
            chosen.sort_unstable();
            chosen
        };
        tokens.push(orders.iter().map(&mut of_layer).collect());
    }
    tokens
}

/// The share of uses that find their page in memory, with half of all pages there.
fn hit_share(trace: &[Vec<Vec<usize>>], eviction: PageEviction) -> f64 {
    let layers = [LayerPages { experts: EXPERTS, used: USED, bytes: 1 }; LAYERS];
    let mut table = PageTable::new(&layers, (LAYERS * EXPERTS / 2) as u64, eviction);
    let (mut hits, mut uses) = (0, 0);
    for (token, layers) in trace.iter().enumerate() {
        for (layer, experts) in layers.iter().enumerate() {
            let chosen: Vec<ChosenExpert> =
                experts.iter().map(|expert| ChosenExpert { expert: *expert, rows: 1 }).collect();
            table.choose(layer, &chosen);
            let pages = experts.iter().map(|expert| ExpertPage { layer, expert: *expert });
            for page in pages.clone() {
                let here = match table.demand(page, &mut Vec::new()) {
                    PageDemand::Here => true,
                    PageDemand::Read => {
                        table.arrived(page);
                        false
                    }
                    other => panic!("{other:?}"),
                };
                uses += usize::from(token >= WARM);
                hits += usize::from(here && token >= WARM);
            }
            pages.for_each(|page| table.release(page));
        }
    }
    hits as f64 / uses as f64
}

#[test]
fn heat_that_cools_keeps_more_than_the_latest_uses_or_the_counts_of_all_time() {
    let trace = trace();
    let recent = hit_share(&trace, PageEviction::LeastRecent);
    let heat = |half_life| hit_share(&trace, PageEviction::LeastHeat { half_life });
    let of: Vec<(f64, f64)> = [8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1e9].map(|tokens| (tokens, heat(tokens))).into();
    let ours = heat(HALF_LIFE);
    let best = of.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    let counts = heat(1e9);
    assert!(ours > recent + 0.01 && ours > counts + 0.01 && ours > best - 0.01, "{ours}: {recent}, {of:?}");
}
