//! Built-in checks of a workflow's input. A workflow names one by `input = "NAME"`.

use crate::problem::{Problem, invalid_field, invalid_input};
use edge::http::read_field;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;
use shared::workflow::Workflow;
use std::borrow::Cow;

/// Checks `input` as `workflow` asks.
///
/// # Errors
/// The first invalid field, and what it must be; for a schema, the first few.
pub fn check(workflow: &Workflow, input: &Value) -> Result<(), Problem> {
    if let Some(schema) = workflow.schema.as_ref().filter(|_| input.is_object()) {
        let faults = schema.schema().faults(input);
        let Some((first, others)) = faults.split_first() else { return Ok(()) };
        let others = others.iter().map(|fault| format!("; `{}` {}", place(&fault.at), fault.message));
        return Err(
            invalid_input(None, format!("{}{}", first.message, others.collect::<String>())).at(place(&first.at))
        );
    }
    match workflow.input.as_deref() {
        Some("order") => check_order(input),
        Some(_) | None if input.is_object() => Ok(()),
        Some(_) | None => Err(invalid_field("input", "must be a JSON object")),
    }
}

/// A JSON Pointer below the input as problems spell it: `input.lines[0].sku`.
fn place(pointer: &str) -> String {
    let mut place = "input".to_owned();
    for part in pointer.split('/').skip(1) {
        match part.parse::<usize>() {
            Ok(n) => place += &format!("[{n}]"),
            Err(_) => place += &format!(".{}", part.replace("~1", "/").replace("~0", "~")),
        }
    }
    place
}

/// An order: who buys what, where it goes, and what it costs. Amounts are whole cents.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OrderInput")]
#[allow(dead_code, reason = "some fields are only read")]
pub struct Order {
    /// The submitter's own order number.
    #[schemars(length(min = 1))]
    order_ref: Words,
    placed_at: jiff::Timestamp,
    customer: Customer,
    ship_to: Address,
    /// ISO 4217.
    #[schemars(regex(pattern = "^[A-Z]{3}$"))]
    currency: String,
    /// The lines of the order.
    #[schemars(length(min = 1, max = MAX_LINES))]
    lines: Vec<Line>,
    /// Cost of transport.
    #[schemars(range(min = 0, max = MAX_NUMBER))]
    freight_cents: i64,
    /// Sum of all lines and the freight.
    #[schemars(range(min = 0))]
    total_cents: i64,
}

/// The customer.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "some fields are only read")]
pub struct Customer {
    #[schemars(length(min = 1))]
    id: Words,
    company: Option<Words>,
    contact: Option<Words>,
    phone: Option<Words>,
}

/// Delivery address.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "some fields are only read")]
pub struct Address {
    name: Words,
    address: Words,
    city: Words,
    region: Option<Words>,
    postal_code: Option<Words>,
    country: Words,
}

/// One line of an order.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "some fields are only read")]
pub struct Line {
    #[schemars(length(min = 1))]
    sku: Words,
    product: Option<Words>,
    #[schemars(range(min = 1, max = MAX_NUMBER))]
    quantity: i64,
    /// Price of one unit.
    #[schemars(range(min = 0, max = MAX_NUMBER))]
    unit_price_cents: i64,
    /// Discount on the line.
    #[schemars(range(min = 0, max = 100))]
    discount_percent: i64,
    /// quantity x unit_price_cents less the discount, to a cent.
    #[schemars(range(min = 0, max = MAX_NUMBER))]
    amount_cents: i64,
}

/// Longest text, in characters.
const MAX_WORDS: usize = 500;
const MAX_LINES: usize = 1000;
/// Largest quantity, and largest amount in cents: far above any order, but their sum does not overflow.
const MAX_NUMBER: i64 = 1_000_000_000_000;

/// A text of bounded length.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Words(String);

impl JsonSchema for Words {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Words".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": MAX_WORDS})
    }
}

impl TryFrom<String> for Words {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match text.chars().count() {
            ..=MAX_WORDS => Ok(Self(text)),
            count => Err(format!("has {count} characters; the limit is {MAX_WORDS}")),
        }
    }
}

/// A derived reader also accepts an array of the fields, which the agents would get.
fn refuse_arrays(input: &Value) -> Result<(), Problem> {
    let refuse = |value: &Value, field: &dyn Fn() -> String| match value {
        Value::Array(_) => Err(invalid_field(None, "must be a JSON object, not an array").at(field())),
        _ => Ok(()),
    };
    refuse(input, &|| "input".into())?;
    refuse(&input["customer"], &|| "input.customer".into())?;
    refuse(&input["ship_to"], &|| "input.ship_to".into())?;
    let lines = input["lines"].as_array().into_iter().flatten();
    lines.enumerate().try_for_each(|(n, line)| refuse(line, &|| format!("input.lines[{n}]")))
}

/// The built-in check `order`.
///
/// # Errors
/// The first invalid field, and what it must be.
pub fn check_order(input: &Value) -> Result<(), Problem> {
    refuse_arrays(input)?;
    let order: Order = read_field("input", input)?;
    let rule = |good: bool, field: &dyn Fn() -> String, what: &str| {
        if good { Ok(()) } else { Err(invalid_input(None, what).at(format!("input.{}", field()))) }
    };
    rule(!order.order_ref.0.is_empty(), &|| "order_ref".into(), "must not be empty; use your own order number")?;
    rule(!order.customer.id.0.is_empty(), &|| "customer.id".into(), "must not be empty")?;
    let is_currency = order.currency.len() == 3 && order.currency.bytes().all(|b| b.is_ascii_uppercase());
    rule(is_currency, &|| "currency".into(), "must be an ISO 4217 code of three capital letters, for example USD")?;
    rule(!order.lines.is_empty(), &|| "lines".into(), "must contain at least one line")?;
    rule(order.lines.len() <= MAX_LINES, &|| "lines".into(), "contains more than 1,000 lines; split the order")?;
    rule((0..=MAX_NUMBER).contains(&order.freight_cents), &|| "freight_cents".into(), "must be 0 or more")?;
    let mut total = i128::from(order.freight_cents);
    for (n, line) in order.lines.iter().enumerate() {
        let at = |name: &'static str| move || format!("lines[{n}].{name}");
        rule(!line.sku.0.is_empty(), &at("sku"), "must not be empty")?;
        rule((1..=MAX_NUMBER).contains(&line.quantity), &at("quantity"), "must be 1 or more")?;
        rule((0..=MAX_NUMBER).contains(&line.unit_price_cents), &at("unit_price_cents"), "must be 0 or more")?;
        rule((0..=100).contains(&line.discount_percent), &at("discount_percent"), "must be from 0 to 100")?;
        rule((0..=MAX_NUMBER).contains(&line.amount_cents), &at("amount_cents"), "must be 0 or more")?;
        let exact =
            i128::from(line.quantity) * i128::from(line.unit_price_cents) * i128::from(100 - line.discount_percent);
        let is_right = (exact - i128::from(line.amount_cents) * 100).abs() <= 100;
        rule(is_right, &at("amount_cents"), "must be quantity x unit_price_cents less the discount, to the cent")?;
        total += i128::from(line.amount_cents);
    }
    let is_sum = total == i128::from(order.total_cents);
    rule(is_sum, &|| "total_cents".into(), "must be the sum of all amount_cents and freight_cents")
}
