//! Pictures that clients send: decoding ends in a picture within its limits, or in an error. A decoded picture is
//! written without loss, and a mask of it has its size.

#![no_main]

use libfuzzer_sys::fuzz_target;
use model_boss_images::{
    ImageHeader, ImageLimits, PictureFormat, PictureOrigin, decode, decode_mask, encode, image_bytes,
};

fuzz_target!(|file: &[u8]| {
    let limits = ImageLimits { file_bytes: 1 << 16, pixels: 1 << 16, count: 1 };
    if let Ok(url) = std::str::from_utf8(file)
        && let Ok(bytes) = image_bytes(url, &limits)
    {
        assert!(!bytes.is_empty() && bytes.len() as u64 <= limits.file_bytes);
    }
    let header = ImageHeader::read(file, &limits);
    let mask = decode_mask(file, &limits);
    let Ok(picture) = decode(file, &limits) else {
        assert!(mask.is_err());
        return;
    };
    let header = header.expect("a picture that is decoded has a header");
    assert_eq!((header.width as usize, header.height as usize), (picture.width, picture.height));
    assert!((picture.width * picture.height) as u64 <= limits.pixels);
    let mask = mask.expect("a picture that is decoded is a mask");
    assert_eq!((mask.width, mask.height, mask.bytes.len()), (picture.width, picture.height, picture.bytes.len() / 3));
    let format = if file.len() % 2 == 0 { PictureFormat::Png } else { PictureFormat::WebP };
    if let Ok(written) = encode(&picture, format, PictureOrigin::Edited) {
        let wide = ImageLimits { file_bytes: u64::MAX, ..limits };
        assert!(decode(&written, &wide).expect("our own file is read") == picture);
    }
});
