//! `data:` URLs (RFC 2397), the only ones that images of requests may have.

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, general_purpose};

use crate::error::ImageError;
use crate::limits::ImageLimits;

const LENIENT: GeneralPurposeConfig =
    general_purpose::PAD.with_decode_padding_mode(DecodePaddingMode::Indifferent).with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// The file in a `data:` URL. The media type is not looked at, since the file says what it is. Anything that would have
/// to be fetched is refused.
pub fn image_bytes(url: &str, limits: &ImageLimits) -> Result<Vec<u8>, ImageError> {
    let url = url.trim();
    let rest = match url.split_at_checked(5) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("data:") => rest,
        _ => return Err(elsewhere(url)),
    };
    let (head, data) = rest.split_once(',').ok_or(ImageError::Url("it has no comma in front of the data"))?;
    let is_base64 = head.rsplit_once(';').is_some_and(|(_, last)| last.trim().eq_ignore_ascii_case("base64"));
    // A quarter of the text goes with base64, up to two thirds with percent signs, of which only some may be there.
    let least = if is_base64 { data.len() / 4 * 3 } else { data.len() / 3 } as u64;
    let too_large = |bytes: u64| ImageError::FileTooLarge { bytes, limit: limits.file_bytes };
    let escaped = data.contains('%');
    if !escaped && least > limits.file_bytes.saturating_add(3) || least / 3 > limits.file_bytes {
        return Err(too_large(least));
    }
    let file = match (is_base64, escaped) {
        (false, _) => percent_encoding::percent_decode_str(data).collect(),
        (true, false) => of_base64(data.as_bytes())?,
        (true, true) => of_base64(&percent_encoding::percent_decode_str(data).collect::<Vec<u8>>())?,
    };
    match file.len() as u64 {
        0 => Err(ImageError::Url("it has no data")),
        bytes if bytes > limits.file_bytes => Err(too_large(bytes)),
        _ => Ok(file),
    }
}

/// Base64 of either alphabet, with padding or without, and with line ends in it.
fn of_base64(text: &[u8]) -> Result<Vec<u8>, ImageError> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace();
    let spaceless: Vec<u8>;
    let text = if text.iter().any(is_space) {
        spaceless = text.iter().copied().filter(|byte| !is_space(byte)).collect();
        &spaceless
    } else {
        text
    };
    let engine = if text.iter().any(|byte| matches!(byte, b'-' | b'_')) { &URL_SAFE } else { &STANDARD };
    engine.decode(text).map_err(|_| ImageError::Url("its data is not base64"))
}

/// The refusal of any other URL names its scheme, never the whole of it.
fn elsewhere(url: &str) -> ImageError {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &&str| {
        !scheme.is_empty()
            && scheme.len() <= 16
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
    };
    match scheme.filter(is_scheme) {
        Some(scheme) => ImageError::Elsewhere(format!("{}:", scheme.to_ascii_lowercase())),
        None => ImageError::Url("it does not begin with data:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: ImageLimits = ImageLimits { file_bytes: 8, pixels: 1, count: 1 };

    fn of(url: &str) -> Result<Vec<u8>, ImageError> {
        image_bytes(url, &SMALL)
    }

    #[test]
    fn em_3_every_spelling_of_a_data_url_is_read() {
        let bytes = Ok(vec![0xfb, 0xef, 0xff, b'a']);
        for url in [
            "data:image/png;base64,++//YQ==",
            "data:image/png;base64,++//YQ",
            "data:image/png;base64,--__YQ",
            "DATA:;BASE64,++//\r\n YQ==",
            "data:image/png;name=a.png;base64,%2B%2b//YQ%3D%3D",
            "data:image/png,%FB%ef%ffa",
            " data:,%FB%ef%ffa\n",
        ] {
            assert_eq!(of(url), bytes, "{url}");
        }
    }

    #[test]
    fn em_3_nothing_is_fetched() {
        for (url, scheme) in [
            ("https://example.com/a.png", "https:"),
            ("HTTP://127.0.0.1/x", "http:"),
            ("file:///etc/passwd", "file:"),
            ("ftp://x", "ftp:"),
        ] {
            assert_eq!(of(url), Err(ImageError::Elsewhere(scheme.to_owned())));
        }
        assert!(of("https://example.com").unwrap_err().to_string().contains("as a data: URL"));
        for url in
            ["", "/etc/passwd", "iVBORw0KGgo=", "data:image/png;base64", "data:image/png;base64,", "data:;base64,@"]
        {
            assert!(matches!(of(url), Err(ImageError::Url(_))), "{url}");
        }
    }

    #[test]
    fn em_3_a_large_file_is_refused_before_it_is_decoded() {
        let long = format!("data:;base64,{}", "!".repeat(1_000));
        assert_eq!(of(&long), Err(ImageError::FileTooLarge { bytes: 750, limit: 8 }));
        assert_eq!(of("data:;base64,AAAAAAAAAAA="), Ok(vec![0; 8]));
        assert_eq!(of("data:;base64,AAAAAAAAAAAA"), Err(ImageError::FileTooLarge { bytes: 9, limit: 8 }));
        assert_eq!(of("data:,%00%00%00%00%00%00%00%00"), Ok(vec![0; 8]));
        assert_eq!(of("data:,aaaaaaaaa"), Err(ImageError::FileTooLarge { bytes: 9, limit: 8 }));
    }
}
