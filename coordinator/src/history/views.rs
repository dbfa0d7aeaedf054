//! The answer of `GET /api/v1/history`: one column of numbers for each curve.

use std::collections::BTreeMap;

use model_boss_protocol::{ByteCount, DeviceId};
use schemars::JsonSchema;
use serde::Serialize;

use super::ring::{HistoryPoint, HolderKind, INTERVAL};

/// The last points, oldest first. All columns have the same length; the last point is not complete.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HistoryAnswer {
    /// The number of the first point. The same point has the same number in each answer.
    first: u64,
    /// The beginning of the first point, in seconds since 1970.
    from: f64,
    /// The seconds that one point covers.
    interval_s: f64,
    /// Tokens of answers per second, spread over the time of their generation.
    tokens_per_s: Vec<f64>,
    /// Answers that ended.
    requests: Vec<u32>,
    /// The median of the times to the first token in seconds; `null` without answers.
    first_token_p50_s: Vec<Option<f64>>,
    /// Their 95th percentile.
    first_token_p95_s: Vec<Option<f64>>,
    /// Models that became ready.
    loads: Vec<u32>,
    /// Models that were evicted for another.
    swaps: Vec<u32>,
    /// Waiting requests; `null` where the state was not sampled.
    queued: Vec<Option<usize>>,
    /// Running requests.
    running: Vec<Option<usize>>,
    /// The memory of each device by holder.
    devices: Vec<DeviceHistory>,
}

/// The memory of one device.
#[derive(Debug, Serialize, JsonSchema)]
struct DeviceHistory {
    id: DeviceId,
    /// The newest known capacity.
    capacity: Option<ByteCount>,
    holders: Vec<HolderHistory>,
}

/// The bytes of one holder.
#[derive(Debug, Serialize, JsonSchema)]
struct HolderHistory {
    kind: HolderKind,
    /// The model, or the label of the lease; empty for other programs.
    name: String,
    /// `null` where the state was not sampled.
    bytes: Vec<Option<ByteCount>>,
}

impl HistoryAnswer {
    /// Columns of these points, the first of which has this number and begins at this time.
    pub(super) fn of<'a>(first: u64, from: f64, points: impl Iterator<Item = &'a HistoryPoint>) -> Self {
        let points: Vec<&HistoryPoint> = points.collect();
        let seconds = INTERVAL.as_secs_f64();
        let quantile = |share: f64| {
            let of = move |point: &&HistoryPoint| point.first_tokens.as_ref()?.quantile(share).map(rounded);
            points.iter().map(of).collect()
        };
        Self {
            first,
            from,
            interval_s: seconds,
            tokens_per_s: points.iter().map(|point| rounded(point.tokens / seconds)).collect(),
            requests: points.iter().map(|point| point.requests).collect(),
            first_token_p50_s: quantile(0.5),
            first_token_p95_s: quantile(0.95),
            loads: points.iter().map(|point| point.loads).collect(),
            swaps: points.iter().map(|point| point.swaps).collect(),
            queued: points.iter().map(|point| Some(point.sample.as_ref()?.queued)).collect(),
            running: points.iter().map(|point| Some(point.sample.as_ref()?.running)).collect(),
            devices: devices(&points),
        }
    }
}

fn devices(points: &[&HistoryPoint]) -> Vec<DeviceHistory> {
    type Columns = BTreeMap<(HolderKind, String), Vec<Option<ByteCount>>>;
    let unknown = || vec![None; points.len()];
    let mut all: BTreeMap<DeviceId, (Option<ByteCount>, Columns)> = BTreeMap::new();
    for (place, point) in points.iter().enumerate() {
        for device in point.sample.iter().flat_map(|sample| &sample.devices) {
            let (capacity, columns) = all.entry(device.device.clone()).or_default();
            *capacity = device.capacity.or(*capacity);
            for (kind, name, bytes) in &device.holders {
                let column = columns.entry((*kind, name.clone())).or_insert_with(unknown);
                column[place] = Some(column[place].unwrap_or_default() + *bytes);
            }
        }
    }
    // A holder that a sample does not have held nothing then.
    for (place, _) in points.iter().enumerate().filter(|(_, point)| point.sample.is_some()) {
        for column in all.values_mut().flat_map(|(_, columns)| columns.values_mut()) {
            column[place].get_or_insert_default();
        }
    }
    let holder = |((kind, name), bytes)| HolderHistory { kind, name, bytes };
    let device = |(id, (capacity, columns)): (DeviceId, (_, Columns))| DeviceHistory {
        id,
        capacity,
        holders: columns.into_iter().map(holder).collect(),
    };
    all.into_iter().map(device).collect()
}

/// A figure with four digits after the point, which is what a chart can show.
fn rounded(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::ring::{DeviceHoldings, HistorySample};

    #[test]
    fn op_2_all_columns_have_the_length_of_the_points() {
        let holding = |holders: &[(&str, u64)]| HistorySample {
            devices: vec![DeviceHoldings {
                device: DeviceId::Cpu,
                capacity: Some(ByteCount(100)),
                holders: holders.iter().map(|(n, b)| (HolderKind::Model, (*n).to_owned(), ByteCount(*b))).collect(),
            }],
            ..HistorySample::default()
        };
        let point = |sample: Option<HistorySample>| HistoryPoint { tokens: 5.0, sample, ..HistoryPoint::default() };
        let points = [point(Some(holding(&[("a", 3), ("a", 4)]))), point(None), point(Some(holding(&[("b", 5)])))];
        let answer = serde_json::to_value(HistoryAnswer::of(7, 70.0, points.iter())).unwrap();
        assert_eq!(answer["tokens_per_s"], serde_json::json!([0.5, 0.5, 0.5]));
        assert_eq!(answer["queued"], serde_json::json!([0, null, 0]));
        let expected = serde_json::json!([{
            "id": "cpu", "capacity": 100, "holders": [
                { "kind": "model", "name": "a", "bytes": [7, null, 0] },
                { "kind": "model", "name": "b", "bytes": [0, null, 5] },
            ],
        }]);
        assert_eq!((&answer["devices"], &answer["first"]), (&expected, &serde_json::json!(7)));
    }
}
