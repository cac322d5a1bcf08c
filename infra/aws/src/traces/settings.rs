//! Variables about spans that the SDK ignores, or whose mistakes it does not report.

use http::Uri;
use opentelemetry_otlp::{OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT};

const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
/// The samplers that the SDK knows.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// A variable's value, if it has one.
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Whether spans are exported.
///
/// # Errors
/// The name of the variable whose value is no URL.
pub(super) fn endpoint(lookup: impl Fn(&str) -> Option<String>) -> Result<bool, &'static str> {
    let is = |name, wanted: &str| lookup(name).is_some_and(|value| value.trim().eq_ignore_ascii_case(wanted));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return Ok(false);
    }
    let first = |name: &'static str| lookup(name).map(|value| (name, value));
    let Some((variable, value)) =
        first(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT).or_else(|| first(OTEL_EXPORTER_OTLP_ENDPOINT))
    else {
        return Ok(false);
    };
    let is_url = value.parse::<Uri>().is_ok_and(|uri| {
        uri.scheme_str().is_some_and(|scheme| ["http", "https"].contains(&scheme)) && uri.authority().is_some()
    });
    if is_url { Ok(true) } else { Err(variable) }
}

/// The variable about sampling whose value is wrong.
pub(super) fn wrong_sampler(lookup: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let sampler = lookup(SAMPLER)?;
    if !SAMPLERS.contains(&sampler.as_str()) {
        return Some(SAMPLER);
    }
    let is_ratio = |text: String| text.parse::<f64>().is_ok_and(|ratio| (0.0..=1.0).contains(&ratio));
    let is_wrong = sampler.ends_with("traceidratio") && !lookup(SAMPLER_ARG).is_none_or(is_ratio);
    is_wrong.then_some(SAMPLER_ARG)
}

/// The variable that an exporter's error is about. The error also has the value, which must not be logged.
pub(super) fn named_by(error: &str) -> Option<&str> {
    error.split([':', ' ']).find(|word| word.starts_with("OTEL_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    const GOOD: (&str, &str) = (OTEL_EXPORTER_OTLP_ENDPOINT, "http://localhost:4318");

    // Telemetry: the usual switches.
    #[test]
    fn spans_are_made_with_an_endpoint_and_not_if_switched_off() {
        assert_eq!(endpoint(of(&[])), Ok(false));
        assert_eq!(endpoint(of(&[GOOD])), Ok(true));
        assert_eq!(endpoint(of(&[GOOD, ("OTEL_SDK_DISABLED", "false"), ("OTEL_TRACES_EXPORTER", "otlp")])), Ok(true));
        assert_eq!(endpoint(of(&[GOOD, ("OTEL_SDK_DISABLED", "True")])), Ok(false));
        assert_eq!(endpoint(of(&[GOOD, ("OTEL_TRACES_EXPORTER", "none")])), Ok(false));
    }

    #[test]
    fn a_wrong_value_is_told_by_its_variable() {
        for wrong in ["localhost:4318", "/v1/traces", "grpc://localhost:4317", "http://local host", "http://"] {
            let all = [(OTEL_EXPORTER_OTLP_ENDPOINT, wrong)];
            assert_eq!(endpoint(of(&all)), Err(OTEL_EXPORTER_OTLP_ENDPOINT), "{wrong}");
            let all = [GOOD, (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, wrong)];
            assert_eq!(endpoint(of(&all)), Err(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT), "{wrong}");
        }
        let error = "invalid exporter configuration: OTEL_EXPORTER_OTLP_COMPRESSION: `secret` is unknown";
        assert_eq!(named_by(error), Some("OTEL_EXPORTER_OTLP_COMPRESSION"));
        assert_eq!(named_by("something else"), None);
    }

    #[test]
    fn a_wrong_sampler_is_told() {
        let wrong = |sampler, ratio| wrong_sampler(of(&[(SAMPLER, sampler), (SAMPLER_ARG, ratio)]));
        assert_eq!(wrong_sampler(of(&[(SAMPLER_ARG, "a")])), None, "nobody reads it");
        assert_eq!(wrong_sampler(of(&[(SAMPLER, "traceidratio")])), None, "all is the default");
        assert_eq!(wrong("always_on", "a"), None);
        for good in ["0", "0.25", "1.0"] {
            assert_eq!(wrong("traceidratio", good), None, "{good}");
        }
        for bad in ["10%", "1,0", "-0.1", "1.5", "NaN"] {
            assert_eq!(wrong("parentbased_traceidratio", bad), Some(SAMPLER_ARG), "{bad}");
        }
        assert_eq!(wrong("xray", "1"), Some(SAMPLER));
    }
}
