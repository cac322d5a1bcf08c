//! Which host a request was meant for.
//!
//! A web page can make its own name point to this machine (DNS rebinding), but cannot make the browser send another
//! `Host` header: requests to names other than this machine's are refused.

use axum::http::{HeaderMap, Uri, Version, header, uri::Authority};

/// Why a request is refused before anything else in it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// RFC 9112, section 3.2: no `Host`, more than one, or one that is malformed. 400.
    Malformed(&'static str),
    /// RFC 9110, section 7.4: meant for another host. 421.
    Misdirected,
}

/// Lets requests to names of this machine through.
///
/// # Errors
/// [`Wrong`].
pub fn check(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Wrong> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => return Err(Wrong::Malformed("send one Host header, not several")),
        (Some(host), None) => host.to_str().ok(),
        // Before HTTP/1.1 there was no `Host`, so it is unknown which host such a request was meant for.
        (None, _) if version < Version::HTTP_11 => return Err(Wrong::Misdirected),
        (None, _) => return Err(Wrong::Malformed("send a Host header")),
    };
    let Some(name) = host.and_then(name) else {
        return Err(Wrong::Malformed("the Host header must be a name or an address, optionally with a port"));
    };
    // RFC 9112, section 3.2.2: a target in absolute form takes precedence over the header. Here both must fit.
    let fits = |authority: &Authority| is_loopback(authority.as_str());
    if is_this_machine(name) && uri.authority().is_none_or(fits) { Ok(()) } else { Err(Wrong::Misdirected) }
}

/// Whether `host`, as in a `Host` header or a URL, is a name of this machine.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    name(host).is_some_and(is_this_machine)
}

fn is_this_machine(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let lower = name.to_ascii_lowercase();
    lower == "localhost"
        || lower.ends_with(".localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The name, or an IPv6 address with its brackets, of a well-formed host; RFC 3986, section 3.2.2.
fn name(host: &str) -> Option<&str> {
    let (name, port) = match host.find(']') {
        Some(end) if host.starts_with('[') => {
            let (name, rest) = host.split_at(end + 1);
            host[1..end].parse::<std::net::Ipv6Addr>().ok()?;
            (name, if rest.is_empty() { rest } else { rest.strip_prefix(':')? })
        }
        _ => host.split_once(':').unwrap_or((host, "")),
    };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&b);
    let is_sound = name.starts_with('[') || name.bytes().all(is_name);
    (is_sound && port.bytes().all(|b| b.is_ascii_digit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(target: &str, hosts: &[&[u8]]) -> Result<(), Wrong> {
        let headers = hosts.iter().map(|host| (header::HOST, axum::http::HeaderValue::from_bytes(host).unwrap()));
        let headers = headers.fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        });
        check(Version::HTTP_11, &target.parse().unwrap(), &headers)
    }

    #[test]
    fn names_of_this_machine_are_let_through() {
        for host in [
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "127.0.0.1:8080",
            "127.1.2.3",
            "[::1]:8080",
            "[::1]",
            "a.localhost",
            "localhost:",
        ] {
            assert_eq!(sent("/orders", &[host.as_bytes()]), Ok(()), "{host}");
            assert!(is_loopback(host));
        }
    }

    // Including names that only begin like one of this machine.
    #[test]
    fn other_names_are_misdirected() {
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]",
            "",
            ":80",
        ] {
            assert_eq!(sent("/orders", &[host.as_bytes()]), Err(Wrong::Misdirected), "{host}");
            assert!(!is_loopback(host));
        }
        assert_eq!(sent("http://evil.example/orders", &[b"localhost"]), Err(Wrong::Misdirected));
        assert_eq!(sent("http://localhost/orders", &[b"evil.example"]), Err(Wrong::Misdirected));
        assert_eq!(sent("http://localhost:8080/orders", &[b"localhost:8080"]), Ok(()));
        assert_eq!(sent("http://evil@localhost/orders", &[b"localhost"]), Err(Wrong::Misdirected));
    }

    #[test]
    fn a_malformed_host_is_a_bad_request() {
        for host in [
            "[::1].evil.example",
            "[::1]evil",
            "[localhost]",
            "[::1",
            "::1",
            "localhost:80a",
            "a b",
            "localhost/x",
            "u@localhost",
            "localhost:80:80",
        ] {
            assert!(matches!(sent("/orders", &[host.as_bytes()]), Err(Wrong::Malformed(_))), "{host}");
            assert!(!is_loopback(host));
        }
        // The look-alike of `localhost` in other letters is not valid text of a header.
        assert!(matches!(sent("/", &["l\u{43e}calhost".as_bytes()]), Err(Wrong::Malformed(_))));
        assert!(matches!(sent("/", &[]), Err(Wrong::Malformed(_))));
        assert!(matches!(sent("/", &[b"localhost", b"localhost"]), Err(Wrong::Malformed(_))));
        assert!(matches!(sent("/", &[b"localhost", b"evil.example"]), Err(Wrong::Malformed(_))));
    }
}
