"""Several hosts for the tests: addresses of the loopback, each with a real sshd of its own, and keys made for them."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from conftest import free_place

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def missing():
    """What keeps hosts from being made here; empty when nothing does."""
    for program in (SSHD, "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"there is no {program} (packages openssh-server and openssh-client)"
    return ""


class Hosts:
    """node-1, node-2, ... are 127.0.0.2, 127.0.0.3, ... or the hosts 1, 2, ... of a lab (tools/netlab), whose host 0 is the user's;
    `TESSERA_SSH` reaches them by these names. The last one does not see the folder `hidden` (needs root)."""

    def __init__(self, folder, count=2, hidden=None, lab=None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self.names = [f"node-{i + 1}" for i in range(count)]
        self.servers = {}
        key, host_key = self.folder / "key", self.folder / "host-key"
        for path in (key, host_key):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        (self.folder / "authorized").write_text(key.with_suffix(".pub").read_text())
        (self.folder / "authorized").chmod(0o600)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config, known = "", ""
        for i, name in enumerate(self.names):
            address = lab.address(i + 1) if lab else f"127.0.0.{i + 2}"
            # A host of a lab has all ports free; of this machine's addresses one may have it taken that is free at another.
            port = free_place("127.0.0.1" if lab else address).split(":")[1]
            server = self.folder / f"sshd-{name}"
            server.write_text(f"ListenAddress {address}\nPort {port}\nHostKey {host_key}\nAuthorizedKeysFile {self.folder}/authorized\nPidFile none\n"
                              "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n")
            config += (f"Host {name}\n  HostName {address}\n  Port {port}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
                       f"  UserKnownHostsFile {self.folder}/known\n  GlobalKnownHostsFile /dev/null\n")
            public = " ".join(host_key.with_suffix(".pub").read_text().split()[:2])
            known += f"[{address}]:{port} {public}\n"
            command = [SSHD, "-D", "-e", "-f", server]
            if hidden is not None and name == self.names[-1]:
                command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', hidden, *command]
            if lab:
                command = lab.words(i + 1, command)
            with open(self.folder / f"log-{name}", "w") as log:
                self.servers[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        (self.folder / "config").write_text(config)
        (self.folder / "known").write_text(known)
        self.ssh = f"ssh -F {self.folder / 'config'}"
        self.here = (lambda words: lab.words(0, words)) if lab else (lambda words: words)
        try:
            for name in self.names:
                self.wait_for(name)
        except BaseException:
            self.close()
            raise

    def wait_for(self, name):
        for _ in range(100):
            done = subprocess.run(self.here([*self.ssh.split(), "-oBatchMode=yes", name, "true"]), capture_output=True, text=True)
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError(f"{done.stderr}\n{(self.folder / f'log-{name}').read_text()}")

    def file(self, words=""):
        path = self.folder / "hosts"
        path.write_text("".join(f"{name} {words}\n" for name in self.names))
        return path

    def close(self):
        for server in self.servers.values():
            server.send_signal(signal.SIGTERM)
        for server in self.servers.values():
            server.wait(timeout=20)


SLURM = ("munged", "slurmctld", "slurmd", "srun", "scancel", "squeue", "sinfo")
SLURM_CONF = """ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node-1 NodeHostname=localhost NodeAddr=127.0.0.2 Port={first} CPUs=4
NodeName=node-2 NodeHostname=localhost NodeAddr=127.0.0.3 Port={second} CPUs=4
PartitionName=all Nodes=node-1,node-2 Default=YES State=UP
"""


class Slurm:
    """A Slurm of two nodes, which are this host; `environment` leads its commands there."""

    @staticmethod
    def missing():
        if os.geteuid() != 0:
            return "slurmctld needs root"
        lacking = [program for program in SLURM if shutil.which(program) is None]
        return f"there is no {lacking[0]} (packages munge, slurm-client, slurmctld and slurmd)" if lacking else ""

    def __init__(self, folder):
        self.folder = Path(folder)
        for name in ("state", "spool-node-1", "spool-node-2"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge.key").write_bytes(os.urandom(64))
        (self.folder / "munge.key").chmod(0o600)
        control, first, second = (free_place().split(":")[1] for _ in range(3))
        conf = self.folder / "slurm.conf"
        conf.write_text(SLURM_CONF.format(folder=self.folder, control=control, first=first, second=second))
        self.environment = {"SLURM_CONF": str(conf)}
        names = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        files = [f"--{name}={self.folder}/munge.{name.split('-')[0]}" for name in names]
        self.daemons = []
        self.start("munged", "--foreground", "--force", *files)
        self.start("slurmctld", "-D", "-f", conf)
        for node in ("node-1", "node-2"):
            self.start("slurmd", "-D", "-f", conf, "-N", node)
        for _ in range(300):
            if self("sinfo", "--noheader", "--format=%T %D").stdout.strip() == "idle 2":
                return
            time.sleep(0.1)
        self.close()
        raise AssertionError("\n".join(log.read_text() for log in self.folder.glob("*.log")))

    def start(self, program, *words):
        with open(self.folder / f"{program}-{len(self.daemons)}.log", "w") as log:
            self.daemons.append(subprocess.Popen([program, *map(str, words)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                 env=dict(os.environ, **self.environment)))

    def __call__(self, *words):
        return subprocess.run(words, env=dict(os.environ, **self.environment), capture_output=True, text=True, timeout=60)

    def close(self):
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def command_lines():
    """What every process of this machine was started with, but for those that end meanwhile: {pid: bytes}."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = path.read_bytes()
    return found


def processes(folder, word=""):
    """Those that work in a folder and have this word in their command line, on whatever host of the test: {pid: words}."""
    found = {}
    for pid, line in command_lines().items():
        words = line.decode(errors="replace").split("\0")[:-1]
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)") == str(folder) and any(word in one for one in words):
                found[pid] = words
    return found


def ranks(folder):
    """The processes of the ranks that work in a folder: {rank: pid}."""
    return {int(words[words.index("--rank") + 1]): pid for pid, words in processes(folder, "tessera-worker").items() if "--rank" in words}
