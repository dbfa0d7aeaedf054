//! The parameters of lists.

use http::Uri;
use model_boss_http::path::parameter;
use model_boss_protocol::ApiError;

/// The items of a page, where the query does not say.
const USUAL: usize = 20;

/// The page that a query asks for.
pub(super) struct PageQuery {
    pub(super) after: Option<String>,
    pub(super) limit: usize,
    /// Whether the oldest come first.
    pub(super) is_ascending: bool,
}

impl PageQuery {
    /// Reads `after`, `limit` and `order`.
    pub(super) fn of(target: &Uri, most: usize) -> Result<Self, ApiError> {
        let limit = match parameter(target, "limit") {
            None => USUAL,
            Some(text) => text.parse().ok().filter(|limit| (1..=most).contains(limit)).ok_or_else(|| {
                ApiError::invalid("limit", format!("'limit' must be a whole number from 1 to {most}"))
            })?,
        };
        let is_ascending = match parameter(target, "order").as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::invalid("order", "'order' must be asc or desc")),
        };
        Ok(Self { after: parameter(target, "after").map(|after| after.into_owned()), limit, is_ascending })
    }

    /// Cuts the page out of all records, which come the newest first. Returns whether more follow.
    pub(super) fn cut<T>(&self, mut all: Vec<T>, name: impl Fn(&T) -> &str) -> (Vec<T>, bool) {
        if self.is_ascending {
            all.reverse();
        }
        if let Some(after) = &self.after {
            all.retain(
                |record| if self.is_ascending { name(record) > after.as_str() } else { name(record) < after.as_str() },
            );
        }
        let has_more = all.len() > self.limit;
        all.truncate(self.limit);
        (all, has_more)
    }
}
