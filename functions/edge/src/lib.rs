//! The edge of the HTTP API, shared by the functions behind it: requests read strictly, callers' rights, and refusals
//! as problem details.

pub mod auth;
pub mod http;
pub mod mismatch;
pub mod problem;
pub mod query;
pub mod roles;
pub mod whole_number;
pub mod workflows;
