"""A Slurm cluster of two nodes on this machine: n1 and n2, with networks, hostnames, /tmp and shared memory of their
own.

start() wants to be root in mount, process, network, host and IPC namespaces of this run alone (tools/check_slurm.sh
makes them): Slurm's and munge's places, /etc/slurm and /run, are then empty folders that nobody else sees, ports are
free, and nothing outlives the first process. Each node is in namespaces of its own inside of these.
"""
import os
import pathlib
import shutil
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NODES = ("n1", "n2")
LOGS = pathlib.Path("/run/slurm")
GPUS = 4                                     # of a node; slurm.conf


class Unavailable(Exception):
    """This machine cannot have the cluster; its text says why."""


def call(*command):
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=20)
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        raise Unavailable(f"{' '.join(str(c) for c in command)}: {text or f'status {done.returncode}'}")
    return text


def daemon(name, *command):
    with open(LOGS / f"{name}.out", "wb") as out:
        return subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def make_places():
    call("mount", "-t", "tmpfs", "tmpfs", "/run")
    for folder in ("munge", "slurm/state", *(f"slurm/{node}" for node in NODES)):
        pathlib.Path("/run", folder).mkdir(parents=True)
    call("mount", "-t", "tmpfs", "tmpfs", "/etc/slurm")
    shutil.copy(HERE / "slurm.conf", "/etc/slurm")
    # With v1, slurmd only requires that the folder is a mount; v2 would talk to systemd.
    pathlib.Path("/etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    pathlib.Path("/etc/slurm/gres.conf").write_text(f"Name=gpu File=/run/slurm/gpu[0-{GPUS - 1}]\n")
    for gpu in range(GPUS):
        os.mknod(LOGS / f"gpu{gpu}", 0o20666, os.makedev(1, 3))


def make_network():
    """A bridge of this machine, the controller, to which each node is plugged."""
    hosts = ["127.0.0.1 localhost", "10.77.0.254 controller"]
    call("hostname", "controller")
    call("ip", "link", "set", "lo", "up")
    call("ip", "link", "add", "slurm0", "type", "bridge")
    call("ip", "addr", "add", "10.77.0.254/24", "dev", "slurm0")
    call("ip", "link", "set", "slurm0", "up")
    for number, node in enumerate(NODES, 1):
        call("ip", "netns", "add", node)
        call("ip", "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", node)
        call("ip", "link", "set", node, "master", "slurm0", "up")
        call("ip", "-n", node, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        call("ip", "-n", node, "link", "set", "eth0", "up")
        call("ip", "-n", node, "link", "set", "lo", "up")
        hosts.append(f"10.77.0.{number} {node}")
    pathlib.Path("/run/hosts").write_text("\n".join(hosts) + "\n")
    call("mount", "--bind", "/run/hosts", "/etc/hosts")


# The node's own /tmp has this repository in it where it is in the machine's.
NODE = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /sys/fs/cgroup
mount -t tmpfs tmpfs /dev/shm
mkdir /run/slurm/$1/tmp
case "$2" in /tmp/*) mkdir -p "/run/slurm/$1$2"; mount --bind "$2" "/run/slurm/$1$2" ;; esac
mount --rbind "/run/slurm/$1/tmp" /tmp
exec slurmd -D -N "$1"
"""


def start():
    """Raises Unavailable. The daemons end with the process namespace."""
    make_places()
    make_network()
    key = pathlib.Path("/run/munge/key")
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    daemon("munged", "munged", "--foreground", "--force", "--key-file", key, "--log-file", "/run/munge/log",
           "--pid-file", "/run/munge/pid", "--seed-file", "/run/munge/seed")
    wait_until(lambda: os.path.exists("/run/munge/munge.socket.2"), 10, "munged does not start")
    daemon("slurmctld", "slurmctld", "-D")
    for node in NODES:
        daemon(f"slurmd.{node}", "nsenter", f"--net=/run/netns/{node}", "unshare", "--mount", "--uts", "--ipc", "bash",
               "-c", NODE, "node", node, ROOT)
    wait_until(lambda: sinfo().startswith("idle 2"), 20, "Slurm's nodes do not come up")
    if "pmix" not in call("srun", "--mpi=list"):
        raise Unavailable("this Slurm has no PMIx")


def sinfo():
    done = subprocess.run(["sinfo", "--noheader", "--format=%t %D"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          timeout=20)
    return done.stdout.decode()


def wait_until(ready, seconds, otherwise):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise Unavailable(f"{otherwise} in {seconds} s: {last_words()}")
        time.sleep(0.1)


def last_words():
    """The errors in the daemons' output."""
    lines = []
    for path in sorted(LOGS.glob("*.out")):
        text = path.read_text(errors="replace")
        lines += [line for line in text.splitlines() if "rror" in line or "atal" in line][-3:]
    return "; ".join(lines) or "no error in their logs"
