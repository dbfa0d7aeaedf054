//! A tasks file prepared for lookups: values that each request would have to combine are combined once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model_boss_protocol::ClientId;

use crate::file::{ClientProfile, EVERYBODY, KeyRule, Task, TasksFile};

/// Tasks completed with the defaults, and each client's profile completed with that for everyone. A lookup copies no
/// data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskNames {
    file: TasksFile,
    tasks: HashMap<String, Arc<Task>>,
    profiles: HashMap<ClientId, Arc<ClientProfile>>,
    everybody: Arc<ClientProfile>,
}

impl TaskNames {
    /// The names of a file.
    pub fn new(file: TasksFile) -> Self {
        Self::with_keys(file, &BTreeMap::new())
    }

    /// The names of a file, where each of these clients is held to the rule of its key, too.
    pub fn with_keys(file: TasksFile, keys: &BTreeMap<ClientId, KeyRule>) -> Self {
        let tasks = file.tasks.iter().map(|(name, task)| (name.clone(), Arc::new(task.with(&file.defaults))));
        let named = file.clients.keys().filter(|name| *name != EVERYBODY).map(|name| ClientId::from(name.as_str()));
        let profile = |client: ClientId| {
            let profile = file.profile(&client);
            let held = match keys.get(&client) {
                Some(key) => profile.within(key),
                None => profile,
            };
            (client, Arc::new(held))
        };
        let profiles = named.chain(keys.keys().cloned()).map(profile).collect();
        let everybody = Arc::new(file.profile(&ClientId::from(EVERYBODY)));
        Self { tasks: tasks.collect(), profiles, everybody, file }
    }

    /// The file as written.
    pub const fn file(&self) -> &TasksFile {
        &self.file
    }

    /// A task, completed with the defaults.
    pub fn task(&self, name: &str) -> Option<&Arc<Task>> {
        self.tasks.get(name)
    }

    /// A client's profile, completed with that for everyone.
    pub fn profile(&self, client: &ClientId) -> &Arc<ClientProfile> {
        self.profiles.get(client).unwrap_or(&self.everybody)
    }
}
