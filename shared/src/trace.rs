//! W3C Trace Context, as far as it is passed on: <https://www.w3.org/TR/trace-context/>.

/// Bytes of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// `text` as a `traceparent` of version 00: version, trace id, parent id and flags, in lower-case hexadecimal digits
/// separated by `-`. `None` if it is malformed; treat that as absent. From a later version only the fields of version
/// 00 are kept, as the standard says, and from the flags only `sampled`.
#[must_use]
pub fn traceparent(text: &str) -> Option<String> {
    let head = text.get(..LENGTH)?;
    let parts: Vec<&str> = head.split('-').collect();
    let [version, trace, parent, flags] = parts.as_slice() else { return None };
    let is_hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_id = |part: &str, digits: usize| is_hex(part, digits) && part.bytes().any(|b| b != b'0');
    let ends_well = match *version {
        "00" => text.len() == LENGTH,
        _ => text.len() == LENGTH || text.as_bytes()[LENGTH] == b'-',
    };
    let is_good = is_hex(version, 2) && *version != "ff" && is_id(trace, 32) && is_id(parent, 16) && is_hex(flags, 2);
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1;
    (is_good && ends_well).then(|| format!("00-{trace}-{parent}-{sampled:02x}"))
}
