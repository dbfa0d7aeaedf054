//! Signatures as Standard Webhooks defines them: <https://github.com/standard-webhooks/standard-webhooks>.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// The beginning of a secret as people copy it.
const PREFIX: &str = "whsec_";
/// The bytes of a drawn secret.
const LENGTH: usize = 32;

/// The secret that signs webhooks. It is never printed.
#[derive(Clone)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Draws a secret.
    pub fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = vec![0; LENGTH];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Reads `whsec_…`, or the Base64 behind it; `None` for another text, or one of fewer than 24 or more than 64
    /// bytes.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let bytes = STANDARD.decode(text.strip_prefix(PREFIX).unwrap_or(text)).ok()?;
        (24..=64).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// The secret as receivers configure it.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(&self.0))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// The value of `webhook-signature`: HMAC-SHA256 of `id.timestamp.body`, in Base64. The timestamp is in seconds.
pub fn webhook_signature(secret: &WebhookSecret, id: &str, timestamp: u64, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret.0);
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{id}.{timestamp}.").as_bytes());
    context.update(body);
    format!("v1,{}", STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_the_signature_is_that_of_the_reference() {
        // The example of Standard Webhooks' own libraries.
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signature = webhook_signature(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(WebhookSecret::parse(&secret.reveal()).unwrap().0, secret.0);
        assert!(WebhookSecret::parse("whsec_short").is_none() && WebhookSecret::parse("").is_none());
        assert!(!format!("{:?}", WebhookSecret::draw().unwrap()).contains("whsec"));
    }
}
