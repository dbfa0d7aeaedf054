//! The page for Prometheus, built at each scrape.

use std::collections::BTreeMap;

use prometheus::TextEncoder;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::listed::{MetricKind, find, help};

/// The page for Prometheus, built at each scrape. A figure that is read at that time has no series that could outlive
/// its subject.
#[derive(Default)]
pub(crate) struct Page(pub(super) BTreeMap<String, MetricFamily>);

impl Page {
    /// Adds a figure that is read at the time of the scrape.
    pub(crate) fn gauge(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        let mut metric = labelled(labels);
        metric.set_gauge(gauge);
        self.add(family(name, MetricType::GAUGE, metric));
    }

    /// Adds a counter that another part keeps, with its value at the time of the scrape.
    pub(crate) fn count_so_far(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let mut counter = Counter::default();
        counter.set_value(value as f64);
        let mut metric = labelled(labels);
        metric.set_counter(counter);
        self.add(family(name, MetricType::COUNTER, metric));
    }

    /// The page as text.
    pub(crate) fn render(self) -> String {
        let families: Vec<MetricFamily> = self.0.into_values().collect();
        TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
            tracing::warn!("the page for Prometheus could not be written: {error}");
            String::new()
        })
    }

    /// Adds series; a family of the page gets them beside its own.
    pub(super) fn add(&mut self, mut family: MetricFamily) {
        if family.get_metric().is_empty() {
            return;
        }
        debug_assert!(is_listed(&family), "{} is not in the list of metrics as it is", family.name());
        match self.0.get_mut(family.name()) {
            Some(known) => known.mut_metric().append(family.mut_metric()),
            None => _ = self.0.insert(family.name().to_owned(), family),
        }
    }
}

fn is_listed(family: &MetricFamily) -> bool {
    let kind = match family.get_field_type() {
        MetricType::COUNTER => MetricKind::Counter,
        MetricType::HISTOGRAM => MetricKind::Histogram,
        _ => MetricKind::Gauge,
    };
    find(family.name()).is_some_and(|listed| {
        let mut labels: Vec<&str> = listed.labels.split(", ").filter(|label| !label.is_empty()).collect();
        labels.sort_unstable();
        listed.kind == kind
            && !listed.help.is_empty()
            && family.get_metric().iter().all(|metric| names(metric) == labels)
    })
}

/// The names of the labels of a series.
fn names(metric: &Metric) -> Vec<&str> {
    let mut names: Vec<&str> = metric.get_label().iter().map(LabelPair::name).collect();
    names.sort_unstable();
    names
}

/// A label.
pub(super) fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    Metric::from_label(labels.iter().map(|(name, value)| pair(name, value)).collect())
}

/// A family of one series.
pub(super) fn family(name: &str, kind: MetricType, metric: Metric) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help(name).to_owned());
    family.set_field_type(kind);
    family.set_metric(vec![metric]);
    family
}
