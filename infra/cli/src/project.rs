//! A user's folder: `stepwarden.toml` names its agents, and `stepwarden new` makes such a folder.

use crate::args::{Lang, New};
use serde::Deserialize;
use shared::workflow::http;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use stepwarden_aws::config::{NO_POOL, queue};
use stepwarden_local::start_error::StartError;
use toml::Spanned;

/// The file that says what the folder has.
pub const FILE: &str = "stepwarden.toml";
/// Where the programs of agents are.
pub const AGENTS: &str = "agents";
/// Name of the sample, which the new folder's name replaces in paths and texts.
const SAMPLE: &str = "shop";
/// Longest name: that of a workflow.
const MAX_NAME: usize = shared::workflow::file::MAX_NAME;

macro_rules! sample {
    ($folder:literal: $($path:literal)*) => {
        [$(($path, include_str!(concat!("../../../examples/", $folder, "/", $path)))),*]
    };
}

/// What `stepwarden new` writes with every kind of agent.
const AGENT: [(&str, &str); 3] = sample! { "new": "workflows/shop.toml" "tests/shop.toml" "order.json" };
const PYTHON: [(&str, &str); 6] = sample! {
    "new": "README.md" "stepwarden.toml" "agents/stock.py" "agents/stepwarden_agent.py" "template.yaml" ".gitignore"
};
const RUST: [(&str, &str); 4] = sample! { "new-rust": "README.md" "stepwarden.toml" "template.yaml" ".gitignore" };
/// The example of the crate for agents, and its manifest, which says where the crate is.
const PROGRAM: (&str, &str) = ("agents/stock/src/main.rs", include_str!("../../../shared/agent/examples/stock.rs"));
const MANIFEST: (&str, &str) =
    ("agents/stock/Cargo.toml", include_str!("../../../examples/new-rust/agents/stock/Cargo.toml.in"));
const NONE: [(&str, &str); 5] =
    sample! { "new-none": "README.md" "workflows/shop.toml" "tests/shop.toml" "template.yaml" ".gitignore" };
const ORDER: (&str, &str) = ("order.json", include_str!("../../../examples/new/order.json"));
const AGENT_TEMPLATE: (&str, &str) = ("agent.yaml", include_str!("../../agent.yaml"));

/// The files of a new folder.
fn files(lang: Lang) -> Vec<(&'static str, &'static str)> {
    match lang {
        Lang::Python => [&AGENT[..], &PYTHON, &[AGENT_TEMPLATE]].concat(),
        Lang::Rust => [&AGENT[..], &RUST, &[PROGRAM, MANIFEST, AGENT_TEMPLATE]].concat(),
        Lang::None => [&NONE[..], &[ORDER]].concat(),
    }
}

/// Where the crate for agents is, as a dependency in `Cargo.toml`.
///
/// # Errors
/// What is wrong with the place, in words.
fn dependency(place: &str) -> Result<String, String> {
    let version = env!("CARGO_PKG_VERSION");
    if place.contains("://") || place.starts_with("git@") {
        let url = toml::Value::from(place);
        return Ok(format!("{{ git = {url}, tag = \"v{version}\" }}"));
    }
    let own = |folder: &Path| folder.join("shared/agent");
    let folder = std::path::absolute(place).map(|folder| own(&folder)).map_err(|e| format!("{place}: {e}"))?;
    let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    let manifest: toml::Table = text.parse().unwrap_or_default();
    let name = manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    match (name, folder.to_str()) {
        (Some("stepwarden-agent"), Some(folder)) => Ok(format!("{{ path = {} }}", toml::Value::from(folder))),
        _ => Err(format!(
            "{place} does not hold Stepwarden's source: write the folder that has shared/agent, or a git URL"
        )),
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    agents: BTreeMap<Spanned<String>, Spanned<String>>,
}

/// The agents of a folder, each with the command that serves it. None if the folder has no `stepwarden.toml`.
///
/// # Errors
/// The first mistake, with its line and what to write instead.
pub fn agents(folder: &Path) -> Result<BTreeMap<String, String>, StartError> {
    let text = match fs::read_to_string(folder.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(StartError::Data(format!("{FILE} cannot be read: {error}"))),
    };
    let fail = |at: usize, why: String| {
        let line = 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count();
        StartError::Data(format!("{FILE}:{line}: {why}"))
    };
    let raw: Raw = toml::from_str(&text).map_err(|e| {
        let why = e.message().replace('\n', "; ");
        fail(e.span().unwrap_or_default().start, format!("{why}; write for example [agents] and stock = \"COMMAND\""))
    })?;
    for (name, command) in &raw.agents {
        let at = name.span().start;
        match name.get_ref().as_str() {
            http::AGENT => {
                let why = "the system itself has an agent called `http`; write another name";
                return Err(fail(at, why.into()));
            }
            name if !queue::is_pool(name) => return Err(fail(at, format!("`{name}` {NO_POOL}"))),
            name if command.get_ref().trim().is_empty() => {
                let why = format!("agent `{name}` has no command; write one such as \"python3 agents/{name}.py\"");
                return Err(fail(command.span().start, why));
            }
            _ => {}
        }
    }
    Ok(raw.agents.into_iter().map(|(name, command)| (name.into_inner(), command.into_inner())).collect())
}

/// The agents of this folder, beside those that the caller names.
///
/// # Errors
/// A mistake in `stepwarden.toml`.
pub fn with_own(named: &[String]) -> Result<Vec<String>, StartError> {
    let own = agents(Path::new(""))?;
    Ok(named.iter().cloned().chain(own.into_keys().filter(|name| !named.contains(name))).collect())
}

/// Makes a folder, and says what to do in it.
///
/// # Errors
/// The folder's name cannot be a workflow's, it is not empty, or it cannot be written; then nothing is left of it.
pub fn create(New { folder, lang, stepwarden }: &New) -> Result<String, StartError> {
    let shown = folder.display();
    let wrong = |why: String| StartError::Data(format!("{shown}: {why}"));
    let source = match (lang, stepwarden) {
        (Lang::Rust, place) => dependency(place.as_deref().unwrap_or_default())
            .map_err(|why| StartError::Data(format!("--stepwarden {why}")))?,
        (_, None) => String::new(),
        (_, Some(_)) => return Err(StartError::Data("--stepwarden is for --lang rust only; leave it out".into())),
    };
    let full = std::path::absolute(folder).map_err(|e| wrong(e.to_string()))?;
    let name = full.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !(name.len() <= MAX_NAME && name.bytes().all(is_plain) && name.starts_with(|c: char| c.is_ascii_lowercase())) {
        return Err(wrong(format!(
            "the folder's name becomes the name of its workflow; write 1 to {MAX_NAME} lower-case letters, digits and `-`, \
             beginning with a letter"
        )));
    }
    match fs::read_dir(&full).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => return Err(wrong("the folder is not empty; name a new one".into())),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(wrong(format!("cannot be used: {error}; name a new folder"))),
    }
    let mut made = Vec::new();
    if let Err(error) = files(*lang).iter().try_for_each(|file| write(&full, name, &source, file, &mut made)) {
        for path in made.iter().rev() {
            let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
        return Err(wrong(format!("cannot be written: {error}")));
    }
    let (has, with) = match lang {
        Lang::Python => ("its agent in Python, scenarios, and a template for AWS", " with the agent"),
        Lang::Rust => ("its agent in Rust, scenarios, and a template for AWS", " with the agent, once it is compiled"),
        Lang::None => ("scenarios, and a template for AWS; the workflow's steps call URLs", " with sample services"),
    };
    Ok(format!(
        "{shown} has a workflow, {has}. Next:\n  cd {}\n  \
         stepwarden test                         plays the scenarios\n  \
         stepwarden up                           runs the system{with}\n  \
         stepwarden submit order.json --wait     in a second terminal in the same folder\n\
         README.md says how to deploy it.",
        crate::simulate::quoted(&shown.to_string())
    ))
}

/// Writes one file and the folders around it, which `made` lists then.
fn write(
    folder: &Path,
    name: &str,
    source: &str,
    (at, text): &(&str, &str),
    made: &mut Vec<PathBuf>,
) -> std::io::Result<()> {
    let is_ours = *at == AGENT_TEMPLATE.0;
    let path = folder.join(if is_ours { (*at).to_owned() } else { at.replace(SAMPLE, name) });
    let above: Vec<&Path> = path.ancestors().skip(1).take_while(|above| !above.exists()).collect();
    for above in above.into_iter().rev() {
        fs::create_dir(above)?;
        made.push(above.to_owned());
    }
    let text = if is_ours { (*text).to_owned() } else { text.replace(SAMPLE, name) };
    // The manifest alone has the word.
    let text = if *at == MANIFEST.0 { text.replace("SOURCE", source) } else { text };
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&path)?;
    made.push(path);
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(folder: PathBuf) -> Result<String, StartError> {
        create(&New { folder, lang: Lang::Python, stepwarden: None })
    }

    #[test]
    fn a_folder_in_rust_finds_the_crate_and_one_without_an_agent_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let made = |name: &str, lang, stepwarden: Option<&str>| {
            let folder = dir.path().join(name);
            create(&New { folder: folder.clone(), lang, stepwarden: stepwarden.map(str::to_owned) }).map(|_| folder)
        };
        let folder = made("parcels", Lang::Rust, Some(source)).unwrap();
        for (path, _) in files(Lang::Rust).iter().filter(|(path, _)| *path != AGENT_TEMPLATE.0) {
            let path = folder.join(path.replace(SAMPLE, "parcels"));
            let text = fs::read_to_string(&path).unwrap();
            assert!(!text.contains(SAMPLE) && !text.contains("SOURCE"), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(folder.join(PROGRAM.0)).unwrap(), PROGRAM.1);
        assert!(agents(&folder).unwrap()["stock"].contains("agents/stock/Cargo.toml"));
        // Cargo finds the crate, and the program.
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"]);
        let told = cargo.arg(folder.join(MANIFEST.0)).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
        let package = &told["packages"][0];
        assert_eq!(package["targets"][0]["kind"][0], "bin", "{told}");
        let all = package["dependencies"].as_array().unwrap();
        let path = all.iter().find(|one| one["name"] == "stepwarden-agent").unwrap()["path"].as_str().unwrap();
        assert!(Path::new(path).join("src/lib.rs").is_file(), "{path}");

        let of_git = made("far", Lang::Rust, Some("https://git.example/stepwarden.git")).unwrap();
        let text = fs::read_to_string(of_git.join(MANIFEST.0)).unwrap();
        let line =
            format!("{{ git = \"https://git.example/stepwarden.git\", tag = \"v{}\" }}", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&line), "{text}");
        for (lang, place, words) in [
            (Lang::Rust, "nowhere", "write the folder that has shared/agent"),
            (Lang::Python, source, "is for --lang rust only"),
        ] {
            let error = made("wrong", lang, Some(place)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(!dir.path().join("wrong").exists());
        }
        let none = made("plain", Lang::None, None).unwrap();
        assert!(agents(&none).unwrap().is_empty() && none.join("template.yaml").exists());
        for outcome in stepwarden_testkit::play_file(&none.join("tests/plain.toml"), 3).unwrap() {
            assert_eq!(outcome.failures, Vec::<String>::new(), "{}", outcome.name);
        }
    }

    #[test]
    fn a_new_folder_has_everything_under_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("deep/parcels");
        new(folder.clone()).unwrap();
        for path in ["workflows/parcels.toml", "tests/parcels.toml", ".gitignore", "agents/stock.py"] {
            assert!(folder.join(path).is_file(), "{path}");
        }
        for (path, _) in files(Lang::Python).into_iter().filter(|(path, _)| *path != AGENT_TEMPLATE.0) {
            let path = folder.join(path.replace(SAMPLE, "parcels"));
            assert!(!fs::read_to_string(&path).unwrap().contains(SAMPLE), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(folder.join("agent.yaml")).unwrap(), AGENT_TEMPLATE.1);
        assert_eq!(agents(&folder).unwrap()["stock"], "python3 agents/stock.py");
        // An empty folder may be there already.
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        new(empty).unwrap();
    }

    #[test]
    fn nothing_is_overwritten_and_nothing_is_left_of_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |folder: PathBuf, words: &str| {
            let error = new(folder.clone()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        for name in ["Shop", "2go", "a_b", "é", "a b", &"a".repeat(MAX_NAME + 1)] {
            refused(dir.path().join(name), "beginning with a letter");
            assert!(!dir.path().join(name).exists());
        }
        refused(PathBuf::from("/"), "beginning with a letter");
        fs::create_dir(dir.path().join("full")).unwrap();
        fs::write(dir.path().join("full/mine"), "mine").unwrap();
        refused(dir.path().join("full"), "is not empty");
        refused(dir.path().join("full/mine"), "name a new folder");
        // A file stands where a folder is needed.
        refused(dir.path().join("full/mine/shop"), "cannot be used");
        assert_eq!(fs::read_dir(dir.path().join("full")).unwrap().count(), 1);
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        refused(dir.path().join("dangling"), "cannot be written");
    }

    #[test]
    fn a_mistake_in_the_file_has_its_line_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        assert!(agents(dir.path()).unwrap().is_empty());
        for (text, words) in [
            ("[agents]\nhttp = \"x\"", "stepwarden.toml:2: the system itself has an agent called `http`"),
            ("\n[agents]\nStock = \"x\"", "stepwarden.toml:3: `Stock` cannot be"),
            ("[agents]\nstock-dead = \"x\"", "not ending in"),
            ("[agents]\nstock = \" \"", "stepwarden.toml:2: agent `stock` has no command"),
            ("[agents]\nstock = 1", "stepwarden.toml:2: "),
            ("[agent]\nstock = \"x\"", "unknown field `agent`"),
            ("[agents]\nstock = \"x\"\nstock = \"y\"", "stepwarden.toml:3: "),
        ] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = agents(dir.path()).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("write"), "{text}: {error}");
        }
    }
}
