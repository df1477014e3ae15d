//! The stored forms of a payload, the `data` of an event or of a state: JSON text (`S`), or the gzip
//! of that text (`B`). The type of the attribute tells them apart, and a stream may have both.

use std::io::{Read, Write};

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use ledgerline::Commit;

/// The most bytes of the payloads of an item. A small item can hold the gzip of far more, which
/// would take the memory of the function.
pub(crate) const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Returns the stored form of a payload of JSON text: the gzip if the text has more bytes than
/// `compress_over`.
pub(crate) fn to_attribute(json: &str, compress_over: usize) -> AttributeValue {
    match compress(json, compress_over) {
        Some(gzip) => AttributeValue::B(Blob::new(gzip)),
        None => AttributeValue::S(json.to_owned()),
    }
}

/// Returns the number of bytes of the stored form.
pub(crate) fn stored_bytes(json: &str, compress_over: usize) -> usize {
    compress(json, compress_over).map_or(json.len(), |gzip| gzip.len())
}

/// Returns the number of bytes of the JSON text of all payloads of a commit.
pub(crate) fn text_bytes(commit: &Commit) -> usize {
    let events = commit.events.iter().map(|event| event.data.len());
    events.chain(commit.state.iter().map(|state| state.data.len())).sum()
}

fn compress(json: &str, compress_over: usize) -> Option<Vec<u8>> {
    (json.len() > compress_over).then(|| gzip(json))
}

pub(crate) fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writes into memory have no error.
    let _ = encoder.write_all(text.as_bytes());
    encoder.finish().unwrap_or_default()
}

/// Returns the JSON text of a gzip, if it is one and has at most `room` bytes of text, and reduces
/// `room` by them.
pub(crate) fn decompress(gzip: &[u8], room: &mut usize) -> Option<String> {
    let mut json = String::new();
    let mut decoder = MultiGzDecoder::new(gzip);
    decoder.by_ref().take(*room as u64).read_to_string(&mut json).ok()?;
    *room -= json.len();
    // At the end, the decoder checks the length and the checksum of the whole text.
    (decoder.read(&mut [0]).ok()? == 0).then_some(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    proptest! {
        #[test]
        fn every_payload_is_read_as_it_was_written(json in "[a-c\\u{0}-\\u{10ffff}]{0,300}", over in 0..400_usize) {
            let stored = to_attribute(&json, over);
            let (text, bytes) = match stored.as_b() {
                Ok(gzip) => (decompress(gzip.as_ref(), &mut { MAX_BYTES }), gzip.as_ref().len()),
                Err(_) => (stored.as_s().ok().cloned(), json.len()),
            };
            prop_assert_eq!(text.as_ref(), Some(&json));
            prop_assert_eq!(bytes, stored_bytes(&json, over));
            prop_assert_eq!(stored.is_b(), json.len() > over);
        }
    }

    /// Every tool reads gzip, in decades too. A change that fails this test makes stored payloads
    /// unreadable.
    #[test]
    fn a_stored_gzip_is_read() {
        let stored = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff\xabVJ\xcc\xcd/\xcd+Q\xb22\xd43\xa8\x05\0\x19\xa0\xa4\xe2\x0e\0\0\0";
        assert_eq!(decompress(stored, &mut { MAX_BYTES }).unwrap(), r#"{"amount":1.0}"#);
    }

    #[test]
    fn a_gzip_that_is_damaged_or_too_large_is_refused() {
        let whole = gzip(br#"{"amount":30}"#);
        let mut changed = whole.clone();
        changed[12] ^= 1;
        let most = decompress(&gzip(&[b' '; MAX_BYTES]), &mut { MAX_BYTES });
        assert_eq!(most.map(|json| json.len()), Some(MAX_BYTES));
        for (what, damaged) in [
            ("cut off", whole[..whole.len() - 1].to_vec()),
            ("changed", changed),
            ("with more behind it", [&whole[..], b"x"].concat()),
            ("no gzip", b"{}".to_vec()),
            ("empty", Vec::new()),
            ("no text", gzip(&[0xff, 0xfe])),
            ("a bomb", gzip(&[b' '; MAX_BYTES + 1])),
        ] {
            assert_eq!(decompress(&damaged, &mut { MAX_BYTES }), None, "{what}");
        }
    }
}
