//! The schemas of what the API reads and writes, from the types that the functions read and write.

use edge::problem::{self, CODES};
use operator::{act, again, agents, details, erase, items, jobs, list, mend, migrate, overview, queues, workflows};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use shared::workflow::file::MAX_NAME;
use stepwarden_aws::redrive;
use submit::callbacks::CallbackAccepted;
use submit::events::EventAccepted;
use submit::heartbeats::Alive;
use submit::http::{Accepted, History};

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn schema<T: JsonSchema>() -> Value {
    inner(SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<T>().to_value())
}

fn inner(mut schema: Value) -> Value {
    let object = schema.as_object_mut().expect("an object");
    for key in ["$schema", "$defs", "title"] {
        object.remove(key);
    }
    tidy(&mut schema);
    schema
}

/// Removes the default `null` of optional fields, and adds `null` to the values where it is a type.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(all) => {
            if all.get("default") == Some(&Value::Null) {
                all.remove("default");
            }
            let may_be_null =
                all.get("type").and_then(Value::as_array).is_some_and(|kinds| kinds.contains(&json!("null")));
            if let Some(Value::Array(values)) = all.get_mut("enum")
                && may_be_null
                && !values.contains(&Value::Null)
            {
                values.push(Value::Null);
            }
            all.values_mut().for_each(tidy);
        }
        Value::Array(all) => all.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The body of the action called `name`: only the fields that it takes.
pub(super) fn act_schema(name: &str) -> Value {
    let given = |field: &str| {
        let mut body = act::Body::default();
        match field {
            "step" => body.step = Some("charge".into()),
            "input" => body.input = Some(json!({})),
            _ => body.output = Some(json!({})),
        }
        body
    };
    let mut schema = at_home(schema::<act::Body>());
    for field in ["step", "input", "output"] {
        if act::what(name, &given(field)).is_none_or(|what| what.is_err()) {
            schema["properties"].as_object_mut().expect("properties").remove(field);
        }
    }
    schema
}

/// A submission for the workflow `order`, whose input has a schema, or for any other workflow.
pub(super) fn submission() -> Value {
    let all = at_home(schema::<submit::submission::Submission>());
    let (mut order, mut other) = (all.clone(), all);
    order["properties"]["workflow"] = json!({"const": "order", "default": "order"});
    order["properties"]["input"] = reference("OrderInput");
    order["description"] = json!("An order for goods.");
    other["properties"]["workflow"] = json!({"type": "string", "maxLength": MAX_NAME, "not": {"const": "order"}});
    other["properties"]["input"] = json!({"type": "object", "description": "As that workflow requires."});
    other["required"] = json!(["workflow", "input"]);
    other["description"] = json!("Input for any other workflow.");
    json!({"oneOf": [order, other]})
}

/// Rewrites the references of a separate schema for use within the document.
pub(super) fn at_home(schema: Value) -> Value {
    serde_json::from_str(&schema.to_string().replace("#/$defs/", "#/components/schemas/")).expect("it was JSON")
}

pub(super) fn schemas() -> Value {
    fn named<T: JsonSchema>(generator: &mut SchemaGenerator) {
        generator.subschema_for::<T>();
    }
    let settings = || SchemaSettings::draft2020_12().with(|s| s.definitions_path = "/components/schemas".into());
    let mut reads = settings().for_deserialize().into_generator();
    named::<submit::input::Order>(&mut reads);
    named::<list::Wanted>(&mut reads);
    named::<act::Why>(&mut reads);
    named::<queues::Redrive>(&mut reads);
    named::<mend::Mend>(&mut reads);
    named::<migrate::Migrate>(&mut reads);
    named::<again::RunAgain>(&mut reads);
    named::<workflows::Put>(&mut reads);
    named::<workflows::Activation>(&mut reads);
    named::<workflows::Wish>(&mut reads);
    named::<shared::task::Priority>(&mut reads);
    let mut writes = settings().for_serialize().into_generator();
    named::<Accepted>(&mut writes);
    named::<EventAccepted>(&mut writes);
    named::<CallbackAccepted>(&mut writes);
    named::<Alive>(&mut writes);
    named::<History>(&mut writes);
    named::<shared::view::Status>(&mut writes);
    named::<list::Rows>(&mut writes);
    named::<act::Done>(&mut writes);
    named::<jobs::Status>(&mut writes);
    named::<jobs::Jobs>(&mut writes);
    named::<jobs::Results>(&mut writes);
    named::<agents::All>(&mut writes);
    named::<agents::Set>(&mut writes);
    named::<redrive::Moved>(&mut writes);
    named::<queues::Leases>(&mut writes);
    named::<operator::charts::Charts>(&mut writes);
    named::<queues::Queues>(&mut writes);
    named::<overview::Overview>(&mut writes);
    named::<details::Details>(&mut writes);
    named::<items::Page>(&mut writes);
    named::<mend::Record>(&mut writes);
    named::<migrate::Report>(&mut writes);
    named::<again::Report>(&mut writes);
    named::<erase::Erased>(&mut writes);
    named::<workflows::All>(&mut writes);
    named::<workflows::Details>(&mut writes);
    named::<workflows::Definition>(&mut writes);
    named::<workflows::Done>(&mut writes);
    named::<problem::Problem>(&mut writes);
    let mut all: Map<String, Value> = reads.take_definitions(true).into_iter().collect();
    for (name, schema) in writes.take_definitions(true) {
        let before = all.insert(name.clone(), schema.clone());
        assert!(before.is_none_or(|before| before == schema), "`{name}` has two shapes; rename one of them");
    }
    // A filter without a condition is refused.
    let says = |name: &String| json!({"required": [name], "properties": {name: {"not": {"type": "null"}}}});
    let names = all["Filter"]["properties"].as_object().expect("properties").keys().map(says).collect::<Vec<_>>();
    all["Filter"]["anyOf"] = json!(names);
    let codes = all.get_mut("Problem").expect("the type of refusals");
    codes["properties"]["code"]["enum"] = CODES.iter().map(|(code, ..)| *code).collect();
    codes["properties"]["type"]["format"] = json!("uri-reference");
    let mut all = Value::Object(all);
    tidy(&mut all);
    all
}
