//! The tenants of callers that sign, by the name of their role, which only administrators of the account give. The
//! session's name does not count, because callers choose it.

use crate::problem::{self, Problem};
use aws_lambda_events::event::apigw::ApiGatewayV2httpRequest;
use shared::json;
use shared::order::DEFAULT_TENANT;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Longest tenant, in characters: every message and every record of an order contains it.
pub const MAX_TENANT: usize = 200;
/// Instead of a tenant: the role may look up all tenants' orders, but submit none.
const ALL: &str = "*";

/// `ROLE_TENANTS`: roles with their tenants. If empty, all callers that sign have the tenant `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleTenants(BTreeMap<String, String>);

impl FromStr for RoleTenants {
    type Err = String;

    /// Reads a JSON object such as `{"shop-acme": "acme", "shop-operator": "*"}`; an empty text means `{}`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let how = "write a JSON object of role names and tenants, such as {\"shop-acme\": \"acme\"}";
        let value = json::read_value(text.as_bytes()).map_err(|e| format!("{e}; {how}"))?;
        let roles: BTreeMap<String, String> = serde_json::from_value(value).map_err(|e| format!("{e}; {how}"))?;
        for (role, tenant) in &roles {
            if role.is_empty() || role.contains(['/', ':']) {
                return Err(format!("`{role}` is not the name of a role; write the name alone, without path and ARN"));
            }
            if tenant.trim().is_empty() || tenant.chars().count() > MAX_TENANT {
                return Err(format!("the tenant of `{role}` must have 1 to {MAX_TENANT} characters"));
            }
        }
        Ok(Self(roles))
    }
}

/// The orders that a caller without a token may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// Those of all tenants.
    All,
    /// Those of this tenant.
    Of(&'a str),
}

impl RoleTenants {
    /// Whose orders the caller of `event`, which has no token, may see.
    ///
    /// # Errors
    /// `forbidden` if it signed and its role has no tenant.
    pub fn seen(&self, event: &ApiGatewayV2httpRequest) -> Result<Seen<'_>, Problem> {
        let context = &event.request_context;
        let Some(iam) = context.authorizer.as_ref().and_then(|authorizer| authorizer.iam.as_ref()) else {
            return Ok(Seen::Of(DEFAULT_TENANT));
        };
        if self.0.is_empty() {
            return Ok(Seen::Of(DEFAULT_TENANT));
        }
        let arn = iam.user_arn.as_deref().unwrap_or_default();
        let role = role_of(arn).filter(|(account, _)| context.account_id.as_deref().is_none_or(|own| own == *account));
        match role.and_then(|(_, role)| self.0.get(role)).map(String::as_str) {
            Some(ALL) => Ok(Seen::All),
            Some(tenant) => Ok(Seen::Of(tenant)),
            None => {
                let detail = format!(
                    "`{arn}` has no tenant: RoleTenants assigns tenants to roles of the deployment's account; add the \
                     role there, or sign with a role that it lists"
                );
                Err(problem::forbidden(None, detail))
            }
        }
    }

    /// The tenant whose orders the caller of `event`, which has no token, submits.
    ///
    /// # Errors
    /// As [`seen`](Self::seen); and `forbidden` for a role with `*`.
    pub fn submits(&self, event: &ApiGatewayV2httpRequest) -> Result<&str, Problem> {
        match self.seen(event)? {
            Seen::Of(tenant) => Ok(tenant),
            Seen::All => {
                let detail = "the role may look up the orders of all tenants, but belongs to none, so it cannot \
                              submit; sign with a role that has a tenant in RoleTenants";
                Err(problem::forbidden(None, detail))
            }
        }
    }
}

/// Account and name of the role in the ARN of its session, `arn:aws:sts::ACCOUNT:assumed-role/ROLE/SESSION`.
fn role_of(arn: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    let ["arn", _, "sts", _, account, resource] = parts[..] else { return None };
    let (role, session) = resource.strip_prefix("assumed-role/")?.split_once('/')?;
    (!session.is_empty()).then_some((account, role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn signed(arn: &str) -> ApiGatewayV2httpRequest {
        let context = json!({
            "http": {"method": "GET", "path": "/"}, "accountId": "123456789012", "authorizer": {"iam": {"userArn": arn}},
        });
        serde_json::from_value(json!({"headers": {}, "requestContext": context})).unwrap()
    }

    #[test]
    fn a_role_names_the_tenant_and_a_session_never_does() {
        let roles: RoleTenants = r#"{"shop-acme": "acme", "shop+globex@x": "globex", "desk": "*"}"#.parse().unwrap();
        let sts = |rest: &str| signed(&format!("arn:aws:sts::123456789012:assumed-role/{rest}"));
        for session in ["till-1", "globex", "shop+globex@x"] {
            let event = sts(&format!("shop-acme/{session}"));
            assert_eq!((roles.submits(&event), roles.seen(&event)), (Ok("acme"), Ok(Seen::Of("acme"))));
        }
        assert_eq!(roles.submits(&sts("shop+globex@x/a")), Ok("globex"));
        let china = signed("arn:aws-cn:sts::123456789012:assumed-role/shop-acme/a");
        assert_eq!(roles.submits(&china), Ok("acme"));
        // A desk sees all orders and submits none.
        assert_eq!(roles.seen(&sts("desk/ann")), Ok(Seen::All));
        assert_eq!(roles.submits(&sts("desk/ann")).unwrap_err().code, "forbidden");
        let strangers = [
            "arn:aws:sts::123456789012:assumed-role/other/shop-acme",
            "arn:aws:sts::123456789012:assumed-role/other/desk",
            "arn:aws:sts::999999999999:assumed-role/shop-acme/a",
            "arn:aws:iam::123456789012:user/shop-acme",
            "arn:aws:sts::123456789012:federated-user/shop-acme",
            "arn:aws:iam::123456789012:root",
            "arn:aws:sts::123456789012:assumed-role/shop-acme",
            "shop-acme",
            "",
        ];
        for arn in strangers {
            let problem = roles.seen(&signed(arn)).unwrap_err();
            assert_eq!((problem.status, problem.code), (403, "forbidden"), "{arn}");
            assert!(problem.detail.contains("RoleTenants"), "{}", problem.detail);
        }
    }

    #[test]
    fn without_roles_all_callers_that_sign_are_one_tenant() {
        let none = RoleTenants::default();
        assert_eq!(none.submits(&signed("arn:aws:iam::123456789012:user/ann")), Ok(DEFAULT_TENANT));
        // A route that needs no signature stays open.
        let open = json!({"headers": {}, "requestContext": {"http": {"method": "GET", "path": "/"}}});
        let open: ApiGatewayV2httpRequest = serde_json::from_value(open).unwrap();
        let some: RoleTenants = r#"{"a": "b"}"#.parse().unwrap();
        assert_eq!(some.submits(&open), Ok(DEFAULT_TENANT));
    }

    #[test]
    fn a_mistake_in_the_roles_says_what_to_write() {
        assert_eq!(" ".parse(), Ok(RoleTenants::default()));
        let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(MAX_TENANT + 1));
        for (text, words) in [
            ("acme", "write a JSON object"),
            (r#"{"a": 1}"#, "write a JSON object"),
            (r#"{"a": "b", "a": "c"}"#, "occurs twice"),
            (r#"{"arn:aws:iam::1:role/a": "b"}"#, "without path and ARN"),
            (r#"{"team/a": "b"}"#, "without path and ARN"),
            (r#"{"a": " "}"#, "1 to 200 characters"),
            (long.as_str(), "1 to 200 characters"),
        ] {
            let error = text.parse::<RoleTenants>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
