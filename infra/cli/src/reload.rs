//! Workflow files that are read again while the system runs.

use crate::changes::Folder;
use anyhow::Result;
use edge::workflows::Workflows;
use shared::visible::visible;
use shared::workflow::file::Settings;
use std::io::Write;
use std::path::{Path, PathBuf};
use stepwarden_local::system::{System, read_workflows};

/// Where workflows come from.
pub struct Source<'a> {
    /// The folder, if the caller named one.
    pub folder: Option<&'a Path>,
    /// Agents that other programs serve.
    pub agents: Vec<String>,
    /// What files are read with.
    pub settings: Settings,
}

impl Source<'_> {
    /// The workflows as they are now.
    ///
    /// # Errors
    /// The first file that is wrong.
    pub fn read(&self) -> Result<Workflows> {
        read_workflows(self.folder, &self.agents, &self.settings)
    }

    /// Gives `system` the workflows whenever their files change, and tells what changed. A mistake leaves everything as it is.
    pub async fn follow(&self, system: &System, tell: fn(&str)) {
        let path = self.folder.map_or_else(|| PathBuf::from("workflows"), Path::to_owned);
        let is_built_in = self.folder.is_none() && !path.is_dir();
        let mut folder = Folder::new(path.clone());
        // The first look is at what changed while the system started.
        loop {
            // The built-in workflows take the place of this folder only at the start.
            let old = system.submit();
            let read = match path.is_dir() {
                true => self.read(),
                false if is_built_in => Ok(old.workflows.clone()),
                false => Err(anyhow::anyhow!("the folder {} is gone; put it back", path.display())),
            };
            let done = match read {
                Ok(new) if new == old.workflows => Ok(()),
                Ok(new) => system.replace(new).await.map_err(anyhow::Error::from),
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => changes(&old.workflows, &system.submit().workflows).iter().for_each(|line| tell(line)),
                Err(error) => {
                    let _ = writeln!(std::io::stderr(), "{}", visible(&format!("{error:#}")));
                    let _ =
                        writeln!(std::io::stderr(), "nothing was changed: new orders still get the earlier workflows");
                }
            }
            folder.changed().await;
        }
    }
}

/// What differs, a sentence each.
fn changes(old: &Workflows, new: &Workflows) -> Vec<String> {
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let gone = gone.map(|name| format!("workflow {name} was removed; its open orders continue"));
    let differ = new.iter().filter(|(name, workflow)| old.get(*name) != Some(workflow)).map(|(name, workflow)| {
        let what = if old.contains_key(name) { "changed; open orders keep the earlier definition" } else { "added" };
        format!("workflow {name} was {what} ({})", workflow.hash())
    });
    gone.chain(differ).collect()
}
