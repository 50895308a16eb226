"""A second host: a network namespace with a link to this one. As root; available() says whether this machine lets us."""
import os
import subprocess


def available():
    """None, or why there can be none here."""
    try:
        with FarHost("fd-try"):
            return None
    except (OSError, subprocess.CalledProcessError) as problem:
        return f"no network namespaces here: {problem}"


class FarHost:
    """name: of the namespace; near, address: this host's and its end of the link; link: this host's device."""

    def __init__(self, name="fd-far"):
        pid = os.getpid()
        self.name, self.link, net = f"{name}-{pid}", f"{name[3:6]}{pid}", f"10.213.{1 + pid % 250}"
        self.near, self.address = f"{net}.1", f"{net}.2"

    def __enter__(self):
        self.run("ip netns add {name}")
        try:
            self.run("ip link add {link} type veth peer name {link}p", "ip link set {link}p netns {name}",
                     "ip addr add {near}/30 dev {link}", "ip link set {link} up", "ip -n {name} addr add {address}/30 dev {link}p",
                     "ip -n {name} link set {link}p up", "ip -n {name} link set lo up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.run("ip netns del {name}")

    def run(self, *commands):
        for command in commands:
            subprocess.run(command.format(**vars(self)).split(), check=True, capture_output=True)

    def inside(self, command):
        """The command, to be run there."""
        return ["ip", "netns", "exec", self.name, *command]
