#!/bin/bash
# Builds the programs of a Kubernetes for tests, and copies the manifests that come with them.
#   build.sh FOLDER        programs into FOLDER/bin, manifests into FOLDER/kuberay and FOLDER/kueue
# One module for all of them, so that what they share is compiled once. Versions and hashes: go.mod, go.sum.
set -euo pipefail
mkdir -p "$1/bin"
folder=$(cd "$1" && pwd)
exec {lock}>"$folder/lock"
flock "$lock" # tests wait for it: clusters/kube.py
cd "$(dirname "$0")"

# A part of Kubernetes refuses another whose version it does not know.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${version#v}"
package=k8s.io/component-base/version
linked="-s -w -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"

# The compiler takes a quarter less without inlining and what only debuggers read, and a fifth less where it
# collects no garbage before it has this much memory.
export GOGC=off GOMEMLIMIT=1GiB
CGO_ENABLED=0 go build -mod=readonly -trimpath -gcflags "all=-l -dwarf=false" -ldflags "$linked" -o "$folder/bin/" tool
mv "$folder/bin/server" "$folder/bin/etcd" # Go names a program after its folder

copy() { # MODULE NAME
  rm -rf "${folder:?}/$2"
  cp -r "$(go list -m -f '{{.Dir}}' "$1")/config" "$folder/$2"
  chmod -R u+w "$folder/$2" # the module cache is read-only
}
copy github.com/ray-project/kuberay/ray-operator kuberay
copy sigs.k8s.io/kueue kueue
