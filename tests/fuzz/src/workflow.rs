//! Workflow files.

use shared::time::SignedDuration;
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use shared::workflow::http::MAX_BYTES;

/// The agents that files may name.
const AGENTS: [&str; 4] = ["inventory", "payment", "shipping", "http"];

/// An accepted file is a graph that can run: every step can be reached, and has a timeout and an existing agent. A
/// refusal names a line of the file.
pub fn file(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let workflow = match parse("any.toml", text, Known { agents: &AGENTS, inputs: &["order"] }) {
        Ok(workflow) => workflow,
        Err(error) => {
            let lines = text.lines().count().max(1);
            assert!((1..=lines + 1).contains(&error.line), "line {} of {lines}: {error}", error.line);
            return false;
        }
    };
    assert!(!workflow.steps.is_empty());
    let mut done: Vec<usize> = Vec::new();
    while done.len() < workflow.steps.len() {
        let is_next = |n: &usize| !done.contains(n) && workflow.steps[*n].after.iter().all(|a| done.contains(&a.step));
        let next = (0..workflow.steps.len()).find(is_next).expect("no cycle");
        done.push(next);
    }
    for (n, step) in workflow.steps.iter().enumerate() {
        assert_eq!(workflow.position(&step.name), Some(n), "names are unique");
        assert!(AGENTS.contains(&step.agent.as_str()) && step.timeout > SignedDuration::ZERO);
        if let Some(undo) = &step.undo {
            assert!(AGENTS.contains(&undo.agent.as_str()) && undo.timeout > SignedDuration::ZERO);
        }
    }
    for (_, http) in workflow.calls_over_http() {
        let url = http.url_for("ord_1", "step").to_lowercase();
        assert!(url.starts_with("https://") || url.starts_with("http://"), "{url}");
        assert!(serde_json::to_string(http).expect("as it is stored").len() <= MAX_BYTES);
    }
    let json = serde_json::to_string(&workflow).expect("as it is stored");
    let stored: Workflow = serde_json::from_str(&json).expect("as it was stored");
    assert!(stored == workflow && stored.hash() == workflow.hash(), "a task finds its definition again");
    true
}
