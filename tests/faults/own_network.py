"""A network of our own: machines with an address each, and ways between them that can be cut.

Each machine is a network namespace at the end of a cable (veth) to one bridge. All of it lies in
user, mount, process and network namespaces of its own: it needs no root, touches nothing of the
real network, and nobody outside reaches its addresses. The kernel removes all of it, with the
programs in it, when the first program ends.

A way is cut by giving the sender a wrong hardware address of the receiver: what it sends is lost
silently, in one direction. Linux with `ip`, `unshare` and `nsenter` is enough.
"""

import ctypes
import os
import shutil
import subprocess
import sys

from tests.servers.serving import environment

PROGRAMS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""What is needed, and Debian's package of each."""

APART = (
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
)
"""Before a command, that runs it in namespaces of its own."""

SUBNET = "10.77.0"
OWN_PLACE = 254
NOWHERE = "02:00:00:00:00:ff"
DEVICE = "eth0"
TRIAL_SECONDS = 20


def reason_against():
    """Why this machine cannot have such networks; empty if it can."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        packages = " ".join(sorted({PROGRAMS[name] for name in missing}))
        return f"not on PATH: {', '.join(missing)} (Debian: apt install {packages})"
    trial = [*APART, sys.executable, "-m", "tests.faults.own_network"]
    try:
        done = subprocess.run(
            trial,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"network namespaces cannot be tried: {error}"
    lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
    return f"this machine forbids network namespaces: {lines[-1]}" if done.returncode else ""


class Place:
    """A machine of the network.

    Attributes:
        host: Its address.
        prefix: Before a command, that runs it there.
    """

    def __init__(self, name, number):
        self.name = name
        self.host = f"{SUBNET}.{number}"
        self.hardware = f"02:00:00:00:00:{number:02x}"
        self.prefix = ("nsenter", f"--net=/run/netns/{name}")


class OwnNetwork:
    """All machines, in the namespaces of this program, which :data:`APART` has made.

    This program is at the bridge itself, and reaches every machine.

    Args:
        names: The names of the machines.
    """

    def __init__(self, names):
        self.places = {name: Place(name, number) for number, name in enumerate(names, 1)}
        _cover_run()
        ip("link set lo up")
        ip("link add bridge type bridge")
        ip(f"addr add {SUBNET}.{OWN_PLACE}/24 dev bridge")
        ip("link set bridge up")
        for place in self.places.values():
            self._connect(place)
        for place in self.places.values():
            for other in self.places.values():
                if other is not place:
                    self.heal(place, other)

    def _connect(self, place):
        cable, inside = f"to-{place.name}", f"-n {place.name}"
        ip(f"netns add {place.name}")
        end = f"peer name {DEVICE} address {place.hardware} netns {place.name}"
        ip(f"link add {cable} type veth {end}")
        ip(f"link set {cable} master bridge up")
        ip(f"{inside} addr add {place.host}/24 dev {DEVICE}")
        ip(f"{inside} link set {DEVICE} up")
        ip(f"{inside} link set lo up")

    def cut(self, sender, receiver):
        """Lose all that one machine sends to another."""
        _neighbour(sender, receiver, NOWHERE)

    def heal(self, sender, receiver):
        """Deliver it again."""
        _neighbour(sender, receiver, receiver.hardware)


def _neighbour(sender, receiver, hardware):
    at = f"{receiver.host} lladdr {hardware} dev {DEVICE} nud permanent"
    ip(f"-n {sender.name} neigh replace {at}")


def _cover_run():
    """Have `ip netns` keep its names in a folder that nobody else sees."""
    if ctypes.CDLL(None, use_errno=True).mount(b"tmpfs", b"/run", b"tmpfs", 0, None):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount /run: {os.strerror(number)}")


def ip(words):
    command = ["ip", *words.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    network = OwnNetwork(["one", "other"])
    subprocess.run([*network.places["one"].prefix, "true"], check=True, timeout=TRIAL_SECONDS)
