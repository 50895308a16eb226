#!/bin/sh
# check_full.sh: the long checks, after `make check`: sanitizers, fuzzing, the whole product of settings, deployment.
# Goes on after a failure and says in the end what failed; the last line is "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
jobs=${JOBS:-2}
venv=${VENV:-build/venv}
FD_TALLY=$(mktemp)
export FD_TALLY
trap 'rm -f "$FD_TALLY"' EXIT

# step NAME COMMAND...: a command that is one test; exit status 77: it cannot be done on this machine
step() {
    name=$1
    shift
    echo "== $name"
    status=0
    "$@" >"$FD_TALLY.out" 2>&1 || status=$?
    case $status in
    0) echo "1 0" >>"$FD_TALLY" ;;
    77) echo "SKIPPED $name: $(tail -1 "$FD_TALLY.out")" ;;
    *)
        echo "0 1" >>"$FD_TALLY"
        echo "FAILED $name"
        tail -40 "$FD_TALLY.out"
        ;;
    esac
    echo "   $(date +%T)"
    rm -f "$FD_TALLY.out"
}

# groups BUILD GROUP...: groups of tests/run.py on a build
groups() {
    build=$1
    shift
    echo "== $build: $*"
    tests/run.py --build "$build" --venv "$venv" "$@"
}

step "build for the full check" make -j"$jobs" programs venv model
groups build e2e-full
step "10,000 workloads" env FD_WORKLOADS=10000 build/tests/unit/test_sched_workloads
step "build with AddressSanitizer" make -j"$jobs" SAN=address programs
ASAN_OPTIONS=detect_leaks=1 groups build-address unit kernels integration
groups build-address e2e-sanitizer
step "build with ThreadSanitizer" make -j"$jobs" SAN=thread programs
TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" groups build-thread unit integration e2e-sanitizer
step "build the fuzz targets" make -j"$jobs" fuzz
groups build fuzz
step "deployment" sh -c 'deploy/install-packages.sh deploy && tests/deploy/check_deploy.sh'

awk '{passed += $1; failed += $2} END {printf "%d passed, %d failed\n", passed, failed; exit failed > 0}' "$FD_TALLY"
