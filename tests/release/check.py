"""Runs the commands of docs/deploy.md on the archives of a release, with nothing of Rust on the path."""
# N6: from the archive to the first order.

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))

import deploy  # noqa: E402
import emulator  # noqa: E402
from world import Failed, check  # noqa: E402

SAM = [ROOT / "tests/template/.venv/bin/python", ROOT / "tests/template/.venv/bin/sam"]


def block(name):
    """The commands below a mark in the page, continued lines joined."""
    page = (ROOT / "docs/deploy.md").read_text()
    found = re.search(rf"<!-- {name} -->\n\n```sh\n(.*?)```", page, flags=re.DOTALL)
    return found[1].replace("\\\n", "").splitlines()


class User:
    """Somebody at a shell in a folder."""

    def __init__(self, folder, ministack):
        self.folder, self.ministack, self.state = folder, ministack, folder / "state.sh"
        tools = folder / "tools"
        tools.mkdir()
        (tools / "sam").write_text(f'#!/bin/sh\nexec {SAM[0]} {SAM[1]} "$@" --no-progressbar\n')
        (tools / "sam").chmod(0o755)
        # Nothing of Rust is here.
        for name in ("python3", "tar", "gzip", "sha256sum", "ssh-keygen", "ls", "cat"):
            (tools / name).symlink_to(shutil.which(name))
        settings = {
            "PATH": tools, "HOME": folder, "AWS_ENDPOINT_URL": emulator.URL, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": emulator.REGION, "AWS_DEFAULT_REGION": emulator.REGION, "SAM_CLI_TELEMETRY": "0", "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.state.write_text(f"cd {folder}\n" + "".join(f"export {name}={value}\n" for name, value in settings.items()))

    def types(self, line, patience=120):
        """What the shell answers to a line; the next one is typed where this one left folder and path."""
        script = f'. {self.state}\n{line}\n{{ echo "cd $PWD"; export -p; }} > {self.state}.new && /bin/mv {self.state}.new {self.state}'
        try:
            done = subprocess.run(["/bin/bash", "-ec", script], env={}, cwd=self.folder, capture_output=True, text=True, timeout=patience)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"`{line}` has not ended after {patience} s:\n{late.stdout}\n{late.stderr}") from None
        if line.startswith("sam deploy"):
            self.mend()
        check(done.returncode == 0, f"`{line}` ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        print(f"  ok   {line[:110]}", flush=True)
        return done.stdout

    def mend(self):
        """What the emulator has otherwise than AWS: numbers in event sources, and names of hosts."""
        functions = emulator.client("lambda")
        for source in functions.list_event_source_mappings()["EventSourceMappings"]:
            most = int(source["ScalingConfig"]["MaximumConcurrency"])
            functions.update_event_source_mapping(UUID=source["UUID"], ScalingConfig={"MaximumConcurrency": most})
        apis = emulator.client("apigatewayv2").get_apis()["Items"]
        Path("/etc/hosts").write_text("127.0.0.1 localhost\n" + "".join(f"127.0.0.1 {a['ApiId']}.execute-api.localhost\n" for a in apis))


def verify(user, archives, public):
    key = Path(public).read_text().split()
    (user.folder / "allowed_signers").write_text(f"releases@stepwarden {key[0]} {key[1]}\n")
    for file in archives.iterdir():
        shutil.copy(file, user.folder)
    lines = block("verify")
    for line in lines:
        user.types(line)
    # Neither a changed archive nor changed sums pass.
    changed = min(user.folder.glob("*.tar.gz"))
    whole = changed.read_bytes()
    sums = user.folder / "SHA256SUMS"
    for file, content, line in ((changed, whole[:-1] + b"x", lines[1]), (sums, sums.read_bytes() + b"\n", lines[0])):
        before = file.read_bytes()
        file.write_bytes(content)
        try:
            user.types(line)
        except Failed:
            file.write_bytes(before)
        else:
            raise Failed(f"{file.name} was changed, and `{line}` finds nothing")
    print("  ok   a changed archive and changed sums are refused", flush=True)


def main():
    archives, public = Path(sys.argv[1]).resolve(), sys.argv[2]
    folder = Path(tempfile.mkdtemp(prefix="stepwarden-release-"))
    hosts = folder / "hosts"
    shutil.copy("/etc/hosts", hosts)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    ministack = emulator.MiniStack(folder)
    try:
        work = folder / "user"
        work.mkdir()
        user = User(work, ministack)
        verify(user, archives, public)
        for line in block("first order"):
            answer = user.types(line)
            # The emulator asks for rights that AWS does not know.
            for template in (*work.glob("stepwarden-*/*.yaml"), *work.glob("stepwarden-*/infra/*.yaml"), *work.glob("store/*.yaml")):
                if "MessageBatch" not in (text := template.read_text()):
                    template.write_text(deploy.with_emulated_rights(text))
        check("Processed" in answer, f"the first order: {answer}")
        denied = [line for line in ministack.log.read_text().splitlines() if "AccessDenied" in line]
        check(not denied, f"a role lacks a right: {denied[:3]}")
        print("all checks hold: from the archives to the first order without Rust")
        return 0
    except Failed as error:
        wrong = [line for line in ministack.log.read_text().splitlines() if re.search("AccessDenied|ERROR|Error", line) and "poller error" not in line]
        print(f"FAIL {error}\nthe emulator's log:", *wrong[-20:], sep="\n", file=sys.stderr)
        return 1
    finally:
        ministack.stop()
        subprocess.run(["umount", "/etc/hosts"], check=False)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
