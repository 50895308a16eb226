#!/bin/sh
# install-packages.sh GROUP...: installs the Debian packages that a group needs and that are missing.
# Groups: build (compile and serve), test (make check), deploy (containers). Says what it installs, asks nothing.
set -eu

build="gcc libc6-dev make pkg-config libnng-dev libprotobuf-c-dev protobuf-c-compiler libopenblas-dev libmicrohttpd-dev
libjansson-dev libcurl4-openssl-dev libpcre2-dev libutf8proc-dev libglpk-dev python3 python3-venv"
test="libcmocka-dev clang libclang-rt-14-dev binutils git shellcheck curl procps universal-ctags"
deploy="podman runc debootstrap crun uidmap slirp4netns iptables"

packages=""
for group in "$@"; do
    case $group in
    build) packages="$packages $build" ;;
    test) packages="$packages $test" ;;
    deploy) packages="$packages $deploy" ;;
    *) echo "install-packages.sh: unknown group '$group' (build, test, deploy)" >&2; exit 2 ;;
    esac
done

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "missing packages:$missing (no apt-get here: install what they are called on your system)" >&2
    exit 1
fi
run=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "missing packages:$missing (run as root, or install sudo, or: apt-get install$missing)" >&2
        exit 1
    fi
    run="sudo"
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # the lists are words
{
    $run apt-get -qq update
    $run env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
}
