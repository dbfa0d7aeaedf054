//! Principals: the operator of the machine, or a client by its name.

use model_boss_protocol::ClientId;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

/// The caller of an order. The operator is not a client of a reserved name, so no client can pass for it by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// The operator of this machine, whom no client's rules bind.
    Operator,
    /// A client, by the name it gives.
    Client(ClientId),
}

impl Principal {
    /// The client's name.
    pub fn client(&self) -> Option<&ClientId> {
        match self {
            Self::Operator => None,
            Self::Client(id) => Some(id),
        }
    }

    /// The human-readable name. A client may have the operator's name here; [`Principal::kind`] tells them apart.
    pub fn name(&self) -> &str {
        self.client().map_or("operator", ClientId::as_str)
    }

    /// Whether the principal is the operator or a client.
    pub fn kind(&self) -> PrincipalKind {
        match self {
            Self::Operator => PrincipalKind::Operator,
            Self::Client(_) => PrincipalKind::Client,
        }
    }
}

impl From<ClientId> for Principal {
    fn from(client: ClientId) -> Self {
        Self::Client(client)
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// An operator or a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrincipalKind {
    /// The operator of this machine.
    Operator,
    /// A client that sends requests to models.
    Client,
}
