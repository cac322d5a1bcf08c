//! What each service answers to a call it carried out.

use serde_json::{Value, json};

use crate::Service;
use crate::draw::text_number;

/// The input lacks what the service needs; the text says what to write.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadInput(&'static str);

/// The answer but for its `reference`, which is known once the effect is recorded.
///
/// - `inventory`: `lines`, the number of `input.lines` or `input.items`, 0 without either
/// - `fraud`: `approved`, always true (a refusal is the fault `permanent`), and `score`, 0 to 99, the order's own
/// - `payment`: `amount_cents`, from `input.total_cents`
/// - `shipping`: `tracking`, the order's own
///
/// Errors when a payment's `total_cents` is not a whole number of 0 or more.
pub(crate) fn details(service: Service, order_id: &str, input: &Value) -> Result<Value, BadInput> {
    Ok(match service {
        Service::Inventory => {
            let lines = input.get("lines").or_else(|| input.get("items"));
            json!({"lines": lines.and_then(Value::as_array).map_or(0, Vec::len)})
        }
        Service::Fraud => json!({"approved": true, "score": text_number(order_id) % 100}),
        Service::Payment => {
            let cents = input.get("total_cents").and_then(Value::as_u64);
            let cents =
                cents.ok_or(BadInput("write `input.total_cents`, the amount to charge as a whole number of cents"))?;
            json!({"amount_cents": cents})
        }
        Service::Shipping => {
            json!({"tracking": format!("SW{:012}", text_number(order_id) % 1_000_000_000_000)})
        }
    })
}

/// The reference of the effect with this number: `inv-000123`.
pub(crate) fn reference(service: Service, number: i64) -> String {
    let prefix = match service {
        Service::Inventory => "inv",
        Service::Fraud => "chk",
        Service::Payment => "chg",
        Service::Shipping => "shp",
    };
    format!("{prefix}-{number:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_what_was_done() {
        let ask = |service, input| details(service, "o-1", &input);
        assert_eq!(ask(Service::Inventory, json!({"lines": [1, 2]})), Ok(json!({"lines": 2})));
        assert_eq!(ask(Service::Inventory, json!(null)), Ok(json!({"lines": 0})));
        assert_eq!(ask(Service::Payment, json!({"total_cents": 1250})), Ok(json!({"amount_cents": 1250})));
        for bad in [json!({}), json!({"total_cents": -1}), json!({"total_cents": 1.5})] {
            assert!(ask(Service::Payment, bad).is_err());
        }
        assert_eq!(reference(Service::Inventory, 123), "inv-000123");
    }
}
