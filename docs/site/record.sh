#!/usr/bin/env bash
# Records a terminal session as a moving picture: docs/site/record.sh train | recovery
#
# Needs asciinema 2 (pip), svg-term-cli (npm) and root: the checkout is shown as /tmp/clustertrain. The
# session is real. Pauses of more than two seconds are cut to two.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() {  # the prompt and a command, which then runs
  printf '$ %s\n' "$*"
  sleep 1
  "$@"
}

play_train() {
  say make train
}

play_recovery() {
  (
    until compgen -G 'runs/digits/g1/checkpoints/*/MANIFEST.json' >/dev/null; do sleep 0.2; done
    sleep 0.6
    for rank in $(pgrep -f RayTrainWorker); do
      [ "/proc/$rank/ns/mnt" -ef /proc/self/ns/mnt ] && break  # a rank of this run
    done
    printf '\n# in another terminal\n$ kill -9 %s\n\n' "$rank"
    kill -9 "$rank"
  ) &
  say clustertrain run examples/digits/job.yaml --set train.epochs=20
}

if [ "${2:-}" = play ]; then
  "play_$1"
  sleep 3
  exit
fi
cast=$(mktemp) shown=/tmp/clustertrain
state=$(mktemp -d)
mkdir -p "$shown" docs/pictures
trap 'rm -rf "$cast" "$state"; rmdir "$shown"' EXIT
unshare --mount --propagation private bash -c '
  set -e
  mount --bind . "$1" && mkdir -p "$2/runs" runs && mount --bind "$2/runs" "$1/runs"
  cd "$1"
  export XDG_STATE_HOME=$2 PATH=$1/.venv/bin:$PATH
  asciinema rec --quiet --overwrite --cols 110 --rows 30 --idle-time-limit 2 -c "docs/site/record.sh $3 play" "$4"
' - "$shown" "$state" "$1" "$cast"
python3 - "$cast" <<'EOF'  # four pictures a second are enough, and a third of the size
import json, sys

path = sys.argv[1]
head, *events = open(path).read().splitlines()
merged = {}
for at, kind, text in map(json.loads, events):
    key = round(at * 4) / 4
    merged[key] = merged.get(key, "") + text
with open(path, "w") as cast:
    print(head, file=cast)
    for at, text in merged.items():
        print(json.dumps([at, "o", text]), file=cast)
EOF
svg-term --in "$cast" --out "docs/pictures/$1.svg" --window --no-cursor
