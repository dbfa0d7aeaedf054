//! Invalid headers, each with a fault in one place: the error must name the place and the fault.

use super::*;

/// A file with one key and two tensors.
fn small() -> Vec<u8> {
    let mut header = HeaderWriter::new();
    header.set("general.architecture", "llama").unwrap();
    header.tensor("a", TensorType::F32, &[2, 3]).unwrap();
    header.tensor("b", TensorType::Q8_0, &[2, 32]).unwrap();
    let mut body = header.begin(Vec::new()).unwrap();
    body.write(&[1; 24]).unwrap();
    body.write(&[2; 68]).unwrap();
    body.finish().unwrap()
}

/// A header from its words, without padding or data.
struct Raw(Vec<u8>);

impl Raw {
    fn new(tensors: u64, keys: u64) -> Self {
        let mut raw = Self(b"GGUF".to_vec());
        raw.0.extend(3_u32.to_le_bytes());
        raw.u64(tensors).u64(keys);
        raw
    }

    fn u32(&mut self, word: u32) -> &mut Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn u64(&mut self, word: u64) -> &mut Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn name(&mut self, name: &[u8]) -> &mut Self {
        self.u64(name.len() as u64);
        self.0.extend(name);
        self
    }

    fn tensor(&mut self, name: &[u8], dims: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.name(name).u32(dims.len() as u32);
        for dim in dims {
            self.u64(*dim);
        }
        self.u32(kind).u64(offset)
    }

    /// Adds the padding before the data, and this many bytes of data.
    fn data(&mut self, bytes: usize) -> &mut Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + bytes, 0);
        self
    }

    fn error(&self) -> String {
        Header::parse(&self.0).unwrap_err().to_string()
    }
}

#[test]
fn what_was_written_is_read() {
    let file = small();
    let header = Header::parse(&file).unwrap();
    assert_eq!(header.version(), 3);
    assert_eq!(header.need::<&str>("general.architecture"), Ok("llama"));
    let a = header.tensor("a").unwrap();
    assert_eq!((a.shape(), a.kind, a.bytes, a.elements()), (&[2, 3][..], TensorType::F32, 24, 6));
    let b = header.tensor("b").unwrap();
    assert_eq!((b.shape(), b.kind, b.bytes), (&[2, 32][..], TensorType::Q8_0, 68));
    assert_eq!(&file[a.offset as usize..][..24], &[1; 24]);
    assert_eq!(&file[b.offset as usize..][..68], &[2; 68]);
    assert_eq!(a.offset % 32, 0);
    assert_eq!(b.offset, a.offset + 32);
    assert!(header.tensor("c").is_none());
}

#[test]
fn version_two_is_read_the_same() {
    let mut file = small();
    file[4] = 2;
    assert_eq!(Header::parse(&file).unwrap().version(), 2);
}

#[test]
fn other_files_are_named() {
    let error = |bytes: &[u8]| Header::parse(bytes).unwrap_err().to_string();
    assert_eq!(error(b"PK\x03\x04...."), r"GGUF header: not a GGUF file (it begins with PK\x03\x04)");
    assert!(error(b"tjgg\x03\0\0\0").contains("GGJT"));
    assert!(error(b"GGUF\x01\0\0\0").contains("GGUF version 1 is not supported"));
    assert!(error(b"GGUF\0\0\0\x03").contains("big-endian"));
    assert!(error(b"GGUF\x04\0\0\0").contains("version 4"));
    assert!(error(b"GG").contains("cut short"));
    assert!(error(b"").contains("cut short"));
}

#[test]
fn twenty_four_bytes_that_claim_gigabytes_are_refused() {
    for (tensors, keys) in [(u64::MAX, 0), (0, u64::MAX), (1 << 32, 1 << 32), (1, 0), (0, 1)] {
        assert!(Raw::new(tensors, keys).error().contains("there can be at most 0"));
    }
    let mut raw = Raw::new(0, 1);
    raw.u64(1 << 40).data(32);
    assert!(raw.error().contains("metadata key number 0: a key's name needs 1099511627776 bytes"), "{}", raw.error());
    let mut raw = Raw::new(0, 1);
    raw.name(b"k").u32(8).u64(u64::MAX);
    assert!(raw.error().contains("`k`: a string needs 18446744073709551615 bytes"), "{}", raw.error());
}

#[test]
fn arrays_are_counted_before_they_are_believed() {
    for kind in 0..=12 {
        let mut raw = Raw::new(0, 1);
        raw.name(b"k").u32(9).u32(kind).u64(1 << 61).data(64);
        let wanted = if kind == 9 { "an array of arrays" } else { "claims 2305843009213693952 array elements" };
        assert!(raw.error().contains(wanted), "{}", raw.error());
    }
    let mut raw = Raw::new(0, 1);
    raw.name(b"k").u32(9).u32(8).u64(2).name(b"one").u64(99);
    assert!(raw.error().contains("`k`: a string of an array needs 99 bytes"), "{}", raw.error());
    let mut raw = Raw::new(0, 1);
    raw.name(b"k").u32(13).u64(0);
    assert!(raw.error().contains("unknown value type 13"));
    let mut raw = Raw::new(0, 1);
    raw.name(b"k").u32(7).0.push(2);
    assert!(raw.error().contains("a truth value of 2"));
}

#[test]
fn names_are_unique_short_text() {
    let mut raw = Raw::new(0, 2);
    raw.name(b"k").u32(7).0.push(1);
    raw.name(b"k").u32(7).0.push(1);
    assert_eq!(raw.error(), "GGUF metadata key `k`: the name stands twice in the file");
    let mut raw = Raw::new(0, 1);
    raw.name(b"\xff").u32(7).0.push(1);
    assert!(raw.error().contains("not UTF-8"));
    let mut raw = Raw::new(0, 1);
    raw.name(&vec![b'k'; 65536]).u32(7).0.push(1);
    assert!(raw.error().contains("65536 bytes long"));
    let mut raw = Raw::new(2, 0);
    raw.tensor(b"t", &[8], 0, 0).tensor(b"t", &[8], 0, 32).data(64);
    assert_eq!(raw.error(), "GGUF tensor `t`: the name stands twice in the file");
}

#[test]
fn alignments_are_powers_of_two_up_to_a_mebibyte() {
    let with = |kind: u32, word: u32| {
        let mut raw = Raw::new(0, 1);
        raw.name(b"general.alignment").u32(kind).u32(word);
        raw.0
    };
    for good in [1, 2, 64, 4096, 1 << 20] {
        assert_eq!(Header::parse(&with(4, good)).unwrap().alignment(), u64::from(good));
    }
    for bad in [0, 3, 48, 1 << 21, u32::MAX] {
        let error = Header::parse(&with(4, bad)).unwrap_err().to_string();
        assert!(error.contains("is not a power of two"), "{error}");
    }
    let error = Header::parse(&with(6, 32)).unwrap_err().to_string();
    assert!(error.contains("the alignment is a f32"), "{error}");
}

#[test]
fn tensors_lie_inside_the_file_aligned_and_apart() {
    let with = |dims: &[u64], kind: u32, offset: u64| {
        let mut raw = Raw::new(2, 0);
        raw.tensor(b"first", &[8], 0, 0).tensor(b"t", dims, kind, offset).data(96);
        raw
    };
    assert!(Header::parse(&with(&[8], 0, 32).0).is_ok());
    assert!(Header::parse(&with(&[], 0, 32).0).unwrap().tensor("t").unwrap().shape().is_empty());
    for (raw, wanted) in [
        (with(&[8], 0, 16), "its offset 16 is no multiple of the alignment 32"),
        (with(&[8], 0, 0), "its bytes overlap those of tensor `first`"),
        (with(&[8], 0, 96), "its bytes 96+32 of the data do not lie inside the file (which holds 96 bytes of data)"),
        (with(&[8], 0, u64::MAX - 31), "do not lie inside the file"),
        (with(&[1 << 32, 1 << 32], 0, 32), "does not fit in 64 bits"),
        (with(&[1 << 62], 0, 32), "does not fit in 64 bits"),
        (with(&[1, 1, 1, 1, 1], 0, 32), "5 dimensions; the format allows 4"),
        (with(&[4, 0], 0, 32), "dimension 1 is zero"),
        (with(&[16, 2], 8, 32), "rows of 16 elements are no whole number of Q8_0 blocks of 32"),
        (with(&[8], 4, 32), "its type Q4_2 was removed"),
        (with(&[8], 99, 32), "its type number 99 is not known"),
    ] {
        assert!(raw.error().contains(wanted) && raw.error().contains("GGUF tensor `"), "{}", raw.error());
    }
}

#[test]
fn a_prefix_says_how_much_more_it_needs() {
    let file = small();
    let mut known = 0;
    let mut asked = 0;
    let header = loop {
        match Header::parse_prefix(&file[..known], file.len() as u64) {
            Ok(header) => break header,
            Err(HeaderError { fault: HeaderFault::Incomplete { until }, .. }) => {
                assert!(until as usize > known && until as usize <= file.len());
                known = until as usize;
                asked += 1;
            }
            Err(other) => panic!("{other}"),
        }
    };
    assert!(asked > 3 && known <= header.data_start() as usize);
    assert_eq!(header.tensor("b").unwrap().bytes, 68);
}

#[test]
fn types_that_cannot_be_computed_are_refused_by_name() {
    let mut header = HeaderWriter::new();
    header.tensor("fine", TensorType::Q4_K, &[256]).unwrap();
    header.tensor("blk.0.ffn_up.weight", TensorType::IQ2_XS, &[2, 256]).unwrap();
    let mut body = header.begin(Vec::new()).unwrap();
    body.write(&[0; 144]).unwrap();
    body.write(&[0; 148]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, body.finish().unwrap()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.header().unwrap().tensors().len(), 2);
    let error = file.computable_header().unwrap_err().to_string();
    assert!(error.ends_with(
        "model.gguf: tensor `blk.0.ffn_up.weight` is IQ2_XS, which this worker cannot compute; llama-server can run it"
    ));
}

#[test]
fn file_errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let absent = GgufFile::open(&folder.path().join("absent.gguf")).unwrap_err().to_string();
    assert!(absent.contains("cannot open") && absent.contains("absent.gguf"), "{absent}");
    assert!(GgufFile::open(folder.path()).is_err());
    let path = folder.path().join("empty.gguf");
    std::fs::write(&path, b"").unwrap();
    let empty = GgufFile::open(&path).unwrap().header().unwrap_err().to_string();
    assert!(empty.contains("empty.gguf: GGUF header: the magic needs 4 bytes"), "{empty}");
}

#[test]
fn typed_keys_say_what_they_wanted() {
    let mut writer = HeaderWriter::new();
    writer.set("int", &7_i32).unwrap();
    writer.set("minus", &-1_i64).unwrap();
    writer.set("float", &0.5_f32).unwrap();
    writer.set("yes", &true).unwrap();
    writer.set("strings", &["a", "b"][..]).unwrap();
    writer.set("numbers", &[1_u16, 2][..]).unwrap();
    writer.set("none", &[0_u32; 0][..]).unwrap();
    let file = writer.begin(Vec::new()).unwrap().finish().unwrap();
    let header = Header::parse(&file).unwrap();
    assert_eq!((header.need::<u32>("int"), header.need::<u64>("int")), (Ok(7), Ok(7)));
    assert_eq!(header.need::<i64>("minus"), Ok(-1));
    assert_eq!((header.need::<f32>("float"), header.need::<bool>("yes")), (Ok(0.5), Ok(true)));
    assert_eq!(header.find::<u32>("absent"), Ok(None));
    assert_eq!(header.need::<Strings<'_>>("strings").unwrap().collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(header.need::<Array<'_>>("numbers").unwrap().integers(), Some(vec![1, 2]));
    assert_eq!(header.need::<Array<'_>>("numbers").unwrap().floats(), Some(vec![1.0, 2.0]));
    assert!(header.need::<Array<'_>>("none").unwrap().is_empty());
    assert_eq!(header.need::<Strings<'_>>("none").unwrap().count(), 0);
    let text = |error: KeyError| error.to_string();
    assert_eq!(text(header.need::<u32>("absent").unwrap_err()), "the GGUF file lacks the metadata key `absent`");
    assert_eq!(
        text(header.need::<u32>("minus").unwrap_err()),
        "GGUF metadata key `minus` should be an unsigned 32-bit integer, but is i64 (I64(-1))"
    );
    assert_eq!(
        text(header.need::<&str>("strings").unwrap_err()),
        "GGUF metadata key `strings` should be a string, but is an array of 2 string"
    );
}

#[test]
fn metadata_of_another_file_can_be_copied() {
    let mut writer = HeaderWriter::new();
    writer.set("s", "text").unwrap();
    writer.set("a", &["x", ""][..]).unwrap();
    writer.set("n", &[1.5_f32][..]).unwrap();
    writer.set("b", &false).unwrap();
    let first = writer.begin(Vec::new()).unwrap().finish().unwrap();
    let mut copy = HeaderWriter::new();
    for (key, value) in Header::parse(&first).unwrap().metadata() {
        copy.set(key, value).unwrap();
    }
    assert_eq!(copy.begin(Vec::new()).unwrap().finish().unwrap(), first);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = HeaderWriter::new();
    writer.tensor("t", TensorType::Q8_0, &[2, 32]).unwrap();
    assert!(matches!(writer.tensor("t", TensorType::F32, &[1]), Err(WriteError::Duplicate(_))));
    assert!(matches!(writer.tensor("u", TensorType::Q8_0, &[32, 2]), Err(WriteError::Tensor { .. })));
    assert!(matches!(writer.tensor("u", TensorType::F32, &[1, 1, 1, 1, 1]), Err(WriteError::Tensor { .. })));
    assert!(matches!(writer.tensor("u", TensorType::F32, &[0]), Err(WriteError::Tensor { .. })));
    assert!(matches!(writer.tensor("", TensorType::F32, &[1]), Err(WriteError::Name(0))));
    assert!(matches!(writer.set("general.alignment", &64_u32), Err(WriteError::Alignment)));
    let mut body = writer.begin(Vec::new()).unwrap();
    assert_eq!(body.due(), Some("t"));
    body.write(&[0; 60]).unwrap();
    assert!(matches!(body.write(&[0; 9]), Err(WriteError::TooLong { excess: 1, .. })));
    body.write(&[0; 8]).unwrap();
    assert_eq!(body.due(), None);
    assert!(matches!(body.write(&[0]), Err(WriteError::NoTensorDue)));
    assert!(body.finish().is_ok());

    let mut writer = HeaderWriter::new();
    writer.tensor("t", TensorType::F32, &[1]).unwrap();
    let error = writer.begin(Vec::new()).unwrap().finish().unwrap_err();
    assert_eq!(error.to_string(), "tensor `t` lacks 4 bytes");
}
