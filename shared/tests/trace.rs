//! Which trace contexts are accepted.

use shared::trace::*;

#[test]
fn only_what_the_standard_allows_is_taken() {
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(traceparent(good).as_deref(), Some(good));
    for later in [good.replacen("00", "01", 1), format!("{}-more", good.replacen("00", "cc", 1))] {
        assert_eq!(traceparent(&later).as_deref(), Some(good), "{later}");
    }
    for (flags, known) in [("00", "00"), ("ff", "01"), ("03", "01"), ("02", "00"), ("fe", "00")] {
        let (sent, kept) = (good.replace("-01", &format!("-{flags}")), good.replace("-01", &format!("-{known}")));
        assert_eq!(traceparent(&sent), Some(kept), "{flags}");
    }
    let zeros = |ids: &str| good.replace(ids, &"0".repeat(ids.len()));
    for bad in [
        String::new(),
        good[..54].to_owned(),
        format!("{good}0"),
        format!("{good}-more"),
        format!("{}x", good.replacen("00", "01", 1)),
        good.replacen("00", "ff", 1),
        good.to_uppercase(),
        good.replace('-', "_"),
        good.replace("0af7", "0ag7"),
        good.replace("-01", "-0g"),
        zeros("0af7651916cd43dd8448eb211c80319c"),
        zeros("b7ad6b7169203331"),
        format!("00-{}-b7ad6b7169203331-01", "ü".repeat(16)),
        format!("{}ü", &good[..54]),
    ] {
        assert_eq!(traceparent(&bad), None, "{bad}");
    }
}
