//! The text of paths and query strings. The local stack, functions and tools read a request by
//! these functions only. A part that two of them read differently passes the check of one of them.

use percent_encoding::percent_decode_str;

/// The error for a part of a URL whose bytes are no text. It holds the part, as it was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not UTF-8 after its percent-encoding")]
pub struct NoText(pub String);

/// Decodes a path, or a segment of one.
///
/// # Errors
/// When its bytes are no UTF-8.
pub fn decode_path(raw: &str) -> Result<String, NoText> {
    let decoded = percent_decode_str(raw).decode_utf8();
    decoded.map(Into::into).map_err(|_| NoText(raw.to_owned()))
}

/// Decodes the names and values of a query string, in their order (WHATWG URL Standard,
/// "application/x-www-form-urlencoded parsing").
///
/// # Errors
/// When the bytes of a name or value are no UTF-8.
pub fn decode_query(raw: &str) -> Result<Vec<(String, String)>, NoText> {
    let pairs = raw.split('&').filter(|pair| !pair.is_empty());
    let decode = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let [name, value] = [name, value].map(|text| decode_path(&text.replace('+', " ")));
        name.and_then(|name| Ok((name, value?))).map_err(|_| NoText(pair.to_owned()))
    };
    pairs.map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_one_reading_in_every_spelling() {
        for raw in ["wait=a+b", "%77ait=a%20b", "w%61it=%61+b", "&wait=a%20%62&"] {
            assert_eq!(decode_query(raw).unwrap(), [("wait".into(), "a b".into())], "{raw}");
        }
        let pairs =
            [("a=b", "a", "b"), ("a%3Db=c", "a=b", "c"), ("a=b=c", "a", "b=c"), ("a", "a", "")];
        for (raw, name, value) in pairs {
            assert_eq!(decode_query(raw).unwrap(), [(name.into(), value.into())], "{raw}");
        }
        assert_eq!(decode_query("a=100%&a=%zz&a=%252B").unwrap().len(), 3);
        assert_eq!(decode_query("a=%252B").unwrap()[0].1, "%2B", "nothing is decoded twice");
        assert_eq!(decode_path("/a+b%2Fc%20d").unwrap(), "/a+b/c d");
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        for part in ["%FF", "a%C3", "%C3%28", "%ED%A0%80", "%C0%AF"] {
            assert_eq!(decode_path(part), Err(NoText(part.into())), "{part}");
            for pair in [format!("owner={part}"), format!("{part}=ada")] {
                assert_eq!(decode_query(&format!("limit=1&{pair}")), Err(NoText(pair)));
            }
        }
    }
}
