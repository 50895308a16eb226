#!/bin/sh
# install-packages.sh [--list] GROUP...: installs the Debian packages that a group needs and that are missing.
# Groups: build (compile and serve), cuda (make cuda, beside the toolkit), test (make check), arm (make check-arm), deploy (make check-deploy), image (make images, beside
# build) and proxy (the image before several gateways). Says what it installs, asks nothing. --list prints names.
set -eu

build="gcc libc6-dev make pkg-config libnng-dev libprotobuf-c-dev protobuf-c-compiler libopenblas-dev libmicrohttpd-dev
libgnutls28-dev libjansson-dev libcurl4-openssl-dev libpcre2-dev libutf8proc-dev libsodium-dev libssl-dev liburing-dev libseccomp-dev libsqlite3-dev coinor-libclp-dev python3
python3-venv"
cuda="g++"
test="libcmocka-dev g++ clang clang-format libclang-rt-14-dev binutils git shellcheck curl procps universal-ctags
openssl chromium chromium-driver prometheus mandoc zsh fish systemd stress-ng"
arm="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
deploy="podman catatonit runc mmdebstrap crun uidmap slirp4netns iptables netavark aardvark-dns python3 python3-venv curl"
image="ca-certificates"
proxy="haproxy"

list=""
if [ "${1:-}" = --list ]; then
    list=1
    shift
fi

packages=""
for group in "$@"; do
    case $group in
    build) packages="$packages $build" ;;
    cuda) packages="$packages $cuda" ;;
    test) packages="$packages $test" ;;
    arm) packages="$packages $arm" ;;
    deploy) packages="$packages $deploy" ;;
    image) packages="$packages $image" ;;
    proxy) packages="$packages $proxy" ;;
    *) echo "install-packages.sh: unknown group '$group' (build, cuda, test, arm, deploy, image, proxy)" >&2; exit 2 ;;
    esac
done
if [ -n "$list" ]; then
    # shellcheck disable=SC2086  # the lists are words
    printf '%s\n' $packages
    exit 0
fi

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
exec 9<"$0"
flock 9 # `make -j check` asks for two groups at once, and apt for one at a time
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # the lists are words
{
    $run apt-get -qq update
    $run env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
}
