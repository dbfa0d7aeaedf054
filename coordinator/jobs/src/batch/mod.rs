//! Batches of requests in OpenAI's form: a file of lines, each a request, and files of their answers and errors.

mod input;
mod kept;
mod line;
mod line_order;
mod output;
mod record;
mod usage;

pub use input::{LinePlan, LineSpot, ValidatedInput, scan_input};
pub use kept::{KeptLines, keep_whole_lines};
pub use line::{BatchRules, InputLine, LineFault, read_line};
pub use line_order::LineOrder;
pub use output::{LineOutcome, output_line};
pub use record::{BatchCounts, BatchLineError, BatchOrder, BatchRecord, BatchState, MAX_LINE_ERRORS};
pub use usage::BatchUsage;
