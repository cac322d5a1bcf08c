//! The workflow that `stepwarden new` writes, with goods that cannot be packed: `cargo run --example nothing_to_pack`.

use serde_json::json;
use stepwarden_testkit::{Answer, Order};

/// Plays the order.
pub fn main() {
    Order::of(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/new/workflows/shop.toml"))
        .input(json!({ "item": "lamp", "quantity": 2 }))
        .answers("reserve", [Answer::ok(json!({ "reservation": "r1" }))])
        .answers("pack", [Answer::refused("the box is too small")])
        .ends("Undone")
        .failed(["pack"])
        .undone(["reserve"])
        .error("the box is too small")
        .check(0..20);
    println!("undone, and so under 20 seeds of faults");
}
