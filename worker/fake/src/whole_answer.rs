//! Answers that are sent at once, and how far they have come until then.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use model_boss_protocol::{ApiError, ErrorCode, WorkProgress, WorkUnit};

use crate::canned::{CannedAnswer, refuse, whole};
use crate::decode::Decode;
use crate::shapes::FakeShape;

/// The answers that are being made, by the ids of their requests.
#[derive(Default)]
pub(crate) struct WholeAnswers(Mutex<HashMap<String, WorkProgress>>);

/// An answer's place in that list. Dropping it removes it: the answer is sent, or the client disconnected.
struct MadeAnswer<'a> {
    all: &'a WholeAnswers,
    id: &'a str,
}

impl WholeAnswers {
    /// Makes an answer. The end of the connection drops this future with the decode, which cancels it.
    pub(crate) async fn make(&self, id: &str, mut decode: Decode, shape: FakeShape) -> CannedAnswer {
        let made = MadeAnswer { all: self, id };
        let (mut text, mut done) = (String::new(), 0);
        while let Some(token) = decode.next().await {
            text.push_str(token);
            done += 1;
            let progress = WorkProgress { unit: WorkUnit::Tokens, done, total: None, text: text.clone() };
            made.all.list().insert(id.to_owned(), progress);
        }
        let (finish, cost) = decode.finish();
        whole(StatusCode::OK, shape.whole(&text, finish, cost))
    }

    /// Counts the steps of a picture, each of which is a token.
    pub(crate) async fn count_steps(&self, id: &str, mut decode: Decode, steps: u64) {
        let made = MadeAnswer { all: self, id };
        let mut done = 0;
        while decode.next().await.is_some() {
            done += 1;
            let progress = WorkProgress { unit: WorkUnit::Steps, done, total: Some(steps), text: String::new() };
            made.all.list().insert(id.to_owned(), progress);
        }
        let _ = decode.finish();
    }

    /// The answer to `GET /progress/{id}`.
    pub(crate) fn progress(&self, id: &str) -> CannedAnswer {
        match self.list().get(id) {
            Some(progress) => whole(StatusCode::OK, serde_json::to_vec(progress).unwrap_or_default().into()),
            None => refuse(&ApiError::new(ErrorCode::NotFound, "no request with this id is being computed")),
        }
    }

    fn list(&self) -> MutexGuard<'_, HashMap<String, WorkProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MadeAnswer<'_> {
    fn drop(&mut self) {
        self.all.list().remove(self.id);
    }
}
