#!/bin/bash
# An evening in a lab: three users train 12 runs on four hosts through one queue, one run is preempted, one host is
# rebooted, and the page of `zmqrl view` is watched. Nobody has to do anything.
#
# usage: examples/lab_evening.sh [FOLDER]     FOLDER is created, is not in /tmp, and stays (default: /var/tmp/evening)
#
# Needs root, and the packages of bin/lab-setup: the hosts are network namespaces of this machine, the users accounts
# that are removed at the end. In a lab of your own all of this but the `zmqrl` commands is there already.
set -euo pipefail
PYTHON=${PYTHON:-$(cd "$(dirname "$0")/.." && pwd)/.venv/bin/python}
FOLDER=$(realpath "${1:-/var/tmp/evening}")
ROOT=$(realpath "$(dirname "$0")/..")
if [ -z "${LAB:-}" ]; then
  cd "$ROOT"
  exec "$PYTHON" -m tests.lab 4 -- "$ROOT/examples/lab_evening.sh" "$FOLDER"  # runs this script again, where the hosts are
fi

USERS=(zmqrl-ada zmqrl-bob zmqrl-eva)
SETTINGS="PYTHONPATH=$ROOT ZMQRL_QUEUE=$FOLDER/queue OMP_NUM_THREADS=1"

zmqrl() {  # zmqrl USER WORD...: a command of a user on h0, in the home directory
  local user=$1; shift
  ssh -n -F "$LAB/laptop-ssh/config" -l "$user" h0 "$SETTINGS $PYTHON -m zmqrl $(printf '%q ' "$@")"
}
say() { echo "$(date +%T) $*"; }
jobs_in() { zmqrl zmqrl-ada queue list | awk -v state="$1" -v host="${2:-.}" '$3 == state && $8 ~ host' | wc -l; }

finish() {
  trap - EXIT
  kill $(jobs -p) 2>/dev/null || true  # what they started ends with the hosts
  wait
  for user in "${USERS[@]}"; do userdel --force "$user" 2>/dev/null || true; done
}
trap finish EXIT

# The administrator: accounts with SSH to the hosts, and a queue for all
mkdir -p "$FOLDER"
mkdir -m 1777 "$FOLDER/queue"
chmod 711 "$LAB/keys"  # sshd reads the public key as the user who logs in
{
  echo "hosts:"
  echo "  local: {capacity: {cores: 1}}"  # h0, where the users work
  for h in 1 2 3; do
    echo "  h$h: {ssh: 10.77.0.1$h, python: $PYTHON, env: {PYTHONPATH: $ROOT}, capacity: {cores: 1}}"
  done
} > "$FOLDER/hosts.yaml"
for user in "${USERS[@]}"; do
  useradd --home-dir "$FOLDER/$user" --create-home --user-group --password '*' --shell /bin/sh "$user"
  install -d -m 700 -o "$user" "$FOLDER/$user/.ssh"
  install -m 600 -o "$user" "$LAB/keys/id" "$FOLDER/$user/.ssh/id_ed25519"
  install -m 600 -o "$user" "$LAB/laptop-ssh/known_hosts" "$FOLDER/$user/.ssh/known_hosts"
  chmod 755 "$FOLDER/$user"  # others may look at the runs
done

# The users: 11 runs, and a runner each
for number in {1..11}; do
  steps=$((number <= 4 ? 150000 : 20000))
  zmqrl "${USERS[number % 3]}" queue add cartpole-ppo --needs cores=1 --set run.seed=$number \
    --set run.total_env_steps=$steps --set run.stop_at_return=null
done
for user in "${USERS[@]}"; do
  zmqrl "$user" queue run "$FOLDER/hosts.yaml" --until-empty > "$FOLDER/$user/runner.log" 2>&1 &
  runners+=($!)
done

# Someone watches the page
zmqrl zmqrl-ada view "$FOLDER" > "$FOLDER/view.log" 2>&1 &
watch() {
  local jar=$FOLDER/cookies url
  until url=$(grep -o 'http://[^ ]*' "$FOLDER/view.log"); do sleep 1; done
  while curl -sfL -c "$jar" -b "$jar" -o /dev/null "$url"; do
    states=$(curl -sf -b "$jar" "${url%%\?*}api/runs" | grep -o '"state":"[a-z]*"' | sort | uniq -c | tr -s '\n"' ' ')
    say "the page shows: $states"
    sleep 10
  done
}
watch &

has() { [ "$(jobs_in "$1" "${2:-}")" = "$3" ]; }
await() {
  until "$@"; do
    for pid in "${runners[@]}"; do kill -0 "$pid"; done  # else a runner has failed, and so does this script
    sleep 2
  done
}

await has running "" 4
say "a paper is due: a run of higher priority"
zmqrl zmqrl-eva queue add cartpole-ppo --needs cores=1 --priority 10 --set run.total_env_steps=20000
await grep -qs "requests the slots" "$FOLDER"/*/runner.log
say "$(grep -h "requests the slots" "$FOLDER"/*/runner.log)"

await has running h2 1
say "h2 is rebooted"
echo crash 2 > "$LAB/control"
sleep 20
echo boot 2 > "$LAB/control"
say "h2 is back"

wait "${runners[@]}"
zmqrl zmqrl-ada queue list
zmqrl zmqrl-ada runs "$FOLDER"
[ "$(jobs_in done)" = 12 ]
