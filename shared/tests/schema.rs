//! Goal: the check of an input by a schema accepts and refuses as JSON Schema says, in words, and in bounded time.

use crate::support::{ONE, workflow};
use serde_json::{Map, Value, json};
use shared::schema::{MAX_BYTES, MAX_LEVELS, read};
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};

#[test]
fn what_fits_and_what_does_not() {
    let table = [
        (json!({"type": "object"}), json!([]), "|must be an object"),
        (json!({"type": ["string", "null"]}), json!(5), "|must be a string or null"),
        (json!({"type": "integer"}), json!(5.0), ""),
        (json!({"type": "integer"}), json!(5.5), "|must be a whole number"),
        (json!({"required": ["a/b"]}), json!({}), "/a~1b|is required"),
        (json!({"properties": {"a": {"minimum": 1}}}), json!({"a": 0}), "/a|must be at least 1"),
        (
            json!({"properties": {"a": {}}, "additionalProperties": false}),
            json!({"b": 0}),
            "/b|is not known; the fields are a",
        ),
        (json!({"additionalProperties": {"type": "string"}}), json!({"b": 0}), "/b|must be a string"),
        (json!({"items": {"exclusiveMaximum": 3}}), json!([1, 3]), "/1|must be below 3"),
        (json!({"prefixItems": [true, false]}), json!([1, 3]), "/1|must not be there"),
        (json!({"minItems": 1}), json!([]), "|must have at least 1 item, but has 0"),
        (json!({"maxLength": 2}), json!("äöü"), "|must have at most 2 characters, but has 3"),
        (
            json!({"uniqueItems": true}),
            json!([1, {"a": 1.0, "b": 0}, {"b": 0, "a": 1}]),
            "|must have no item twice, but items 1 and 2 are the same",
        ),
        (json!({"uniqueItems": true}), json!([0, false, null, "", [], {}]), ""),
        // Their nearest doubles are the same.
        (json!({"uniqueItems": true}), json!([9_007_199_254_740_992_u64, 9_007_199_254_740_993_u64]), ""),
        (json!({"const": 9_007_199_254_740_992_u64}), json!(9_007_199_254_740_993_u64), "|must be 9007199254740992"),
        (
            json!({"maximum": 9_007_199_254_740_992_u64}),
            json!(9_007_199_254_740_993_u64),
            "|must be at most 9007199254740992",
        ),
        (json!({"minimum": 5.0, "exclusiveMaximum": 5.5}), json!(5), ""),
        (json!({"minimum": 5.5, "maximum": 1e30}), json!(5), "|must be at least 5.5"),
        (json!({"exclusiveMinimum": 5.0}), json!(5), "|must be above 5"),
        (json!({"enum": ["a", 5]}), json!(5.0), ""),
        (json!({"enum": ["a", 5]}), json!("b"), "|must be \"a\" or 5"),
        (json!({"const": {"a": 1}}), json!({"a": 2}), "|must be {\"a\":1}"),
        (json!({"multipleOf": 0.01}), json!(19.99), ""),
        (json!({"multipleOf": 0.01}), json!(19.999), "|must be a multiple of 0.01"),
        (json!({"multipleOf": 0.01}), json!(19_999_999.99), ""),
        (json!({"multipleOf": 0.01}), json!(19_999_999.995), "|must be a multiple of 0.01"),
        (json!({"multipleOf": 0.1}), json!(-0.3), ""),
        (json!({"multipleOf": 0.1}), json!(0), ""),
        (json!({"multipleOf": 100}), json!(100_000_000_050_u64), "|must be a multiple of 100"),
        (json!({"multipleOf": 100.0}), json!(-100_000_000_100_i64), ""),
        (json!({"anyOf": [{"type": "string"}, {"minimum": 5}]}), json!(4), "|must fit one of 2 alternatives"),
        (
            json!({"oneOf": [{"type": "number"}, {"minimum": 5}]}),
            json!(6),
            "|must fit exactly one of 2 alternatives, but fits 2",
        ),
        (json!({"not": {"type": "string"}}), json!("a"), "|must not have this form"),
        (json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}}), json!({"a": 1}), "/b|is required"),
        (json!({"if": {"required": ["a"]}, "else": {"required": ["b"]}}), json!({"a": 1}), ""),
        (json!({"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}), json!(1), "|must be a string"),
        (json!({"format": "date-time"}), json!("2026-01-31T08:00:00+02:00"), ""),
        (json!({"format": "date-time"}), json!("2026-01-31"), "|must be a time, such as 2026-01-31T08:00:00Z"),
        (json!({"format": "date"}), json!("2026-02-30"), "|must be a date, such as 2026-01-31"),
        (json!({"format": "uuid"}), json!("3f2504e0-4f89-41d3-9a0c-0305e82c3301"), ""),
        (json!({"format": "email"}), json!("a b@c"), "|must be an email address, such as ada@example.com"),
        (json!({"format": "uri"}), json!("example"), "|must be a URI, such as https://example.com/a"),
        (json!(false), json!(1), "|must not be there"),
    ];
    for (schema, input, wanted) in table {
        let faults = read(&schema).unwrap_or_else(|e| panic!("{schema}: {e}")).faults(&input);
        let told: Vec<String> = faults.iter().map(|fault| format!("{}|{}", fault.at, fault.message)).collect();
        assert_eq!(told.join("; "), wanted, "{schema} {input}");
    }
}

#[test]
fn what_is_no_schema_is_refused_in_words() {
    let table = [
        (json!([]), "`/`: a schema is an object, true or false"),
        (json!({"type": "text"}), "`/type`: \"text\" is not a type; write one of null"),
        (json!({"properties": {"a": {"minimum": "1"}}}), "`/properties/a/minimum`: it must be a number"),
        (json!({"properties": []}), "`/properties`: it must be an object of schemas"),
        (json!({"pattern": "(a+)+$"}), "`/pattern`: regular expressions are not checked here"),
        (json!({"requierd": ["a"]}), "`/requierd`: there is no keyword `requierd` here"),
        (json!({"required": [1]}), "`/required`: it must be a list of names"),
        (
            json!({"$ref": "https://example.com/s.json"}),
            "`/$ref`: \"https://example.com/s.json\" leads out of the document",
        ),
        (json!({"$ref": "#/$defs/x"}), "`/$ref`: \"#/$defs/x\" leads nowhere"),
        (json!({"$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"}), "leads back to itself"),
        (json!({"$schema": "http://json-schema.org/draft-07/schema#"}), "`/$schema`: this is not the dialect"),
        (json!({"then": {}}), "`/then`: it means nothing without `if`"),
        (json!({"format": "ipv4"}), "`/format`: \"ipv4\" is not checked here"),
        (json!({"anyOf": []}), "`/anyOf`: it must be a list of at least one schema"),
        (json!({"multipleOf": 0}), "`/multipleOf`: it must be above 0"),
        (json!({"description": "x".repeat(MAX_BYTES)}), "bytes; the limit is 65536"),
    ];
    for (schema, part) in table {
        let error = read(&schema).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
    let mut deep = json!({});
    for _ in 0..=MAX_LEVELS {
        deep = json!({"items": deep});
    }
    assert!(read(&deep).unwrap_err().contains("nested deeper than 32 levels"));
    // References to references: 3 to the power of 14 schemas if each was followed without a bound.
    let mut defs = Map::new();
    for n in 0..14 {
        let next = format!("#/$defs/d{}", n + 1);
        defs.insert(format!("d{n}"), json!({"allOf": [{"$ref": next}, {"$ref": next}, {"$ref": next}]}));
    }
    defs.insert("d14".into(), json!({}));
    assert!(
        read(&json!({"$defs": defs, "$ref": "#/$defs/d0"})).unwrap_err().contains("too large once `$ref` is followed")
    );
}

// No input keeps a function busy: long lists, alternatives in alternatives, deep data.
#[test]
fn a_check_ends_soon() {
    let begin = std::time::Instant::now();
    let unique = read(&json!({"uniqueItems": true})).unwrap();
    let list: Vec<Value> = (0..100_000).map(|n| json!({"n": n})).collect();
    assert_eq!(unique.faults(&Value::Array(list)), []);
    let mut schema = json!({"type": "string"});
    for _ in 0..15 {
        schema = json!({"anyOf": [{"items": schema.clone()}, {"items": schema, "minItems": 2}]});
        if schema.to_string().len() > 30_000 {
            break;
        }
    }
    let schema = read(&schema).unwrap();
    let mut data = json!(5);
    for _ in 0..12 {
        data = json!([data.clone(), data.clone(), data]);
    }
    assert_ne!(schema.faults(&data), []);
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

#[test]
fn a_field_that_no_input_has_is_known() {
    let schema = read(&json!({
        "properties": {"a": {"properties": {"b": {}}, "additionalProperties": false}, "c": {"anyOf": [{"$ref": "#/$defs/x"}, {"additionalProperties": false}]}},
        "additionalProperties": false, "$defs": {"x": {"additionalProperties": false, "properties": {"d": true}}}
    })).unwrap();
    let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    for (text, excluded) in
        [("a", false), ("a.b", false), ("a.b.c", false), ("a.x", true), ("x", true), ("c.d", false), ("c.e", true)]
    {
        assert_eq!(schema.excludes(&path(text)), excluded, "{text}");
    }
}

// K7: in a workflow file, the schema is part of the definition, and what it excludes is not read.
#[test]
fn a_file_contains_its_check() {
    let check = "[input]\nadditionalProperties = false\nproperties.cents = { type = \"integer\" }\n";
    let one = ONE.replace("agent = \"x\"\ntimeout", "agent = \"x\"\nafter = []\ntimeout");
    let text = |with: &str| {
        format!(
            "{}{check}{}",
            &one[..one.find("[[step]]").unwrap()],
            one[one.find("[[step]]").unwrap()..].replacen("after", &format!("with = {with}\nafter"), 1)
        )
    };
    let good = workflow(&text("{ a = \"${input.cents}\" }"));
    assert_eq!(good.schema.as_ref().unwrap().schema().faults(&json!({"cents": "5"})).len(), 1);
    let json = serde_json::to_string(&good).unwrap();
    assert_eq!(Workflow::recorded(&json, &good.hash()).unwrap(), good);
    let later = json.replace("\"type\":\"integer\"", "\"pattern\":\"a+\"");
    assert!(
        Workflow::recorded(&later, &shared::workflow::Hash::of(later.as_bytes()))
            .unwrap_err()
            .contains("newer version")
    );
    let refused =
        |text: &str| parse("f.toml", text, Known { agents: &["x"], inputs: &["order"] }).unwrap_err().to_string();
    for (text, line, words) in [
        (text("{ a = \"${input.note}\" }"), 9, &["`input.note` is never there", "add it to its `properties`"][..]),
        (text("{ a = \"${first(input.note, 0)}\" }"), 9, &["`input.note` is never there"]),
        (
            text("{}").replace("\"integer\"", "\"whole\""),
            3,
            &["`input` is not a schema", "`/properties/cents/type`", "integer"],
        ),
        (text("{}").replace("properties.cents", "deadline = \"4h\"\nproperties.cents"), 3, &["no keyword `deadline`"]),
        (
            text("{}").replace("properties.cents", "default = { timeout = \"4s\" }\nproperties.cents"),
            3,
            &["`default` is a key of the workflow", "above `[input]`"],
        ),
        (format!("input = \"other\"\n{ONE}"), 1, &["unknown input check `other`", "`order`", "[input]"]),
        (format!("input = 5\n{ONE}"), 1, &["unknown input check `5`", "`[input]`"]),
    ] {
        let error = refused(&text);
        assert!(error.starts_with(&format!("f.toml:{line}:")), "{error}\n{text}");
        words.iter().for_each(|word| assert!(error.contains(word), "{word}: {error}"));
    }
}
