//! Parameters and headers that many routes share.

use model_boss_openapi::Operation;
use schemars::JsonSchema;

/// The headers of an answer by a model.
pub(super) const OF_AN_ANSWER: &[(&str, &str)] = &[
    ("x-served-model", "The model that answered."),
    ("x-rung", "The rung of the ladder that answered, from 0."),
    ("x-rung-reason", "Why that rung answered."),
    ("x-queue-ms", "The request's wait in milliseconds."),
    ("x-load-ms", "The part of the wait in which its model was loading."),
    ("x-thinking", "The part of a wish about thinking that was not kept."),
    ("x-unknown-fields", "Fields that begin with x_ and mean nothing here."),
];

/// A client's name in a header.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct ClientName(
    #[schemars(length(min = 1, max = 128))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// A priority in a header.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct PriorityWord(
    #[schemars(regex(pattern = "^([0-9]|interactive|normal|batch)$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// A number of seconds in a header.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct BudgetSeconds(
    #[schemars(regex(pattern = r"^[0-9]{1,5}(\.[0-9]{1,3})?$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// A time for which a model stays loaded, in a header.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct KeepAliveWord(
    #[schemars(regex(pattern = r"^(-?[0-9]+(\.[0-9]+)?|-?([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// The one value of a header. Generated clients take no type of one value for headers.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct OnlyNone(
    #[schemars(regex(pattern = "^none$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// Adds the header with a client's name.
pub(super) fn by_a_client(operation: Operation) -> Operation {
    operation.header::<ClientName>("x-client-id", "The client's name.")
}

/// Adds the headers that set model-boss's own fields of a request.
pub(super) fn with_own_headers(operation: Operation) -> Operation {
    by_a_client(operation)
        .header::<PriorityWord>("x-priority", "The priority in the queue.")
        .header::<String>("x-task", "A task; model is then a wish for one of its rungs.")
        .header::<BudgetSeconds>("x-budget-s", "The time for the whole request, in seconds.")
        .header::<KeepAliveWord>(
            "x-keep-alive",
            "The time for which the model stays loaded afterwards: seconds, or 5m.",
        )
        .header::<OnlyNone>("x-fallback", "Whether another rung of the ladder may answer.")
        .header::<String>("x-thinking", "Whether a model that can think does so: on, off, or a number of tokens.")
}
