//! Tests over more than one package, in one program, because each separate program would be linked with the whole
//! system. `cargo test -p stepwarden-tests --test whole api::` runs those of `api.rs`.

mod alerts;
mod api;
mod budget;
mod children;
mod console;
mod cost;
mod external_agents;
mod fairness;
mod functions;
mod json;
mod openapi;
mod overload;
mod poison;
mod pools;
mod race;
mod regions;
mod registry;
mod scale;
mod schemas;
mod support;
mod system;
mod upgrade;
mod urls;
