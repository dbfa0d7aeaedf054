//! A file of tasks as requests need it: what would have to be put together for each of them is put together once.

use std::collections::HashMap;
use std::sync::Arc;

use model_boss_protocol::ClientId;

use crate::file::{ClientProfile, EVERYBODY, Task, TasksFile};

/// Tasks with the defaults filled in, and each client's profile over everybody's. Looking one up copies nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    file: TasksFile,
    tasks: HashMap<String, Arc<Task>>,
    profiles: HashMap<ClientId, Arc<ClientProfile>>,
    everybody: Arc<ClientProfile>,
}

impl Names {
    /// Those of a file.
    pub fn new(file: TasksFile) -> Self {
        let tasks = file.tasks.iter().map(|(name, task)| (name.clone(), Arc::new(task.with(&file.defaults))));
        let named = file.clients.keys().filter(|name| *name != EVERYBODY).map(|name| ClientId::from(name.as_str()));
        let profiles = named.map(|client| (client.clone(), Arc::new(file.profile(&client)))).collect();
        let everybody = Arc::new(file.profile(&ClientId::from(EVERYBODY)));
        Self { tasks: tasks.collect(), profiles, everybody, file }
    }

    /// The file as it is written.
    pub const fn file(&self) -> &TasksFile {
        &self.file
    }

    /// A task, the defaults filled in.
    pub fn task(&self, name: &str) -> Option<&Arc<Task>> {
        self.tasks.get(name)
    }

    /// What a client may ask for.
    pub fn profile(&self, client: &ClientId) -> &Arc<ClientProfile> {
        self.profiles.get(client).unwrap_or(&self.everybody)
    }
}
