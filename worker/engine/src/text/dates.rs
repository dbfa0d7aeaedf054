//! The date as chat templates read it, where they do not ask for it by a function.

/// Variables with today's local date: `date_string` as Llama 3's templates write it, and `datetime` as Firefunction's
/// do. llama.cpp sets the same.
pub fn date_variables() -> [(&'static str, String); 2] {
    let now = jiff::Zoned::now();
    [("date_string", now.strftime("%d %b %Y").to_string()), ("datetime", now.strftime("%b %d %Y").to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_7_the_date_is_todays_in_both_forms() {
        let [(_, long), (_, american)] = date_variables();
        let year = jiff::Zoned::now().year().to_string();
        assert!(long.ends_with(&year) && american.ends_with(&year), "{long} {american}");
        assert!(
            long.starts_with(|c: char| c.is_ascii_digit()) && american.starts_with(|c: char| c.is_ascii_uppercase())
        );
    }
}
