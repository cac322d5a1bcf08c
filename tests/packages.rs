//! Goal: what is linked into a function, and what the first command compiles, grows only on purpose. Method: `cargo tree`, and the
//! profiles of the workspace's `Cargo.toml`.

use crate::support::page::{read, root};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What template.yaml deploys.
const FUNCTIONS: [&str; 5] = ["submit", "scheduler", "agent", "supervisor", "operator"];

/// Our packages that are never in Lambda: the laptop and the laboratory.
const NOT_DEPLOYED: [&str; 13] = [
    "stepwarden",
    "stepwarden-contract",
    "stepwarden-embedded",
    "stepwarden-fuzz",
    "stepwarden-guard",
    "stepwarden-local",
    "stepwarden-model",
    "stepwarden-remotes",
    "stepwarden-retry",
    "stepwarden-shared-tests",
    "stepwarden-simulation",
    "stepwarden-testkit",
    "stepwarden-tests",
];

/// Packages of others that are never in Lambda: databases, servers and the command line.
const NOT_LINKED: [&str; 5] = ["axum", "clap", "dynoxide-rs", "libsqlite3-sys", "rusqlite"];

/// The attributes of tests.
const TEST: [&str; 2] = ["#[test]", "#[tokio::test"];

/// The packages that the README's first command compiles, itself included.
const FIRST_COMMAND: usize = 291;

/// Cargo in the repository; it downloads nothing.
pub(crate) fn cargo(command: &str) -> std::process::Command {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.current_dir(root()).args([command, "--offline"]);
    cargo
}

/// The packages of the workspace, as Cargo knows them.
pub(crate) fn packages() -> Vec<Value> {
    let metadata = cargo("metadata").args(["--no-deps", "--format-version", "1"]).output().expect("cargo");
    let mut metadata: Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    serde_json::from_value(metadata["packages"].take()).expect("packages")
}

/// What is compiled for `package`: name and version of each package, itself included.
fn compiled_for(package: &str) -> BTreeSet<(String, String)> {
    let mut cargo = cargo("tree");
    cargo.args(["--locked", "--edges", "normal,build", "--prefix", "none"]);
    cargo.args(["--format", "{p}", "--package", package]);
    if FUNCTIONS.contains(&package) {
        cargo.args(["--features", "lambda"]);
    }
    let tree = cargo.output().expect("cargo");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).expect("text");
    let named = |line: &str| Some((line.split(' ').next()?.to_owned(), line.split(' ').nth(1)?.to_owned()));
    lines.lines().filter_map(named).collect()
}

#[test]
fn what_runs_in_lambda_depends_on_nothing_of_the_laptop() {
    for function in FUNCTIONS {
        let compiled = compiled_for(function);
        assert!(compiled.iter().any(|(name, _)| name == "stepwarden-shared"), "{function}: {compiled:?}");
        let strange = |(name, _): &&(String, String)| NOT_LINKED.contains(&name.as_str());
        assert_eq!(compiled.iter().find(strange), None, "{function}");
    }
}

#[test]
fn leader_election_and_an_agent_can_be_used_alone() {
    for package in ["stepwarden-leader", "stepwarden-agent"] {
        let compiled = compiled_for(package);
        let ours: Vec<_> = compiled.iter().filter(|(name, _)| name.starts_with("stepwarden")).collect();
        assert_eq!(ours.len(), 1, "{package}: {ours:?}");
    }
}

// Cargo silently leaves out a program whose features are off. `submit/lambda` would be a feature of the package that the
// tests of `submit` depend on, which is `submit` itself, and so not one of its program.
#[test]
fn what_builds_for_lambda_builds_each_function() {
    let page = read("docs/deploy.md");
    let mut commands = vec![page.split_once("cargo build --profile lambda").expect("the command").1.to_owned()];
    let make = std::process::Command::new("make").current_dir(root()).args(["--dry-run", "build"]).output();
    // A machine that builds for Lambda has make.
    if let Some(made) = make.ok().filter(|made| made.status.success()) {
        let made = String::from_utf8(made.stdout).unwrap();
        commands.push(made.split_once("cargo lambda build").expect("the command").1.to_owned());
    }
    for command in commands {
        let command = command.replace("\\\n", " ");
        let words: Vec<&str> = command.lines().next().expect("a line").split_whitespace().collect();
        let mut cargo = cargo("tree");
        cargo.args(["--locked", "--edges", "normal", "--prefix", "none"]);
        for pair in words.windows(2).filter(|pair| ["-p", "--package", "--features"].contains(&pair[0])) {
            cargo.args(pair);
        }
        let tree = cargo.args(["--format", "{p}", "--invert", "lambda_runtime"]).output().expect("cargo");
        let built = String::from_utf8(tree.stdout).expect("text");
        for function in FUNCTIONS {
            assert!(built.contains(&format!("{function} v")), "`{command}` does not build {function}: {built}");
        }
    }
}

/// The packages that others may use from a registry: the three crates, and the core that the retry queue needs.
const FOR_OTHERS: [&str; 4] = ["stepwarden-agent", "stepwarden-leader", "stepwarden-retry", "stepwarden-shared"];

#[test]
fn crates_for_others_can_be_packaged_and_say_what_they_are() {
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        assert_eq!(package["publish"].is_null(), FOR_OTHERS.contains(&name), "{name}");
        // It runs the whole system, which is in no registry, so others take it from a folder or from git.
        if !FOR_OTHERS.contains(&name) && name != "stepwarden-testkit" {
            continue;
        }
        for field in ["description", "license", "rust_version"] {
            assert!(package[field].is_string(), "{name}: no {field}");
        }
        if name != "stepwarden-shared" {
            assert!(package["readme"].is_string() && package["keywords"][0].is_string(), "{name}");
            let is_example = |target: &&Value| target["kind"][0] == "example";
            assert!(
                package["targets"].as_array().expect("targets").iter().any(|t| is_example(&t)),
                "{name}: no example"
            );
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut cargo = cargo("package");
    cargo.args(["--no-verify", "--allow-dirty", "--target-dir"]);
    cargo.arg(folder.path()).args(FOR_OTHERS.iter().flat_map(|name| ["--package", name]));
    let made = cargo.output().expect("cargo");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn a_package_is_deployed_or_not() {
    let deployed: BTreeSet<String> =
        FUNCTIONS.iter().flat_map(|function| compiled_for(function)).map(|(name, _)| name).collect();
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        assert_ne!(deployed.contains(name), NOT_DEPLOYED.contains(&name), "{name}");
    }
}

#[test]
fn the_first_command_compiles_no_more_packages_than_it_did() {
    let count = compiled_for("stepwarden").len();
    assert!(
        count <= FIRST_COMMAND,
        "{count} packages: does a laptop need them? CONTRIBUTING.md, What the build spends"
    );
    assert!(count + 10 > FIRST_COMMAND, "only {count}: hold that");
}

/// The Rust files in a folder and below it.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    let below = |path: PathBuf| if path.is_dir() { rust_files(&path) } else { vec![path] };
    entries.flat_map(below).filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

// Cargo does not compile a file that no program names, and does not run tests of a target with `test = false`.
#[test]
fn every_test_that_is_written_runs() {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: Value = serde_json::from_slice(&cargo.output().expect("cargo").stdout).expect("JSON");
    let has_tests =
        |path: &PathBuf| read(path).lines().any(|line| TEST.iter().any(|mark| line.trim_start().starts_with(mark)));
    let (mut lost, mut modules) = (Vec::new(), 0);
    for package in metadata["packages"].as_array().expect("packages") {
        let targets = package["targets"].as_array().expect("targets");
        for target in targets {
            let source = Path::new(target["src_path"].as_str().expect("a path"));
            let folder = source.parent().expect("a folder");
            if target["test"] == false && target["kind"] != json!(["custom-build"]) {
                // Other files beside a program's may belong to a library.
                let is_library = target["kind"] == json!(["lib"]);
                let files = if is_library { rust_files(folder) } else { vec![source.to_owned()] };
                lost.extend(files.into_iter().filter(has_tests));
            } else if target["kind"] == json!(["test"]) {
                let roots: Vec<&Path> = targets.iter().filter_map(|t| t["src_path"].as_str()).map(Path::new).collect();
                let named: String = roots.iter().filter(|path| path.parent() == Some(folder)).map(read).collect();
                for path in rust_files(folder) {
                    let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
                    let beside = path.parent().expect("a folder");
                    if beside != folder {
                        // A part of the file that is named like its folder; other folders are of other packages.
                        let owners = [beside.with_extension("rs"), beside.join("mod.rs")];
                        let owners: Vec<String> = owners.iter().filter(|file| file.exists()).map(read).collect();
                        let is_part = |owner: &String| owner.contains(&format!("mod {name};\n"));
                        if !owners.is_empty() && !owners.iter().any(is_part) && name != "mod" && has_tests(&path) {
                            lost.push(path);
                        }
                        continue;
                    }
                    let is_module = named.contains(&format!("mod {name};\n"));
                    modules += usize::from(is_module);
                    if !is_module && !roots.contains(&path.as_path()) {
                        lost.push(path);
                    }
                }
            }
        }
    }
    assert!(lost.is_empty(), "nobody runs the tests of {lost:?}");
    assert!(modules > 40, "only {modules} modules were found");
}

fn manifest() -> toml::Table {
    read("Cargo.toml").parse().expect("TOML")
}

// A profile also inherits the exceptions for packages, and they take precedence over its own settings.
#[test]
fn what_is_released_inherits_no_exception_for_a_package() {
    let profiles = &manifest()["profile"];
    for profile in ["release", "dist", "lambda"] {
        assert!(profiles[profile].get("package").is_none(), "{profile}");
        let parent = profiles[profile].get("inherits").and_then(toml::Value::as_str);
        assert_eq!(parent.unwrap_or("release"), "release", "{profile}");
    }
}

// An exception for a package that no longer exists has no effect, and Cargo only warns.
#[test]
fn each_exception_of_a_profile_is_for_a_locked_package() {
    let locked: toml::Table = read("Cargo.lock").parse().expect("TOML");
    let locked = locked["package"].as_array().expect("packages");
    for (profile, settings) in manifest()["profile"].as_table().expect("profiles") {
        for (name, _) in settings.get("package").and_then(toml::Value::as_table).into_iter().flatten() {
            let is_locked = locked.iter().any(|package| package["name"].as_str() == Some(name));
            assert!(name == "*" || is_locked, "{name} in profile `{profile}`");
        }
    }
}
