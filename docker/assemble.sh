#!/bin/sh
# assemble.sh FOLDER PROGRAM: puts a program and all that it loads into FOLDER, which is then the whole root of an image: no shell, no package
# manager, no other program. Runs in the build stage. Times are SOURCE_DATE_EPOCH's, so that the same sources make the same layer.
set -eu
folder=$1
program=$2

mkdir -p "$folder/usr/local/bin" "$folder/etc/ssl/certs" "$folder/run/secrets" "$folder/tmp" "$folder/lib64"
chmod 1777 "$folder/tmp"
install -m 755 "$program" "$folder/usr/local/bin/"

# glibc opens it when a thread is cancelled, and ends the process if it is not there.
gcc=$(ldconfig -p | sed -nE 's/.*libgcc_s\.so\.1 .*x86-64.* => (.*)/\1/p; t; s/.*libgcc_s\.so\.1 .* => (.*)/\1/p' | head -1)
mkdir -p "$folder${gcc%/*}"
cp -L "$gcc" "$folder$gcc"

# name => path (address), or path (address) for the loader
add_libraries() {
    ldd "$1" | sed -nE 's/^.* => (\/[^ ]+) .*/\1/p; s/^\t(\/[^ ]+) \(.*/\1/p' | while read -r library; do
        mkdir -p "$folder${library%/*}"
        cp -L "$library" "$folder$library"
        chmod 755 "$folder$library"
    done
}
add_libraries "$program"
shift 2
for more in "$@"; do # what the program opens at run time
    install -m 755 "$more" "$folder/usr/local/bin/"
    add_libraries "$more"
done

echo "fastdecode:x:65532:65532::/:/sbin/nologin" >"$folder/etc/passwd"
echo "fastdecode:x:65532:" >"$folder/etc/group"
echo "hosts: files dns" >"$folder/etc/nsswitch.conf"
[ ! -f /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
find "$folder" -exec touch -h -d "@${SOURCE_DATE_EPOCH:-0}" {} +
