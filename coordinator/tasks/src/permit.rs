//! Permissions: what a caller may ask of the scheduler. Only the functions in [`crate::resolve`] make one, after they
//! looked at the rules for that caller; the scheduler's shell takes nothing else. So a route cannot forget the rules.

use model_boss_core::{Ladder, Principal, Target};
use model_boss_protocol::{ClientId, ModelId};

/// A client may be served by the rungs of this ladder. How important its request is, and how many it may have, the
/// scheduler decides by the rules for the same client.
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

/// A caller may order what concerns every model on a device, or on the machine.
#[derive(Clone, Debug)]
pub struct MachinePermit {
    principal: Principal,
}

impl Permit {
    pub(crate) fn new(client: ClientId, ladder: Ladder) -> Self {
        Self { client, ladder }
    }

    /// Where the client may be served.
    pub fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The same for the first rung alone.
    #[must_use]
    pub fn first_only(self) -> Self {
        Self { ladder: Ladder { rest: Vec::new(), ..self.ladder }, ..self }
    }

    /// Who may be served, and where.
    pub fn into_parts(self) -> (ClientId, Ladder) {
        (self.client, self.ladder)
    }

    /// Who asks for a model may have it loaded, and say that it needs it no more: for the first rung, if that is a model
    /// of this machine.
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

    /// Which model.
    pub fn model(&self) -> &ModelId {
        &self.model
    }

    /// Who may, and which model.
    pub fn into_parts(self) -> (Principal, ModelId) {
        (self.principal, self.model)
    }
}

impl MachinePermit {
    pub(crate) fn new(principal: Principal) -> Self {
        Self { principal }
    }

    /// Who may.
    pub fn into_principal(self) -> Principal {
        self.principal
    }
}
