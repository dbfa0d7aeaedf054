//! The effective settings: the configuration, the values stored at run time over it (TR-4), and the rules of clients in
//! `tasks.yaml`. One place merges them, so that no change undoes another.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use model_boss_config::LogLevel;
use model_boss_core::{ClientRules, MaxLoaded, Settings};
use model_boss_host::log_filter::LogFilter;
use model_boss_protocol::KeepAlive;
use model_boss_tasks::{CloudFallback, TasksFile};

/// Why a guard is shut at the start.
const NOT_READ: &str = "allowCloudFallback is not known, so it is off: the lease store, which may hold a value, was not read since the start";

/// The stored value of a guard, a setting that forbids something. Every process starts with the value unknown, which
/// keeps the guard shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredGuard {
    /// The store was not read, or its value is invalid; the text has the reason.
    Unknown(&'static str),
    /// The store has no value: the configuration decides.
    Unset,
    /// The guard is open (`true`) or shut.
    Set(bool),
}

impl Default for StoredGuard {
    fn default() -> Self {
        Self::Unknown(NOT_READ)
    }
}

/// Values stored at run time; an absent one leaves the configuration's.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Overrides {
    pub cloud_fallback: StoredGuard,
    pub aging_step: Option<Duration>,
    pub max_wait: Option<Duration>,
    /// The time for which an unneeded model of any category stays loaded.
    pub model_idle: Option<KeepAlive>,
    pub max_loaded: Option<MaxLoaded>,
    pub max_queue: Option<usize>,
    pub log_level: Option<LogLevel>,
}

impl Overrides {
    /// The values after reading a store without any.
    pub fn nothing_stored() -> Self {
        Self { cloud_fallback: StoredGuard::Unset, ..Self::default() }
    }
}

/// The configured values, used where no value is stored.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The scheduler's settings.
    pub settings: Settings,
    /// The setting `allow_cloud_fallback`.
    pub allow_cloud_fallback: bool,
    /// The setting `model_idle_secs`.
    pub model_idle: Option<KeepAlive>,
    /// The setting `log.level`.
    pub log_level: LogLevel,
}

/// The effective settings. Every change is reported to the listener.
pub struct LiveSettings {
    configured: Configured,
    state: Mutex<SettingsState>,
    cloud_fallback: RwLock<CloudFallback>,
    log: LogFilter,
    listener: SettingsListener,
}

/// Receives the settings at every change, in order.
pub type SettingsListener = Box<dyn Fn(Settings) + Send + Sync>;

#[derive(Default)]
struct SettingsState {
    overrides: Overrides,
    clients: Option<ClientRules>,
}

impl LiveSettings {
    /// The configured settings, with guards shut.
    pub fn new(configured: Configured, log: LogFilter, listener: SettingsListener) -> Self {
        let cloud_fallback = RwLock::new(CloudFallback::Unknown(NOT_READ));
        Self { configured, state: Mutex::default(), cloud_fallback, log, listener }
    }

    /// Whether a request may fall back to a cloud (TR-3).
    pub fn cloud_fallback(&self) -> CloudFallback {
        *self.cloud_fallback.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configured values.
    pub fn configured(&self) -> &Configured {
        &self.configured
    }

    /// Replaces the rules of clients by those of this file.
    pub fn set_clients(&self, file: &TasksFile) {
        let rules = file.client_rules(&self.configured.settings.clients);
        self.change(|state| state.clients = Some(rules));
    }

    /// Replaces all values stored at run time by these.
    pub fn set_overrides(&self, overrides: Overrides) {
        self.change(|state| state.overrides = overrides);
    }

    /// Applies a change. The listener is called under the lock, so that it receives changes in order.
    fn change(&self, how: impl FnOnce(&mut SettingsState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        how(&mut state);
        let Overrides { cloud_fallback, log_level, .. } = &state.overrides;
        *self.cloud_fallback.write().unwrap_or_else(PoisonError::into_inner) = match cloud_fallback {
            StoredGuard::Unknown(why) => CloudFallback::Unknown(why),
            StoredGuard::Set(false) => CloudFallback::Off,
            StoredGuard::Set(true) => CloudFallback::Allowed,
            StoredGuard::Unset if self.configured.allow_cloud_fallback => CloudFallback::Allowed,
            StoredGuard::Unset => CloudFallback::Off,
        };
        self.log.set(log_level.unwrap_or(self.configured.log_level));
        (self.listener)(self.together(&state));
    }

    fn together(&self, state: &SettingsState) -> Settings {
        let mut settings = self.configured.settings.clone();
        let Overrides { aging_step, max_wait, model_idle, max_loaded, max_queue, .. } = &state.overrides;
        settings.aging_step = aging_step.unwrap_or(settings.aging_step);
        settings.max_wait = max_wait.unwrap_or(settings.max_wait);
        if let Some(stays) = model_idle {
            settings.stay_warm.values_mut().for_each(|category| *category = *stays);
        }
        if let Some(limits) = max_loaded {
            settings.max_loaded = limits.clone();
        }
        settings.max_queued = max_queue.unwrap_or(settings.max_queued);
        if let Some(clients) = &state.clients {
            settings.clients = clients.clone();
        }
        settings
    }
}
