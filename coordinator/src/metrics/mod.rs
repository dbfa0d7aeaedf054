//! The metrics, in Prometheus' format. Label values come from the catalog and from HTTP's status codes, never from
//! clients. A model's series begin with its first use and end with its entry in the catalog; at most `metrics_models`
//! models have series of their own, and the others are `other` together. The page thus has a largest size.

mod known;
mod listed;
mod of_llama_server;
mod page;
mod series;
mod twins;
mod usage;

#[cfg(test)]
mod tests;

pub(crate) use known::{LastInference, Metrics, ModelMetrics, Totals};
#[cfg(test)]
pub(crate) use listed::table;
pub(crate) use page::Page;
pub(crate) use twins::NameSet;
pub(crate) use usage::RequestUsage;
