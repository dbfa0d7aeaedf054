//! The names of attributes. OpenTelemetry's crate of names calls those of generative models deprecated, since they
//! moved to <https://github.com/open-telemetry/semantic-conventions-genai>. They are written here as they are there.

pub(crate) const HTTP_METHOD: &str = "http.request.method";
pub(crate) const HTTP_ROUTE: &str = "http.route";
pub(crate) const HTTP_STATUS: &str = "http.response.status_code";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const SERVICE_NAME: &str = "service.name";
pub(crate) const SERVICE_VERSION: &str = "service.version";

pub(crate) const OPERATION: &str = "gen_ai.operation.name";
pub(crate) const PROVIDER: &str = "gen_ai.provider.name";
pub(crate) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(crate) const REQUEST_STREAM: &str = "gen_ai.request.stream";
pub(crate) const RESPONSE_MODEL: &str = "gen_ai.response.model";
/// In seconds.
pub(crate) const FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(crate) const CACHED_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";

pub(crate) const REQUEST_ID: &str = "model_boss.request.id";
pub(crate) const CLIENT: &str = "model_boss.client";
pub(crate) const PRIORITY: &str = "model_boss.priority";
/// A word, as `GET /api/v1/queue` has it.
pub(crate) const WAIT_REASON: &str = "model_boss.wait.reason";
/// A sentence with models and devices.
pub(crate) const WAIT_DETAIL: &str = "model_boss.wait.detail";
pub(crate) const DEVICES: &str = "model_boss.devices";
/// The position in the ladder, from 0.
pub(crate) const RUNG: &str = "model_boss.rung";
pub(crate) const RUNG_REASON: &str = "model_boss.rung.reason";
/// How often the request was sent to a worker or provider, if more than once.
pub(crate) const CALLS: &str = "model_boss.calls";
