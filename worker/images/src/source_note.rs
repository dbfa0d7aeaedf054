//! The note in a picture's file that a model has made it: IPTC's digital source type, as XMP.

/// Where a picture comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureOrigin {
    /// A model painted all of it.
    Painted,
    /// A model painted it over a given one, or parts of it.
    Edited,
}

impl PictureOrigin {
    /// The name in IPTC's list of digital source types (<https://cv.iptc.org/newscodes/digitalsourcetype>).
    pub const fn source_type(self) -> &'static str {
        match self {
            Self::Painted => "trainedAlgorithmicMedia",
            Self::Edited => "compositeWithTrainedAlgorithmicMedia",
        }
    }

    /// The note as a packet of XMP (ISO 16684-1).
    pub(crate) fn packet(self) -> String {
        format!(
            "<?xpacket begin=\"\u{feff}\" id=\"W5M0MpCehiHzreSzNTczkc9d\"?><x:xmpmeta xmlns:x=\"adobe:ns:meta/\"><rdf:RDF \
             xmlns:rdf=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\"><rdf:Description rdf:about=\"\" \
             xmlns:xmp=\"http://ns.adobe.com/xap/1.0/\" \
             xmlns:Iptc4xmpExt=\"http://iptc.org/std/Iptc4xmpExt/2008-02-29/\" xmp:CreatorTool=\"model-boss\" \
             Iptc4xmpExt:DigitalSourceType=\"http://cv.iptc.org/newscodes/digitalsourcetype/{}\"/></rdf:RDF></x:xmpmeta>\
             <?xpacket end=\"r\"?>",
            self.source_type()
        )
    }
}
