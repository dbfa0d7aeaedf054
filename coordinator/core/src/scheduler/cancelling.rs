//! The cancelling of one request by an order: a waiting one leaves the queue, and the shell recalls a dispatched one.

use model_boss_protocol::RequestId;

use super::state::Scheduler;
use crate::refusal::{Refusal, RefusalReason};
use crate::{Effect, Principal};

impl Scheduler {
    /// Cancels a request. The order is done at once; the place of a dispatched request is free when the shell reports
    /// the end.
    pub(super) fn cancel_request(&mut self, request: RequestId, by: &Principal, target: RequestId) {
        let waiting = self.queue.get(target);
        let Some(client) = waiting.or_else(|| Some(&self.running.get(&target)?.request)).map(|found| found.client)
        else {
            let message = format!("no request {target} waits or runs; it has ended, or never was");
            return self.refuse(request, Refusal::new(RefusalReason::UnknownRequest, message));
        };
        if *by != Principal::Operator && *by != self.clients.get(client).principal {
            let message = format!("request {target} is not one of client '{}'", by.name());
            return self.refuse(request, Refusal::new(RefusalReason::NotYours, message));
        }
        let who = match by {
            Principal::Operator => "an operator".to_owned(),
            Principal::Client(client) => format!("client '{client}'"),
        };
        let error = Refusal::new(RefusalReason::Cancelled, format!("{who} cancelled this request"));
        match self.take_waiting(target) {
            Some(_) => self.refuse(target, error),
            None => self.out.push(Effect::Recall { request: target, error }),
        }
        self.out.push(Effect::Done { request });
    }
}
