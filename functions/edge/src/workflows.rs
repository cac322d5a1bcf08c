//! The workflows that this process accepts orders for.

use shared::registry::Pointers;
use shared::time::SignedDuration;
use shared::workflow::child::check_path;
use shared::workflow::file::{Error, Known, Settings, name_of, parse_for};
use shared::workflow::{TooShort, Workflow};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Workflows by name.
pub type Workflows = BTreeMap<String, Workflow>;

/// Name and text of every file in the repository's `workflows/`.
pub const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/workflows.rs"));

/// Used if a submission names no workflow and there are several.
const DEFAULT: &str = "order";
/// Built-in checks of an input that a workflow may name.
pub const INPUT_CHECKS: [&str; 1] = ["order"];

/// Longest file, in bytes.
pub const MAX_FILE: usize = 1024 * 1024;

/// The name for a submission without one: the deployment's only name; or else, of its names and those ever registered,
/// the only one, or `order`. It need not be active, because an order must not go elsewhere when its usual workflow is
/// retired.
#[must_use]
pub fn default_name<'a>(deployed: &'a Workflows, pointers: &'a Pointers) -> Option<&'a str> {
    let only = |names: &BTreeSet<&'a str>| names.first().copied().filter(|_| names.len() == 1);
    let own: BTreeSet<&str> = deployed.keys().map(String::as_str).collect();
    let all = || own.iter().copied().chain(pointers.keys().map(String::as_str)).collect();
    only(&own).or_else(|| {
        let all = all();
        only(&all).or_else(|| all.get(DEFAULT).copied())
    })
}

/// The workflows built into this program.
///
/// # Errors
/// The first invalid file, with its line and what to write instead.
pub fn built_in(agents: &[&str], settings: &Settings) -> Result<Workflows, Error> {
    read(BUILT_IN.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())), agents, settings)
}

/// The built-in workflows that a deployment with `agents` accepts orders for. Without the example's agents, its
/// workflows are left out.
///
/// # Errors
/// The first file that is wrong, with its line and what to write instead.
pub fn deployed(agents: &[&str], settings: &Settings) -> Result<Workflows, Error> {
    /// As in template.yaml with `Sample=true`.
    const EXAMPLE: [&str; 4] = ["inventory", "fraud", "payment", "shipping"];
    let known: Vec<&str> = agents.iter().chain(&EXAMPLE).copied().collect();
    let mut workflows = built_in(&known, settings)?;
    for name in settings.config.keys().filter(|name| !workflows.contains_key(*name)) {
        tracing::info!(
            workflow = name,
            "WORKFLOW_CONFIG has values for this workflow, but no file here defines it: the workflow must be registered"
        );
    }
    workflows.retain(|name, workflow| {
        let missing: Vec<&str> = workflow.agents().into_iter().filter(|agent| !agents.contains(agent)).collect();
        if !missing.is_empty() {
            tracing::info!(
                workflow = name,
                "accepts no orders for this workflow: the deployment lacks the example's agents {missing:?}"
            );
        }
        missing.is_empty()
    });
    Ok(workflows)
}

/// The workflows in the `.toml` files of a folder.
///
/// # Errors
/// The first file that is invalid or cannot be read.
pub fn in_folder(folder: &Path, agents: &[&str], settings: &Settings) -> Result<Workflows, Error> {
    let unreadable = |path: &Path, e: std::io::Error| Error {
        file: path.display().to_string(),
        line: 0,
        message: format!("cannot be read: {e}"),
    };
    let entries = std::fs::read_dir(folder).map_err(|e| unreadable(folder, e))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| unreadable(folder, e))?.path();
        // Editors keep locks and copies under such names.
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|e| e == "toml") && !is_hidden {
            files.push(path);
        }
    }
    files.sort();
    let mut texts = Vec::new();
    for path in files {
        let found = std::fs::metadata(&path).map_err(|e| unreadable(&path, e))?;
        // Reading a pipe would wait, and a device may have no end.
        if !found.is_file() || found.len() > MAX_FILE as u64 {
            let why = format!("a workflow is a file of at most {MAX_FILE} bytes");
            return Err(unreadable(&path, std::io::Error::other(why)));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| unreadable(&path, e))?;
        texts.push((path.display().to_string(), text));
    }
    read(texts.into_iter(), agents, settings)
}

/// Checks that agents can start every step if clocks are at most `skew` apart.
///
/// # Errors
/// The first step that they might never start.
pub fn can_start(workflows: &Workflows, skew: SignedDuration) -> Result<(), TooShort> {
    workflows.values().try_for_each(|workflow| workflow.can_start(skew))
}

/// Checks the children of orders of workflow `name`, and their children. `path` leads to it.
///
/// # Errors
/// The name of the workflow that the first of `path` must not start, at least not this way, and why.
fn check_children<'a>(workflows: &'a Workflows, path: &mut Vec<&'a str>, name: &str) -> Result<(), (String, String)> {
    let Some(workflow) = workflows.get(name) else { return Ok(()) };
    let first = |path: &[&str], name: &str| path.get(1).copied().unwrap_or(name).to_owned();
    for call in workflow.calls() {
        check_path(path, &call.name).map_err(|nested| (first(path, &call.name), nested.to_string()))?;
    }
    for child in workflow.children() {
        let first = first(path, child);
        if let Err(nested) = check_path(path, child) {
            return Err((first, nested.to_string()));
        }
        let Some(known) = workflows.get(child) else {
            let names: Vec<String> = workflows.keys().map(|name| format!("`{name}`")).collect();
            let message = format!(
                "no file here defines workflow `{child}`; write one of {}, or add a file for it",
                names.join(", ")
            );
            return Err((first, message));
        };
        if known.input.is_some() {
            let message = format!(
                "`{child}` has a built-in input check, so no workflow can start it; replace the check with a schema in \
                 `[input]`"
            );
            return Err((first, message));
        }
        path.push(child);
        check_children(workflows, path, child)?;
        path.pop();
    }
    Ok(())
}

fn read(
    files: impl Iterator<Item = (String, String)>,
    agents: &[&str],
    settings: &Settings,
) -> Result<Workflows, Error> {
    let known = Known { agents, inputs: &INPUT_CHECKS };
    let mut workflows = Workflows::new();
    let mut sources = BTreeMap::new();
    for (file, text) in files {
        let workflow = parse_for(&file, &text, known, settings)?;
        if let Some(earlier) = workflows.insert(workflow.name.clone(), workflow) {
            let message =
                format!("another file also defines workflow `{}`; give each workflow a unique name", earlier.name);
            return Err(Error { file, line: 0, message });
        }
        if let Some(name) = name_of(&text) {
            sources.insert(name, (file, text));
        }
    }
    for (name, (file, text)) in &sources {
        check_children(&workflows, &mut vec![name], name).map_err(|wrong| at_its_step(file, text, wrong))?;
    }
    Ok(workflows)
}

/// The error at the line that names the started workflow.
fn at_its_step(file: &str, text: &str, (started, message): (String, String)) -> Error {
    let is_it = |line: &str| line.trim_start().starts_with("workflow") && line.contains(&format!("\"{started}\""));
    let line = text.lines().position(is_it).map_or(1, |line| line + 1);
    Error { file: file.to_owned(), line, message }
}

/// The workflow in a file, and those of its children, in files beside it. `read` reads a file.
///
/// # Errors
/// That of `read`; or a child's workflow is missing or must not be started.
pub fn family(path: &Path, read: impl Fn(&Path) -> Result<Workflow, Error>) -> Result<(Workflow, Workflows), Error> {
    let own = read(path)?;
    let mut open: Vec<String> = own.children().into_iter().map(str::to_owned).collect();
    let mut all = Workflows::from([(own.name.clone(), own.clone())]);
    if open.is_empty() {
        return Ok((own, Workflows::new()));
    }
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let files = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "toml"));
    let named = files.filter_map(|path| Some((name_of(&std::fs::read_to_string(&path).ok()?)?, path)));
    let beside: BTreeMap<String, PathBuf> = named.collect();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let file = path.display().to_string();
    while let Some(name) = open.pop() {
        if all.contains_key(&name) {
            continue;
        }
        let Some(path) = beside.get(&name) else {
            let names: Vec<String> = beside.keys().map(|name| format!("`{name}`")).collect();
            let (names, folder) = (names.join(", "), folder.display());
            let message = format!("no file beside this one defines workflow `{name}`; {folder} has {names}");
            return Err(at_its_step(&file, &text, (name, message)));
        };
        let child = read(path)?;
        open.extend(child.children().into_iter().map(str::to_owned));
        all.insert(name, child);
    }
    check_children(&all, &mut vec![&own.name], &own.name).map_err(|wrong| at_its_step(&file, &text, wrong))?;
    all.remove(&own.name);
    Ok((own, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENTS: [&str; 5] = ["inventory", "fraud", "payment", "shipping", "noop"];

    // B3: the repository's workflows are valid data.
    #[test]
    fn the_built_in_workflows_are_valid() {
        let workflows = built_in(&AGENTS, &Settings::default()).unwrap();
        let order = &workflows["order"];
        let names: Vec<_> = order.steps.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["reserve", "check-fraud", "charge", "ship"]);
        assert_eq!(order.steps[2].after.iter().map(|after| after.step).collect::<Vec<_>>(), [0, 1]);
    }

    // Without the example's agents its workflow is left out; any other missing agent still stops the start.
    #[test]
    fn a_deployment_without_the_example_accepts_no_orders_for_it() {
        assert!(deployed(&AGENTS, &Settings::default()).unwrap().contains_key("order"));
        assert!(deployed(&["http"], &Settings::default()).unwrap().is_empty());
        assert!(deployed(&["http", "inventory", "fraud", "payment"], &Settings::default()).unwrap().is_empty());
        assert!(built_in(&["http"], &Settings::default()).is_err());
    }

    // An agent starts nothing within the skew of CompleteBy, and its clock may also be ahead by the skew. Such a file
    // would run on a laptop, with one clock, but never on AWS.
    #[test]
    fn a_timeout_within_twice_the_skew_is_refused() {
        let skew = SignedDuration::from_secs(1);
        let file = |timeout: &str, undo: &str| {
            let text = format!(
                "name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"noop\"\ntimeout = \"{timeout}\"\n\
                 undo = {{ agent = \"noop\", timeout = \"{undo}\" }}"
            );
            read(std::iter::once(("w.toml".to_owned(), text)), &AGENTS, &Settings::default()).unwrap()
        };
        assert_eq!(can_start(&file("2001ms", "3s"), skew), Ok(()));
        let step = can_start(&file("2s", "3s"), skew).unwrap_err().to_string();
        assert!(step.contains("workflow `w`: step `a` has a timeout of 2000 ms"), "{step}");
        assert!(step.contains("more than 2000 ms"), "{step}");
        let undo = can_start(&file("3s", "500ms"), skew).unwrap_err().to_string();
        assert!(undo.contains("the undo of step `a` has a timeout of 500 ms"), "{undo}");
        assert_eq!(can_start(&built_in(&AGENTS, &Settings::default()).unwrap(), shared::workflow::USUAL_SKEW), Ok(()));
    }

    // A newcomer's only workflow needs no name. Of several, only the usual one is taken. The deployment's only workflow
    // stays the default whatever is registered.
    #[test]
    fn the_only_workflow_is_the_default() {
        let order = &built_in(&AGENTS, &Settings::default()).unwrap()["order"];
        let table: [(&[&str], &[&str], Option<&str>); 10] = [
            (&["parcel"], &[], Some("parcel")),
            (&["order"], &[], Some("order")),
            (&["order", "parcel"], &[], Some("order")),
            (&["parcel", "return"], &[], None),
            (&[], &[], None),
            (&["parcel"], &["order", "return"], Some("parcel")),
            (&["order"], &["order", "parcel"], Some("order")),
            (&["parcel", "return"], &["order"], Some("order")),
            (&[], &["shop"], Some("shop")),
            (&[], &["shop", "return"], None),
        ];
        for (deployed, registered, meant) in table {
            let named = |name: &&str| ((*name).to_owned(), order.clone());
            let deployed: Workflows = deployed.iter().map(named).collect();
            let pointers: Pointers = registered.iter().map(|name| ((*name).to_owned(), None)).collect();
            assert_eq!(default_name(&deployed, &pointers), meant, "{:?} {registered:?}", deployed.keys());
        }
    }

    // Files start only each other, not in circles.
    #[test]
    fn orders_that_start_each_other_for_ever_are_refused() {
        let start = |name: &str, other: &str| {
            let step = match other {
                "" => "agent = \"noop\"\ntimeout = \"5s\"".to_owned(),
                other => format!("workflow = \"{other}\""),
            };
            (format!("{name}.toml"), format!("name = \"{name}\"\n[[step]]\nname = \"s\"\n{step}\n"))
        };
        let read = |files: &[(&str, &str)]| {
            let files: Vec<_> = files.iter().map(|(name, other)| start(name, other)).collect();
            read(files.into_iter(), &AGENTS, &Settings::default()).map(|all| all.len()).map_err(|e| e.to_string())
        };
        assert_eq!(read(&[("a", "b"), ("b", "c"), ("c", "")]), Ok(3));
        let table: [(&[(&str, &str)], &str); 4] = [
            (&[("a", "a")], "a.toml:4: orders of `a` would start themselves forever (a -> a); start another workflow"),
            (&[("a", "b"), ("b", "a")], "a.toml:4: orders of `a` would start themselves forever (a -> b -> a)"),
            (
                &[("a", "b"), ("b", "c"), ("c", "d"), ("d", "")],
                "a.toml:4: `d` would be the fourth level (a -> b -> c -> d)",
            ),
            (&[("a", "x")], "a.toml:4: no file here defines workflow `x`; write one of `a`, or add a file for it"),
        ];
        for (files, wanted) in table {
            let error = read(files).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }

    #[test]
    fn a_second_workflow_of_the_same_name_is_refused() {
        let (name, text) = BUILT_IN[0];
        let twice = [(name.to_owned(), text.to_owned()), ("b.toml".to_owned(), text.to_owned())];
        let error = read(twice.into_iter(), &AGENTS, &Settings::default()).unwrap_err();
        assert!(error.to_string().starts_with("b.toml: another file"), "{error}");
    }
}
