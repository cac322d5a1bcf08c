//! The agent `stock`: one function for each step that names it in a workflow file.
//!
//! A function may be called several times for the same step. Pass `idempotency_key` to your service, so that it does the
//! work once; this sample derives everything from the key.

use serde::{Deserialize, Serialize};
use stepwarden_agent::{Agent, AgentError, Call, ServeError, Undo, serve};

#[derive(Deserialize)]
struct Wanted {
    item: String,
    quantity: u32,
}

#[derive(Deserialize, Serialize)]
struct Reserved {
    reservation: String,
}

#[derive(Deserialize)]
struct Packable {
    item: String,
    reservation: String,
}

#[derive(Serialize)]
struct Packed {
    parcel: String,
}

async fn reserve(call: Call<Wanted>) -> Result<Reserved, AgentError> {
    if call.input.quantity > 100 {
        return Err(AgentError::refused(format!("there are only 100 of {}", call.input.item), 409, None));
    }
    Ok(Reserved { reservation: format!("R-{}", call.idempotency_key) })
}

/// Undoes `reserve`, whose key is in `undoes`. It also succeeds if nothing was reserved under that key.
async fn release(undo: Undo<Wanted, Reserved>) -> Result<(), AgentError> {
    println!("released {}", undo.undoes);
    Ok(())
}

async fn pack(call: Call<Packable>) -> Result<Packed, AgentError> {
    if call.input.item == "piano" {
        return Err(AgentError::permanent("a piano fits into no parcel"));
    }
    Ok(Packed { parcel: call.input.reservation.replace("R-", "P-") })
}

/// Serves the agent: in Lambda, in a container, or beside `stepwarden up`.
pub fn main() -> Result<(), ServeError> {
    serve([Agent::new("stock").step("reserve", reserve).undo("reserve", release).step("pack", pack)])
}
