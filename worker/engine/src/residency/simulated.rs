//! A simulated device with set bandwidth, latency, memory, unsteadiness and failures, on a clock of its own. It runs
//! a [`Schedule`] as the real executor does and checks every invariant of it.

use std::collections::BTreeMap;

use super::adapt::{Adapter, Change};
use super::predict::{StepCost, overlap};
use super::schedule::{Fetch, FetchArrival, FetchId, LayerNeed, Schedule};
use super::timeline::{Compute, Copy, StepTimeline, TimeSpan};

/// The simulated machine.
#[derive(Clone, Debug)]
pub(super) struct SimulatedDevice {
    /// The times of each layer and block.
    pub(super) cost: StepCost,
    /// Bytes of each block.
    pub(super) block_bytes: Vec<u64>,
    /// Bytes that blocks may take.
    pub(super) memory: u64,
    /// Each duration is up to this share longer or shorter.
    pub(super) unsteadiness: f64,
    /// The number of fetches of which one fails.
    pub(super) fails_every: Option<u64>,
    /// Decides how durations vary.
    pub(super) seed: u64,
}

/// The record of a simulated run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SimulatedRun {
    /// Seconds of each step.
    pub(super) steps: Vec<f64>,
    /// Layers in the order they computed.
    pub(super) computed: Vec<usize>,
    /// Most bytes that blocks took at a time.
    pub(super) most_bytes: u64,
    /// Bytes that blocks still take in the end beyond those that are wanted next.
    pub(super) left_over: u64,
    /// Each step as the executor would have measured it.
    pub(super) timelines: Vec<StepTimeline>,
    /// Changes of the look-ahead.
    pub(super) changes: Vec<Change>,
}

impl SimulatedRun {
    /// The hidden share of the shorter chain, over the last `steps` steps.
    pub(super) fn overlap(&self, device: &SimulatedDevice, steps: usize) -> f64 {
        let read: f64 = device.cost.blocks.iter().map(|block| block.read.max(block.place)).sum();
        let compute: f64 = device.cost.layers.iter().map(|layer| layer.compute).sum::<f64>() + device.cost.ends;
        let last = &self.steps[self.steps.len().saturating_sub(steps)..];
        let wall: f64 = last.iter().sum();
        overlap(read * last.len() as f64, compute * last.len() as f64, wall)
    }
}

/// A promise that the schedule broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    /// A layer was let compute whose block is not there.
    #[error("layer {0} would have computed without its weights")]
    Absent(usize),
    /// More memory than there is.
    #[error("blocks take {0} bytes")]
    Memory(u64),
    /// No event is left, and the step is not finished.
    #[error("nothing goes on at layer {0}")]
    Stuck(usize),
}

/// A step that ends early: after how many layers.
pub(super) type CutShort = Option<usize>;

impl SimulatedDevice {
    /// Plays steps, each to its end or cut short.
    pub(super) fn play(&self, schedule: Schedule, steps: &[CutShort]) -> Result<SimulatedRun, Broken> {
        self.play_adapting(schedule, None, steps, &|_| None)
    }

    /// Simulates steps whose look-ahead is adapted meanwhile, on a machine that changes. The new cost of a step from
    /// then on is `becomes`, if there is one.
    pub(super) fn play_adapting(
        &self,
        mut schedule: Schedule,
        mut adapter: Option<Adapter>,
        steps: &[CutShort],
        becomes: &dyn Fn(usize) -> Option<SimulatedDevice>,
    ) -> Result<SimulatedRun, Broken> {
        if let Some(adapter) = &adapter {
            schedule.keep(&adapter.kept());
        }
        let mut play = Play {
            device: self.clone(),
            schedule: &mut schedule,
            times: BTreeMap::new(),
            timeline: StepTimeline::default(),
            began: 0.0,
            now: 0.0,
            reading: None,
            placing: None,
            there: BTreeMap::new(),
            fetches: 0,
            random: self.seed,
            played: SimulatedRun::default(),
        };
        for (step, cut) in steps.iter().enumerate() {
            if let Some(device) = becomes(step) {
                play.device = device;
            }
            let gap = play.device.cost.gap;
            play.pass(gap)?;
            play.began = play.now;
            play.timeline = StepTimeline { gap, ..StepTimeline::default() };
            let layers = play.device.cost.layers.len();
            for layer in 0..cut.unwrap_or(layers).min(layers) {
                play.compute(layer)?;
            }
            let ends = play.vary(play.device.cost.ends);
            play.pass(ends)?;
            let wall = play.now - play.began;
            play.played.steps.push(wall);
            let timeline = StepTimeline { wall, ..std::mem::take(&mut play.timeline) };
            if let (Some(adapter), None) = (&mut adapter, cut)
                && let Some(change) = adapter.observe(&timeline)
            {
                play.schedule.keep(&adapter.kept());
                play.played.changes.push(change);
            }
            play.played.timelines.push(timeline);
        }
        let wanted: u64 = play.there.iter().filter(|(id, _)| play.schedule.holds(**id)).map(|(_, bytes)| bytes).sum();
        play.played.left_over = play.there.values().sum::<u64>() - wanted;
        Ok(play.played)
    }
}

struct Play<'a> {
    device: SimulatedDevice,
    schedule: &'a mut Schedule,
    /// The times of reading and placing fetches that are not used yet, and their bytes.
    times: BTreeMap<FetchId, Copy>,
    timeline: StepTimeline,
    began: f64,
    now: f64,
    /// The fetch that is read now, and when it will be done.
    reading: Option<(Fetch, f64)>,
    placing: Option<(Fetch, f64)>,
    /// Bytes of every fetch that has memory.
    there: BTreeMap<FetchId, u64>,
    fetches: u64,
    random: u64,
    played: SimulatedRun,
}

impl Play<'_> {
    fn compute(&mut self, layer: usize) -> Result<(), Broken> {
        let asked = self.now;
        loop {
            let need = self.schedule.need(layer);
            self.sweep();
            self.start()?;
            match need {
                LayerNeed::Resident => break,
                LayerNeed::Ready(fetch) if self.there.contains_key(&fetch.id) => {
                    self.timeline.copies.extend(self.times.remove(&fetch.id).map(|copy| self.since_began(copy)));
                    break;
                }
                LayerNeed::Ready(_) => return Err(Broken::Absent(layer)),
                LayerNeed::Wait => {
                    let next = [self.reading, self.placing].into_iter().flatten().map(|(_, end)| end).reduce(f64::min);
                    let Some(next) = next else { return Err(Broken::Stuck(layer)) };
                    self.pass(next - self.now)?;
                }
            }
        }
        let seconds = self.vary(self.device.cost.layers[layer].compute);
        let begun = self.now;
        self.pass(seconds)?;
        let span = |start: f64, end: f64| TimeSpan { start: start - self.began, end: end - self.began };
        self.timeline.layers.push(Compute { layer, stall: span(asked, begun), compute: span(begun, self.now) });
        self.played.computed.push(layer);
        if let Some(fetch) = self.schedule.computed(layer) {
            self.there.remove(&fetch.id);
        }
        self.start()
    }

    /// Times of a copy, from when the step began.
    fn since_began(&self, copy: Copy) -> Copy {
        let since = |span: TimeSpan| TimeSpan { start: span.start - self.began, end: span.end - self.began };
        Copy { read: since(copy.read), place: since(copy.place), ..copy }
    }

    /// Lets time go by, and everything end that ends meanwhile.
    fn pass(&mut self, seconds: f64) -> Result<(), Broken> {
        let until = self.now + seconds;
        self.start()?;
        loop {
            let ends = |some: Option<(Fetch, f64)>| some.map_or(f64::INFINITY, |(_, end)| end);
            let next = ends(self.reading).min(ends(self.placing));
            if next > until {
                break;
            }
            self.now = next;
            if let Some((fetch, _)) = self.placing.take_if(|(_, end)| *end <= next)
                && self.schedule.was_placed(fetch.id) == FetchArrival::Unwanted
            {
                self.there.remove(&fetch.id);
            }
            if let Some((fetch, _)) = self.reading.take_if(|(_, end)| *end <= next) {
                self.fetches += 1;
                if self.device.fails_every.is_some_and(|every| self.fetches.is_multiple_of(every)) {
                    self.schedule.failed(fetch.id);
                    self.sweep();
                } else if self.schedule.was_read(fetch.id) == FetchArrival::Unwanted {
                    self.there.remove(&fetch.id);
                }
            }
            self.start()?;
        }
        self.now = until;
        Ok(())
    }

    /// Drops fetches that are neither wanted nor in progress.
    fn sweep(&mut self) {
        self.times.retain(|id, _| self.schedule.holds(*id));
        let under_way = [self.reading, self.placing].map(|some| some.map(|(fetch, _)| fetch.id));
        self.there.retain(|id, _| self.schedule.holds(*id) || under_way.contains(&Some(*id)));
    }

    /// Begins what may begin.
    fn start(&mut self) -> Result<(), Broken> {
        if self.placing.is_none()
            && let Some(fetch) = self.schedule.next_place()
        {
            let seconds = self.vary(self.device.cost.blocks[fetch.block.0].place);
            let end = self.now + seconds;
            self.times.entry(fetch.id).or_default().place = TimeSpan { start: self.now, end };
            self.placing = Some((fetch, end));
        }
        if self.reading.is_none()
            && let Some(fetch) = self.schedule.next_read()
        {
            let seconds = self.vary(self.device.cost.blocks[fetch.block.0].read);
            let end = self.now + seconds;
            let bytes = self.device.block_bytes[fetch.block.0];
            let layers = self.device.cost.layers.iter().enumerate();
            let layers = layers.filter(|(_, layer)| layer.block == Some(fetch.block)).map(|(layer, _)| layer).collect();
            let read = TimeSpan { start: self.now, end };
            self.times.insert(fetch.id, Copy { layers, bytes, read, ..Copy::default() });
            self.reading = Some((fetch, end));
            self.there.insert(fetch.id, self.device.block_bytes[fetch.block.0]);
            let bytes = self.there.values().sum();
            self.played.most_bytes = self.played.most_bytes.max(bytes);
            if bytes > self.device.memory {
                return Err(Broken::Memory(bytes));
            }
        }
        Ok(())
    }

    fn vary(&mut self, seconds: f64) -> f64 {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = (word >> 11) as f64 / (1_u64 << 53) as f64;
        seconds * (1.0 + self.device.unsteadiness * (2.0 * unit - 1.0))
    }
}
