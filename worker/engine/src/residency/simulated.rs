//! A device that is played: set bandwidth, latency, memory, unsteadiness and failures, on a clock of its own. Runs a
//! [`Schedule`] as the real executor does and checks every promise of it. For tests, and for plans that are tried out
//! before there is a machine.

use std::collections::BTreeMap;

use super::predict::{StepCost, overlap};
use super::schedule::{Arrival, Fetch, FetchId, Need, Schedule};

/// The played machine.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    /// What each layer and block takes.
    pub cost: StepCost,
    /// Bytes of each block.
    pub block_bytes: Vec<u64>,
    /// Bytes that blocks may take.
    pub memory: u64,
    /// Each duration is up to this share longer or shorter.
    pub unsteadiness: f64,
    /// Every so many fetches one fails.
    pub fails_every: Option<u64>,
    /// Decides how durations vary.
    pub seed: u64,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    /// Seconds of each step.
    pub steps: Vec<f64>,
    /// Layers in the order they computed.
    pub computed: Vec<usize>,
    /// Most bytes that blocks took at a time.
    pub most_bytes: u64,
    /// Bytes that blocks still take in the end beyond those that are wanted next.
    pub left_over: u64,
    /// Seconds of reading and of computing.
    pub copying: (f64, f64),
    /// Fetches that failed.
    pub failures: u64,
}

impl Played {
    /// The hidden share of the shorter chain, over the last `steps` steps.
    pub fn overlap(&self, device: &SimulatedDevice, steps: usize) -> f64 {
        let read: f64 = device.cost.blocks.iter().map(|block| block.read.max(block.place)).sum();
        let compute: f64 = device.cost.layers.iter().map(|layer| layer.compute).sum::<f64>() + device.cost.ends;
        let last = &self.steps[self.steps.len().saturating_sub(steps)..];
        let wall: f64 = last.iter().sum();
        overlap(read * last.len() as f64, compute * last.len() as f64, wall)
    }
}

/// A promise that the schedule broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A layer was let compute whose block is not there.
    #[error("layer {0} would have computed without its weights")]
    Absent(usize),
    /// More memory than there is.
    #[error("blocks take {0} bytes")]
    Memory(u64),
    /// Nothing happens and nothing is finished.
    #[error("nothing goes on at layer {0}")]
    Stuck(usize),
}

/// A step that ends early: after how many layers.
pub type CutShort = Option<usize>;

impl SimulatedDevice {
    /// Plays steps, each to its end or cut short.
    pub fn play(&self, mut schedule: Schedule, steps: &[CutShort]) -> Result<Played, Broken> {
        let mut play = Play {
            device: self,
            schedule: &mut schedule,
            now: 0.0,
            reading: None,
            placing: None,
            there: BTreeMap::new(),
            fetches: 0,
            random: self.seed,
            played: Played::default(),
        };
        for cut in steps {
            let began = play.now;
            let layers = self.cost.layers.len();
            for layer in 0..cut.unwrap_or(layers).min(layers) {
                play.compute(layer)?;
            }
            let ends = play.vary(self.cost.ends);
            play.pass(ends)?;
            let seconds = play.now - began;
            play.played.steps.push(seconds);
        }
        let wanted: u64 = play.there.iter().filter(|(id, _)| play.schedule.holds(**id)).map(|(_, bytes)| bytes).sum();
        play.played.left_over = play.there.values().sum::<u64>() - wanted;
        Ok(play.played)
    }
}

struct Play<'a> {
    device: &'a SimulatedDevice,
    schedule: &'a mut Schedule,
    now: f64,
    /// What is under way, and when it will be done.
    reading: Option<(Fetch, f64)>,
    placing: Option<(Fetch, f64)>,
    /// Bytes of every fetch that has memory.
    there: BTreeMap<FetchId, u64>,
    fetches: u64,
    random: u64,
    played: Played,
}

impl Play<'_> {
    fn compute(&mut self, layer: usize) -> Result<(), Broken> {
        loop {
            let need = self.schedule.need(layer);
            self.sweep();
            self.start()?;
            match need {
                Need::Resident => break,
                Need::Ready(fetch) if self.there.contains_key(&fetch.id) => break,
                Need::Ready(_) => return Err(Broken::Absent(layer)),
                Need::Wait => {
                    let next = [self.reading, self.placing].into_iter().flatten().map(|(_, end)| end).reduce(f64::min);
                    let Some(next) = next else { return Err(Broken::Stuck(layer)) };
                    self.pass(next - self.now)?;
                }
            }
        }
        let seconds = self.vary(self.device.cost.layers[layer].compute);
        self.pass(seconds)?;
        self.played.copying.1 += seconds;
        self.played.computed.push(layer);
        if let Some(fetch) = self.schedule.computed(layer) {
            self.there.remove(&fetch.id);
        }
        self.start()
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
                && self.schedule.was_placed(fetch.id) == Arrival::Unwanted
            {
                self.there.remove(&fetch.id);
            }
            if let Some((fetch, _)) = self.reading.take_if(|(_, end)| *end <= next) {
                self.fetches += 1;
                if self.device.fails_every.is_some_and(|every| self.fetches.is_multiple_of(every)) {
                    self.played.failures += 1;
                    self.schedule.failed(fetch.id);
                    self.sweep();
                } else if self.schedule.was_read(fetch.id) == Arrival::Unwanted {
                    self.there.remove(&fetch.id);
                }
            }
            self.start()?;
        }
        self.now = until;
        Ok(())
    }

    /// Drops what is neither wanted nor under way.
    fn sweep(&mut self) {
        let under_way = [self.reading, self.placing].map(|some| some.map(|(fetch, _)| fetch.id));
        self.there.retain(|id, _| self.schedule.holds(*id) || under_way.contains(&Some(*id)));
    }

    /// Begins what may begin.
    fn start(&mut self) -> Result<(), Broken> {
        if self.placing.is_none()
            && let Some(fetch) = self.schedule.next_place()
        {
            let seconds = self.vary(self.device.cost.blocks[fetch.block.0].place);
            self.placing = Some((fetch, self.now + seconds));
        }
        if self.reading.is_none()
            && let Some(fetch) = self.schedule.next_read()
        {
            let seconds = self.vary(self.device.cost.blocks[fetch.block.0].read);
            self.played.copying.0 += seconds;
            self.reading = Some((fetch, self.now + seconds));
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
