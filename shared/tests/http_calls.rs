//! What statuses mean, how values stand in URLs, and which addresses are never called.

use shared::expression::Template;
use shared::workflow::http::*;
use std::net::IpAddr;

fn call(method: &str, more: serde_json::Value) -> Http {
    let mut all = serde_json::json!({"url": "https://crm.example/", "method": method});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

// A2: the rules of statuses, from the most to the least precise.
#[test]
fn a_status_means_what_the_file_says_of_it_then_of_its_class_then_what_is_usual() {
    use Meaning::{Done, Permanent, Transient};
    let usual = call("POST", serde_json::json!({}));
    let delete = call("DELETE", serde_json::json!({}));
    let own = call(
        "POST",
        serde_json::json!({"done": [409, 302], "transient": [202, 404, "5xx"], "permanent": [503, "4xx"]}),
    );
    let table = [
        (200, [Done, Done, Done]),
        (202, [Done, Done, Transient]),
        (301, [Permanent, Permanent, Permanent]),
        (302, [Permanent, Permanent, Done]),
        (400, [Permanent, Permanent, Permanent]),
        (404, [Permanent, Done, Transient]),
        (408, [Transient, Transient, Permanent]),
        (409, [Permanent, Permanent, Done]),
        (410, [Permanent, Done, Permanent]),
        (425, [Transient, Transient, Permanent]),
        (429, [Transient, Transient, Permanent]),
        (500, [Transient, Transient, Transient]),
        (501, [Permanent, Permanent, Transient]),
        (503, [Transient, Transient, Permanent]),
        (700, [Permanent, Permanent, Permanent]),
    ];
    for (status, wanted) in table {
        assert_eq!([&usual, &delete, &own].map(|http| http.meaning(status)), wanted, "{status}");
    }
}

#[test]
fn values_are_encoded_where_they_stand_in_a_url() {
    let http = Http {
        url: Template::literal("https://x.example/{order_id}/{step}?of={order_id}"),
        ..call("PUT", serde_json::json!({}))
    };
    assert_eq!(http.url_for("a/../b?c", "s-1"), "https://x.example/a%2F..%2Fb%3Fc/s-1?of=a%2F..%2Fb%3Fc");
    assert_eq!(encoded("é %"), "%C3%A9%20%25");
}

#[test]
fn braces_come_in_pairs() {
    assert_eq!(placeholders("a{b}c{}"), Some(vec!["b", ""]));
    for wrong in ["{", "}", "{a", "a}", "{{a}}", "{a}}"] {
        assert_eq!(placeholders(wrong), None, "{wrong}");
    }
}

// A machine's link-local addresses, in every spelling.
#[test]
fn what_is_on_the_link_is_never_called() {
    let table = [
        ("192.0.2.7", true, true),
        ("10.0.0.1", true, true),
        ("2001:db8::1", true, true),
        ("fd12::1", true, true),
        ("127.0.0.1", true, false),
        ("::1", true, false),
        ("::ffff:127.0.0.1", true, false),
        ("169.254.169.254", false, false),
        ("::ffff:169.254.169.254", false, false),
        ("fe80::1", false, false),
        ("fd00:ec2::254", false, false),
        ("fd00:ec2::23", false, false),
        ("fd00:ec2:ffff::1", false, false),
        ("fd00:ec3::254", true, true),
        ("0.0.0.0", false, false),
        ("::", false, false),
        ("255.255.255.255", false, false),
        ("224.0.0.1", false, false),
        ("ff02::1", false, false),
    ];
    for (address, here, on_aws) in table {
        let ip: IpAddr = address.parse().unwrap();
        assert_eq!((may_call(ip, true), may_call(ip, false)), (here, on_aws), "{address}");
    }
}

#[test]
fn a_status_is_read_and_written_as_it_is_spelled() {
    let all: Vec<Status> = serde_json::from_str(r#"[429,"5xx"]"#).unwrap();
    assert_eq!(serde_json::to_string(&all).unwrap(), r#"[429,"5xx"]"#);
    for wrong in ["99", "600", "\"6xx\"", "\"5XX\"", "\"50x\"", "\"429\"", "true"] {
        let error = serde_json::from_str::<Status>(wrong).unwrap_err().to_string();
        assert!(error.contains("5xx"), "{wrong}: {error}");
    }
}
