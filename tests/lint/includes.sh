#!/bin/sh
# includes.sh: includes go one way, and a library is included in one place only.
set -u
bad=0

# only_in PATTERN ALLOWED...: no tracked C file outside the allowed folders includes PATTERN
only_in() {
    pattern=$1
    shift
    found=$(grep -rnE "#include *[<\"]$pattern" --include='*.c' --include='*.h' common kernels services || true)
    for allowed in "$@"; do
        found=$(printf '%s\n' "$found" | grep -v "^$allowed" || true)
    done
    if [ -n "$found" ]; then
        printf 'only %s may include %s:\n%s\n' "$*" "$pattern" "$found"
        bad=1
    fi
}

# never FOLDER PATTERN: no file under FOLDER includes PATTERN
never() {
    found=$(grep -rnE "#include *[<\"]$2" --include='*.c' --include='*.h' "$1" 2>/dev/null || true)
    if [ -n "$found" ]; then
        printf '%s may not include %s:\n%s\n' "$1" "$2" "$found"
        bad=1
    fi
}

only_in 'nng/' common/rpc
only_in 'microhttpd' services/gateway
only_in '(cblas|openblas)' kernels/backend
only_in '(cuda|cublas)' kernels/cuda
never common/base '(common/(rpc|wire|model|tokenizer|sampler|kv|sched|plan|sim)|kernels|services)/'
for folder in tokenizer sampler sched; do
    never common/$folder '(common/(rpc|wire|model|kv|plan|sim)|kernels|services)/'
done
for folder in quant gemm attention norm_rope dispatch; do
    never kernels/$folder '(common/(rpc|wire|model|tokenizer|sched|plan|sim)|kernels/backend|services)/'
done
never common 'services/'
never kernels 'services/'
for service in gateway scheduler s-part kv-worker fastdecode; do
    for other in gateway scheduler s-part kv-worker fastdecode; do
        [ $service = $other ] || never services/$service "services/$other/"
    done
done
exit $bad
