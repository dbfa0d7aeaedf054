//! Images beside Pillow and the image processors of `transformers`: the cases of `scripts/reference/images.py`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model_boss_images::{ImageError, ImageHeader, ImageLimits, PixelPlan, Resample, RgbImage, decode, resize};
use serde_json::Value;

fn cases() -> Value {
    serde_json::from_str(include_str!("images.json")).unwrap()
}

fn all<'a>(cases: &'a Value, field: &str) -> &'a [Value] {
    cases[field].as_array().unwrap()
}

fn bytes(case: &Value, field: &str) -> Vec<u8> {
    STANDARD.decode(case[field].as_str().unwrap()).unwrap()
}

fn number(case: &Value, field: &str) -> usize {
    case[field].as_u64().unwrap() as usize
}

fn image_of(cases: &Value, name: &str) -> RgbImage {
    let case = all(cases, "files").iter().find(|case| case["name"] == name).unwrap();
    RgbImage::new(number(case, "width"), number(case, "height"), bytes(case, "pixels")).unwrap()
}

/// The greatest difference of two bytes, and the mean one.
fn apart(one: &[u8], other: &[u8]) -> (u8, f64) {
    assert_eq!(one.len(), other.len());
    let all = one.iter().zip(other).map(|(one, other)| one.abs_diff(*other));
    let sum: u64 = all.clone().map(u64::from).sum();
    (all.max().unwrap(), sum as f64 / one.len() as f64)
}

#[test]
fn em_3_files_are_read_as_pillow_reads_them() {
    let cases = cases();
    let files = all(&cases, "files");
    assert!(files.len() >= 32, "cases are missing");
    for case in files {
        let (name, file) = (&case["name"], bytes(case, "file"));
        let limits = ImageLimits::default();
        let image = decode(&file, &limits).unwrap_or_else(|error| panic!("{name}: {error}"));
        let size = (number(case, "width"), number(case, "height"));
        assert_eq!((image.width, image.height), size, "{name}");
        let header = ImageHeader::read(&file, &limits).unwrap();
        assert_eq!((header.width as usize, header.height as usize), size, "{name}");
        let (most, mean) = apart(&image.bytes, &bytes(case, "pixels"));
        assert!(usize::from(most) <= number(case, "apart") && mean < 0.6, "{name}: {most} apart, {mean} in the mean");
    }
}

#[test]
fn em_3_resizing_is_pillows_to_the_bit() {
    let cases = cases();
    for case in all(&cases, "resizes") {
        let image = image_of(&cases, case["file"].as_str().unwrap());
        let filter = Resample::of_number(number(case, "number") as u64).unwrap();
        let (width, height) = (number(case, "width"), number(case, "height"));
        let resized = resize(&image, width, height, filter);
        assert_eq!(apart(&resized.bytes, &bytes(case, "pixels")).0, 0, "{filter:?} to {width}x{height}");
    }
}

#[test]
fn em_3_numbers_are_those_of_transformers_within_one_unit() {
    let cases = cases();
    for case in all(&cases, "plans") {
        let plan = if case["kind"] == "clip" { PixelPlan::CLIP } else { PixelPlan::SIGLIP };
        let steps = plan.steps(&case["fields"]).unwrap();
        let planes = steps.planes(image_of(&cases, case["file"].as_str().unwrap())).unwrap();
        let shape: Vec<usize> =
            case["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
        assert_eq!([3, planes.height, planes.width].as_slice(), shape, "{case}");
        let unit = |colour: usize| {
            let deviation = steps.normal.map_or(1.0, |(_, deviation)| deviation[colour]);
            steps.factor.unwrap_or(1.0) as f32 / deviation
        };
        let area = planes.width * planes.height;
        for (at, (one, other)) in planes.values.iter().zip(case["numbers"].as_array().unwrap()).enumerate() {
            let difference = (one - other.as_f64().unwrap() as f32).abs();
            assert!(difference <= unit(at / area) * 1.01 + 1e-4, "{}: {difference} apart at {at}", case["fields"]);
        }
    }
}

#[test]
fn em_3_bombs_are_refused_by_their_header() {
    let cases = cases();
    let file_of = |name: &str| bytes(all(&cases, "files").iter().find(|case| case["name"] == name).unwrap(), "file");
    let limits = ImageLimits { file_bytes: 100_000, pixels: 116, count: 1 };
    // 13 x 9 pixels.
    for name in ["colour.png", "colour.bmp", "palette.gif", "lossless.webp", "pictures.webp"] {
        let refusal = ImageError::TooManyPixels { width: 13, height: 9, limit: 116 };
        assert_eq!(decode(&file_of(name), &limits), Err(refusal.clone()), "{name}");
        assert_eq!(ImageHeader::read(&file_of(name), &limits), Err(refusal), "{name}");
    }
    assert!(decode(&file_of("photo.jpg"), &limits).unwrap_err().is_too_large());
    // A header of four thousand million pixels, and nothing behind it.
    let mut huge = file_of("colour.png");
    huge[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    assert!(decode(&huge, &ImageLimits::default()).is_err());
    let short = ImageLimits { file_bytes: 10, ..ImageLimits::default() };
    let png = file_of("colour.png");
    assert_eq!(decode(&png, &short), Err(ImageError::FileTooLarge { bytes: png.len() as u64, limit: 10 }));
}

#[test]
fn em_3_damaged_files_are_refused() {
    let cases = cases();
    let limits = ImageLimits::default();
    for case in all(&cases, "files") {
        let file = bytes(case, "file");
        // A JPEG that ends early may be read as far as it goes.
        let cut = decode(&file[..file.len() / 2], &limits);
        assert!(cut.is_err() || case["name"].as_str().unwrap().contains("jpg"), "{}", case["name"]);
        for at in (0..file.len()).step_by(11) {
            let mut broken = file.clone();
            broken[at] ^= 0x5a;
            let _ = decode(&broken, &limits);
        }
    }
    for other in
        [b"".as_slice(), b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\0\0\0\x1cftypavif\0\0\0\0avifmif1"]
    {
        assert_eq!(decode(other, &limits), Err(ImageError::UnknownFormat));
    }
    assert!(matches!(decode(b"\x89PNG\r\n\x1a\n", &limits), Err(ImageError::Damaged(_))));
}
