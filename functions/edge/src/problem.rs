//! Refusals as RFC 9457 problem details, with codes that never change. `docs/problems.md` has a section for each.

use schemars::JsonSchema;
use serde::Serialize;
use shared::history::shorten;

/// Longest detail, in bytes, so that it does not quote all that was sent.
const MAX_DETAIL: usize = 1000;
/// Longest name of a field, in bytes.
const MAX_FIELD: usize = 200;
/// The meaning of every code, and what to do.
const PAGES: &str = include_str!("../../../docs/problems.md");

/// A refusal. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Problem {
    /// Page that explains the code, on this API.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The code in words.
    pub title: &'static str,
    /// HTTP status.
    pub status: u16,
    /// Stable name of what is wrong, for programs.
    pub code: &'static str,
    /// What is wrong, and what to do.
    pub detail: String,
    /// The field or header it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<Box<str>>,
    /// When to try again, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
    /// The route's methods, for the header.
    #[serde(skip)]
    pub allow: Option<&'static str>,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $status:literal, $title:literal;)*) => {
        /// Every code with its status and title.
        pub const CODES: &[(&str, u16, &str)] = &[$(($code, $status, $title)),*];
        $(#[doc = concat!($title, ".")]
        pub fn $name(field: impl Into<Option<&'static str>>, detail: impl Into<String>) -> Problem {
            Problem {
                kind: concat!("/problems/", $code),
                title: $title,
                status: $status,
                code: $code,
                detail: shorten(&detail.into(), MAX_DETAIL),
                field: field.into().map(Box::from),
                retry_after_s: None,
                allow: None,
            }
        })*
    };
}

codes! {
    invalid_json = "invalid_json", 400, "The body is not valid JSON";
    invalid_field = "invalid_field", 400, "A field is invalid";
    invalid_input = "invalid_input", 422, "The input breaks a rule of its workflow";
    missing_idempotency_key = "missing_idempotency_key", 400, "The Idempotency-Key is missing";
    invalid_idempotency_key = "invalid_idempotency_key", 400, "The Idempotency-Key cannot be used";
    idempotency_key_reused = "idempotency_key_reused", 422, "The Idempotency-Key belongs to another order or job";
    idempotency_key_spent = "idempotency_key_spent", 409, "The Idempotency-Key belongs to an order that is no longer kept";
    unknown_workflow = "unknown_workflow", 422, "There is no such workflow";
    unknown_reply_queue = "unknown_reply_queue", 422, "There is no such reply queue";
    unauthorized = "unauthorized", 401, "A token is needed";
    forbidden = "forbidden", 403, "The token does not allow this";
    misdirected = "misdirected", 421, "The request is for another host";
    rate_limited = "rate_limited", 429, "Too many requests";
    too_large = "too_large", 413, "The body is too large";
    unsupported_media_type = "unsupported_media_type", 415, "The body is not declared as JSON";
    no_such_order = "no_such_order", 404, "There is no such order";
    unreadable = "unreadable", 500, "The order's record cannot be read";
    no_such_event = "no_such_event", 404, "The workflow has no such event";
    event_key_reused = "event_key_reused", 422, "The Idempotency-Key belongs to another event of the order";
    event_early = "event_early", 409, "The event comes too early";
    no_such_callback = "no_such_callback", 404, "There is no such address for callbacks";
    no_such_link = "no_such_link", 404, "There is no such link";
    no_such_heartbeat = "no_such_heartbeat", 404, "There is no such address for heartbeats";
    attempt_over = "attempt_over", 409, "The attempt is over";
    event_late = "event_late", 409, "No step waits for the event";
    event_refused = "event_refused", 422, "The step does not take the event";
    too_many_events = "too_many_events", 429, "The order cannot keep any more early events";
    order_moved = "order_moved", 409, "The order has changed";
    not_allowed = "not_allowed", 409, "The order's state does not allow this";
    no_such_job = "no_such_job", 404, "There is no such job";
    no_such_workflow = "no_such_workflow", 404, "There is no such workflow or definition";
    invalid_workflow = "invalid_workflow", 422, "The workflow file is wrong";
    workflow_moved = "workflow_moved", 409, "The workflow has changed";
    not_possible = "not_possible", 409, "The workflow does not allow this";
    no_such_agent = "no_such_agent", 404, "There is no such agent";
    no_such_queue = "no_such_queue", 404, "There is no such queue";
    overloaded = "overloaded", 429, "Too much work is waiting";
    no_such_route = "no_such_route", 404, "There is no such route";
    method_not_allowed = "method_not_allowed", 405, "The route does not support this method";
    unavailable = "unavailable", 503, "Try again";
}

/// The section of `docs/problems.md` about `code`, Markdown.
#[must_use]
pub fn page(code: &str) -> Option<String> {
    let mut sections = PAGES.split("\n## ").skip(1);
    sections.find(|section| section.lines().next() == Some(code)).map(|section| format!("# {}\n", section.trim_end()))
}

/// The route accepts only `allow`: methods separated by commas, as in the header.
#[must_use]
pub fn wrong_method(allow: &'static str) -> Problem {
    let detail = format!("this route supports only {}", allow.replace(", ", " and "));
    Problem { allow: Some(allow), ..method_not_allowed(None, detail) }
}

impl Problem {
    /// The same problem about a field that is known only at run time.
    #[must_use]
    pub fn at(mut self, field: String) -> Self {
        self.field = Some(shorten(&field, MAX_FIELD).into_boxed_str());
        self
    }

    /// The same problem with a time to retry.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // B10: every code leads to a page, and no page is about a code that is gone.
    #[test]
    fn every_code_has_its_section_and_every_section_its_code() {
        let codes: Vec<_> = CODES.iter().map(|(code, ..)| *code).collect();
        let sections: Vec<_> = PAGES.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, codes, "docs/problems.md has the codes of functions/edge/src/problem.rs, in their order");
        for (code, status, title) in CODES {
            let page = page(code).unwrap();
            let head = format!("# {code}\n\n{status}: {title}.\n\n");
            let text = page.strip_prefix(&head).unwrap_or_else(|| panic!("begins with {head:?}: {page}"));
            assert!(text.contains("**What to do.** "), "{page}");
        }
        assert_eq!(page("nothing"), None);
        assert_eq!(page(""), None);
    }
}
