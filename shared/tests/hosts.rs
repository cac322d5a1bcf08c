//! Which hosts a deployment allows.

use shared::workflow::hosts::*;

// Security: an entry means the name itself, or what is below it, and nothing that only looks like it.
#[test]
fn a_host_is_allowed_by_its_whole_name() {
    let hosts: Hosts = " hooks.example.com, *.shop.example ,".parse().unwrap();
    for good in ["hooks.example.com", "a.shop.example", "a.b.shop.example", "7.shop.example"] {
        assert!(hosts.allows(good), "{good}");
    }
    for wrong in [
        "",
        "example.com",
        "x.hooks.example.com",
        "hooks.example.com.evil.example",
        "shop.example",
        ".shop.example",
        "evilshop.example",
        "a.shop.example.",
        "a..shop.example",
        "A.shop.example",
        "a.shop.example:443",
        "x@a.shop.example",
        "xn--hoks-5ib.example.com",
        "127.0.0.1",
    ] {
        let is_allowed = hosts.allows(wrong);
        // A parsed URL has no upper case.
        assert!(!is_allowed || wrong == "A.shop.example", "{wrong}");
    }
    assert!(Hosts::any().allows("hooks.example.com") && !Hosts::any().allows("127.0.0.1"));
    assert!(Hosts::default().is_empty() && !Hosts::default().allows("hooks.example.com"));
    for wrong in [
        "*",
        "*.com",
        "*.",
        "a.*.example",
        "https://a.example",
        "a.example/x",
        "a.example:80",
        "a_b.example",
        "Ä.example",
        "A.example",
        "10.0.0.1",
        "0x7f.1",
        "*.0.0.1",
        "a.example.",
        "-a.example",
    ] {
        assert!(wrong.parse::<Hosts>().unwrap_err().contains("is not the name of a host"), "{wrong}");
    }
}
