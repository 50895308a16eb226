#!/bin/bash
# check_deploy.sh: a deployment, for real and without a container registry: a Debian by mmdebstrap, the images built on it without network, one
# of them twice, compose with TLS, two KV workers and two gateways behind one port, right answers, with a key; a prefix that is found, traces, the
# time that a worker takes to be ready. Then, under 16 streams of which none may be lost or changed: four workers and one, a worker that is killed, a
# new image of every service. The Kubernetes manifests are checked against the API's schema, and the base is played by podman. As root; state lies in
# build/deploy and is the check's own (storage, networks, containers.conf), so nothing of the machine's other containers is touched, and all but the
# base is taken down again, whatever happens. Exit status 77: no container can run on this machine.
set -Eeuo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
state=$root/build/deploy
model=SmolLM2-135M-Instruct.Q4_1.gguf
workers=2
services="gateway scheduler s-part kv-worker"
with_cuda=${FD_CHECK_CUDA_IMAGE:-} # set: the image for a GPU is built and started, too (10 minutes, 4 GB; the toolkit is in CUDA_HOME)

# shellcheck source=tests/deploy/podman.sh
. tests/deploy/podman.sh

compose() {
    "$state/venv/bin/podman-compose" --project-name fastdecode-check --env-file "$state/env" --file deploy/compose/compose.yaml "$@"
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

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# The admin address of a gateway, which the proxy does not lead to.
admin() {
    podman inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}:9464' "$(containers_of gateway | head -1)"
}

metrics() { curl -fsS -H "Authorization: Bearer $admin_key" "http://$(admin)/metrics"; }

# count_workers METRIC: KV workers whose gauge is above zero
count_workers() {
    metrics | grep "^fastdecode_$1{place=" | grep -v '"local"' | awk '$NF > 0' | wc -l
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
    python3 tests/deploy/under_load.py "$url" "$folder" --key "$key" --texts "$state/texts" >"$folder/said" 2>&1 &
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

build_next() {
    local service
    for service in $services; do
        printf 'FROM localhost/fastdecode-%s:latest\nLABEL release=next\n' "$service" |
            podman build --quiet --network none --format docker --tag "localhost/fastdecode-$service:next" - >/dev/null
    done
}

# A new image of each service, one container after the other.
roll_out() {
    local service id count
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
    [ "$(curl -sS -o /dev/null -w '%{http_code}' "http://$(admin)/metrics")" = 401 ] || die "the admin address answers without a key"
    [ "$(metrics | grep -c '^fastdecode_gateway_mesh_ready 1')" = 1 ] || die "no metrics at the admin address"
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

# A collector on this host, which containers reach as host.containers.internal.
collect_traces() {
    rm -rf "$state/traces"
    mkdir "$state/traces"
    python3 tests/deploy/collect_traces.py "$state/traces" &
    collector=$!
    await 30 "the collector of traces" test -s "$state/traces/port"
    echo "FD_OTLP_ENDPOINT=http://host.containers.internal:$(cat "$state/traces/port")" >>"$state/env"
}

# Requests above had spans of every service.
has_traced() {
    local service
    for service in $services; do
        grep -qx "fastdecode-$service" "$state/traces/services" || return 1
    done
}
check_traces() {
    await 30 "spans of all services" has_traced
    say "traces by OTLP: spans of all services"
}

# A third worker joins the mesh and leaves it.
check_start() {
    say_what python3 tests/deploy/start_time.py localhost/fastdecode-kv-worker --network fastdecode-check_default --env "FD_KV_MEMORY=$FD_KV_MEMORY" \
        --volume "$state/certs/kv-worker:/run/secrets/fastdecode:ro"
    await 30 "$workers KV workers" all_workers_in
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
mkdir -p "$state"
# as in an .env: what is only handed on from the environment would not see it
printf '%s\n' FD_API_KEY_FILE=/models/keys FD_ADMIN_KEY_FILE=/models/admin-keys "FD_CERTS=$state/certs" >"$state/env"
if [ ! -f "$state/venv/ready" ] || [ tests/deploy/requirements.txt -nt "$state/venv/ready" ]; then
    python3 -m venv "$state/venv"
    "$state/venv/bin/pip" install -q --disable-pip-version-check --require-hashes -r tests/deploy/requirements.txt
    touch "$state/venv/ready"
fi
PATH=$state/venv/bin:$PATH
components=deploy/kubernetes/components
python3 tests/deploy/check_manifests.py deploy/kubernetes/base deploy/kubernetes/overlays/* tests/deploy/played \
    deploy/kubernetes/base,$components/autoscale-adapter,$components/inference-pool,$components/traces

configure_podman
trap tear_down EXIT
trap 'why="$BASH_COMMAND, line $LINENO"' ERR
trap 'exit 130' INT TERM
# shellcheck disable=SC2046  # a word or none
make_base build image proxy $([ -z "$with_cuda" ] || echo cuda)
build_images
check_images
check_rebuilt
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
admin_key=sk-admin-$key
echo "$admin_key" >"$FD_MODELS/admin-keys"
chmod 644 "$FD_MODELS/keys" "$FD_MODELS/admin-keys"
rm -rf "$state/certs" "$state/texts"
make_certs
collect_traces
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
check_traces
check_start
check_renewal
under_load "four workers, then one" scale_workers
under_load "a worker killed" kill_worker
build_next
under_load "new images of all services" roll_out
compose down --remove-orphans --timeout 5 >"$state/compose.log" 2>&1 || { tail -40 "$state/compose.log" >&2; die "compose down failed"; }
[ -z "$(podman ps -aq)" ] || die "compose down left containers"
say_what python3 tests/deploy/kube_play.py "$state/certs" "$FD_MODELS" "$state/play.yaml"
say "passed"
