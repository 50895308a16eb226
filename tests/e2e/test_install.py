"""What `make install` leaves on a machine: programs that find each other, man pages, completions in real shells, units of systemd."""
import configparser
import glob
import os
import re
import subprocess
import sys

import pytest

from conftest import BUILD, seconds, tiny, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "deploy/host"))
from help import PROGRAMS  # noqa: E402

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("FD_", "MAKE"))}


def run(*command, **settings):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **{"env": CLEAN, **settings})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Installed in a folder as if it were /."""
    folder = tmp_path_factory.mktemp("root")
    done = run("make", "--no-print-directory", "install-built", f"BUILD={BUILD}", f"DESTDIR={folder}", "PREFIX=/usr", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_programs_find_each_other(root, tmp_path):
    """The link, not the folder it points to, is what users call."""
    command = [root / "usr/bin/fastdecode", "up", "--model", tiny(), "--port", "0",
               "--kv-memory", "16M", "--local-pool", "16M", "--calibrate", "off"]
    said = tmp_path / "said"
    with open(said, "wb") as log, subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env=CLEAN) as up:
        def url():
            assert up.poll() is None, said.read_text()
            return re.search(r"http://127\.0\.0\.1:\d+", said.read_text())

        found = wait_until(url, 30, "it does not say its address")
        wait_until(lambda: run("curl", "-sf", found[0] + "/ready").returncode == 0, 30, "the mesh is not ready")
        up.terminate()
        assert up.wait(seconds(60)) == 0
    assert "a10" in run(root / "usr/bin/fastdecode", "plan", "--gpu", "none-such", "--shape", "llama-7b").stderr  # descriptions of hardware


@pytest.mark.parametrize("service", ("gateway", "scheduler", "s-part", "kv-worker"))
def test_a_service_calls_itself_what_the_user_does(root, service):
    installed = f"fastdecode-{service}"
    for path, name in ((root / "usr/bin" / installed, installed), (f"{BUILD}/bin/{service}", service)):
        said = run(path, "--help").stdout
        assert said.startswith(f"{name}: ") and f"\nusage: {name} [options]\n" in said
        assert run(path, "--version").stdout.startswith(f"{name} ")
        refused = run(path, "--none-such")
        assert refused.returncode == 2 and refused.stderr.startswith(f"{name}: unknown option"), refused
    page = run("mandoc", "-T", "ascii", root / f"usr/share/man/man1/{installed}.1").stdout
    assert re.search(rf"\n +{installed} \[options\]\n", re.sub(".\b", "", page))
    assert installed in run(root / "usr/bin/fastdecode", "--help").stdout


def test_settings_are_kept(root):
    """Those that were there before, if it is installed again."""
    settings = root / "etc/fastdecode/gateway.conf"
    settings.write_text("port = 1\n")
    assert run("make", "--no-print-directory", "install-built", f"BUILD={BUILD}", f"DESTDIR={root}", "PREFIX=/usr", cwd=ROOT).returncode == 0
    assert settings.read_text() == "port = 1\n"


def test_man_pages(root):
    pages = sorted(glob.glob(f"{root}/usr/share/man/man1/*.1"))
    assert len(pages) == 1 + len(PROGRAMS)
    done = run("mandoc", "-T", "lint", "-W", "warning", *pages)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = run("mandoc", "-T", "ascii", root / "usr/share/man/man1/fastdecode-kv-worker.1").stdout
    shown = re.sub(".\b", "", shown)
    assert "--kv-memory SIZE\n" in shown and "fastdecode-kv-worker - holds the KV cache" in shown


# --- completions ------------------------------------------------------------------------------------------------------------------

# (what is typed so far, some of what must be offered, what must not be)
TYPED = [
    (["fastdecode", "q"], {"quantize"}, {"up"}),
    (["fastdecode", "up", "--kv-work"], {"--kv-workers"}, {"--listen"}),
    (["fastdecode", "key", "--cl"], {"--class"}, {"--kv-workers"}),
    (["fastdecode", "key", "--class", ""], {"interactive", "batch"}, {"--class"}),
    (["fastdecode-gateway", "--host", "--tls-"], {"--tls-cert", "--tls-key"}, {"--kv-workers"}),
]


def bash(root, words):
    script = f"""source {root}/usr/share/bash-completion/completions/fastdecode
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fastdecode; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = run("bash", "--norc", "-c", script, "bash", *words)
    assert done.stderr == ""
    return done.stdout.split()


def fish(root, words):
    line = " ".join(words)
    done = run("fish", "--no-config", "-c", f"source {root}/usr/share/fish/vendor_completions.d/fastdecode.fish; complete -C {line!r}")
    assert done.stderr == ""
    return [offered.split("\t")[0] for offered in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", (bash, fish))
@pytest.mark.parametrize("words, wanted, unwanted", TYPED)
def test_completions(root, shell, words, wanted, unwanted):
    offered = set(shell(root, words))
    assert wanted <= offered and not unwanted & offered, offered


def test_zsh_completions(root, tmp_path):
    """In a terminal of its own, as zsh completes nowhere else."""
    (tmp_path / ".zshrc").write_text(f"fpath=({root}/usr/share/zsh/site-functions $fpath)\nautoload -Uz compinit\ncompinit -u -D\nPS1=READY\n"
                                     "zstyle ':completion:*' list-prompt ''\nLISTMAX=1000\n")
    script = f"""
zmodload zsh/zpty
zpty shell 'ZDOTDIR={tmp_path} TERM=dumb COLUMNS=200 LINES=200 zsh -i'
zpty -r -m shell seen '*READY*'
zpty -w -n shell $'fastdecode quant\\t'
zpty -r -m shell seen '*quantize *'
print -r -- "$seen"
zpty -w -n shell $'--req\\t'
zpty -r -m shell seen '*--requantize*'
print -r -- "$seen"
zpty -d shell
"""
    done = run("timeout", "60", "zsh", "-f", "-c", script, env={**CLEAN, "HOME": str(tmp_path)})
    assert done.returncode == 0 and "quantize" in done.stdout and "--requantize" in done.stdout, done.stdout + done.stderr


# --- systemd ----------------------------------------------------------------------------------------------------------------------


def test_units(root):
    units = [os.path.basename(path).replace("@.", "@0.") for path in sorted(glob.glob(f"{root}/usr/lib/systemd/system/*"))]
    assert len(units) == 5
    for target in ("sysinit", "basic", "shutdown", "multi-user", "network-online", "sockets", "timers", "paths", "slices"):
        (root / f"usr/lib/systemd/system/{target}.target").write_text("[Unit]\nDescription=of the test\n")
    (root / "bin").mkdir(exist_ok=True)
    for program in ("sh", "kill"):  # for reloads
        (root / "bin" / program).touch(0o755)
    done = run("systemd-analyze", f"--root={root}", "--man=no", "verify", *units)
    assert done.returncode == 0 and not [line for line in done.stderr.splitlines() if "fastdecode" in line], done.stderr
    for unit in units:
        done = run("systemd-analyze", f"--root={root}", "security", "--offline=true", "--threshold=25", unit)
        assert done.returncode == 0, done.stdout + done.stderr


def test_units_are_started_again_as_often_as_it_takes(root):
    """Unless a person has to change something: the exit codes 2 and 4 of docs/operations.md."""
    for path in glob.glob(f"{root}/usr/lib/systemd/system/fastdecode*.service"):
        unit = configparser.RawConfigParser(strict=False)
        unit.read(path)
        assert unit["Unit"]["StartLimitIntervalSec"] == "0", path  # five failures at once are not the end
        service = unit["Service"]
        assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2 4") and float(service["RestartSec"]) >= 1, path


@pytest.mark.parametrize("service", ("up", "scheduler", "s-part", "kv-worker", "gateway"))
def test_settings_of_units_are_settings(service, tmp_path):
    """--check takes them all, those that are commented out too; the model and the certificates of the test."""
    assert run(f"{BUILD}/bin/fastdecode", "certs", tmp_path / "certs").returncode == 0
    with open(f"{ROOT}/deploy/host/config/{service}.conf", encoding="utf-8") as file:
        lines = [re.sub(r"^# (\S+ = \S+).*", r"\1", line) for line in file]
    text = re.sub(r"(?m)^(api-key-file|host) = .*\n", "", "".join(lines)).replace("/var/lib/fastdecode/models/model.gguf", tiny())
    text = text.replace("/etc/fastdecode/certs", str(tmp_path / "certs")).replace("SCHEDULER", "localhost")
    done = run(*(["fastdecode", "up"] if service == "up" else [service]), "--config", "/dev/stdin", "--check", input=text,
               env={**CLEAN, "PATH": f"{BUILD}/bin:{CLEAN['PATH']}"})
    assert done.returncode == 0, text + done.stdout + done.stderr
