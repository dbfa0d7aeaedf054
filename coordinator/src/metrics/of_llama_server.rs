//! The figures of one model on a page as llama-server writes it: its names, without labels.

use std::fmt::Write;

use super::usage::RequestUsage;

/// Sums of one model since the start, for llama-server's page.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ServedSums {
    /// Tokens of prompts that were computed.
    computed: u64,
    cached: u64,
    predicted: u64,
    prompt_seconds: f64,
    predicted_seconds: f64,
    drafted: u64,
    accepted: u64,
    /// The most tokens of a prompt and its answer.
    longest: u64,
}

impl ServedSums {
    /// Adds a request that got its answer.
    pub(super) fn add(&mut self, usage: &RequestUsage) {
        let cached = usage.cached_tokens.unwrap_or_default().min(usage.prompt_tokens);
        self.computed += usage.prompt_tokens - cached;
        self.cached += cached;
        self.predicted += usage.completion_tokens;
        if let Some((prompt, answer)) = usage.worked {
            self.prompt_seconds += prompt.as_secs_f64();
            self.predicted_seconds += answer.as_secs_f64();
        }
        self.drafted += usage.drafted_tokens;
        self.accepted += usage.accepted_tokens;
        self.longest = self.longest.max(usage.prompt_tokens.saturating_add(usage.completion_tokens));
    }

    /// The page, with the requests that run and that wait. Rates are those since the sums `before`, of the last page.
    pub(crate) fn page(&self, before: &Self, running: usize, waiting: usize) -> String {
        let rate = |tokens: u64, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        let figures = [
            ("prompt_tokens_total", "counter", "Number of prompt tokens processed.", self.computed as f64),
            (
                "prompt_tokens_cached_total",
                "counter",
                "Number of prompt tokens taken from the cache.",
                self.cached as f64,
            ),
            ("prompt_seconds_total", "counter", "Prompt process time.", self.prompt_seconds),
            ("tokens_predicted_total", "counter", "Number of generation tokens processed.", self.predicted as f64),
            ("tokens_predicted_seconds_total", "counter", "Predict process time.", self.predicted_seconds),
            ("n_tokens_max", "counter", "Largest number of tokens of a prompt and its answer.", self.longest as f64),
            ("spec_decode_num_draft_tokens_total", "counter", "Number of drafted tokens.", self.drafted as f64),
            ("spec_decode_num_accepted_tokens_total", "counter", "Number of accepted drafts.", self.accepted as f64),
            (
                "prompt_tokens_seconds",
                "gauge",
                "Average prompt throughput in tokens/s since the last page.",
                rate(self.computed - before.computed, self.prompt_seconds - before.prompt_seconds),
            ),
            (
                "predicted_tokens_seconds",
                "gauge",
                "Average generation throughput in tokens/s since the last page.",
                rate(self.predicted - before.predicted, self.predicted_seconds - before.predicted_seconds),
            ),
            ("requests_processing", "gauge", "Number of requests processing.", running as f64),
            ("requests_deferred", "gauge", "Number of requests deferred.", waiting as f64),
        ];
        let mut page = String::new();
        for (name, kind, help, value) in figures {
            // Writing to a string cannot fail.
            let _ =
                writeln!(page, "# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn en_7_a_models_page_has_llama_servers_names_without_labels() {
        let mut sums = ServedSums::default();
        let usage = RequestUsage {
            prompt_tokens: 10,
            completion_tokens: 4,
            cached_tokens: Some(7),
            worked: Some((Duration::from_secs(1), Duration::from_secs(2))),
            drafted_tokens: 3,
            accepted_tokens: 2,
            ..RequestUsage::default()
        };
        sums.add(&usage);
        sums.add(&RequestUsage { prompt_tokens: 5, completion_tokens: 1, ..RequestUsage::default() });
        let page = sums.page(&ServedSums::default(), 1, 2);
        assert!(sums.page(&sums, 1, 2).contains("\nllamacpp:predicted_tokens_seconds 0\n"));
        for line in [
            "llamacpp:prompt_tokens_total 8",
            "llamacpp:prompt_tokens_cached_total 7",
            "llamacpp:tokens_predicted_total 5",
            "llamacpp:n_tokens_max 14",
            "llamacpp:predicted_tokens_seconds 2.5",
            "llamacpp:spec_decode_num_accepted_tokens_total 2",
            "llamacpp:requests_deferred 2",
            "# TYPE llamacpp:requests_processing gauge",
        ] {
            assert!(page.lines().any(|known| known == line), "{line}\n{page}");
        }
    }
}
