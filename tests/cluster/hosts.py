"""Hosts of their own on this machine: Linux namespaces with a network, processes, a home, `/tmp` and sshd each.

Needs root, `ip`, `unshare`, `nsenter`, sshd and rsync. Nothing is left when the hosts' first processes have ended. The
hosts have no network to the outside: what `python3 -m venv` makes there sees the packages of this Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRAMS = ("ip", "unshare", "nsenter", "/usr/sbin/sshd", "ssh", "ssh-keygen", "rsync")
SHARED = "/srv"
"""A folder that all hosts share, as a mount of network storage would be."""

_START = """
set -e
cd /
hostname "$NAME"
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run && mkdir /run/sshd
mount --bind "$FOLDER/shared" /srv
mount --bind "$FOLDER/hosts" /etc/hosts
mount --bind /dev/null /etc/resolv.conf
mount --bind "$FOLDER/bin" /usr/local/bin
for folder in "$PACKAGES" "$PYTHON"; do
    case "$folder" in
        "$HOME"/*) inside="$FOLDER/$NAME/home${folder#"$HOME"}"; mkdir -p "$inside" ;;
        *) inside="$folder" ;;
    esac
    mount --bind "$folder" "$inside" && mount -o remount,bind,ro "$inside"
done
mount --rbind "$FOLDER/$NAME/home" "$HOME"
cp "$FOLDER/key" "$FOLDER/key.pub" /run/sshd
mount --bind "$FOLDER/$NAME/tmp" /tmp
until ip -4 addr show scope global | grep -q inet; do sleep 0.1; done
exec /usr/sbin/sshd -D -e -f /dev/null -o HostKey=/run/sshd/key -o AuthorizedKeysFile=/run/sshd/key.pub \\
    -o StrictModes=no -o UsePAM=no -o PidFile=none
"""

_PYTHON = """#!/bin/sh
# An environment that is made here has the packages of the tests' own.
"{python}" "$@" || exit
if [ "$1 $2" = "-m venv" ]; then
    own="$3/lib/{version}/site-packages"
    rm -rf "$own"/setuptools*  # older than torch wants
    echo "{packages}" > "$own/of_the_tests.pth"
    printf '#!%s\\nfrom ray.scripts.scripts import main\\nmain()\\n' "$3/bin/python" > "$3/bin/ray"
    chmod +x "$3/bin/ray"
fi
"""

_PIP = "[global]\nno-index = true\nno-build-isolation = false\ndisable-pip-version-check = true\n"
"""No network. (`false` switches the isolation off: pip reads the value as one of `build-isolation`.)"""


@dataclass(frozen=True)
class Host:
    """A host: its name, address, home as seen from outside, and first process."""

    name: str
    address: str
    home: Path
    pid: int

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command in a login shell of the host, with stdout and stderr in one stream."""
        enter = ["nsenter", "--target", str(self.pid), "--all", "env", "-i", f"HOME={Path.home()}", "TERM=dumb"]
        shell = ["bash", "--login", "-i", "-c", f"cd; {command}"]  # as Ray does it
        return subprocess.Popen(
            [*enter, *shell], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, command: str, timeout: float = 300) -> tuple[int, str]:
        """Run a command in a login shell of the host, and return its exit code and its output."""
        process = self.start(command)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return -1, output + f"\n(killed after {timeout:.0f} s)"
        return process.returncode, output


def missing() -> str | None:
    """Say what this machine lacks to have hosts, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces need root on Linux"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"needs {', '.join(lacking)}" if lacking else None


@contextmanager
def hosts(folder: Path, names: list[str]) -> Iterator[list[Host]]:
    """Have hosts 10.77.0.1, 10.77.0.2 and so on, that reach each other and nothing else.

    Args:
        folder: an empty folder for their homes and temporary files, with a short path.
        names: of the hosts, at most 4 characters each. The first one has the bridge that joins the others.
    """
    for name in (
        "bin",
        "shared",
        *(f"{name}/{part}" for name in names for part in ("home/.ssh", "home/.config/pip", "tmp")),
    ):
        (folder / name).mkdir(parents=True)
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in addresses.items()))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    packages = sysconfig.get_paths()["purelib"]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = _PYTHON.format(python=f"{sys.base_prefix}/bin/{version}", packages=packages, version=version)
    scripts = {"python3": python, "sudo": '#!/bin/sh\nexec "$@"\n', "apt-get": "#!/bin/sh\n# All is there.\n"}
    for name, text in scripts.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    for name in names:
        (folder / name / "tmp").chmod(0o1777)
        home = folder / name / "home"
        (home / ".config/pip/pip.conf").write_text(_PIP)
        shutil.copy("/etc/skel/.bashrc", home)
        shutil.copy("/etc/skel/.profile", home)
    shutil.copy(folder / "key", folder / names[0] / "home/.ssh/id_ed25519")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(Path.home()),
        "FOLDER": str(folder),
        "PACKAGES": sys.prefix,
        "PYTHON": sys.base_prefix,
    }
    namespaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "log").open("wb") as log:
            for name in names:
                command = ["unshare", *namespaces, "bash", "-c", _START]
                processes.append(subprocess.Popen(command, env={**environment, "NAME": name}, stdout=log, stderr=log))
        pids = [_child(process) for process in processes]
        _join(pids, names, list(addresses.values()))
        found = [Host(n, addresses[n], folder / n / "home", pid) for n, pid in zip(names, pids, strict=True)]
        for host in found:
            _wait_for_sshd(host, folder / "log")
        yield found
    finally:
        for process in processes:
            process.kill()  # and with it, by --kill-child, the first process of the host and so all of them
            process.wait()


def _child(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of the first process of a host that is being started."""
    while not (children := psutil.Process(process.pid).children()):
        time.sleep(0.02)
    return int(children[0].pid)


def _join(pids: list[int], names: list[str], addresses: list[str]) -> None:
    """Give the hosts a network: a bridge in the first host, and a pair of interfaces for each other."""

    def ip(pid: int, arguments: str) -> None:
        subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", *arguments.split()], check=True)

    first = pids[0]
    ip(first, "link set lo up")
    ip(first, "link add bridge type bridge")
    for pid, name, address in zip(pids[1:], names[1:], addresses[1:], strict=True):
        ip(first, f"link add to-{name} type veth peer name eth0 netns {pid}")
        ip(first, f"link set to-{name} master bridge up")
        ip(pid, "link set lo up")
        ip(pid, f"addr add {address}/24 dev eth0")
        ip(pid, "link set eth0 up")
        ip(pid, f"route add default via {addresses[0]}")  # goes nowhere; by it a program finds the host's own address
    ip(first, f"addr add {addresses[0]}/24 dev bridge")
    ip(first, "link set bridge up")


def _wait_for_sshd(host: Host, log: Path) -> None:
    for _ in range(100):
        if subprocess.run(
            ["nsenter", "-t", str(host.pid), "-n", "ss", "-Hltn", "sport = 22"], capture_output=True
        ).stdout:
            return
        if not psutil.pid_exists(host.pid):
            break
        time.sleep(0.1)
    raise RuntimeError(f"host {host.name} did not start: {log.read_text()}")
