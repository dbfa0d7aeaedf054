//! Any bytes as a form, in pieces of any size: it is read within its limits, or refused; what is read of a part is a
//! part of the bytes.
#![no_main]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::stream::iter;
use libfuzzer_sys::fuzz_target;
use multer::{Constraints, Multipart, SizeLimit};

/// The largest part that is no file, as routes limit it.
const LONGEST_FIELD: u64 = 4 << 10;

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (size, bytes) = input;
    let pieces: Vec<Result<Bytes, std::io::Error>> =
        bytes.chunks(usize::from(size).max(1)).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let limits = SizeLimit::new().per_field(LONGEST_FIELD).for_field("file", 1 << 20);
    let read = async {
        let mut form = Multipart::with_constraints(iter(pieces), "edge", Constraints::new().size_limit(limits));
        let mut total = 0;
        while let Ok(Some(mut field)) = form.next_field().await {
            let most = if field.name() == Some("file") { 1 << 20 } else { LONGEST_FIELD };
            let mut length = 0;
            while let Ok(Some(piece)) = field.chunk().await {
                length += piece.len() as u64;
            }
            assert!(length <= most, "a part is over its limit");
            total += length;
        }
        assert!(total <= bytes.len() as u64, "more was read than was sent");
    };
    // All pieces are there, so nothing is ever waited for.
    let mut read = pin!(read);
    assert!(matches!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(())));
});
