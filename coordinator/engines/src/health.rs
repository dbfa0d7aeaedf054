//! Readiness of an engine, by its answer to a health check. Another check proves that the answer comes from the
//! started process, since an external engine has no secret to show (RC-15).

use serde::Deserialize;

/// The answer that means ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthRule {
    /// 200 with `{"status": "ok"}`; 503 while it loads.
    LlamaServer,
    /// Any answer with status 200 means readiness.
    Plain,
}

/// The meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The engine serves requests.
    Ready,
    /// The engine answers, and does not serve requests yet.
    Loading,
}

impl HealthRule {
    /// The meaning of this answer to a health check.
    pub fn read(self, status: u16, body: &[u8]) -> Seen {
        #[derive(Deserialize)]
        struct EngineHealth {
            status: String,
        }
        let says_ok = || serde_json::from_slice::<EngineHealth>(body).is_ok_and(|health| health.status == "ok");
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
