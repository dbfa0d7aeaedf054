//! The ring of points. It has no clock: each call says when it happens, as time since the ring's beginning.

use std::collections::VecDeque;
use std::time::Duration;

use model_boss_protocol::{ByteCount, DeviceId};

use super::latencies::Latencies;

/// The time that one point covers.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// The number of points kept: an hour.
pub(crate) const POINTS: usize = 360;
/// The holders kept for one device and point; smaller ones are summed up.
const HOLDERS: usize = 24;
/// The name of the holder that sums up smaller ones.
const SMALLER: &str = "others";

/// The last hour.
#[derive(Debug, Default)]
pub(super) struct HistoryRing {
    /// The number of the first kept point, from 0.
    first: u64,
    points: VecDeque<HistoryPoint>,
}

/// Ten seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct HistoryPoint {
    /// Tokens of answers. An answer's tokens are spread evenly over the time of its generation.
    pub(super) tokens: f64,
    pub(super) requests: u32,
    pub(super) loads: u32,
    pub(super) swaps: u32,
    pub(super) first_tokens: Option<Latencies>,
    /// The last sample of the state; `None` where none was taken.
    pub(super) sample: Option<HistorySample>,
}

/// The state at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HistorySample {
    pub(super) queued: usize,
    pub(super) running: usize,
    pub(super) devices: Vec<DeviceHoldings>,
}

/// The memory of a device by holder.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceHoldings {
    pub(super) device: DeviceId,
    pub(super) capacity: Option<ByteCount>,
    pub(super) holders: Vec<(HolderKind, String, ByteCount)>,
}

/// The kind of a holder of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HolderKind {
    /// A model of this coordinator.
    Model,
    /// A lease of another holder.
    Lease,
    /// Programs without a lease.
    Foreign,
    /// Workers that ended and whose memory is still in use.
    Leaking,
}

impl HistoryRing {
    /// Adds an answer that was generated from one moment to another.
    pub(super) fn answered(&mut self, from: Duration, to: Duration, tokens: u64, first_token: Option<Duration>) {
        let (from, to) = (from.min(to), to);
        let (first, last) = (number(from), number(to));
        self.reach(last);
        for at in first.max(self.first)..=last {
            let share = overlap(at, from, to);
            if let Some(point) = self.point(at) {
                point.tokens += tokens as f64 * share;
            }
        }
        if let Some(point) = self.point(last) {
            point.requests = point.requests.saturating_add(1);
            if let Some(time) = first_token {
                point.first_tokens.get_or_insert_default().add(time);
            }
        }
    }

    /// Adds a load that succeeded.
    pub(super) fn loaded(&mut self, at: Duration) {
        self.reach(number(at));
        if let Some(point) = self.point(number(at)) {
            point.loads = point.loads.saturating_add(1);
        }
    }

    /// Adds the eviction of a model for another.
    pub(super) fn swapped(&mut self, at: Duration) {
        self.reach(number(at));
        if let Some(point) = self.point(number(at)) {
            point.swaps = point.swaps.saturating_add(1);
        }
    }

    /// Sets the state of the point at this moment.
    pub(super) fn sampled(&mut self, at: Duration, mut sample: HistorySample) {
        for device in &mut sample.devices {
            sum_up(&mut device.holders);
        }
        self.reach(number(at));
        if let Some(point) = self.point(number(at)) {
            point.sample = Some(sample);
        }
    }

    /// The last points up to this moment, with the number of the first. Points of which nothing is known are empty.
    pub(super) fn last(&mut self, now: Duration, count: usize) -> (u64, impl Iterator<Item = &HistoryPoint>) {
        self.reach(number(now));
        let skipped = self.points.len().saturating_sub(count);
        (self.first + skipped as u64, self.points.iter().skip(skipped))
    }

    /// Adds empty points up to this number, and drops the oldest beyond the limit.
    fn reach(&mut self, number: u64) {
        let next = self.first + self.points.len() as u64;
        // After a long pause all points are new.
        let next = next.max((number + 1).saturating_sub(POINTS as u64));
        if next > self.first + self.points.len() as u64 {
            self.points.clear();
            self.first = next;
        }
        for _ in next..=number {
            self.points.push_back(HistoryPoint::default());
        }
        while self.points.len() > POINTS {
            self.points.pop_front();
            self.first += 1;
        }
    }

    fn point(&mut self, number: u64) -> Option<&mut HistoryPoint> {
        let place = number.checked_sub(self.first)?;
        self.points.get_mut(usize::try_from(place).ok()?)
    }
}

/// The number of the point that covers this moment.
fn number(at: Duration) -> u64 {
    at.as_secs() / INTERVAL.as_secs()
}

/// The share of a span that a point covers.
fn overlap(number: u64, from: Duration, to: Duration) -> f64 {
    let begins = INTERVAL.as_secs_f64() * number as f64;
    let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
    if to <= from {
        return 1.0;
    }
    ((begins + INTERVAL.as_secs_f64()).min(to) - begins.max(from)).max(0.0) / (to - from)
}

/// Keeps the largest holders, and one that sums up the rest.
fn sum_up(holders: &mut Vec<(HolderKind, String, ByteCount)>) {
    holders.retain(|(_, _, bytes)| *bytes > ByteCount::ZERO);
    if holders.len() <= HOLDERS {
        return;
    }
    holders.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let rest: ByteCount = holders.drain(HOLDERS - 1..).map(|(_, _, bytes)| bytes).sum();
    holders.push((HolderKind::Model, SMALLER.to_owned(), rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn tokens(ring: &mut HistoryRing, now: Duration) -> Vec<f64> {
        ring.last(now, POINTS).1.map(|point| point.tokens).collect()
    }

    #[test]
    fn op_2_tokens_are_spread_over_the_time_of_their_generation() {
        let mut ring = HistoryRing::default();
        ring.answered(s(5), s(25), 200, Some(s(1)));
        assert_eq!(tokens(&mut ring, s(25)), [50.0, 100.0, 50.0]);
        ring.answered(s(27), s(27), 7, None);
        assert_eq!(tokens(&mut ring, s(29)), [50.0, 100.0, 57.0]);
        let requests: Vec<u32> = ring.last(s(29), POINTS).1.map(|point| point.requests).collect();
        assert_eq!(requests, [0, 0, 2]);
    }

    #[test]
    fn op_2_the_ring_holds_one_hour_and_no_more() {
        let mut ring = HistoryRing::default();
        for second in 0..10_000 {
            ring.loaded(s(second));
            assert!(ring.points.len() <= POINTS);
        }
        let (first, points) = ring.last(s(9_999), POINTS);
        assert_eq!(first, 1_000 - POINTS as u64);
        assert_eq!(points.map(|point| point.loads).sum::<u32>(), 3_600);
    }

    #[test]
    fn op_2_a_long_pause_costs_no_more_than_the_ring_and_leaves_empty_points() {
        let mut ring = HistoryRing::default();
        ring.swapped(s(3));
        let year = s(365 * 86_400);
        let (first, points) = ring.last(year, POINTS);
        assert_eq!(first, number(year) + 1 - POINTS as u64);
        assert_eq!(points.map(|point| point.swaps).collect::<Vec<_>>(), [0; POINTS]);
        // The beginning of the answer is before the first point.
        ring.answered(s(0), year, 1_000, None);
        assert!(tokens(&mut ring, year).iter().sum::<f64>() < 1.0);
    }

    #[test]
    fn op_2_the_last_points_are_given_with_their_number() {
        let mut ring = HistoryRing::default();
        ring.loaded(s(5));
        ring.loaded(s(15));
        ring.loaded(s(25));
        let (first, points) = ring.last(s(25), 2);
        assert_eq!((first, points.count()), (1, 2));
        let (first, points) = ring.last(s(35), 2);
        assert_eq!((first, points.map(|point| point.loads).collect::<Vec<_>>()), (2, vec![1, 0]));
    }

    #[test]
    fn op_2_many_holders_are_summed_up() {
        let mut ring = HistoryRing::default();
        let holders = (0..100).map(|n| (HolderKind::Model, format!("m{n}"), ByteCount(n))).collect();
        let device = DeviceHoldings { device: DeviceId::Cpu, capacity: Some(ByteCount(5_000)), holders };
        ring.sampled(s(0), HistorySample { queued: 1, running: 2, devices: vec![device] });
        let kept = ring.last(s(0), 1).1.next().unwrap().sample.clone().unwrap().devices.remove(0).holders;
        assert_eq!(kept.len(), HOLDERS);
        assert_eq!(kept.iter().map(|(_, _, bytes)| bytes.0).sum::<u64>(), (0..100).sum::<u64>());
        assert_eq!(kept[0], (HolderKind::Model, "m99".to_owned(), ByteCount(99)));
    }
}
