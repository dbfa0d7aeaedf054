//! The same figures by the names of vLLM and llama.cpp, for dashboards that know only those. They are made at the
//! scrape, so they cost nothing between two.

use std::collections::BTreeSet;

use prometheus::proto::{Gauge, Metric, MetricType};

use super::listed::{
    COMPLETION_SECONDS, COMPLETION_TOKENS, FIRST_TOKEN, PER_TOKEN, PROMPT_SECONDS, PROMPT_TOKENS, QUEUE_DEPTH,
    QUEUE_TIME, REQUEST_TIME, RUNNING,
};
use super::page::{Page, family, pair};

/// Whose names a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameSet {
    /// This project's.
    ModelBoss,
    /// vLLM's.
    Vllm,
    /// llama.cpp's.
    LlamaCpp,
}

impl NameSet {
    /// Every set.
    pub(crate) const ALL: [Self; 3] = [Self::ModelBoss, Self::Vllm, Self::LlamaCpp];

    /// The set in a query.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::ModelBoss => "model_boss",
            Self::Vllm => "vllm",
            Self::LlamaCpp => "llamacpp",
        }
    }
}

const OF_VLLM: &[(&str, &str)] = &[
    (RUNNING, "vllm:num_requests_running"),
    (QUEUE_DEPTH, "vllm:num_requests_waiting"),
    (PROMPT_TOKENS, "vllm:prompt_tokens_total"),
    (COMPLETION_TOKENS, "vllm:generation_tokens_total"),
    (FIRST_TOKEN, "vllm:time_to_first_token_seconds"),
    (PER_TOKEN, "vllm:time_per_output_token_seconds"),
    (PER_TOKEN, "vllm:inter_token_latency_seconds"),
    (REQUEST_TIME, "vllm:e2e_request_latency_seconds"),
    (QUEUE_TIME, "vllm:request_queue_time_seconds"),
];

const OF_LLAMA_CPP: &[(&str, &str)] = &[
    (PROMPT_TOKENS, "llamacpp:prompt_tokens_total"),
    (PROMPT_SECONDS, "llamacpp:prompt_seconds_total"),
    (COMPLETION_TOKENS, "llamacpp:tokens_predicted_total"),
    (COMPLETION_SECONDS, "llamacpp:tokens_predicted_seconds_total"),
    (RUNNING, "llamacpp:requests_processing"),
    (QUEUE_DEPTH, "llamacpp:requests_deferred"),
];

/// Averages since the start, by tokens and seconds.
const RATES_OF_LLAMA_CPP: &[(&str, &str, &str)] = &[
    ("llamacpp:prompt_tokens_seconds", PROMPT_TOKENS, PROMPT_SECONDS),
    ("llamacpp:predicted_tokens_seconds", COMPLETION_TOKENS, COMPLETION_SECONDS),
];

impl Page {
    /// The page with these names only.
    pub(crate) fn named(mut self, names: &BTreeSet<NameSet>) -> Self {
        if names.contains(&NameSet::Vllm) {
            // vLLM's engines are numbered, and its dashboards may select the first.
            self.twins(OF_VLLM, |model| vec![pair("engine", "0"), pair("model_name", model)]);
        }
        if names.contains(&NameSet::LlamaCpp) {
            self.twins(OF_LLAMA_CPP, |model| vec![pair("model", model)]);
            for (name, tokens, seconds) in RATES_OF_LLAMA_CPP {
                self.rate(name, tokens, seconds);
            }
        }
        if !names.contains(&NameSet::ModelBoss) {
            self.0.retain(|name, _| !name.starts_with("model_boss_"));
        }
        self
    }

    fn twins(&mut self, names: &[(&str, &str)], labels: impl Fn(&str) -> Vec<prometheus::proto::LabelPair>) {
        for (own, other) in names {
            let Some(known) = self.0.get(*own) else { continue };
            let kind = known.get_field_type();
            let twins: Vec<Metric> = known
                .get_metric()
                .iter()
                .filter_map(|metric| {
                    let mut twin = metric.clone();
                    twin.set_label(labels(model_of(metric)?));
                    Some(twin)
                })
                .collect();
            for twin in twins {
                self.add(family(other, kind, twin));
            }
        }
    }

    fn rate(&mut self, name: &str, tokens: &str, seconds: &str) {
        let (Some(tokens), Some(seconds)) = (self.0.get(tokens), self.0.get(seconds)) else { return };
        let mut rates = Vec::new();
        // Both have the same models in the same order.
        for (tokens, seconds) in tokens.get_metric().iter().zip(seconds.get_metric()) {
            let Some(model) = model_of(tokens) else { continue };
            let (tokens, seconds) = (tokens.get_counter().get_value(), seconds.get_counter().get_value());
            let mut gauge = Gauge::default();
            gauge.set_value(if seconds > 0.0 { tokens / seconds } else { 0.0 });
            let mut metric = Metric::from_label(vec![pair("model", model)]);
            metric.set_gauge(gauge);
            rates.push(metric);
        }
        for metric in rates {
            self.add(family(name, MetricType::GAUGE, metric));
        }
    }
}

fn model_of(metric: &Metric) -> Option<&str> {
    metric.get_label().iter().find(|label| label.name() == "model").map(|label| label.value())
}
