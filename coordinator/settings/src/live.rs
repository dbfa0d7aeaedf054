//! The settings while the process runs: what the configuration says, what was stored at run time over it
//! (TR-4), and what `tasks.yaml` says of clients. One place puts them together, so that no change undoes another.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use model_boss_config::LogLevel;
use model_boss_core::{ClientRules, MaxLoaded, Settings};
use model_boss_host::log_filter::LogFilter;
use model_boss_protocol::KeepAlive;
use model_boss_tasks::{CloudFallback, TasksFile};

/// Why a guard is shut at the start.
const NOT_READ: &str = "allowCloudFallback is not known, so it is off: the lease store, which may hold a value, was not read since the start";

/// What is stored of a guard. One of which nothing is known is shut, and that is what every process begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredGuard {
    /// The store was not read, or says something that makes no sense; in words.
    Unknown(&'static str),
    /// Nothing: the configuration decides.
    Unset,
    /// Open or shut.
    Set(bool),
}

impl Default for StoredGuard {
    fn default() -> Self {
        Self::Unknown(NOT_READ)
    }
}

/// Values that were stored at run time; absent: the configuration's.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Overrides {
    pub cloud_fallback: StoredGuard,
    pub aging_step: Option<Duration>,
    pub max_wait: Option<Duration>,
    /// How long an unneeded model stays, whatever its category.
    pub model_idle: Option<KeepAlive>,
    pub max_loaded: Option<MaxLoaded>,
    pub max_queue: Option<usize>,
    pub log_level: Option<LogLevel>,
}

impl Overrides {
    /// The store was read, and there is nothing in it.
    pub fn nothing_stored() -> Self {
        Self { cloud_fallback: StoredGuard::Unset, ..Self::default() }
    }
}

/// What was configured, where nothing is stored.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The scheduler's settings.
    pub settings: Settings,
    /// `allow_cloud_fallback`.
    pub allow_cloud_fallback: bool,
    /// `model_idle_secs`.
    pub model_idle: Option<KeepAlive>,
    /// `log.level`.
    pub log_level: LogLevel,
}

/// The settings that hold now. Tells its listener of every change.
pub struct LiveSettings {
    configured: Configured,
    state: Mutex<State>,
    cloud_fallback: RwLock<CloudFallback>,
    log: LogFilter,
    listener: SettingsListener,
}

/// Hears of the settings whenever they change, in the order of the changes.
pub type SettingsListener = Box<dyn Fn(Settings) + Send + Sync>;

#[derive(Default)]
struct State {
    overrides: Overrides,
    clients: Option<ClientRules>,
}

impl LiveSettings {
    /// The settings as configured, and guards shut.
    pub fn new(configured: Configured, log: LogFilter, listener: SettingsListener) -> Self {
        let cloud_fallback = RwLock::new(CloudFallback::Unknown(NOT_READ));
        Self { configured, state: Mutex::default(), cloud_fallback, log, listener }
    }

    /// Whether a request may fall back to a cloud (TR-3).
    pub fn cloud_fallback(&self) -> CloudFallback {
        *self.cloud_fallback.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was configured.
    pub fn configured(&self) -> &Configured {
        &self.configured
    }

    /// What the file says of clients holds from now on.
    pub fn set_clients(&self, file: &TasksFile) {
        let rules = file.client_rules(&self.configured.settings.clients);
        self.change(|state| state.clients = Some(rules));
    }

    /// These values hold from now on, and no others that were stored before.
    pub fn set_overrides(&self, overrides: Overrides) {
        self.change(|state| state.overrides = overrides);
    }

    /// The listener is called while the lock is held, so that it hears of changes in their order.
    fn change(&self, how: impl FnOnce(&mut State)) {
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

    fn together(&self, state: &State) -> Settings {
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
