"""A scheduler and s-parts that a test starts one by one, each with a log of its own: the fixture by_hand."""
import os
import re
import subprocess

from conftest import BUILD, fastdecode, seconds, spawn, tiny, wait_until


class ByHand:
    """A scheduler and s-parts that are started one by one."""

    def __init__(self, folder):
        self.folder, self.processes = str(folder), []
        self.scheduler = f"ipc://{folder}/scheduler.sock"
        self.start("scheduler", "scheduler", f"--listen={self.scheduler}", f"--worker-timeout-ms={round(1000 * seconds(1))}")

    def start(self, name, program, *options):
        with open(os.path.join(self.folder, name + ".log"), "wb") as log:
            self.processes.append(spawn([os.path.join(BUILD, "bin", program), *options], stdout=log, stderr=subprocess.STDOUT))
        return self.processes[-1]

    def s_part(self, layers, *options):
        """One of its own name, unless the options say another; returns it and its log's reader."""
        name = f"s-part-{len(self.processes)}"
        usual = [f"--name={name}", f"--scheduler={self.scheduler}", f"--listen=ipc://{self.folder}/{name}.sock", f"--layers={layers}",
                 "--threads=1", "--calibrate=off", "--local-pool=16M", f"--model={tiny()}"]
        given = {option.split("=")[0] for option in options}
        process = self.start(name, "s-part", *(option for option in usual if option.split("=")[0] not in given), *options)
        return process, lambda: self.log(name)

    def refused(self, layers, *options):
        """Why an s-part is refused, in its own log. It is ended."""
        process, log = self.s_part(layers, *options)
        wait_until(lambda: "REGISTER-REFUSED" in log(), 30, log)
        process.kill()
        process.wait()
        return re.search(r'REGISTER-REFUSED .*why="(.*)"', log())[1]

    def log(self, name):
        with open(os.path.join(self.folder, name + ".log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_ready(self):
        wait_until(lambda: self.health().strip().endswith("ready"), 30, self.health)

    def health(self):
        done = fastdecode("health", self.scheduler)
        return done.stdout + done.stderr

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
