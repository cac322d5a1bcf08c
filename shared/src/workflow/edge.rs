//! What a settled step means for the steps after it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One entry of a step's `after`. Its JSON is the position, followed by the mark of its edge in a string: `2`, `"2!"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Spelled", into = "Spelled")]
pub struct After {
    /// Position of the step before.
    pub step: usize,
    /// What follows for this one if that step did not run.
    pub edge: Edge,
}

/// What a settled step means for a step after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// `X`: go if it ran. X is never caught, nor passed over by its own condition.
    Plain,
    /// `X!`: go only if it ran.
    IfRan,
    /// `X?`: always go.
    Always,
}

impl Edge {
    /// The name of a step and the edge, from `X`, `X!` or `X?`.
    #[must_use]
    pub fn split(text: &str) -> (&str, Self) {
        match (text.strip_suffix('!'), text.strip_suffix('?')) {
            (Some(name), _) => (name, Self::IfRan),
            (None, Some(name)) => (name, Self::Always),
            (None, None) => (text, Self::Plain),
        }
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "",
            Self::IfRan => "!",
            Self::Always => "?",
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Spelled {
    Position(usize),
    Marked(String),
}

impl TryFrom<Spelled> for After {
    type Error = String;

    fn try_from(spelled: Spelled) -> Result<Self, String> {
        let text = match spelled {
            Spelled::Position(step) => return Ok(Self { step, edge: Edge::Plain }),
            Spelled::Marked(text) => text,
        };
        let (position, edge) = Edge::split(&text);
        match position.parse() {
            Ok(step) if edge != Edge::Plain => Ok(Self { step, edge }),
            _ => Err(format!("`{text}` is not the position of a step with `!` or `?`")),
        }
    }
}

impl From<After> for Spelled {
    fn from(after: After) -> Self {
        match after.edge {
            Edge::Plain => Self::Position(after.step),
            Edge::IfRan | Edge::Always => Self::Marked(format!("{}{}", after.step, after.edge)),
        }
    }
}
