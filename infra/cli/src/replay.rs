//! `stepwarden simulate --replay`: an exported order once more in virtual time.
//!
//! The testkit reads, plays and compares; here the result is printed.

use crate::args::Simulate;
use crate::show;
use crate::stdout;
use anyhow::Result;
use shared::visible::visible;
use std::fmt::Write as _;
use stepwarden_local::start_error::StartError;
use stepwarden_testkit::replay::{self, Parting, Replayed};

/// Longest value that is shown, in bytes.
const MAX_SHOWN: usize = 300;

/// Plays the order and prints how that went; true if it came to stand where the order stands, or if another definition was tried, and no
/// rule was broken.
///
/// # Errors
/// A file that is no export, or a wrong definition.
pub fn main(options: &Simulate) -> Result<bool> {
    let order = replay::read(&options.replay, options.file.as_deref()).map_err(StartError::Data)?;
    let replayed = order.play();
    let is_right =
        replayed.broken.is_empty() && (replayed.same || options.file.is_some()) && replayed.state != "Refused";
    if options.json {
        crate::say!("{}", serde_json::json!({ "replay": replayed }));
    } else {
        stdout::styled(&words(&replayed, options.file.is_some()))?;
    }
    Ok(is_right)
}

fn words(replayed: &Replayed, is_trial: bool) -> String {
    let Replayed { order_id, workflow, exported_state, state, same, .. } = replayed;
    let mut out = format!("order {order_id} of `{}`, exported as {exported_state}\n", visible(workflow));
    for note in &replayed.notes {
        let _ = writeln!(out, "  note: {}", visible(note));
    }
    for broken in &replayed.broken {
        let _ = writeln!(out, "  a rule of the system was broken: {}", visible(broken));
    }
    let _ = match (same, is_trial) {
        (true, _) => writeln!(out, "{}the replay reaches the same state as the order: {state}", show::painted("ok", 6)),
        (false, true) => writeln!(out, "with this file the order reaches {state}"),
        (false, false) => {
            writeln!(out, "{}the replay reaches {state}, which is a different state", show::painted("FAIL", 6))
        }
    };
    if let Some(Parting { order_id: own, at, export, replay }) = &replayed.parts_at {
        let whose = if own == order_id { String::new() } else { format!(" of {own}") };
        let _ = writeln!(out, "  the histories{whose} first differ at {}", show::time(*at));
        let or =
            |one: &Option<String>| one.as_deref().map_or("nothing more".to_owned(), |one| visible(one).into_owned());
        let _ = writeln!(out, "    export: {}", or(export));
        let _ = writeln!(out, "    replay: {}", or(replay));
    }
    for difference in &replayed.differences {
        let cut = |value: &serde_json::Value| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            shared::history::shorten(&visible(&text), MAX_SHOWN)
        };
        let (export, replay) = (cut(&difference.export), cut(&difference.replay));
        let _ = writeln!(out, "  {}: {export} in the export, {replay} in the replay", visible(&difference.what));
    }
    if !replayed.history.is_empty() && (!same || is_trial) {
        out += &show::events(&replayed.history, "  ");
    }
    out
}
