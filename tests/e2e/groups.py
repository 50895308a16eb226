"""Control groups (version 1, as root) that bound servers of tests and benches: a memory limit, the read rate of a disk.

What is started inside a group stays in it. This process enters only to start servers, so that clients do not count, and leaves again.
"""
import contextlib
import os
import re

ROOT = "/sys/fs/cgroup"


def _write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(str(text))


def own_group(controller):
    """The folder of the group that this process is in."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        path = re.search(rf"^\d+:(?:\S+,)?{controller}(?:,\S+)?:(\S+)$", file.read(), re.M).group(1)
    return f"{ROOT}/{controller}{path.rstrip('/')}"


class Group:
    """A group of one controller; removed at the end of `with`, by when all its servers must have ended."""

    def __init__(self, controller, suffix="", **limits):
        """suffix: of its name, where there are several. limits: {file of the controller, with __ for its dots: text}"""
        own = own_group(controller)
        self.home = own if os.path.isdir(own) else f"{ROOT}/{controller}"  # a container's name for it may lead nowhere
        self.folder = f"{ROOT}/{controller}/fd-tests-{os.getpid()}{suffix}"
        os.mkdir(self.folder)
        try:
            self.limit(**limits)
        except OSError:
            os.rmdir(self.folder)
            raise

    def limit(self, **limits):
        for name, text in limits.items():
            _write(os.path.join(self.folder, name.replace("__", ".")), text)

    def number(self, name):
        with open(os.path.join(self.folder, name), encoding="ascii") as file:
            return int(file.read())

    def stat(self, key):
        with open(os.path.join(self.folder, "memory.stat"), encoding="ascii") as file:
            return int(re.search(rf"^{key} (\d+)$", file.read(), re.M).group(1))

    @contextlib.contextmanager
    def inside(self):
        """What is started meanwhile is in the group."""
        _write(f"{self.folder}/cgroup.procs", os.getpid())
        try:
            yield
        finally:
            _write(f"{self.home}/cgroup.procs", os.getpid())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            os.rmdir(self.folder)
        except OSError:  # what runs in it still is ended by whoever has started it
            if not kind:
                raise


def memory_group(suffix=""):
    """A group whose memory is limited later, or None where this process may not make one."""
    try:
        return Group("memory", suffix)
    except (OSError, AttributeError):
        return None


def held_bytes(group):
    """What its processes hold, without page cache."""
    return group.number("memory.usage_in_bytes") - group.stat("total_active_file") - group.stat("total_inactive_file")


@contextlib.contextmanager
def slow_disk(folder, mbs):
    """This process and those that it starts read at most so many MB/s from the disk that has the folder; None: as fast as it is."""
    if not mbs:
        yield
        return
    device = os.stat(folder).st_dev
    with Group("blkio", blkio__throttle__read_bps_device=f"{os.major(device)}:{os.minor(device)} {int(mbs) * 1000000}") as group:
        with group.inside():
            yield


def forget_pages(path):
    """Drops a file's pages from the page cache, so that whoever reads it next is charged for them."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
