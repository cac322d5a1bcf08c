//! What a caller may do, by the claims of the token that the authoriser checked: API Gateway's, or the local listener's.

use crate::http::claim;
use crate::problem::{self, Problem};
use aws_lambda_events::event::apigw::ApiGatewayV2httpRequest;

/// Whose order it is where no token says so: calls that IAM authorised, and open ones.
pub const DEFAULT_TENANT: &str = "default";

/// The scopes that routes ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes {
    /// `ORDER_SCOPE`: to submit and to look up orders.
    pub orders: String,
    /// `OPERATOR_SCOPE`: for the operator's routes, and for orders of every tenant.
    pub operator: String,
}

impl Default for Scopes {
    fn default() -> Self {
        Self { orders: "stepwarden/orders".into(), operator: "stepwarden/operator".into() }
    }
}

impl Scopes {
    /// The scopes under these names, or under the default ones.
    #[must_use]
    pub fn named(orders: Option<String>, operator: Option<String>) -> Self {
        let default = Self::default();
        let given = |name: Option<String>| name.filter(|name| !name.is_empty());
        Self { orders: given(orders).unwrap_or(default.orders), operator: given(operator).unwrap_or(default.operator) }
    }
}

/// Refuses a token without `scope`. A call without a token is let through: then IAM has decided, route by route, or the
/// route is open.
///
/// # Errors
/// `forbidden`.
pub fn check(event: &ApiGatewayV2httpRequest, scope: &str) -> Result<(), Problem> {
    if !has_token(event) || has_scope(event, scope) {
        return Ok(());
    }
    Err(problem::forbidden(None, format!("the token lacks the scope `{scope}`, which this route asks for")))
}

/// Whether the call came with a token that has `scope`: among the words of the claim `scope`, or `scp`, as some issuers call
/// it. A claim that was a list reads `[a b]`.
#[must_use]
pub fn has_scope(event: &ApiGatewayV2httpRequest, scope: &str) -> bool {
    let claims = ["scope", "scp"].into_iter().filter_map(|name| claim(event, name));
    claims.flat_map(|all| all.split([' ', ',', '[', ']'])).any(|one| one == scope)
}

/// From the token that the authoriser checked, never from the body.
#[must_use]
pub fn tenant(event: &ApiGatewayV2httpRequest) -> &str {
    claim(event, "tenant").unwrap_or(DEFAULT_TENANT)
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
        assert_eq!(tenant(&event(json!({"jwt": {"claims": {"tenant": "acme"}}}))), "acme");
        assert_eq!(tenant(&event(json!({"iam": {}}))), DEFAULT_TENANT);
    }
}
