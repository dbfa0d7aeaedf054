//! What is known of each provider, for people and clients: where it is, whether it can be asked, what its models are called
//! here, and what was asked and spent.

use std::collections::{BTreeMap, BTreeSet};

use model_boss_tasks::CLAUDE;
use serde::Serialize;

use super::provider::{Price, ProviderKind};
use super::spend::{DAY, Tally, Today};
use super::{Clouds, Provider};

/// Seconds of a day of UTC: what was spent counts for one.
pub(crate) const UTC_DAY: u64 = DAY;

/// Whether a provider's key is there. The key itself is told to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyState {
    /// It is there; nobody knows yet whether the provider accepts it.
    Set,
    /// Somebody has to give one before the provider can be asked.
    Missing,
    /// None is configured, and none is sent.
    None,
}

/// One provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProviderReport {
    /// Its prefix.
    pub(crate) name: String,
    kind: ProviderKind,
    /// Its address, or the command that is run.
    base_url: String,
    /// Whether what is sent there leaves this machine's owner.
    pub(crate) cloud: bool,
    pub(crate) key: KeyState,
    /// What is missing, in words.
    problem: Option<String>,
    /// Short names of models.
    names: BTreeMap<String, String>,
    /// All of its models together.
    pub(crate) today: Tally,
    pub(crate) since_start: Tally,
    /// Models that were asked for, or have a price or a short name.
    pub(crate) models: Vec<ProviderModel>,
}

/// One of a provider's models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ProviderModel {
    /// The provider's own name of it.
    pub(crate) model: String,
    /// US dollars for a million tokens of prompts and of answers, where they are known.
    price: Option<Price>,
    today: Tally,
    pub(crate) since_start: Tally,
}

impl Tally {
    fn plus(self, other: &Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            errors: self.errors + other.errors,
            input_tokens: self.input_tokens + other.input_tokens,
            output_tokens: self.output_tokens + other.output_tokens,
            spent_usd: self.spent_usd + other.spent_usd,
        }
    }
}

impl Clouds {
    /// Every provider, and the ledger of the day `now` (seconds since 1970) is in.
    pub(crate) fn report(&self, now: u64) -> (Vec<ProviderReport>, Today) {
        let (today, ever) = (self.spend.today(now), self.spend.ever());
        let none = BTreeMap::new();
        let report = |(name, provider): (&String, &Provider)| {
            let of_today = today.providers.get(name).unwrap_or(&none);
            let of_all = ever.get(name).unwrap_or(&none);
            let names: BTreeSet<&String> =
                provider.models().values().chain(of_today.keys()).chain(of_all.keys()).collect();
            let models = names.into_iter().map(|model| ProviderModel {
                model: model.clone(),
                price: provider.listed_price(model),
                today: of_today.get(model).copied().unwrap_or_default(),
                since_start: of_all.get(model).copied().unwrap_or_default(),
            });
            let sum = |tallies: &BTreeMap<String, Tally>| tallies.values().fold(Tally::default(), Tally::plus);
            let key = provider.key();
            ProviderReport {
                name: name.clone(),
                kind: provider.kind(),
                base_url: provider.address(),
                cloud: provider.costs() || name == CLAUDE,
                problem: key.as_ref().err().map(|error| error.message.clone()),
                key: match key {
                    Ok(Some(_)) => KeyState::Set,
                    Ok(None) => KeyState::None,
                    Err(_) => KeyState::Missing,
                },
                names: provider.models().clone(),
                today: sum(of_today),
                since_start: sum(of_all),
                models: models.collect(),
            }
        };
        (self.providers.iter().map(report).collect(), today)
    }

    /// Names of models, `PROVIDER:MODEL`, that the configuration gives.
    pub(crate) fn configured_models(&self) -> Vec<String> {
        let names = |(name, provider): (&String, &Provider)| -> Vec<String> {
            provider.models().keys().map(|model| format!("{name}:{model}")).collect()
        };
        self.providers.iter().flat_map(names).collect()
    }

    /// The provider's own name of a model, where the provider can be asked: it is there, and so is its key.
    pub(crate) fn served_as(&self, provider: &str, model: &str) -> Option<String> {
        let provider = self.providers.get(provider).filter(|provider| provider.key().is_ok())?;
        Some(provider.model(model).to_owned())
    }

    /// Where a provider is.
    pub(crate) fn address(&self, provider: &str) -> Option<String> {
        self.providers.get(provider).map(Provider::address)
    }
}
