//! Orders of operators.

use model_boss_core::PlanView;
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;
use schemars::JsonSchema;

use super::errors::OF_ORDERS;
use super::parameters::by_a_client;
use crate::api::admin::adapters::{AdapterOrderDone, LoadAdapterBody, UnloadAdapterBody};
use crate::api::admin::config::{ConfigChange, ConfigValues};
use crate::api::admin::manage::{
    DeviceOrderDone, LoadBody, ModelOrderDone, MoveRequest, Nothing, PinRequest, UnloadRequest,
};
use crate::api::admin::plan::PlanRequest;
use crate::api::admin::view_bodies::CancelAnswer;

/// The version of the settings, as `ETag` has it.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct Version(
    #[schemars(regex(pattern = r#"^(\*|(W/)?"?[0-9]{1,18}"?)$"#))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

const ID: &str = "The name of a model, or an alias.";

const WAIT: &str = "Whether the answer waits for the end; true by default.";

fn order<A: JsonSchema>(id: &'static str, text: &'static str) -> Operation {
    by_a_client(Operation::new(Tag::Orders, id, text)).answers::<A>(200, "it is done").errors(OF_ORDERS)
}

/// `POST /api/v1/load`.
pub(crate) fn load() -> Operation {
    order::<ModelOrderDone<'_>>("load_model", "a model is loaded, by name or by path; answered once it serves")
        .see(&["streaming.md", "engines.md"])
        .body::<LoadBody>()
        .query::<bool>("wait", WAIT)
        .answers::<ModelOrderDone<'_>>(202, "it has begun")
}

/// `POST /api/v1/unload`.
pub(crate) fn unload() -> Operation {
    order::<ModelOrderDone<'_>>("unload_model", "a model is unloaded, or all of them where none is named")
        .optional_body::<UnloadRequest>()
}

/// `POST /v1/load_lora_adapter`.
pub(crate) fn load_adapter() -> Operation {
    let text = "a LoRA adapter of a model is added, as in vLLM; one of a loaded model is checked at once";
    order::<AdapterOrderDone>("load_lora_adapter", text).see(&["adapters.md"]).body::<LoadAdapterBody>()
}

/// `POST /v1/unload_lora_adapter`.
pub(crate) fn unload_adapter() -> Operation {
    let text = "a LoRA adapter that was added is removed, as in vLLM; answers that use it end with it";
    order::<AdapterOrderDone>("unload_lora_adapter", text).see(&["adapters.md"]).body::<UnloadAdapterBody>()
}

/// `DELETE /api/v1/queue/ID`.
pub(crate) fn cancel_request() -> Operation {
    let text = "a waiting or running request is cancelled; its client gets the error `request_cancelled`";
    by_a_client(Operation::new(Tag::Orders, "cancel_request", text))
        .id_of::<String>("The number of a request.")
        .answers::<CancelAnswer>(200, "it is done")
        .errors(&[ErrorCode::RequestNotFound, ErrorCode::Draining])
}

/// `POST /api/v1/plan`.
pub(crate) fn plan() -> Operation {
    let text = "the effect of a request or a load, without executing it";
    by_a_client(Operation::new(Tag::Orders, "plan_request", text))
        .body::<PlanRequest>()
        .answers::<PlanView>(200, "the plan")
        .errors(OF_ORDERS)
        .errors(&[ErrorCode::ColdStartExceedsBudget])
}

/// `PUT /api/v1/config`.
pub(crate) fn change_config() -> Operation {
    let text = "the settings in the body are changed, now and for later starts";
    Operation::new(Tag::Orders, "change_config", text)
        .body::<ConfigChange>()
        .header::<Version>("if-match", "The version that may be changed, or `*` for any.")
        .answers::<ConfigValues>(200, "the new values")
        .with_headers(&[("ETag", "The version, for `If-Match`.")])
        .errors(&[ErrorCode::PreconditionFailed, ErrorCode::LeaseStoreUnavailable])
}

/// `POST /api/v1/models/ID/device`, `/invalidate` and `/pin`.
pub(crate) fn model_orders() -> [Operation; 3] {
    let moved =
        order::<ModelOrderDone<'_>>("move_model", "a model moves to a device; answered once it serves from there")
            .behind_id("/device")
            .id_of::<String>(ID)
            .body::<MoveRequest>()
            .query::<bool>("wait", WAIT)
            .answers::<ModelOrderDone<'_>>(202, "it has begun")
            .status(500, ErrorCode::MigrationFailed);
    let text = "the loaded copy is evicted when idle, its parked prefixes are dropped, and the next load reads the files again";
    let invalidated = order::<ModelOrderDone<'_>>("invalidate_model", text)
        .behind_id("/invalidate")
        .id_of::<String>(ID)
        .optional_body::<Nothing>();
    let text = "a model is never evicted (`true`), is again (`false`), or is as its manifest says (`null`)";
    let pinned = order::<ModelOrderDone<'_>>("pin_model", text)
        .behind_id("/pin")
        .id_of::<String>(ID)
        .optional_body::<PinRequest>();
    [moved, invalidated, pinned]
}

/// `POST /api/v1/devices/ID/drain` and `/open`.
pub(crate) fn device_orders() -> [Operation; 2] {
    let of_device = |id, text, tail| {
        order::<DeviceOrderDone>(id, text)
            .behind_id(tail)
            .id_of::<String>("A device, such as `cpu` or `cuda:0`.")
            .optional_body::<Nothing>()
            .query::<bool>("wait", WAIT)
            .answers::<DeviceOrderDone>(202, "it has begun")
    };
    [
        of_device("drain_device", "a device is closed; answered once no model holds memory there", "/drain"),
        of_device("open_device", "a device is open to models again", "/open"),
    ]
}
