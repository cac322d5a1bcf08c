//! Goal: what is linked into a function, and what the first command compiles, grows only on purpose. Method: `cargo tree`, and the
//! profiles of the workspace's `Cargo.toml`.

use std::collections::BTreeSet;
use std::path::Path;

/// What template.yaml deploys.
const FUNCTIONS: [&str; 5] = ["submit", "scheduler", "agent", "supervisor", "operator"];

/// Ours, and never in Lambda: the laptop and the laboratory.
const NOT_DEPLOYED: [&str; 10] = [
    "stepwarden",
    "stepwarden-contract",
    "stepwarden-embedded",
    "stepwarden-fuzz",
    "stepwarden-guard",
    "stepwarden-model",
    "stepwarden-remotes",
    "stepwarden-retry",
    "stepwarden-simulation",
    "stepwarden-tests",
];

/// Others', likewise: databases, servers and the command line.
const NOT_LINKED: [&str; 5] = ["axum", "clap", "dynoxide-rs", "libsqlite3-sys", "rusqlite"];

/// The packages that the README's first command compiles, itself included.
const FIRST_COMMAND: usize = 294;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What is compiled for `package`: name and version of each package, itself included.
fn compiled_for(package: &str) -> BTreeSet<(String, String)> {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["tree", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"]);
    let tree = cargo.args(["--format", "{p}", "--package", package]).output().expect("cargo");
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
        let strange = |name: &&(String, String)| {
            let name = name.0.as_str();
            NOT_DEPLOYED.contains(&name) || NOT_LINKED.contains(&name)
        };
        assert_eq!(compiled.iter().find(strange), None, "{function}");
    }
}

#[test]
fn leader_election_can_be_used_alone() {
    let compiled = compiled_for("stepwarden-leader");
    let ours: Vec<_> = compiled.iter().filter(|(name, _)| name.starts_with("stepwarden")).collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
}

#[test]
fn a_package_is_deployed_or_not() {
    let members: Vec<String> = manifest()["workspace"]["members"]
        .as_array()
        .expect("members")
        .iter()
        .map(|folder| {
            let path = root().join(folder.as_str().expect("a folder")).join("Cargo.toml");
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let package: toml::Table = text.parse().unwrap();
            package["package"]["name"].as_str().expect("a name").to_owned()
        })
        .collect();
    let deployed: BTreeSet<String> =
        FUNCTIONS.iter().flat_map(|function| compiled_for(function)).map(|(name, _)| name).collect();
    for member in members {
        assert_ne!(deployed.contains(&member), NOT_DEPLOYED.contains(&member.as_str()), "{member}");
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

fn manifest() -> toml::Table {
    std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml").parse().expect("TOML")
}

// A profile inherits the exceptions for packages as well, and they win over what it says for all.
#[test]
fn each_package_is_as_small_as_the_function_it_is_in() {
    let profiles = manifest()["profile"].as_table().expect("profiles").clone();
    let level = |profile: &str, package: &str| {
        Some(profiles.get(profile)?.get("package")?.get(package)?.get("opt-level")?.clone())
    };
    let size = profiles["lambda"]["opt-level"].clone();
    let parent = profiles["lambda"]["inherits"].as_str().expect("a profile");
    assert!(parent == "dev" || parent == "release", "{parent}: its own parent counts as well");
    let deployed: BTreeSet<String> =
        FUNCTIONS.iter().flat_map(|function| compiled_for(function)).map(|(name, _)| name).collect();
    let exceptions = profiles[parent].get("package").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    for (package, _) in exceptions {
        if level(parent, &package).is_some() && (package == "*" || deployed.contains(&package)) {
            assert_eq!(level("lambda", &package), Some(size.clone()), "{package} in profile `lambda`");
        }
    }
}

// The name of a package that is gone leaves its exception in vain, and Cargo only warns.
#[test]
fn each_exception_of_a_profile_is_for_a_package_that_is_compiled() {
    let compiled: BTreeSet<String> = compiled_for("stepwarden").into_iter().map(|(name, _)| name).collect();
    let release = manifest()["profile"]["release"]["package"].as_table().expect("exceptions").clone();
    let vain: Vec<&String> = release.keys().filter(|name| *name != "*" && !compiled.contains(*name)).collect();
    assert!(vain.is_empty(), "{vain:?}");
}
