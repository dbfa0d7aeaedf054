//! Who asks: the operator of the machine, or a client by its name.

use model_boss_protocol::ClientId;
use serde::{Serialize, Serializer};

/// Who asks. The operator is no client with a certain name, so no client can call itself that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// Whoever runs this machine: bound by no client's rules.
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

    /// What people read. A client may have the same name as the operator here; [`Principal::kind`] tells them apart.
    pub fn name(&self) -> &str {
        self.client().map_or("operator", ClientId::as_str)
    }

    /// Which of the two it is.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PrincipalKind {
    /// Whoever runs this machine.
    Operator,
    /// Somebody who asks models.
    Client,
}
