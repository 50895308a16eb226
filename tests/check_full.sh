#!/bin/sh
# check_full.sh [sample]: the long checks, after `make check`: sanitizers, fuzzing, every setting, deployment.
# With `sample`, which the gate runs, a third of the settings, a twentieth of the workloads, and in turn AddressSanitizer, ThreadSanitizer, or
# short fuzzing, hashes of AArch64's kernels and deployment. Which third and whose turn is told by the number of commits (FD_SHARD=K/3 and
# FD_TURN=0..2 choose). Goes on after a failure; the last lines name what failed, and
# are "N passed, N failed, N skipped": whoever sees only the end of the output knows.
set -u
cd "$(dirname "$0")/.." || exit 1
mode=${1:-full}
jobs=${JOBS:-$(nproc)}
venv=${VENV:-build/venv}
commits=$(git rev-list --count HEAD 2>/dev/null || echo 0)
FD_SEED=${FD_SEED:-$commits}
FD_TALLY=$(mktemp)
export FD_TALLY FD_SEED
trap 'rm -f "$FD_TALLY"' EXIT

case $mode in
full) workloads=10000 FUZZ_SECONDS=${FUZZ_SECONDS:-20} turn=all FD_ALL=1 ;;
sample) workloads=500 FUZZ_SECONDS=${FUZZ_SECONDS:-8} FD_SHARD=${FD_SHARD:-$((commits % 3))/3} turn=${FD_TURN:-$((FD_SEED % 3))} ;;
*) echo "usage: check_full.sh [sample]" >&2; exit 2 ;;
esac
export FUZZ_SECONDS
[ -z "${FD_ALL:-}" ] || export FD_ALL
[ -z "${FD_SHARD:-}" ] || export FD_SHARD

# step NAME COMMAND...: a command that is one test; exit status 77: it cannot be done on this machine
step() {
    name=$1 began=$(date +%s) status=0
    shift
    echo "== $name"
    "$@" >"$FD_TALLY.out" 2>&1 || status=$?
    case $status in
    0) echo "1 0 0" >>"$FD_TALLY" ;;
    77) echo "0 0 1" >>"$FD_TALLY"; echo "SKIPPED $name: $(tail -1 "$FD_TALLY.out")" ;;
    *)
        printf '0 1 0\t%s\n' "$name" >>"$FD_TALLY"
        echo "FAILED $name"
        tail -40 "$FD_TALLY.out"
        ;;
    esac
    echo "   in $(($(date +%s) - began)) s"
    rm -f "$FD_TALLY.out"
}

# groups BUILD GROUP...: groups of tests/run.py on a build
groups() {
    build=$1
    shift
    echo "== $build: $*"
    tests/run.py --build "$build" --venv "$venv" "$@"
}

# Sanitizers get the next seed each time it is their turn: else they would see each third sample of cases alone.
sanitized() { (FD_SEED=$((FD_SEED / 3)) groups "$@"); }

has_turn() { [ "$turn" = all ] || [ "$turn" = "$1" ]; }

deployment() {
    deploy/install-packages.sh deploy && tests/deploy/check_deploy.sh
}

echo "$mode check: seed $FD_SEED${FD_SHARD:+, shard $FD_SHARD of the settings}, turn $turn, $workloads workloads, $FUZZ_SECONDS s a fuzz target"
# One architecture of CUDA is enough to see that it compiles, where its sources have not changed.
[ "$mode" = full ] || tests/changed.sh kernels/cuda || export CUDA_ARCH=80
step "build" make -j"$jobs" programs venv model
[ "$mode" = sample ] || step "packages of other clients" make venv-full venv-load venv-clients
[ "$mode" = sample ] || step "shares of make check" tests/run.py --shares
groups build e2e-full
[ "$mode" = sample ] || groups build unit kernels # all cases of which `make check` takes a sample
[ "$mode" = sample ] || step "failure schedules for ten minutes" build/tests/sim/mesh --seconds 600 --from "${FD_SEED}500000"
step "$workloads workloads" env FD_WORKLOADS=$workloads build/tests/unit/test_sched_workloads
if has_turn 0; then
    step "build for fuzzing" make -j"$jobs" fuzz
    groups build fuzz
fi
if has_turn 1; then
    step "build with AddressSanitizer" make -j"$jobs" SAN=address programs
    ASAN_OPTIONS=detect_leaks=1 FD_SIM_SEEDS=500 sanitized build-address unit kernels integration sim e2e-sanitizer
fi
if has_turn 2; then
    step "build with ThreadSanitizer" make -j"$jobs" SAN=thread programs
    TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" sanitized build-thread unit integration e2e-sanitizer
fi
[ "$mode" = sample ] || step "AArch64 under qemu" tests/arm/check_arm.sh
if [ "$mode" = sample ] && has_turn 0 && tests/changed.sh kernels tests/arm; then
    step "hashes of AArch64 under qemu" tests/arm/check_arm.sh hashes
fi
if has_turn 0 || tests/changed.sh deploy docker tests/deploy; then
    step "deployment" deployment
fi
[ "$mode" = sample ] || step "units of systemd" tests/deploy/check_systemd.sh

awk -F '\t' '{split($1, count, " "); passed += count[1]; failed += count[2]; skipped += count[3]; for (i = 2; i <= NF; i++) print "failed: " $i}
     END {printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0}' "$FD_TALLY"
