#!/bin/bash
# check_deploy.sh: a deployment, for real and without a container registry: a Debian by debootstrap, the images built on it without network,
# compose with TLS, two KV workers and two gateways behind one port, right answers, with a key; a prefix that is found. Then, under 16 streams of
# which none may be lost or changed: four workers and one, a worker that is killed, a new image of every service.
# The Kubernetes manifests are checked against the API's schema. As root; state lies in build/deploy and is the check's own
# (storage, networks, containers.conf), so nothing of the machine's other containers is touched, and all but the cached
# bases is taken down again, whatever happens. Exit status 77: no container can run on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
state=$root/build/deploy
release=bookworm
model=SmolLM2-135M-Instruct.Q4_1.gguf
workers=2
services="gateway scheduler s-part kv-worker"
with_cuda=${FD_CHECK_CUDA_IMAGE:-} # set: the image for a GPU is built and started, too (10 minutes, 4 GB; the toolkit is in CUDA_HOME)

die() {
    echo "check-deploy: $*" >&2
    exit 1
}
say() { echo "check-deploy: $*"; }

# The mirror that the machine's own apt uses for the release.
find_mirror() {
    # shellcheck disable=SC2016  # apt's own variables
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' |
        awk -v release=$release '$2 == release && $3 == "main" {print $1; exit}'
}

# make_base NAME GROUP...: build/deploy/NAME.tar, a minimal Debian with the packages of these groups; made once a list
make_base() {
    local name=$1 packages mirror
    shift
    packages=$(deploy/install-packages.sh --list "$@" | sort -u | paste -sd, -)
    if [ -f "$state/$name.tar" ] && [ "$(cat "$state/$name.packages" 2>/dev/null)" = "$packages" ]; then
        return 0
    fi
    mirror=$(find_mirror)
    [ -n "$mirror" ] || die "no mirror of $release main among apt's sources: apt-get update, or add one"
    say "making $name.tar"
    rm -rf "${state:?}/$name" "$state/$name.packages"
    debootstrap --variant=minbase --cache-dir="$state/debs" --include="$packages" "$release" "$state/$name" "$mirror" \
        >"$state/$name.log" 2>&1 || { tail -20 "$state/$name.log" >&2; die "debootstrap of $name failed"; }
    tar -C "$state/$name" --exclude=./var/cache/apt/archives/*.deb --exclude=./var/lib/apt/lists/* --exclude=./dev/* \
        -cf "$state/$name.tar.part" .
    mv "$state/$name.tar.part" "$state/$name.tar"
    rm -rf "${state:?}/$name"
    echo "$packages" >"$state/$name.packages"
}

# Podman's settings, all of them ours: runc and cgroupfs work without systemd; limits low enough to need no
# privilege to set.
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
    cat >"$state/storage.conf" <<END
[storage]
driver = "$driver"
graphroot = "$state/storage"
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
    export CONTAINERS_STORAGE_CONF=$state/storage.conf CONTAINERS_CONF=$state/containers.conf
}

compose() {
    "$state/venv/bin/podman-compose" --project-name fastdecode-check --env-file "$state/env" --file deploy/compose/compose.yaml "$@"
}

tear_down() {
    local status=$? id left
    trap - EXIT INT TERM
    if [ -n "${CONTAINERS_CONF:-}" ]; then
        if [ $status != 0 ]; then
            for id in $(podman ps -aq); do
                echo "--- $(podman inspect --format '{{.Name}} {{.State.Status}} {{.State.ExitCode}}' "$id")" >&2
                podman logs --tail 30 "$id" >&2 || true
            done
        fi
        podman rm -af --time 5 >/dev/null 2>&1 || true
        podman network prune -f >/dev/null 2>&1 || true
        podman rmi -af >/dev/null 2>&1 || true
        left=$(podman ps -aq; podman images -aq; podman network ls --quiet --filter name=fastdecode)
        if [ -n "$left" ]; then
            echo "check-deploy: left over: $left" >&2
            [ $status != 0 ] || status=1
        fi
        umount "$state/storage/overlay" 2>/dev/null || true
        rm -rf "$state/storage" "$state/run" "$state/cni" "$state/models"
    fi
    exit $status
}

build_images() {
    podman import --quiet "$state/build-base.tar" localhost/fastdecode-build-base >/dev/null
    say "building the images"
    # shellcheck disable=SC2086  # the list is words
    ENGINE=podman BUILD_BASE=localhost/fastdecode-build-base IMAGE_ARGS="--quiet --network none --pull=never" \
        docker/build.sh $services tools proxy >"$state/build.log" 2>&1 ||
        { tail -40 "$state/build.log" >&2; die "building the images failed"; }
}

# Nothing but the service is in an image: no shell, no other program, no file that its user could change.
check_images() {
    local service image size files
    for service in $services tools proxy; do
        image=localhost/fastdecode-$service
        size=$(podman image inspect --format '{{.Size}}' "$image")
        files=$(podman save "$image" | tar -xO --wildcards '*.tar' | tar -t --ignore-zeros 2>/dev/null | grep -vE '/$')
        if echo "$files" | grep -qE '(^|/)(sh|bash|dash|busybox|apt|dpkg|perl|python[0-9.]*)$'; then die "$image has a shell or more"; fi
        [ "$(podman image inspect --format '{{.User}}' "$image")" = 65532:65532 ] || die "$image does not run as user 65532"
        [ "$service" = tools ] || [ "$service" = proxy ] ||
            [ "$(podman image inspect --format '{{index .Labels "org.opencontainers.image.revision"}}' "$image")" != "" ] || die "$image has no revision"
        say "$image: $((size / 1000000)) MB, $(echo "$files" | wc -l) files"
        [ "$service" != kv-worker ] || [ "$size" -lt 40000000 ] || die "the image of kv-worker is larger than 40 MB"
    done
}

# The two files together are what compose makes of them.
check_cuda_compose() {
    local merged
    merged=$(compose --file deploy/compose/cuda.yaml config)
    for wanted in "image: localhost/fastdecode-s-part-cuda" "target: s-part-cuda" "driver: nvidia" "FD_DEVICE: cuda" \
        "image: localhost/fastdecode-kv-worker"; do
        case $merged in
        *"$wanted"*) ;;
        *) die "compose.yaml with cuda.yaml has no $wanted" ;;
        esac
    done
}

# Here there may be no GPU: then it says so, and with --device auto goes on with the CPU.
check_cuda_image() {
    local image=localhost/fastdecode-s-part-cuda said
    local plain=(--tls none --listen tcp://127.0.0.1:7401 --advertise tcp://127.0.0.1:7401 --scheduler tcp://127.0.0.1:7400)
    say "building fastdecode-s-part-cuda"
    ENGINE=podman BUILD_BASE=localhost/fastdecode-build-base IMAGE_ARGS="--quiet --network none --pull=never \
        --build-context cuda=${CUDA_HOME:-/usr/local/cuda} --build-arg CUDA_ARCH=${CUDA_ARCH:-90}" docker/build.sh s-part-cuda >"$state/build.log" 2>&1 ||
        { tail -40 "$state/build.log" >&2; die "building the image of the s-part for a GPU failed"; }
    said=$(podman run --rm --read-only --volume "$root/models:/models:ro" $image "${plain[@]}" --model "/models/$model" --calibrate off 2>&1) && true
    case $said in
    *"no CUDA device: "*) say "$said" ;;
    *) die "without a GPU the s-part said: $said" ;;
    esac
    podman run --detach --name auto --read-only --volume "$root/models:/models:ro" $image "${plain[@]}" --model "/models/$model" --device auto \
        --calibrate off >/dev/null
    await 30 "an s-part with --device auto" eval 'podman logs auto 2>&1 | grep "DEVICE chosen=.cpu"'
    say "$(podman logs auto 2>&1 | grep -o 'DEVICE chosen=.*')"
    podman rm --force --time 5 auto >/dev/null
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

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# The admin address of a gateway, which the proxy does not lead to.
admin() {
    podman inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}:9464' "$(containers_of gateway | head -1)"
}

# count_workers METRIC: KV workers whose gauge is above zero
count_workers() {
    curl -fsS "http://$(admin)/metrics" | grep "^fastdecode_$1{place=" | grep -v '"local"' | awk '$NF > 0' | wc -l
}
all_workers_in() { [ "$(count_workers place_up)" = "$workers" ]; }
all_workers_attended() { [ "$(count_workers place_busy_seconds_total)" = "$workers" ]; } # told by heartbeats

containers_of() {
    podman ps --quiet --filter "label=com.docker.compose.service=$1"
}

ask() { curl -fsS --max-time 60 "$@" -H "Authorization: Bearer $key" -H 'Content-Type: application/json'; }

# Several prompts at once, so that every worker gets one, and all of them attended.
check_answer() {
    local answer city
    answer=$(ask "$url/v1/completions" \
        -d '{"model": "default", "max_tokens": 8, "temperature": 0, "prompt": ["The capital of France is", "The capital of Italy is",
             "The capital of Japan is", "The capital of Germany is"]}')
    for city in Paris Rome Tokyo Berlin; do
        case $answer in
        *" $city"*) ;;
        *) die "no $city in the answer: $answer" ;;
        esac
    done
    await 10 "attention on every KV worker" all_workers_attended
    say "answer: Paris, Rome, Tokyo, Berlin"
}

# make_certs OPTION...: with the image, as user 65532
make_certs() {
    mkdir -p "$state/certs"
    chown 65532 "$state/certs"
    podman run --rm --network none --read-only --volume "$state/certs:/certs" localhost/fastdecode-tools certs /certs "$@" >/dev/null || die "fastdecode certs failed"
}

count_renewed() { podman logs "$(containers_of scheduler)" 2>&1 | grep -c "TLS-RELOADED"; }

# New certificates beside the running services: they take them, and answer.
check_renewal() {
    make_certs --renew
    await 20 "new certificates are taken" count_renewed
    check_answer
    say "new certificates were taken"
}

# under_load WHAT COMMAND...: runs the command while streams run.
under_load() {
    local what=$1 folder=$state/load pid
    shift
    rm -rf "$folder"
    mkdir "$folder"
    python3 tests/deploy/under_load.py "$url" "$folder" --key "$key" >"$folder/said" 2>&1 &
    pid=$!
    await 120 "streams" test -e "$folder/started"
    "$@"
    touch "$folder/stop"
    wait $pid || { cat "$folder/said" >&2; die "$what: streams were lost or changed"; }
    say "$what: $(cat "$folder/said")"
}

# start SERVICE NUMBER: as many containers of a service; those that run stay
start() {
    compose up --no-build --no-deps --no-recreate -d --scale "$1=$2" "$1" >"$state/compose.log" 2>&1 ||
        { tail -40 "$state/compose.log" >&2; die "compose up of $1 failed"; }
}

# remove SERVICE NUMBER: ends containers of a service in order until there are so many
remove() {
    local id
    for id in $(podman ps --quiet --sort created --filter "label=com.docker.compose.service=$1" | tail -n "+$(($2 + 1))"); do
        podman stop --time 75 "$id" >/dev/null
        podman rm "$id" >/dev/null
    done
}

scale_workers() {
    start kv-worker 4
    workers=4
    await 60 "four workers" all_workers_in
    remove kv-worker 1
    workers=1
    await 60 "one worker" all_workers_in
    start kv-worker 2
    workers=2
    await 60 "two workers" all_workers_in
}

kill_worker() {
    podman kill --signal KILL "$(containers_of kv-worker | head -1)" >/dev/null
    workers=1
    await 30 "the killed worker is missed" all_workers_in
    podman rm --force --filter "label=com.docker.compose.service=kv-worker" --filter status=exited >/dev/null 2>&1 || true
    start kv-worker 2
    workers=2
    await 60 "two workers" all_workers_in
}

# A new image of each service, one container after the other.
roll_out() {
    local service id count
    for service in $services; do
        printf 'FROM localhost/fastdecode-%s:latest\nLABEL release=next\n' "$service" |
            podman build --quiet --network none --format docker --tag "localhost/fastdecode-$service:next" - >/dev/null
    done
    echo "FD_TAG=:next" >>"$state/env"
    for service in kv-worker scheduler s-part gateway; do
        count=$(containers_of "$service" | wc -l)
        for id in $(containers_of "$service"); do
            podman stop --time 75 "$id" >/dev/null
            podman rm "$id" >/dev/null
            start "$service" "$count"
            await 60 "ready again after a new $service" curl -fsS "$url/ready"
        done
        [ "$service" != kv-worker ] || await 60 "two new workers" all_workers_in
        for id in $(containers_of "$service"); do
            case $(podman inspect --format '{{.ImageName}}' "$id") in
            *:next) ;;
            *) die "$service still runs $(podman inspect --format '{{.ImageName}}' "$id")" ;;
            esac
        done
    done
    await 60 "two workers" all_workers_in
}

check_admin() {
    [ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/metrics")" = 404 ] || die "/metrics is at the published port"
    curl -fsS "http://$(admin)/metrics" | grep -q '^fastdecode_gateway_mesh_ready 1' || die "no metrics at the admin address"
}

check_key() {
    local status
    status=$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/models")
    [ "$status" = 401 ] || die "without a key: status $status, want 401"
    say "without a key: 401"
}

# The second time nearly all of a prompt is found.
check_prefix_cache() {
    local prompt found
    prompt=$(printf 'All work and no play makes a dull day. %.0s' 1 2 3 4 5 6 7 8)
    ask "$url/v1/completions" -d "{\"model\": \"default\", \"max_tokens\": 2, \"prompt\": \"$prompt\"}" >/dev/null
    found=$(ask "$url/v1/completions" -d "{\"model\": \"default\", \"max_tokens\": 2, \"prompt\": \"$prompt\"}" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["usage"]["prompt_tokens_details"]["cached_tokens"])')
    [ "$found" -ge 64 ] || die "a prompt asked twice: $found tokens found"
    say "a prompt asked twice: $found tokens found"
}

check_health() {
    local service id count
    for service in $services; do
        count=0
        for id in $(containers_of "$service"); do
            await 30 "health check of $service" podman healthcheck run "$id"
            count=$((count + 1))
        done
        say "$service: $count healthy"
        [ "$count" = "$(case $service in kv-worker) echo $workers ;; gateway) echo 2 ;; *) echo 1 ;; esac)" ] || die "$service: $count containers"
    done
}

[ "$(id -u)" = 0 ] || die "run as root: it makes file systems and networks"
unshare --mount --net --pid --ipc --uts --fork true 2>/dev/null ||
    { echo "check-deploy: this machine lets nobody make namespaces, so no container can run here" >&2; exit 77; }
[ -f "models/$model" ] || die "models/$model is missing: make model"
mkdir -p "$state/debs"
# as in an .env: what is only handed on from the environment would not see it
printf '%s\n' FD_API_KEY_FILE=/models/keys "FD_CERTS=$state/certs" >"$state/env"
if [ ! -f "$state/venv/ready" ] || [ tests/deploy/requirements.txt -nt "$state/venv/ready" ]; then
    python3 -m venv "$state/venv"
    "$state/venv/bin/pip" install -q --disable-pip-version-check -r tests/deploy/requirements.txt
    touch "$state/venv/ready"
fi
PATH=$state/venv/bin:$PATH
for overlay in deploy/kubernetes/base deploy/kubernetes/overlays/*; do
    "$state/venv/bin/python" tests/deploy/check_manifests.py "$overlay"
done
"$state/venv/bin/python" tests/deploy/check_manifests.py deploy/kubernetes/base deploy/kubernetes/components/autoscale-adapter \
    deploy/kubernetes/components/inference-pool

# shellcheck disable=SC2046  # a word or none
make_base build-base build image proxy $([ -z "$with_cuda" ] || echo cuda)
configure_podman
trap tear_down EXIT
trap 'exit 130' INT TERM
build_images
check_images
check_cuda_compose
[ -z "$with_cuda" ] || check_cuda_image

# Everything in the KV workers: the answer crosses both of the network's paths.
FD_PORT=$(free_port)
FD_MODELS=$state/models
export FD_PORT FD_MODELS FD_LOCAL_POOL=0 FD_KV_MEMORY=67108864
key=sk-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
rm -rf "$FD_MODELS"
mkdir "$FD_MODELS"
cp "models/$model" "$FD_MODELS"
echo "$key" >"$FD_MODELS/keys"
chmod 644 "$FD_MODELS/keys"
rm -rf "$state/certs"
make_certs
url=http://127.0.0.1:$FD_PORT
say "starting compose with $workers KV workers and 2 gateways"
compose up --no-build -d --scale kv-worker=$workers >"$state/compose.log" 2>&1 ||
    { tail -40 "$state/compose.log" >&2; die "compose up failed"; }
start gateway 2 # podman-compose takes one --scale at a time
await 60 "ready" curl -fsS "$url/ready"
await 30 "$workers KV workers" all_workers_in
check_health
check_admin
check_key
check_answer
check_prefix_cache
check_renewal
under_load "four workers, then one" scale_workers
under_load "a worker killed" kill_worker
under_load "new images of all services" roll_out
compose down --remove-orphans --timeout 20 >"$state/compose.log" 2>&1 || { tail -40 "$state/compose.log" >&2; die "compose down failed"; }
[ -z "$(podman ps -aq)" ] || die "compose down left containers"
say "passed"
