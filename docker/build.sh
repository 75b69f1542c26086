#!/bin/sh
# Builds the image for `make image`, and sets the versions of its labels. make sets these variables:
# ENGINE IMAGE TARGET BASE TORCH_INDEX CA_BUNDLE
set -eu
cd "$(dirname "$0")/.."

if ! command -v "$ENGINE" >/dev/null; then
  echo "image: ${ENGINE:-neither podman nor docker} is not installed" >&2
  echo "install one of the two, or give its path: make image ENGINE=/path/to/podman" >&2
  exit 2
fi
case $TARGET in
  cpu | gpu) ;;
  *)
    echo "image: TARGET=$TARGET is neither cpu nor gpu" >&2
    echo "cpu runs on CPUs with any torch; gpu refuses a torch without CUDA" >&2
    exit 2
    ;;
esac
if [ -n "$CA_BUNDLE" ] && [ ! -r "$CA_BUNDLE" ]; then
  echo "image: CA_BUNDLE=$CA_BUNDLE cannot be read" >&2
  echo "it must be a PEM file with the CA certificates of your proxy" >&2
  exit 2
fi

pinned() { sed -n "s/^$1==\([^ ]*\).*/\1/p" requirements/image.txt; }
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/clustertrain/node/version.py)

# The OCI format has no HEALTHCHECK; docker always uses its own format.
case ${ENGINE##*/} in podman* | buildah*) format=--format=docker ;; *) format= ;; esac

set -- ${format:+"$format"} ${CA_BUNDLE:+--secret "id=ca_bundle,src=$CA_BUNDLE"} ${BASE:+--build-arg "BASE=$BASE"} "$@"
DOCKER_BUILDKIT=1 exec "$ENGINE" build "$@" --file docker/Dockerfile --target "$TARGET" --tag "$IMAGE" \
  --build-arg "TORCH_INDEX=$TORCH_INDEX" --build-arg "VERSION=$version" \
  --build-arg "RAY_VERSION=$(pinned ray)" --build-arg "TORCH_VERSION=$(pinned torch)" .
