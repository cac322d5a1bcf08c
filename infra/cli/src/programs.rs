//! The programs that serve a folder's agents: started, started again when they end or when their files change, and ended
//! with this process, however it ends.

use crate::changes::Folder;
use crate::project;
use rustix::process::{Pid, Signal, kill_process_group};
use shared::visible::visible;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long a program may take to finish what it does.
const GRACE: Duration = Duration::from_secs(6);
/// Longest wait before a program that keeps ending is started again. The wait doubles from a second.
const LONGEST: Duration = Duration::from_secs(30);
/// A program that ran this long did not end because it cannot start.
const SOUND: Duration = Duration::from_secs(60);
/// Longest line of a program's output, in bytes.
const MAX_LINE: u64 = 8192;
/// Runs the command, and waits for it after a signal that it gets too. Once standard input ends, because the process that
/// started it has ended, so does the whole group.
const SHELL: &str = "trap : TERM; exec 3<&0; { cat <&3; kill -KILL 0; } >/dev/null 2>&1 & eval \"$0\" </dev/null 3<&-";

/// The programs of a folder.
#[derive(Default)]
pub struct Programs {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Programs {
    /// Starts the commands with these variables, and keeps them running.
    #[must_use]
    pub fn start(commands: &BTreeMap<String, String>, variables: &[(&'static str, String)]) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (change, changed) = watch::channel(String::new());
        let (mut tasks, mut folder) = (JoinSet::new(), Folder::new(project::AGENTS.into()));
        for (name, command) in commands {
            let program = Program { name: name.clone(), command: command.clone(), variables: variables.to_vec() };
            tasks.spawn(program.keep(changed.clone(), stopped.clone()));
        }
        if !commands.is_empty() {
            let mut stopped = stopped;
            tasks.spawn(async move {
                loop {
                    tokio::select! {
                        file = folder.changed() => drop(change.send_replace(file.display().to_string())),
                        _ = stopped.wait_for(|stop| *stop) => break,
                    }
                }
            });
        }
        Self { stop, tasks }
    }

    /// Ends them all.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

struct Program {
    name: String,
    command: String,
    variables: Vec<(&'static str, String)>,
}

/// A started program. Its group is killed when this is dropped.
struct Running {
    group: Pid,
    ended: oneshot::Receiver<std::io::Result<ExitStatus>>,
    /// While it is open, this process lives.
    _alive: std::process::ChildStdin,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process_group(self.group, Signal::KILL);
    }
}

impl Program {
    async fn keep(self, mut changed: watch::Receiver<String>, mut stopped: watch::Receiver<bool>) {
        let mut wait = Duration::from_secs(1);
        loop {
            let begin = Instant::now();
            let why = match self.spawn() {
                Err(error) => format!("cannot be started: {error}"),
                Ok(mut running) => {
                    let ended = tokio::select! {
                        ended = &mut running.ended => Some(ended),
                        Ok(()) = changed.changed() => None,
                        _ = stopped.wait_for(|stop| *stop) => None,
                    };
                    match ended {
                        Some(Ok(Ok(status))) => format!("ended ({status})"),
                        Some(_) => "ended".to_owned(),
                        None => {
                            let _ = kill_process_group(running.group, Signal::TERM);
                            let _ = tokio::time::timeout(GRACE, &mut running.ended).await;
                            String::new()
                        }
                    }
                }
            };
            if *stopped.borrow() {
                return;
            }
            if why.is_empty() {
                self.tell(&format!("{} changed: the program restarts", *changed.borrow_and_update()));
                wait = Duration::from_secs(1);
                continue;
            }
            if begin.elapsed() > SOUND {
                wait = Duration::from_secs(1);
            }
            let when = format!("starts again in {} s, or when a file in {}/ changes", wait.as_secs(), project::AGENTS);
            self.tell(&format!("{why}: `{}`; {when}", self.command));
            tokio::select! {
                () = tokio::time::sleep(wait) => wait = (2 * wait).min(LONGEST),
                Ok(()) = changed.changed() => wait = Duration::from_secs(1),
                _ = stopped.wait_for(|stop| *stop) => return,
            }
        }
    }

    fn spawn(&self) -> std::io::Result<Running> {
        let mut command = Command::new("sh");
        command.args(["-c", SHELL, &self.command]).process_group(0);
        // A program needs no right to call the API, and Python keeps what it prints.
        command.env_remove("STEPWARDEN_TOKEN").env("PYTHONUNBUFFERED", "1");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (group, alive) = (Pid::from_child(&child), child.stdin.take().expect("piped"));
        let (tell, ended) = oneshot::channel();
        let outputs = [self.copy(child.stdout.take()), self.copy(child.stderr.take())];
        std::thread::spawn(move || drop(tell.send(wait_for(child, outputs))));
        Ok(Running { group, ended, _alive: alive })
    }

    /// Copies a program's output to standard error, each line with its name.
    fn copy(&self, output: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<()> {
        let name = self.name.clone();
        std::thread::spawn(move || {
            let Some(output) = output else { return };
            let (mut lines, mut line) = (BufReader::new(output), Vec::new());
            while lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                say(&name, String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        })
    }

    fn tell(&self, what: &str) {
        say(&format!("agent {}", self.name), what);
    }
}

fn say(who: &str, what: &str) {
    let _ = writeln!(std::io::stderr(), "{who}: {}", visible(what));
}

/// How it ended, after its last words were copied; what it left running may hold its output open.
fn wait_for(mut child: Child, outputs: [std::thread::JoinHandle<()>; 2]) -> std::io::Result<ExitStatus> {
    let status = child.wait()?;
    let begin = std::time::Instant::now();
    while outputs.iter().any(|output| !output.is_finished()) && begin.elapsed() < Duration::from_millis(200) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A program that is told to stop finishes its work, and what it started ends too.
    #[tokio::test]
    async fn a_program_finishes_its_work() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        // A program that the shell starts, as it starts Python: the shell has to outlive it.
        let worker = "trap 'sleep 0.3; touch finished; exit' TERM; sleep 300 & echo $! > child; touch ready
            while :; do sleep 0.02; done";
        std::fs::write(path("worker"), worker).unwrap();
        let command = format!("cd {} && sh worker; true", dir.path().display());
        let programs = Programs::start(&BTreeMap::from([("a".to_owned(), command)]), &[]);
        while !path("ready").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        programs.stop().await;
        assert!(path("finished").exists());
        let child =
            std::fs::read_to_string(path("child")).unwrap().trim().parse().ok().and_then(Pid::from_raw).unwrap();
        let begin = Instant::now();
        while rustix::process::test_kill_process(child).is_ok() {
            assert!(begin.elapsed() < Duration::from_secs(30), "it still runs");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
