//! Who may call the local API, as API Gateway's authoriser decides on AWS: bearer tokens, each with the claims that a
//! JWT would carry. Also how many orders a tenant may submit.

use crate::data_folder::{TOKEN_FILE, write};
use crate::start_error::StartError;
use anyhow::{Context, Result};
use aws_lambda_events::event::apigw::{
    ApiGatewayRequestAuthorizer, ApiGatewayRequestAuthorizerJwtDescription, ApiGatewayV2httpRequest,
};
use edge::auth::{Scopes, TENANT_CLAIM, tenant};
use edge::http::header;
use edge::problem::{self, Problem};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use shared::order::DEFAULT_TENANT;
use shared::visible::visible;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use stepwarden_aws::metrics;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

/// Fewest characters of a token: 16 hexadecimal digits are 64 bits.
const LEAST: usize = 16;
/// Maximum number of characters of a token.
const MOST: usize = 200;
/// How much of its rate a tenant may use at once.
const BURST: Duration = Duration::from_secs(2);
/// The header with which a caller whose token names nobody says who it is, percent-encoded. API Gateway never reads it.
pub const BY: &str = "stepwarden-by";
/// Methods and first parts of paths that need no token: what a browser opens before it has one, behind which nothing is
/// secret, and the addresses for callbacks, links and heartbeats, which contain tokens of their own.
const OPEN: [(&str, &str); 7] = [
    ("GET", "openapi.json"),
    ("GET", "problems"),
    ("GET", "console"),
    ("POST", "callbacks"),
    ("POST", "heartbeats"),
    ("GET", "links"),
    ("POST", "links"),
];

/// Where the tokens come from. By default there is one random token, in memory only.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The first token, instead of a random one.
    pub token: Option<String>,
    /// Folder in which a random token is kept from one start to the next.
    pub folder: Option<PathBuf>,
    /// A TOML file with more tokens.
    pub file: Option<PathBuf>,
    /// Orders per second that each tenant may submit over HTTP, with bursts of twice as many; 0 sets no limit.
    pub rate: u32,
}

/// A file of tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    token: Vec<Entry>,
}

/// One more token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    token: String,
    sub: String,
    tenant: String,
    scopes: Vec<String>,
}

type Claims = HashMap<String, String>;

/// The tokens that are accepted.
pub struct Access {
    /// By hash, so that the time of a comparison does not reveal how much of a token was right.
    known: Vec<([u8; 32], Claims)>,
    rate: u32,
    /// For each tenant, the time at which its last submission would have come at the permitted rate.
    submitted: Mutex<HashMap<String, Instant>>,
}

impl Access {
    /// The tokens that `options` names, and the first of them.
    ///
    /// # Errors
    /// [`StartError::Data`] for a token or a file that cannot be used.
    pub fn open(options: &Options) -> Result<(Self, String)> {
        let first = match (&options.token, &options.folder) {
            (Some(token), _) => check(token).map_err(|why| StartError::Data(format!("STEPWARDEN_TOKEN: {why}")))?,
            (None, Some(folder)) => kept(folder)?,
            (None, None) => random()?,
        };
        let Scopes { orders, operator, workflows, erasure, .. } = Scopes::default();
        // No `sub`: the token stands for anyone at this machine, so the body of an action names the person.
        let scopes = [orders, operator, workflows, erasure].join(" ");
        let claims = [(TENANT_CLAIM, DEFAULT_TENANT.to_owned()), ("scope", scopes)];
        let mut access = Self { known: Vec::new(), rate: options.rate, submitted: Mutex::default() };
        access.add(&first, claims.map(|(name, value)| (name.to_owned(), value)).into());
        if let Some(path) = &options.file {
            for Entry { token, sub, tenant, scopes } in read(path)? {
                let who = format!("token of `{}`", visible(&sub));
                let claims = [("sub", sub), (TENANT_CLAIM, tenant), ("scope", scopes.join(" "))];
                if !access.add(&token, claims.map(|(name, value)| (name.to_owned(), value)).into()) {
                    let why = "this token is already in use, by another entry or as the system's first token; make a \
                               new one with `openssl rand -hex 16`";
                    return Err(StartError::Data(format!("{}: {who}: {why}", path.display())).into());
                }
            }
        }
        Ok((access, first))
    }

    /// False if the token is already known: it would be unclear whose token it is.
    fn add(&mut self, token: &str, claims: Claims) -> bool {
        let hash = Sha256::digest(token).into();
        let is_new = self.known.iter().all(|(known, _)| *known != hash);
        if is_new {
            self.known.push((hash, claims));
        }
        is_new
    }

    /// Lets a request through, with its token's claims where API Gateway's authoriser puts them.
    ///
    /// # Errors
    /// `unauthorized` or `rate_limited`.
    pub fn admit(&self, event: &mut ApiGatewayV2httpRequest) -> Result<(), Problem> {
        let parts = || event.raw_path.as_deref().unwrap_or("/").split('/').filter(|part| !part.is_empty());
        let method = event.request_context.http.method.as_str();
        if parts().next().is_some_and(|first| OPEN.contains(&(method, first))) {
            return Ok(());
        }
        let is_submission = method == "POST" && parts().eq(["orders"]);
        let mut claims = self.claims(header(event, "authorization"))?.clone();
        // The first token stands for anyone at this machine, so who uses it says who that is.
        let wrong = || problem::invalid_field(BY, "is not percent-encoded UTF-8");
        if let (Some(by), false) = (header(event, BY), claims.contains_key("sub")) {
            claims.insert("sub".to_owned(), edge::query::decode(by).map_err(|_| wrong())?);
        }
        let mut jwt = ApiGatewayRequestAuthorizerJwtDescription::default();
        jwt.claims = claims;
        let mut authorizer = ApiGatewayRequestAuthorizer::default();
        authorizer.jwt = Some(jwt);
        event.request_context.authorizer = Some(authorizer);
        if is_submission { self.count(tenant(event, TENANT_CLAIM)?) } else { Ok(()) }
    }

    fn claims(&self, authorization: Option<&str>) -> Result<&Claims, Problem> {
        const HOW: &str =
            "send the header `Authorization: Bearer TOKEN`; `stepwarden up` prints the token when it starts";
        let bearer = authorization.and_then(|text| text.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let (_, token) =
            bearer.ok_or_else(|| problem::unauthorized("Authorization", format!("the request has no token; {HOW}")))?;
        let hash: [u8; 32] = Sha256::digest(token.trim()).into();
        // All are compared, so that the time does not reveal which one matched.
        let same = self.known.iter().filter(|(known, _)| bool::from(known.ct_eq(&hash)));
        let known = same.fold(None, |_, (_, claims)| Some(claims));
        known.ok_or_else(|| {
            problem::unauthorized("Authorization", format!("this system does not know the token; {HOW}"))
        })
    }

    /// Counts one submission of `tenant` against its rate and its burst (generic cell rate algorithm).
    fn count(&self, tenant: &str) -> Result<(), Problem> {
        if self.rate == 0 {
            return Ok(());
        }
        let now = Instant::now();
        let mut all = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        let next = all.entry(tenant.to_owned()).or_insert(now);
        let ahead = next.saturating_duration_since(now);
        if ahead >= BURST {
            let seconds = u32::try_from((ahead - BURST).as_secs()).unwrap_or(u32::MAX).saturating_add(1);
            let detail =
                format!("tenant `{tenant}` may submit {} orders per second; try again in {seconds} s", self.rate);
            metrics::ORDERS_REFUSED.add("rate_limited");
            return Err(problem::rate_limited(None, detail).retry_after(seconds));
        }
        *next = (*next).max(now) + Duration::from_secs(1) / self.rate;
        Ok(())
    }
}

/// Whether `text` can be a token: it must fit into a header and be hard to guess.
fn check(text: &str) -> Result<String, String> {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    if (LEAST..=MOST).contains(&text.len()) && text.bytes().all(is_good) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a token has {LEAST} to {MOST} letters, digits and characters of -._~+/=; `openssl rand -hex 16` makes one"
    ))
}

fn random() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("asking the system for random bytes")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// The token in `folder`, which is made at the first start.
fn kept(folder: &Path) -> Result<String> {
    let path = folder.join(TOKEN_FILE);
    let unusable =
        |why: String| StartError::Data(format!("the token in {}: {why}; delete it to get a new one", path.display()));
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(check(text.trim()).map_err(unusable)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let token = random()?;
            write(&path, &token).map_err(|e| unusable(e.to_string()))?;
            Ok(token)
        }
        Err(error) => Err(unusable(error.to_string()).into()),
    }
}

fn read(path: &Path) -> Result<Vec<Entry>> {
    let wrong = |why: String| StartError::Data(format!("{}: {}", path.display(), why.trim_end()));
    let text = std::fs::read_to_string(path).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    let File { token: entries } = toml::from_str(&text).map_err(|e| wrong(unreadable(&text, &e)))?;
    let Scopes { orders, operator, workflows, erasure, .. } = Scopes::default();
    let scopes = [orders, operator, workflows, erasure];
    for entry in &entries {
        let who = visible(&entry.sub);
        check(&entry.token).map_err(|why| wrong(format!("token of `{who}`: {why}")))?;
        if let Some(scope) = entry.scopes.iter().find(|scope| !scopes.contains(scope)) {
            let (scope, known) = (visible(scope), scopes.join("`, `"));
            let why = format!("unknown scope `{scope}`; write `{known}`, or several of them");
            return Err(wrong(format!("token of `{who}`: {why}")).into());
        }
        let has_space = |text: &String| text.is_empty() || text.len() > 100 || text.contains(char::is_whitespace);
        if [&entry.sub, &entry.tenant].into_iter().chain(&entry.scopes).any(has_space) {
            let why = "sub, tenant and scopes need 1 to 100 characters without spaces";
            return Err(wrong(format!("token of `{who}`: {why}")).into());
        }
    }
    Ok(entries)
}

/// The line at which a file of tokens cannot be read. The parser's message may quote a token, so only the name of a
/// missing key is taken from it.
fn unreadable(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let missing = error.message().strip_prefix("missing field ").map(|name| format!("{name} is missing"));
    let what = missing.unwrap_or_else(|| "unexpected content".into());
    format!(
        "line {line}: {what}; write [[token]] for each token, and below it token = \"…\", sub = \"…\", tenant = \"…\" and \
         scopes = [\"stepwarden/orders\"] (docs/security.md)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(method: &str, path: &str, headers: &[(&str, &str)]) -> ApiGatewayV2httpRequest {
        let headers: HashMap<_, _> = [("host", "localhost")].iter().chain(headers).copied().collect();
        let http = json!({"method": method, "path": path});
        serde_json::from_value(json!({"rawPath": path, "headers": headers, "requestContext": {"http": http}})).unwrap()
    }

    /// The code of the refusal, or nothing. A refused request gets no claims.
    fn refused(access: &Access, mut event: ApiGatewayV2httpRequest) -> &'static str {
        let answer = access.admit(&mut event);
        assert!(answer.is_ok() || event.request_context.authorizer.is_none());
        answer.map_or_else(|problem| problem.code, |()| "")
    }

    // Point 7: without the token nothing but what a browser opens first.
    #[test]
    fn only_a_known_token_is_let_through() {
        let (access, token) = Access::open(&Options::default()).unwrap();
        let bearer = format!("Bearer {token}");
        assert_eq!(token.len(), 32);
        for good in [bearer.clone(), format!("bearer {token}"), format!("Bearer  {token} ")] {
            let mut event = event("GET", "/orders", &[("authorization", &good)]);
            access.admit(&mut event).unwrap();
            assert_eq!(tenant(&event, TENANT_CLAIM), Ok("default"));
            assert!(edge::auth::has_scope(&event, "stepwarden/operator"));
            assert_eq!(edge::http::claim(&event, "sub"), None);
        }
        let other = Access::open(&Options::default()).unwrap().1;
        let half = &bearer[..bearer.len() - 1];
        for bad in [&format!("Bearer {other}"), half, "Bearer ", "Bearer", &token, &format!("Basic {token}"), ""] {
            assert_eq!(refused(&access, event("GET", "/orders", &[("authorization", bad)])), "unauthorized", "{bad}");
        }
        assert_eq!(refused(&access, event("GET", "/orders", &[])), "unauthorized");
        for path in ["/openapi.json", "/problems/unavailable", "/console"] {
            assert_eq!(refused(&access, event("GET", path, &[])), "", "{path}");
            assert_eq!(refused(&access, event("POST", path, &[])), "unauthorized", "{path}");
        }
        for path in ["/orders/openapi.json", "/", "//", "/openapi.jsonx"] {
            assert_eq!(refused(&access, event("GET", path, &[])), "unauthorized", "{path}");
        }
    }

    #[test]
    fn the_random_token_is_kept_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: Some(folder.path().join("data")), ..Options::default() };
        let (_, token) = Access::open(&options).unwrap();
        let file = folder.path().join("data/token");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Access::open(&options).unwrap().1, token);
        let given = Options { token: Some("0123456789abcdef".into()), ..options.clone() };
        assert_eq!(Access::open(&given).unwrap().1, "0123456789abcdef");
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), token);
        std::fs::write(&file, "").unwrap();
        let error = Access::open(&options).err().unwrap().to_string();
        assert!(error.contains("delete it"), "{error}");
        for bad in ["short", "with a space in it", &"x".repeat(201)] {
            let error = Access::open(&Options { token: Some(bad.into()), ..Options::default() }).err().unwrap();
            assert!(error.downcast_ref::<StartError>().is_some() && error.to_string().contains("STEPWARDEN_TOKEN"));
        }
    }

    // Tenants and scopes come from the file, and a mistake in it is reported.
    #[test]
    fn more_tokens_bring_their_own_claims() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        let options = Options { file: Some(path.clone()), ..Options::default() };
        let good = "[[token]]\ntoken = \"acme-0123456789ab\"\nsub = \"ann\"\ntenant = \"acme\"\nscopes = [\"stepwarden/orders\"]\n";
        std::fs::write(&path, good).unwrap();
        let (access, _) = Access::open(&options).unwrap();
        let mut event = event("GET", "/orders", &[("authorization", "Bearer acme-0123456789ab")]);
        access.admit(&mut event).unwrap();
        let sub = edge::http::claim(&event, "sub");
        assert_eq!((tenant(&event, TENANT_CLAIM), sub), (Ok("acme"), Some("ann")));
        assert!(!edge::auth::has_scope(&event, "stepwarden/operator"));
        std::fs::write(&path, good.replace("stepwarden/orders", "stepwarden/workflows")).unwrap();
        Access::open(&options).unwrap();
        let secret = "acme-0123456789ab";
        let own = Options { token: Some(secret.into()), ..options.clone() };
        for (bad, words) in [
            (good.replace("sub", "user"), "line 3"),
            (good.replace("sub = \"ann\"\n", ""), "`sub` is missing"),
            (good.replace(secret, "acme"), "ann"),
            (good.replace("\"acme\"", "\"\""), "tenant"),
            ("token = 1".into(), "line 1"),
            // One token of two people: it would be unclear whose token it is.
            (format!("{good}{}", good.replace("\"ann\"", "\"bob\"")), "token of `bob`: this token is already in use"),
            (good.replace("/orders", "/order"), "unknown scope `stepwarden/order`"),
            (good.replace("stepwarden/orders", "*"), "unknown scope `*`"),
            // Whatever is wrong, text that may be a token is not printed.
            (format!("{secret}\n"), "line 1"),
            (format!("token = \"{secret}\"\n"), "line 1"),
            (format!("[[token]]\ntoken = {secret}\n"), "line 2"),
            (format!("[[token]]\ntoken = \"{secret}\n"), "line 2"),
            (format!("[[token]]\ntoken = [\"{secret}\"]\n"), "line 2"),
            (format!("[[token]]\n{secret} = \"ann\"\n"), "line 2"),
            (good.replace("[\"stepwarden/orders\"]", &format!("\"{secret}\"")), "line 5"),
        ] {
            std::fs::write(&path, &bad).unwrap();
            let error = Access::open(&options).err().unwrap_or_else(|| panic!("taken: {bad}"));
            assert!(error.downcast_ref::<StartError>().is_some());
            let text = error.to_string();
            assert!(text.contains(words) && text.contains("tokens.toml"), "{bad}: {text}");
            assert!(!text.contains(secret) && !text.contains('\n'), "{bad}: {text}");
        }
        std::fs::write(&path, good).unwrap();
        let error = Access::open(&own).err().unwrap().to_string();
        assert!(error.contains("first token") && !error.contains(secret), "{error}");
    }

    // Point 7: a tenant is held to its rate, and no other tenant suffers for it.
    #[tokio::test(start_paused = true)]
    async fn a_tenant_is_held_to_its_rate() {
        let (access, _) = Access::open(&Options { rate: 10, ..Options::default() }).unwrap();
        assert_eq!((0..100).filter(|_| access.count("a").is_ok()).count(), 20);
        assert_eq!(access.count("a").unwrap_err().retry_after_s, Some(1));
        access.count("b").unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..100).filter(|_| access.count("a").is_ok()).count(), 10);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!((0..100).filter(|_| access.count("a").is_ok()).count(), 20);
    }
}
