//! The worker's API over real sockets, with a scripted decoder.

mod answers;
mod channels;
mod embeddings;
mod failures;
mod forms;
mod images;
mod judges;
mod messages;
mod nonsense;
mod painting;
mod rejections;
mod rig;
mod tei;
mod tool_prompts;
mod tools;
mod transcripts;
mod vision;
