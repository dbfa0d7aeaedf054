//! Results of tools with images. Messages of tools are texts in chats, so the images come in a message of the user's
//! behind the results.

/// The text of a result that has images alone.
pub(crate) const SEE_BELOW: &str = "(image below)";
