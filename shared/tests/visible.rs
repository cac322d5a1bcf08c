//! Text that acts on a terminal.

use shared::visible::*;

#[test]
fn what_acts_on_a_terminal_is_shown_instead() {
    for (text, shown) in [
        ("plain äöü 日本 👩‍🚀", "plain äöü 日本 👩‍🚀"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\u{1b}[2J\u{7}\u{9b}1m\u{7f}", "\\u001b[2J\\u0007\\u009b1m\\u007f"),
        ("gpj.\u{202e}exe\u{2066}\u{200f}\u{61c}", "gpj.\\u202eexe\\u2066\\u200f\\u061c"),
        ("a\u{2028}b\u{2029}c\u{feff}", "a\\u2028b\\u2029c\\ufeff"),
    ] {
        assert_eq!(visible(text), shown);
    }
}
