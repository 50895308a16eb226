#!/bin/sh
# build.sh [TARGET...]: builds the images of docker/Dockerfile, with docker or podman, whichever is there. Default: all but that for a GPU.
#
# ENGINE=podman|docker  IMAGE_PREFIX=localhost/fastdecode-  IMAGE_TAG=latest  BUILD_BASE=debian:12-slim  IMAGE_ARGS="more arguments of build"
# SOURCE_DATE_EPOCH: time of all files in the images; default: that of the last commit. The same sources and base make the same layers (podman), with
# docker the same images.
set -eu
cd "$(dirname "$0")/.."
engine=${ENGINE:-$(command -v docker >/dev/null && docker info >/dev/null 2>&1 && echo docker || echo podman)}
prefix=${IMAGE_PREFIX:-localhost/fastdecode-}
tag=${IMAGE_TAG:-latest}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
version=$(sed -nE 's/^#define FASTDECODE_VERSION "(.*)"/\1/p' common/base/options.h)

command -v "$engine" >/dev/null || {
    echo "build.sh: neither docker nor podman is here" >&2
    exit 3
}
case $engine in
*podman) how="--format docker" ;; # OCI's format has no HEALTHCHECK; --timestamp would compile anew for each target
*) how="--provenance=false --output type=docker,rewrite-timestamp=true" ;;
esac
[ $# -gt 0 ] || set -- gateway scheduler s-part kv-worker tools proxy
for target in "$@"; do
    echo "building $prefix$target:$tag"
    # shellcheck disable=SC2086  # the lists are words
    SOURCE_DATE_EPOCH=$epoch $engine build $how ${IMAGE_ARGS:-} --build-arg "BUILD_BASE=${BUILD_BASE:-debian:12-slim}" \
        --build-arg "SOURCE_DATE_EPOCH=$epoch" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
        --file docker/Dockerfile --target "$target" --tag "$prefix$target:$tag" .
done
