//! When an engine counts as ready, by what it answers. That its answer comes from the process that was started is seen
//! elsewhere: an engine of others has no secret to show (RC-15).

use serde::Deserialize;

/// Which answer means ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthRule {
    /// 200 with `{"status": "ok"}`; 503 while it loads.
    LlamaServer,
    /// Any 200.
    Plain,
}

/// What an answer tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It serves.
    Ready,
    /// It is there, and not yet serving.
    Loading,
}

impl HealthRule {
    /// What this answer to a health check tells.
    pub fn read(self, status: u16, body: &[u8]) -> Seen {
        #[derive(Deserialize)]
        struct Health {
            status: String,
        }
        let says_ok = || serde_json::from_slice::<Health>(body).is_ok_and(|health| health.status == "ok");
        match self {
            _ if status != 200 => Seen::Loading,
            Self::LlamaServer if !says_ok() => Seen::Loading,
            _ => Seen::Ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_17_llama_server_is_ready_when_it_says_ok() {
        let rule = HealthRule::LlamaServer;
        assert_eq!(rule.read(200, br#"{"status":"ok"}"#), Seen::Ready);
        for (status, body) in [
            (503, &br#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#[..]),
            (503, br#"{"status":"ok"}"#),
            (200, br#"{"status":"loading model"}"#),
            (200, b"hello"),
        ] {
            assert_eq!(rule.read(status, body), Seen::Loading, "{status}");
        }
        assert_eq!(HealthRule::Plain.read(200, b""), Seen::Ready);
        assert_eq!(HealthRule::Plain.read(404, b""), Seen::Loading);
    }
}
