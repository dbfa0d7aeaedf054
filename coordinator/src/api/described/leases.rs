//! Leases of other programs.

use model_boss_client::lease_http::{
    AcquireBody, AttachBody, CancelBody, CancelledBody, GrantedBody, LeaseList, OneLease, ReassertBody, ReleaseBody,
    ReleasedBody, RenewBody, RenewedBody, ResizeBody, WaitingBody,
};
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;

use super::errors::{OF_LEASES, OF_THE_STORE};
use super::parameters::by_a_client;

const ID: &str = "The id of a lease.";

fn order(id: &'static str, text: &'static str) -> Operation {
    by_a_client(Operation::new(Tag::Leases, id, text)).errors(OF_LEASES)
}

/// `GET /api/v1/leases`.
pub(crate) fn leases() -> Operation {
    Operation::new(Tag::Leases, "list_leases", "the leases, with their holders, and the waiters")
        .answers::<LeaseList>(200, "the leases")
        .errors(OF_THE_STORE)
        .see(&["leases.md"])
}

/// `POST /api/v1/leases`.
pub(crate) fn acquire_lease() -> Operation {
    let text = "memory on `parts`, or on `any` devices: 201 with the lease and its `token`; 202 `waiting` with the place \
                and the reason: send the same body again within the term";
    order("acquire_lease", text)
        .body::<AcquireBody>()
        .answers::<GrantedBody>(201, "the memory is promised")
        .leads_to("/lease/id", &["get_lease", "attach_to_lease", "reassert_lease", "resize_lease", "release_lease"])
        .answers::<WaitingBody>(202, "the request waits")
}

/// `PUT /api/v1/leases`.
pub(crate) fn renew_leases() -> Operation {
    let text = "the heartbeat: the leases that are renewed, with `revoke` for each that is to be released, and those that \
                are `lost`";
    order("renew_leases", text).body::<RenewBody>().answers::<RenewedBody>(200, "the leases")
}

/// `DELETE /api/v1/leases`.
pub(crate) fn cancel_lease() -> Operation {
    order("cancel_lease", "a request is cancelled")
        .body::<CancelBody>()
        .answers::<CancelledBody>(200, "the request is cancelled")
}

/// `GET /api/v1/leases/ID`.
pub(crate) fn lease() -> Operation {
    Operation::new(Tag::Leases, "get_lease", "one lease")
        .id_of::<String>(ID)
        .answers::<OneLease>(200, "the lease")
        .errors(OF_THE_STORE)
        .errors(&[ErrorCode::LeaseNotFound])
}

/// `POST /api/v1/leases/ID/attach` and `/reassert`.
pub(crate) fn lease_orders() -> [Operation; 2] {
    let text = "from now on these processes may use the devices; 409 `lease_lost`: they must not";
    let attach = order("attach_to_lease", text)
        .behind_id("/attach")
        .id_of::<String>(ID)
        .body::<AttachBody>()
        .answers::<OneLease>(200, "the lease");
    let reassert = order("reassert_lease", "a lease that the store had lost is counted again")
        .behind_id("/reassert")
        .id_of::<String>(ID)
        .body::<ReassertBody>()
        .answers::<OneLease>(200, "the lease")
        .answers::<WaitingBody>(202, "the request waits");
    [attach, reassert]
}

/// `PUT /api/v1/leases/ID`.
pub(crate) fn resize_lease() -> Operation {
    order("resize_lease", "the lease in its new size; 409 `lease_no_room`")
        .id_of::<String>(ID)
        .body::<ResizeBody>()
        .answers::<OneLease>(200, "the lease")
}

/// `DELETE /api/v1/leases/ID`.
pub(crate) fn release_lease() -> Operation {
    order("release_lease", "200: its bytes are free; 202 while its processes live: they stay counted until they end")
        .id_of::<String>(ID)
        .optional_body::<ReleaseBody>()
        .answers::<ReleasedBody>(200, "the bytes are free")
        .answers::<ReleasedBody>(202, "the bytes stay counted")
}
