#!/bin/bash
# check_systemd.sh: runs the systemd units for real: systemd as PID 1 in a container of Debian, with what `make install-built` leaves. Wants a built tree
# with the default model, and root. Units start by the installed settings; are killed, more often than systemd's usual limit; give up for
# settings and models alone; stop, restart and reboot with streams in flight; and the sandbox refuses nothing that is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD state=$PWD/build/systemd services='' model=models/SmolLM2-135M-Instruct.Q4_1.gguf
export root services
mkdir -p "$state"
# shellcheck disable=SC1091,SC2154  # of that file: storage, release
. tests/deploy/podman.sh
configure_podman

end() {
    local status=$?
    podman rm -f --time 2 fd >/dev/null 2>&1 || true
    podman rmi -f localhost/systemd >/dev/null 2>&1 || true
    umount "$storage/overlay" 2>/dev/null || true
    rm -rf "$state"
    [ $status = 0 ] || echo "check-systemd: failed: ${why:-see above}" >&2
    exit $status
}
trap end EXIT

# Those that dpkg does not know by these paths are of every Debian.
packages=$(ldd build/bin/* | awk '$3 ~ "^/" {print $3}' | sort -u | xargs realpath | { xargs dpkg -S 2>/dev/null || true; } | cut -d: -f1 | sort -u | paste -sd,)
tree=$state/tree
TMPDIR=$state mmdebstrap --quiet --mode=root --variant=minbase --include="systemd,systemd-sysv,dbus,curl,procps,openssl,$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' "$release" "$tree" "$(find_mirror)"
make --no-print-directory install-built DESTDIR="$state/stage" PREFIX=/usr >/dev/null
cp -a --no-preserve=ownership "$state/stage/." "$tree/"
rm -rf "$state/stage" "$tree/usr/lib/fastdecode/bin/libfastdecode-cuda.so"
install -D -m 644 "$model" "$tree/var/lib/fastdecode/models/model.gguf"
mkdir -p "$tree/var/log/journal"
: >"$tree/etc/machine-id"
cp tests/deploy/in_systemd.sh "$tree/opt/"
tar -C "$tree" -c . | podman import -q --change 'CMD ["/sbin/init"]' --change 'STOPSIGNAL SIGRTMIN+3' --change 'ENV container=podman' - \
    localhost/systemd >/dev/null
rm -rf "$tree"
podman run -d --name fd --hostname fdhost --systemd=always --cap-add=SYS_ADMIN,SYS_NICE --security-opt seccomp=unconfined \
    --ulimit nofile="$(ulimit -Hn):$(ulimit -Hn)" --ulimit nproc=8192:8192 localhost/systemd >/dev/null
await 30 "systemd" podman exec fd systemctl is-active multi-user.target
# The reboot at its end ends the shell, too.
podman exec fd bash /opt/in_systemd.sh first || [ "$(podman inspect -f '{{.State.Status}}' fd)" != running ] || die "see above"
# shellcheck disable=SC2016
await 90 "the end of the container" eval '[ "$(podman inspect -f "{{.State.Status}}" fd)" = exited ]'
podman start fd >/dev/null
await 30 "systemd" podman exec fd systemctl is-active multi-user.target
podman exec fd bash /opt/in_systemd.sh second || die "see above"
