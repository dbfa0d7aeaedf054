//! Permissions: proofs that a caller may give an order to the scheduler. Only the functions in [`crate::resolve`]
//! create one, after they checked the caller's rules. The scheduler's shell accepts no order without one, so a route
//! cannot forget the rules.

use model_boss_core::{Ladder, Principal, Target};
use model_boss_protocol::{ClientId, ModelId};

/// A client may be served by the rungs of this ladder. The scheduler applies the same client's rules for the priority
/// and number of its requests.
#[derive(Clone, Debug)]
pub struct Permit {
    client: ClientId,
    ladder: Ladder,
}

/// A caller may load, unload, move, pin or invalidate this model.
#[derive(Clone, Debug)]
pub struct ModelPermit {
    principal: Principal,
    model: ModelId,
}

/// A caller may give orders that concern every model on a device, or on the machine.
#[derive(Clone, Debug)]
pub struct MachinePermit {
    principal: Principal,
}

/// A caller may cancel requests: the operator all of them, a client its own.
#[derive(Clone, Debug)]
pub struct CancelPermit {
    principal: Principal,
}

impl Permit {
    pub(crate) fn new(client: ClientId, ladder: Ladder) -> Self {
        Self { client, ladder }
    }

    /// The rungs that may serve the client.
    pub fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// Limits the permit to the first rung.
    #[must_use]
    pub fn first_only(self) -> Self {
        Self { ladder: Ladder { rest: Vec::new(), ..self.ladder }, ..self }
    }

    /// Limits the permit to the rungs whose targets `keep` accepts. A permit without any keeps its first rung.
    #[must_use]
    pub fn only(self, keep: impl Fn(&Target) -> bool) -> Self {
        let mut rungs = std::iter::once(self.ladder.first.clone()).chain(self.ladder.rest.iter().cloned());
        let Some(first) = rungs.by_ref().find(|rung| keep(&rung.target)) else { return self.first_only() };
        let rest = rungs.filter(|rung| keep(&rung.target)).collect();
        Self { ladder: Ladder { first, rest, ..self.ladder }, ..self }
    }

    /// The client, and the rungs that may serve it.
    pub fn into_parts(self) -> (ClientId, Ladder) {
        (self.client, self.ladder)
    }

    /// The permission to load and unload the model of the first rung, if that is a local one. A client that may use a
    /// model may have it loaded, and may report that it does not need it any more.
    pub fn into_model(self) -> Option<ModelPermit> {
        match self.ladder.first.target {
            Target::Local(model) => Some(ModelPermit { principal: Principal::Client(self.client), model }),
            Target::Cloud { .. } => None,
        }
    }
}

impl ModelPermit {
    pub(crate) fn new(principal: Principal, model: ModelId) -> Self {
        Self { principal, model }
    }

    /// The permitted model.
    pub fn model(&self) -> &ModelId {
        &self.model
    }

    /// The permitted caller, and the model.
    pub fn into_parts(self) -> (Principal, ModelId) {
        (self.principal, self.model)
    }
}

impl MachinePermit {
    pub(crate) fn new(principal: Principal) -> Self {
        Self { principal }
    }

    /// The permitted caller.
    pub fn into_principal(self) -> Principal {
        self.principal
    }
}

impl CancelPermit {
    pub(crate) fn new(principal: Principal) -> Self {
        Self { principal }
    }

    /// The permitted caller.
    pub fn into_principal(self) -> Principal {
        self.principal
    }
}
