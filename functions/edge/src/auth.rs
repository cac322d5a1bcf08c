//! What a caller may do, by the claims of the token that the authoriser (API Gateway's or the local one) checked.

use crate::http::claim;
use crate::problem::{self, Problem};
pub use crate::roles::MAX_TENANT;
use crate::roles::{RoleTenants, Seen};
use aws_lambda_events::event::apigw::ApiGatewayV2httpRequest;
use shared::order::DEFAULT_TENANT;

/// The claim that names an order's tenant, unless the deployment names another.
pub const TENANT_CLAIM: &str = "tenant";

/// What the routes require of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes {
    /// `ORDER_SCOPE`: to submit and to look up orders.
    pub orders: String,
    /// `OPERATOR_SCOPE`: for the operator's routes and all tenants' orders.
    pub operator: String,
    /// `WORKFLOW_SCOPE`: to put, activate, roll back and retire workflows.
    pub workflows: String,
    /// `ERASE_SCOPE`: to erase the data of orders.
    pub erasure: String,
    /// `TENANT_CLAIM`: the claim that names the caller's tenant.
    pub tenant_claim: String,
    /// `ROLE_TENANTS`: the tenants of callers that sign.
    pub role_tenants: RoleTenants,
}

impl Default for Scopes {
    fn default() -> Self {
        Self {
            orders: "stepwarden/orders".into(),
            operator: "stepwarden/operator".into(),
            workflows: "stepwarden/workflows".into(),
            erasure: "stepwarden/erase".into(),
            tenant_claim: TENANT_CLAIM.into(),
            role_tenants: RoleTenants::default(),
        }
    }
}

impl Scopes {
    /// The scopes, the claim and the roles that the variables name, or the default ones.
    ///
    /// # Errors
    /// The roles cannot be read, in words.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let default = Self::default();
        let given = |name: &str, default| lookup(name).filter(|name| !name.is_empty()).unwrap_or(default);
        let roles = lookup("ROLE_TENANTS").unwrap_or_default();
        Ok(Self {
            orders: given("ORDER_SCOPE", default.orders),
            operator: given("OPERATOR_SCOPE", default.operator),
            workflows: given("WORKFLOW_SCOPE", default.workflows),
            erasure: given("ERASE_SCOPE", default.erasure),
            tenant_claim: given("TENANT_CLAIM", default.tenant_claim),
            role_tenants: roles.parse().map_err(|why| format!("ROLE_TENANTS: {why}"))?,
        })
    }

    /// The tenant whose orders the caller submits.
    ///
    /// # Errors
    /// As [`tenant`] and [`RoleTenants::submits`].
    pub fn submits<'a>(&'a self, event: &'a ApiGatewayV2httpRequest) -> Result<&'a str, Problem> {
        if has_token(event) { tenant(event, &self.tenant_claim) } else { self.role_tenants.submits(event) }
    }

    /// Whose orders the caller may look up.
    ///
    /// # Errors
    /// As [`tenant`] and [`RoleTenants::seen`].
    pub fn sees<'a>(&'a self, event: &'a ApiGatewayV2httpRequest) -> Result<Seen<'a>, Problem> {
        if !has_token(event) {
            return self.role_tenants.seen(event);
        }
        if has_scope(event, &self.operator) { Ok(Seen::All) } else { tenant(event, &self.tenant_claim).map(Seen::Of) }
    }
}

/// Refuses a token without `scope`. A call without a token passes: IAM decides, or the route is open.
///
/// # Errors
/// `forbidden`.
pub fn check(event: &ApiGatewayV2httpRequest, scope: &str) -> Result<(), Problem> {
    if !has_token(event) || has_scope(event, scope) {
        return Ok(());
    }
    Err(problem::forbidden(None, format!("the token lacks the scope `{scope}`, which this route requires")))
}

/// Whether the call came with a token that has `scope`, as a word of the claim `scope` or, with some issuers, `scp`. A
/// list in a claim reads `[a b]`.
#[must_use]
pub fn has_scope(event: &ApiGatewayV2httpRequest, scope: &str) -> bool {
    let claims = ["scope", "scp"].into_iter().filter_map(|name| claim(event, name));
    claims.flat_map(|all| all.split([' ', ',', '[', ']'])).any(|one| one == scope)
}

/// The caller's tenant, from the claim called `name` of the token that the authoriser checked, never from the body.
/// Without a token, [`DEFAULT_TENANT`].
///
/// # Errors
/// `forbidden` if the claim is missing or empty, because its orders would mix with those of others, or longer than
/// [`MAX_TENANT`].
pub fn tenant<'a>(event: &'a ApiGatewayV2httpRequest, name: &str) -> Result<&'a str, Problem> {
    if !has_token(event) {
        return Ok(DEFAULT_TENANT);
    }
    let tenant = claim(event, name).filter(|tenant| !tenant.trim().is_empty());
    if tenant.is_some_and(|tenant| tenant.chars().count() > MAX_TENANT) {
        let detail = format!("the claim `{name}` of the token has more than {MAX_TENANT} characters");
        return Err(problem::forbidden(None, detail));
    }
    tenant.ok_or_else(|| {
        let detail = format!(
            "the token lacks the claim `{name}`, which names the tenant; have the issuer add it to access tokens, or \
             configure the deployment to read the tenant from another claim"
        );
        problem::forbidden(None, detail)
    })
}

fn has_token(event: &ApiGatewayV2httpRequest) -> bool {
    event.request_context.authorizer.as_ref().is_some_and(|authorizer| authorizer.jwt.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(authorizer: serde_json::Value) -> ApiGatewayV2httpRequest {
        let http = json!({"method": "GET", "path": "/"});
        serde_json::from_value(json!({"headers": {}, "requestContext": {"http": http, "authorizer": authorizer}}))
            .unwrap()
    }

    #[test]
    fn a_token_needs_the_whole_scope_and_iam_needs_none() {
        let token = |claims| event(json!({"jwt": {"claims": claims, "scopes": null}}));
        let good = [
            event(json!(null)),
            event(json!({"iam": {"accountId": "1"}})),
            token(json!({"scope": "s/operator"})),
            token(json!({"scope": "a s/operator b"})),
            token(json!({"scp": "[a s/operator]"})),
        ];
        for event in good {
            assert_eq!(check(&event, "s/operator"), Ok(()), "{event:?}");
        }
        let bad = [json!({}), json!({"scope": ""}), json!({"scope": "s/operators"}), json!({"sub": "s/operator"})];
        for claims in bad {
            assert_eq!(check(&token(claims.clone()), "s/operator").unwrap_err().code, "forbidden", "{claims}");
        }
    }

    #[test]
    fn the_tenant_comes_from_the_token() {
        let token = |claims| event(json!({"jwt": {"claims": claims}}));
        assert_eq!(tenant(&token(json!({"tenant": "acme"})), TENANT_CLAIM), Ok("acme"));
        assert_eq!(tenant(&token(json!({"tenant": "acme", "client_id": "shop"})), "client_id"), Ok("shop"));
        for open in [json!(null), json!({"iam": {}})] {
            assert_eq!(tenant(&event(open), TENANT_CLAIM), Ok(DEFAULT_TENANT));
        }
        for claims in [json!({}), json!({"tenant": ""}), json!({"tenant": "  "}), json!({"client_id": "shop"})] {
            let problem = tenant(&token(claims.clone()), TENANT_CLAIM).unwrap_err();
            assert_eq!((problem.code, problem.status), ("forbidden", 403), "{claims}");
            assert!(problem.detail.contains("`tenant`"), "{}", problem.detail);
        }
    }

    #[test]
    fn names_that_are_not_given_are_the_default_ones() {
        let given =
            |name: &str| [("OPERATOR_SCOPE", ""), ("TENANT_CLAIM", "sub")].into_iter().find(|(n, _)| *n == name);
        let scopes = Scopes::from_lookup(|name| given(name).map(|(_, value)| value.to_owned())).unwrap();
        assert_eq!(scopes, Scopes { tenant_claim: "sub".into(), ..Scopes::default() });
        let wrong = Scopes::from_lookup(|name| (name == "ROLE_TENANTS").then(|| "acme".into())).unwrap_err();
        assert!(wrong.starts_with("ROLE_TENANTS: "), "{wrong}");
    }
}
