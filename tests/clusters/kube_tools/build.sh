#!/bin/bash
# Builds the programs of one of the Go modules here, and copies the manifests that come with them.
#   build.sh MODULE FOLDER        programs into FOLDER/bin, manifests into FOLDER/MODULE
# One module a program, so that their dependencies never meet. Versions and hashes: its go.mod and go.sum.
set -euo pipefail
module=$1
mkdir -p "$2/bin"
folder=$(cd "$2" && pwd)
cd "$(dirname "$0")/$module"

flags="-s -w" manifests=
case $module in
  kubernetes) # a part refuses another whose version it does not know
    version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
    IFS=. read -r major minor _ <<<"${version#v}"
    package=k8s.io/component-base/version
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
    ;;
  kuberay) manifests=github.com/ray-project/kuberay/ray-operator ;;
  kueue) manifests=sigs.k8s.io/kueue ;;
esac

CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "$flags" -o "$folder/bin/" tool
if [ "$module" = etcd ]; then
  mv "$folder/bin/server" "$folder/bin/etcd" # Go names a program after its folder
fi
if [ -n "$manifests" ]; then
  rm -rf "${folder:?}/$module"
  cp -r "$(go list -m -f '{{.Dir}}' "$manifests")/config" "$folder/$module"
  chmod -R u+w "$folder/$module" # the module cache is read-only
fi
