//! The `lambda` and the `aws` of a step: a name alone, or a table.

use super::{Problem, list};
use crate::expression::{Mapping, Names, Template};
use crate::workflow::aws::{Aws, INVOKE, Protocol, S3_HEADERS, SERVICES, Service, is_function};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use toml::Spanned;

/// Most names of errors in a list, and the longest name.
const MAX_ERRORS: usize = 20;
const MAX_ERROR: usize = 100;

/// A `lambda` or `aws`.
#[derive(Default)]
pub(super) struct RawAws {
    name: String,
    /// The name's key in a table; empty if the name is alone.
    key: &'static str,
    done: Vec<String>,
    transient: Vec<String>,
    permanent: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    function: Option<String>,
    action: Option<String>,
    #[serde(default)]
    done: Vec<String>,
    #[serde(default)]
    transient: Vec<String>,
    #[serde(default)]
    permanent: Vec<String>,
}

impl<'de> Deserialize<'de> for RawAws {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawAws;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name, or a table such as { function = \"stock\", permanent = [\"OutOfStock\"] }")
            }

            fn visit_str<E>(self, name: &str) -> Result<RawAws, E> {
                Ok(RawAws { name: name.to_owned(), ..RawAws::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawAws, A::Error> {
                let Table { function, action, done, transient, permanent } =
                    Table::deserialize(MapAccessDeserializer::new(map))?;
                match (function, action) {
                    (Some(name), None) => Ok(RawAws { name, key: "function", done, transient, permanent }),
                    (None, Some(name)) => Ok(RawAws { name, key: "action", done, transient, permanent }),
                    (Some(_), Some(_)) => Err(serde::de::Error::custom(
                        "both `function` and `action` are given; write { function = \"NAME\" } in `lambda`, or { action = \"SERVICE:ACTION\" } in `aws`",
                    )),
                    (None, None) => Err(serde::de::Error::custom(
                        "the name is missing; write { function = \"NAME\" } in `lambda`, or { action = \"SERVICE:ACTION\" } in `aws`",
                    )),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The call of a function.
pub(super) fn lambda(raw: &Spanned<RawAws>, config: &Map<String, Value>) -> Result<Aws, Problem> {
    let given = raw.get_ref();
    if given.key == "action" {
        return Err((raw.span(), "`lambda` takes no `action`; write lambda = { function = \"NAME\" }".into()));
    }
    let function = fixed(&given.name, config).map_err(|words| (raw.span(), format!("`lambda`: {words}")))?;
    if !is_function(&function) {
        let message = format!(
            "`{function}` does not name a Lambda function; write its name or its ARN, with a version or an alias after `:` if you want one"
        );
        return Err((raw.span(), message));
    }
    build(raw, INVOKE.into(), Some(function))
}

/// The call of another action.
pub(super) fn action(raw: &Spanned<RawAws>) -> Result<Aws, Problem> {
    let name = &raw.get_ref().name;
    let fail = |message: String| Err((raw.span(), message));
    if raw.get_ref().key == "function" {
        return fail("`aws` takes no `function`; write aws = { action = \"SERVICE:ACTION\" }".into());
    }
    let Some((service, action)) = name.split_once(':') else {
        return fail(format!("`{name}` is not an action of AWS; write SERVICE:ACTION, such as \"dynamodb:PutItem\""));
    };
    if name == INVOKE {
        return fail("write `lambda = \"FUNCTION\"` instead of `aws = \"lambda:Invoke\"`".into());
    }
    let Some(known) = Service::named(service) else {
        let names: Vec<&str> = SERVICES.iter().map(|service| service.name).filter(|name| *name != "lambda").collect();
        return fail(format!("unknown service `{service}` in `aws`; write one of {}", list(&names)));
    };
    let actions: Vec<&str> = known.actions().collect();
    if !actions.contains(&action) {
        return fail(format!("unknown action `{action}` of `{service}`; write one of {}", list(&actions)));
    }
    build(raw, name.clone(), None)
}

fn build(raw: &Spanned<RawAws>, action: String, function: Option<String>) -> Result<Aws, Problem> {
    let RawAws { done, transient, permanent, .. } = raw.get_ref();
    for (list, names) in [("done", done), ("transient", transient), ("permanent", permanent)] {
        let is_name = |name: &String| {
            !name.is_empty() && name.len() <= MAX_ERROR && name.chars().all(|c| c.is_ascii_graphic() && c != '#')
        };
        if let Some(name) = names.iter().find(|name| !is_name(name)) {
            let message = format!(
                "`{list}`: `{}` does not name an error; write its name alone, such as \"ConditionalCheckFailedException\"",
                name.escape_debug()
            );
            return Err((raw.span(), message));
        }
        if names.len() > MAX_ERRORS {
            return Err((
                raw.span(),
                format!("`{list}` names {} errors; the limit is {MAX_ERRORS}, so remove some", names.len()),
            ));
        }
    }
    let mut all: Vec<&String> = done.iter().chain(transient).chain(permanent).collect();
    all.sort();
    if let Some(name) = all.windows(2).find(|two| two[0] == two[1]).map(|two| two[0]) {
        return Err((raw.span(), format!("`{name}` is named twice; an error is done, transient or permanent")));
    }
    let sorted = |names: &Vec<String>| {
        let mut names = names.clone();
        names.sort();
        names
    };
    let (done, transient, permanent) = (sorted(done), sorted(transient), sorted(permanent));
    Ok(Aws { action, function, envelope: false, keep: None, done, transient, permanent })
}

/// Checks that `with` has what the call needs, as far as shown.
pub(super) fn check_with(aws: &Aws, with: &Mapping) -> Result<(), String> {
    let (Some((service, action)), None) = (aws.service(), &aws.function) else { return Ok(()) };
    let Some(keys) = with.keys() else {
        return match with.is_constant() {
            true => Err(format!("`{}` takes a table; write `with = {{ ... }}`", aws.action)),
            false => Ok(()),
        };
    };
    let path = service.route(action).map_or("", |(_, path)| path);
    let mut parts = path.split(['{', '}']).skip(1).step_by(2);
    if let Some(missing) = parts.find(|part| !keys.contains(part)) {
        return Err(format!("`{}` needs `{missing}` in `with`; add it there", aws.action));
    }
    if service.protocol != Protocol::S3 {
        return Ok(());
    }
    let body = (action == "PutObject").then_some("Body");
    let known: Vec<&str> =
        ["Bucket", "Key"].into_iter().chain(body).chain(S3_HEADERS.iter().map(|(name, _)| *name)).collect();
    match keys.iter().find(|key| !known.contains(key)) {
        Some(key) => Err(format!("`{}` takes no `{key}`; write one of {}", aws.action, list(&known))),
        None => Ok(()),
    }
}

/// The text with its expressions replaced, which may read only `config`, as for every order.
pub(super) fn fixed(text: &str, config: &Map<String, Value>) -> Result<String, String> {
    let template = Template::parse(text).map_err(|fault| fault.to_string())?;
    if let Some(other) = template.references().find(|reference| reference.path[0] != "config") {
        return Err(format!(
            "`{}` cannot be read here, because this value must be the same for every order; write it out, or read `config`",
            other.path.join(".")
        ));
    }
    let config = Value::Object(config.clone());
    template.text_of(&Names::new().with("config", Cow::Owned(config))).map_err(|mistake| mistake.to_string())
}
