//! All tests of this package in one program, because each separate program would be linked with all dependencies.

mod begun;
mod callbacks;
mod events;
mod heartbeats;
mod keys;
mod labels;
mod links;
mod messages;
mod notices;
mod refused;
mod slow;
mod tenants;
mod traces;
mod world;
