//! The console: one page for operators, as files in this program.
//!
//! The files contain no data, so anybody may read them. The page gets everything it shows from the API, with the
//! operator's token. It uses only these scripts and styles, and calls only this API.

use aws_lambda_events::event::apigw::ApiGatewayV2httpResponse;
use edge::http::answer;

struct File {
    name: &'static str,
    media_type: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal: $media_type:expr),* $(,)?) => {
        &[$(File { name: $name, media_type: $media_type, text: include_str!(concat!("../console/", $name)) }),*]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: &[File] = files! {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "app.js": SCRIPT,
    "api.js": SCRIPT,
    "dom.js": SCRIPT,
    "words.js": SCRIPT,
    "dialog.js": SCRIPT,
    "acts.js": SCRIPT,
    "bulk.js": SCRIPT,
    "jobs.js": SCRIPT,
    "orders.js": SCRIPT,
    "order.js": SCRIPT,
    "timeline.js": SCRIPT,
    "items.js": SCRIPT,
    "graph.js": SCRIPT,
    "system.js": SCRIPT,
    "charts.js": SCRIPT,
    "workflows.js": SCRIPT,
};

/// What the page may load and do.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The file called `name`, by default the page itself. `None` if there is no such file.
#[must_use]
pub fn file(name: Option<&str>) -> Option<ApiGatewayV2httpResponse> {
    let name = name.unwrap_or("index.html");
    let file = FILES.iter().find(|file| file.name == name)?;
    let headers = [
        ("content-security-policy", POLICY),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        // Revalidated each time, usually with 304, so that files of two versions never mix.
        ("cache-control", "no-cache"),
    ];
    Some(answer(200, file.media_type, Some(file.text.to_owned()), &headers))
}

/// From `/console/` to `/console`, the base of the page's relative addresses.
#[must_use]
pub fn without_slash() -> ApiGatewayV2httpResponse {
    answer(308, "", None, &[("location", "../console")])
}
