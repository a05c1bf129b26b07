# Runs as root at every boot of a TPU machine, below the assignments that say what to serve.
# It can be run again at any time: images are kept, and the container is made anew.
set -uo pipefail
set +x

STATE="${VLLM_DEVOPS_HOST_ROOT:-}/var/lib/vllm-devops"
META=http://metadata.google.internal/computeMetadata/v1/instance
mkdir -p "$STATE/huggingface" "$STATE/cache"

# The latest run has the say: one that start_serving has left behind ends at its next word.
SELF="$$.$(date +%s)"
printf '%s' "$SELF" > "$STATE/run"
mine() { [ "$(cat "$STATE/run" 2> /dev/null)" = "$SELF" ]; }

meta() { curl -sf --max-time 10 -H 'Metadata-Flavor: Google' "$META/$1"; }

# Where the start is, for status reports: on disk, in the journal, and on the serial console.
phase() {
  mine || exit 0
  printf '%s %s\n' "$(date +%s)" "$*" >> "$STATE/phases"
  printf 'vllm-devops: %s\n' "$*"
}

fail() {
  phase "failed: $*"
  exit 1
}

# What was stopped meanwhile has not failed; who stops it says so once the container has ended.
ended() {
  local try
  for try in 1 2 3 4 5; do
    [[ $(tail -n 1 "$STATE/phases") == *' stopped' ]] && exit 0
    sleep 1
  done
  fail 'the container has ended'
}

again() { # TIMES SECONDS COMMAND...: until it succeeds
  local times=$1 pause=$2
  shift 2
  local try
  for ((try = 1; try <= times; try++)); do
    "$@" && return 0
    ((try < times)) && sleep "$pause"
  done
  return 1
}

read_secret() { # NAME: its newest version, on standard output; never in an argument or a log
  local token
  token=$(meta service-accounts/default/token |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["access_token"])') || return 1
  printf 'header = "Authorization: Bearer %s"\n' "$token" |
    curl -sf --max-time 20 --config - \
      "https://secretmanager.googleapis.com/v1/projects/$PROJECT/secrets/$1/versions/latest:access" |
    python3 -c 'import base64, json, sys
print(base64.b64decode(json.load(sys.stdin)["payload"]["data"]).decode().strip(), end="")'
}

set_from_secret() { # VARIABLE NAME
  local value
  value=$(read_secret "$2") && [ -n "$value" ] || return 1
  printf -v "$1" '%s' "$value"
  export "${1?}"
}

: > "$STATE/phases"
rm -f "$STATE/startup.log"
# Of which boot all this is: whoever looks before this script has run again must not believe it.
cp "${VLLM_DEVOPS_HOST_ROOT:-}/proc/sys/kernel/random/boot_id" "$STATE/boot"
phase booting
again 30 "$PAUSE" meta hostname > /dev/null || fail 'no answer from the metadata server'

if ! docker version > /dev/null 2>&1 && docker --version > /dev/null 2>&1; then
  phase 'starting docker'
  again 3 2 systemctl start docker && again 5 2 docker version > /dev/null 2>&1
fi
if ! docker version > /dev/null 2>&1; then
  phase 'installing docker'
  again 5 "$PAUSE" apt-get -qq update && again 5 "$PAUSE" apt-get -qq install -y docker.io ||
    fail 'docker could not be installed'
fi

need_secret() { # VARIABLE NAME: waited for, since a right takes a while to be known everywhere
  local why="cannot read the secret $2: no scope, or no roles/secretmanager.secretAccessor"
  set_from_secret "$1" "$2" && return 0
  phase "waiting: $why"
  again "$SECRET_TRIES" "$PAUSE" set_from_secret "$1" "$2" || fail "$why"
}

pull() {
  docker pull --quiet "$IMAGE" > /dev/null 2> "$STATE/pull.log"
}

phase pulling
docker image inspect "$IMAGE" > /dev/null 2>&1 || again 3 "$PAUSE" pull ||
  fail "the image $IMAGE could not be pulled: $(tail -c 300 "$STATE/pull.log" | tr '\n' ' ')"
[ -z "$SECRET" ] || need_secret HF_TOKEN "$SECRET"
[ -z "$KEY_SECRET" ] || need_secret VLLM_API_KEY "$KEY_SECRET"

# Secrets reach the container by name; values would stand in the process list.
RUN=(docker run --detach --name "$CONTAINER" --privileged --net=host --shm-size=16g
  --volume "$STATE/huggingface:/root/.cache/huggingface" --volume "$STATE/cache:/root/.cache/vllm"
  --env HF_TOKEN --env VLLM_API_KEY --env VLLM_XLA_CACHE_PATH=/root/.cache/vllm/xla)
for item in "${ENVIRONMENT[@]}"; do RUN+=(--env "$item"); done

worker=0
if [ "$HOSTS" -gt 1 ]; then
  worker=$(meta attributes/agent-worker-number) || fail 'the number of this host is not known'
  head=$(meta attributes/worker-network-endpoints | cut -d, -f1 | awk -F: '{print $NF}') ||
    fail 'the address of the first host is not known'
  RUN+=(--env TPU_MULTIHOST_BACKEND=ray --env JAX_PLATFORMS=)
fi

mine || exit 0
docker rm --force "$CONTAINER" > /dev/null 2>&1
phase starting
if [ "$HOSTS" -eq 1 ]; then
  "${RUN[@]}" "$IMAGE" "${SERVE[@]}" > /dev/null || fail 'the container could not be started'
elif [ "$worker" -eq 0 ]; then
  # Every host is a Ray node; the first one serves as soon as all of them are there.
  "${RUN[@]}" "$IMAGE" bash -c "$RAY_HEAD" head "$RAY_PORT" "$HOSTS" "${SERVE[@]}" > /dev/null ||
    fail 'the container could not be started'
else
  "${RUN[@]}" "$IMAGE" bash -c "$RAY_WORKER" worker "$head:$RAY_PORT" > /dev/null ||
    fail 'the container could not be started'
  phase 'serving with the first host'
  exit 0
fi

# The engine's own words about its start, kept apart: a busy server's log buries them.
for ((second = 0; second < START_PATIENCE; second++)); do
  mine || exit 0
  docker logs "$CONTAINER" > "$STATE/startup.new" 2>&1
  if grep -q 'Application startup complete' "$STATE/startup.new"; then
    mv "$STATE/startup.new" "$STATE/startup.log"
    phase ready
    exit 0
  fi
  [ "$(docker inspect --format '{{.State.Running}}' "$CONTAINER" 2> /dev/null)" = true ] || ended
  sleep 1
done
fail 'it did not become ready in time'
