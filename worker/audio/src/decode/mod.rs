//! Decoding: files of clients become samples, within limits.
