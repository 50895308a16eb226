#!/bin/sh
# sysroot.sh FOLDER: fills FOLDER with Debian's libraries for arm64, to build for it and to run under qemu: make CC=aarch64-linux-gnu-gcc SYSROOT=FOLDER.
# The packages are downloaded and unpacked, not installed: beside those of this machine many cannot be. apt resolves what they depend on, with
# lists and a state of its own, so that this machine's are not touched. Exit status 77: the packages cannot be had here; the last line says why.
set -eu
cd "$(dirname "$0")/../.."
folder=$1
# Headers and libraries of the build group; coinor-libclp-dev needs a BLAS, which is OpenBLAS here.
packages="$(deploy/install-packages.sh --list build | grep -- '-dev$' | tr '\n' ' ')libcmocka-dev"

if [ -e "$folder/packages" ] && [ "$(cat "$folder/packages")" = "$packages" ]; then
    exit 0
fi
cannot() {
    echo "no arm64 packages: $1"
    exit 77
}
for tool in apt-get dpkg; do
    command -v $tool >/dev/null || cannot "there is no $tool here"
done

rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
apt=$folder/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial"
: >"$apt/status"
cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Debug::NoLocking "true";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt";
Dir::Cache::archives "$apt/archives";
END
export APT_CONFIG="$apt/apt.conf"
apt-get -qq update >"$apt/log" 2>&1 || cannot "apt-get update fails: $(tail -1 "$apt/log")"
# shellcheck disable=SC2086  # the list is words
apt-get -qq -y --no-install-recommends --download-only install $packages >"$apt/log" 2>&1 ||
    cannot "apt-get cannot download them: $(grep '^E:' "$apt/log" | head -1)"
for package in "$apt"/archives/*.deb; do
    dpkg -x "$package" "$folder"
done

# Links the implementation of BLAS and LAPACK, as installing the packages would.
libraries=$folder/usr/lib/aarch64-linux-gnu
for link in libopenblas.so libopenblas.so.0 libblas.so.3 liblapack.so.3; do
    ln -sf "openblas-pthread/$link" "$libraries/$link"
done
for header in "$folder"/usr/include/aarch64-linux-gnu/openblas-pthread/*.h; do
    ln -sf "openblas-pthread/${header##*/}" "$folder/usr/include/aarch64-linux-gnu/${header##*/}"
done
rm -rf "$apt"
printf '%s' "$packages" >"$folder/packages"
