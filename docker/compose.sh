#!/bin/sh
# compose.sh up|down runs docker/compose.yaml with `docker compose` or podman-compose, for make compose-up and compose-down.
set -eu
file="$(dirname "$0")/compose.yaml"
what=$1

if [ "${ENGINE##*/}" = docker ]; then
  compose() { docker compose -f "$file" "$@"; }
elif command -v podman-compose >/dev/null; then
  compose() { podman-compose -f "$file" "$@"; }
else
  echo "compose-$what: neither docker nor podman-compose is installed" >&2
  echo "install one of the two; with podman: pip install podman-compose" >&2
  exit 2
fi
export IMAGE

if [ "$what" = down ]; then
  compose down --volumes
  exit
fi

compose up -d
echo "waiting for the workers to join"
# A run that starts before the workers have joined fails: the cluster has no CPU yet.
nodes='import ray, time; ray.init(log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 3: time.sleep(0.5)'
if ! compose exec -T head timeout 180 bash -c "until ray health-check; do sleep 1; done; python -c '$nodes'" \
    >/dev/null 2>&1; then
  echo "compose-up: the workers did not join within 180 s; look at the output of head and worker-1" >&2
  exit 3
fi
cat <<END
a run:   docker compose -f docker/compose.yaml exec head \\
           clustertrain run examples/digits/job.yaml --set storage=/storage
         (or podman-compose)
curves:  http://127.0.0.1:${TENSORBOARD_PORT:-6006}
stop:    make compose-down, which deletes the runs as well
END
