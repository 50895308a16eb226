#!/bin/bash
# podman.sh: what check_deploy.sh runs its containers with, and their images. Podman has storage, networks and settings of the check's own, in $state.
# The base on which images are built is a Debian of its release, made once a list of packages; it stays for the next run.
# shellcheck disable=SC2154  # of check_deploy.sh: root, state, services, model

release=bookworm
base=localhost/fastdecode-build-base
programs="$services tools proxy" # images

die() {
    why=$*
    echo "check-deploy: $why" >&2
    exit 1
}
say() { echo "check-deploy: $SECONDS s: $*"; }

# say_what COMMAND...: what it prints; ends the check if it fails
say_what() {
    local said
    said=$("$@") || die "$*: failed"
    say "$said"
}

# await SECONDS WHAT COMMAND...: repeats the command until it succeeds
await() {
    local limit=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $limit ] || die "$what: not within its time"
        sleep 0.2
    done
}

# The mirror that the machine's own apt uses for the release.
find_mirror() {
    # shellcheck disable=SC2016  # apt's own variables
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' |
        awk -v release=$release '$2 == release && $3 == "main" {print $1; exit}'
}

# make_base GROUP...: the image $base with the packages of these groups, and with ccache, which compiles for real where it is given no folder
make_base() {
    local packages mirror
    packages=$({ deploy/install-packages.sh --list "$@"; echo ccache; } | sort -u | paste -sd, -)
    if [ "$(podman image inspect --format '{{index .Labels "packages"}}' $base 2>/dev/null)" = "$packages" ]; then
        return 0
    fi
    mirror=$(find_mirror)
    [ -n "$mirror" ] || die "no mirror of $release main among apt's sources: apt-get update, or add one"
    say "making the base"
    mkdir -p "$state/base"
    # In memory, where there is enough: installing packages is waiting for the disk.
    [ "$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)" -lt 6000000 ] || mount -t tmpfs -o size=3g tmpfs "$state/base" || true
    # shellcheck disable=SC2016  # of the hook's shell
    TMPDIR=$state/base mmdebstrap --mode=root --variant=minbase --include="$packages" --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='chroot "$1" update-ccache-symlinks' $release - "$mirror" 2>"$state/base.log" |
        podman import --quiet --change "LABEL packages=$packages" --change "ENV CCACHE_DIR=/ccache" --change "ENV CCACHE_NOHASHDIR=1" \
            --change "ENV CCACHE_SLOPPINESS=time_macros,locale" \
            --change "ENV PATH=/usr/lib/ccache:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" - $base >/dev/null ||
        { tail -20 "$state/base.log" >&2; die "mmdebstrap failed"; }
    umount "$state/base" 2>/dev/null || true
    rm -rf "$state/base"
}

# Podman's settings, all of them ours: runc and cgroupfs work without systemd; limits low enough to need no
# privilege to set. Health checks are asked by this check: podman's need systemd's timers.
configure_podman() {
    local driver=overlay probe=$state/probe
    mkdir -p "$state/cni" "$probe/lower" "$probe/upper" "$probe/work" "$probe/merged"
    if mount -t overlay overlay -o "lowerdir=$probe/lower,upperdir=$probe/upper,workdir=$probe/work" "$probe/merged" 2>/dev/null; then
        umount "$probe/merged"
    else
        driver=vfs
        say "no overlay mounts here: storage driver vfs"
    fi
    rm -rf "$probe"
    storage=$state/storage-$driver
    cat >"$state/storage.conf" <<END
[storage]
driver = "$driver"
graphroot = "$storage"
runroot = "$state/run"
END
    cat >"$state/containers.conf" <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "$state/cni"
END
    export CONTAINERS_STORAGE_CONF=$state/storage.conf CONTAINERS_CONF=$state/containers.conf DISABLE_HC_SYSTEMD=true
    podman info >/dev/null 2>&1 || rm -rf "$storage" # its database names folders; this one may have been moved
}

# Images other than the base; networks other than podman's own.
own_images() {
    local kept
    kept=$(podman images --quiet --no-trunc $base 2>/dev/null)
    podman images --all --quiet --no-trunc | sort -u | grep -vxF "${kept:-none}" || true
}
own_networks() { podman network ls --quiet --filter name=fastdecode; }

tear_down() {
    local status=$? id left
    trap - EXIT INT TERM
    if [ $status != 0 ]; then
        for id in $(podman ps -aq); do
            echo "--- $(podman inspect --format '{{.Name}} {{.State.Status}} {{.State.ExitCode}}' "$id")" >&2
            podman logs --tail 30 "$id" >&2 || true
        done
    fi
    [ -z "${collector:-}" ] || kill "$collector" 2>/dev/null || true
    podman pod rm -af --time 5 >/dev/null 2>&1 || true
    podman rm -af --time 5 >/dev/null 2>&1 || true
    own_networks | xargs -r podman network rm -f >/dev/null 2>&1 || true
    podman volume rm -af >/dev/null 2>&1 || true
    own_images | xargs -r podman rmi -f >/dev/null 2>&1 || true
    left=$(podman ps -aq; own_images; own_networks)
    if [ -n "$left" ]; then
        echo "check-deploy: left over: $left" >&2
        [ $status != 0 ] || status=1
    fi
    umount "$state/base" 2>/dev/null || true
    umount "$storage/overlay" 2>/dev/null || true
    rm -rf "$state/base" "$state/run" "$state/cni" "$state/models"
    [ $status = 0 ] || echo "check-deploy: failed: ${why:-it was ended}" >&2 # below what the containers said
    exit $status
}

# build ARGUMENT-OF-PODMAN... -- TARGET...: by docker/build.sh, without network. Where the caller compiles by ccache, as the gate does, so do the images:
# what they are made of was compiled a moment ago.
build() {
    local arguments="--quiet --network none --pull=never"
    while [ "$1" != -- ]; do
        arguments="$arguments $1"
        shift
    done
    shift
    [ -z "$cache" ] || arguments="$arguments --volume $cache:/ccache"
    ENGINE=podman BUILD_BASE=$base IMAGE_ARGS=$arguments docker/build.sh "$@" >"$state/build.log" 2>&1 ||
        { tail -40 "$state/build.log" >&2; die "building $* failed"; }
}

build_images() {
    cache=
    case $(command -v gcc) in
    */ccache/gcc) cache=$(ccache --get-config cache_dir) ;;
    esac
    say "building the images${cache:+ with $cache}"
    # shellcheck disable=SC2086  # the list is words
    build -- $programs
}

# Nothing but the service is in an image: no shell, no other program, no file that its user could change.
check_images() {
    local program image size files
    for program in $programs; do
        image=localhost/fastdecode-$program
        size=$(podman image inspect --format '{{.Size}}' "$image")
        files=$(podman save "$image" | tar -xO --wildcards '*.tar' | tar -t --ignore-zeros 2>/dev/null | grep -vE '/$')
        if grep -qE '(^|/)(sh|bash|dash|busybox|apt|dpkg|perl|python[0-9.]*)$' <<<"$files"; then die "$image has a shell or more"; fi
        [ "$(podman image inspect --format '{{.User}}' "$image")" = 65532:65532 ] || die "$image does not run as user 65532"
        [ "$program" = tools ] || [ "$program" = proxy ] ||
            [ "$(podman image inspect --format '{{index .Labels "org.opencontainers.image.revision"}}' "$image")" != "" ] || die "$image has no revision"
        say "$image: $((size / 1000000)) MB, $(echo "$files" | wc -l) files"
        [ "$program" != kv-worker ] || [ "$size" -lt 40000000 ] || die "the image of kv-worker is larger than 40 MB"
    done
}

layers_of() { podman image inspect --format '{{range .RootFS.Layers}}{{println .}}{{end}}' "$1"; }

# The same sources make the same layers: nothing of the first build is used.
check_rebuilt() {
    local first second image=localhost/fastdecode-kv-worker
    first=$(layers_of $image)
    IMAGE_TAG=again build --no-cache -- kv-worker
    second=$(layers_of $image:again)
    [ "$first" = "$second" ] || die "two builds of kv-worker have not the same layers: $first and $second"
    podman rmi $image:again >/dev/null
    say "two builds of kv-worker: the same $(echo "$first" | wc -l) layers${cache:+, of objects in the cache of compilers}"
}

# Here there may be no GPU: then it says so, and with --device auto goes on with the CPU.
check_cuda_image() {
    local image=localhost/fastdecode-s-part-cuda said
    local plain=(--tls none --listen tcp://127.0.0.1:7401 --advertise tcp://127.0.0.1:7401 --scheduler tcp://127.0.0.1:7400)
    say "building fastdecode-s-part-cuda"
    build --build-context "cuda=${CUDA_HOME:-/usr/local/cuda}" --build-arg "CUDA_ARCH=${CUDA_ARCH:-90}" -- s-part-cuda
    said=$(podman run --rm --read-only --volume "$root/models:/models:ro" $image "${plain[@]}" --model "/models/$model" --calibrate off 2>&1) && true
    case $said in
    *"no CUDA device: "*) say "$said" ;;
    *) die "without a GPU the s-part said: $said" ;;
    esac
    podman run --detach --name auto --read-only --volume "$root/models:/models:ro" $image "${plain[@]}" --model "/models/$model" --device auto \
        --calibrate off >/dev/null
    await 30 "an s-part with --device auto" eval 'podman logs auto 2>&1 | grep -c "DEVICE chosen=.cpu"'
    say "$(podman logs auto 2>&1 | grep -o 'DEVICE chosen=.*')"
    podman rm --force --time 5 auto >/dev/null
}
