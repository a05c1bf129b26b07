#!/usr/bin/env bash
# shellcheck disable=SC2128 # BASH_SOURCE without an index: also sh reads this file
# Looks at what this machine has for vllm-devops, and offers to make what is missing.
#   ./init.sh                       look, and ask before anything is changed (without a terminal:
#                                   only look)
#   ./init.sh --target cloudrun-l4  also what that target's cloud needs: login, project, APIs,
#                                   roles; each command is shown, and asked before it runs
#   ./init.sh --project ID          the project to set up, where none is set yet
#   ./init.sh --yes                 do it without asking
#   ./init.sh --dry-run             only look, and say what would be done
#   . ./init.sh                     the same, and leave .venv active in this shell (bash, zsh)
# Without --target nothing in a cloud is touched. Nothing that holds already is done again.

_vllm_devops_init() (
  set +eu # the caller's shell may be strict; here, what fails is looked at
  here=$1
  shift
  yes=no dry_run=no failed=0 targets='' wanted=''
  while [ $# -gt 0 ]; do
    case $1 in
      --yes | -y) yes=yes ;;
      --dry-run | -n) dry_run=yes ;;
      --target=?*) targets=$targets,${1#*=} ;;
      --project=?*) wanted=${1#*=} ;;
      --target | --project)
        if [ -z "${2:-}" ]; then
          echo "init.sh: $1 wants a value." >&2
          return 2
        fi
        if [ "$1" = --target ]; then targets=$targets,$2; else wanted=$2; fi
        shift
        ;;
      --help | -h)
        sed -n '3,12s/^# //p' "$here/init.sh"
        return 0
        ;;
      *)
        echo "init.sh knows --target, --project, --yes, --dry-run and --help, not '$1'." >&2
        return 2
        ;;
    esac
    shift
  done

  ok() { printf '  ok       %s\n' "$*"; }
  missing() { printf '  missing  %s\n' "$*"; }
  note() { printf '           %s\n' "$*"; }

  # A CLI that hangs must not hang us; macOS has no timeout(1).
  bounded() {
    if command -v timeout >/dev/null 2>&1; then
      timeout 15 "$@" </dev/null 2>/dev/null
    else
      perl -e 'alarm 15; exec @ARGV' "$@" </dev/null 2>/dev/null
    fi
  }

  # agree QUESTION: yes by --yes, or by the person where there is one.
  agree() {
    if [ "$dry_run" = yes ]; then
      note "would do: $1"
      return 1
    fi
    if [ "$yes" = yes ]; then return 0; fi
    if [ ! -t 0 ] || [ ! -t 1 ]; then
      note "not done, as nobody can be asked here: $1 (init.sh --yes does it)"
      return 1
    fi
    printf '           %s? [y/N] ' "$1"
    read -r answer
    case $answer in [yY]*) return 0 ;; *) return 1 ;; esac
  }

  cd "$here" || return 1
  echo "vllm-devops in $here"

  found=
  for python in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      found=$python
      break
    fi
  done
  if [ -n "$found" ]; then
    ok "$("$found" -V 2>&1) ($(command -v "$found"))"
  else
    missing "Python 3.11 or newer: install it, then run this again"
    failed=1
  fi

  if [ -f .venv/.requirements.stamp ] && [ ! requirements.txt -nt .venv/.requirements.stamp ]; then
    ok ".venv with what the server needs"
  else
    missing ".venv with what the server needs"
    if [ -n "$found" ] && agree "make .venv and install requirements.txt into it (make setup)"; then
      make setup || failed=1
    fi
  fi

  if [ -f .env ]; then
    ok ".env with settings (./set_env.sh shows them)"
  else
    missing ".env; not needed while the defaults suit you"
    if agree "copy .env.example to .env"; then
      (umask 077 && cp .env.example .env) && ok ".env, every setting commented out" || failed=1
    fi
  fi

  if command -v gcloud >/dev/null 2>&1; then
    account=$(bounded gcloud auth list --filter=status:ACTIVE '--format=value(account)')
    project=$(bounded gcloud config get project)
    if [ -n "$account" ]; then
      ok "gcloud, logged in as $account, project ${project:-not set}"
      [ -n "$project" ] || note "set one: gcloud config set project PROJECT_ID"
    else
      missing "a gcloud login, for Google Cloud: gcloud auth login"
    fi
  else
    note "no gcloud; only needed for Google Cloud"
  fi

  if command -v aws >/dev/null 2>&1; then
    identity=$(bounded aws sts get-caller-identity --query Arn --output text)
    if [ -n "$identity" ]; then
      ok "aws, as $identity"
    else
      missing "an aws login that works, for SageMaker: aws configure sso, or aws login"
    fi
  else
    note "no aws; only needed for SageMaker"
  fi

  if [ -n "$targets" ]; then
    if [ -x .venv/bin/python ]; then
      set -- "--target=$targets"
      [ -z "$wanted" ] || set -- "$@" "--project=$wanted"
      [ "$yes" = no ] || set -- "$@" --yes
      [ "$dry_run" = no ] || set -- "$@" --dry-run
      .venv/bin/python -m backends.setup "$@" || failed=1
    else
      missing "a look at ${targets#,}: that needs .venv, see above"
      failed=1
    fi
  fi

  echo "Next: make demo (no account, no GPU), then connect a client: see README.md"
  return $failed
)

if [ -n "${ZSH_VERSION:-}" ]; then
  _vllm_devops_here=$(eval 'cd "${${(%):-%x}:h}" && pwd')
  case $ZSH_EVAL_CONTEXT in *:file*) _vllm_devops_sourced=yes ;; *) _vllm_devops_sourced=no ;; esac
else
  _vllm_devops_here=$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)
  if [ "${BASH_SOURCE:-$0}" = "$0" ]; then _vllm_devops_sourced=no; else _vllm_devops_sourced=yes; fi
fi

_vllm_devops_status=0
_vllm_devops_init "$_vllm_devops_here" "$@" || _vllm_devops_status=$?
unset -f _vllm_devops_init
if [ "$_vllm_devops_sourced" = yes ]; then
  if [ -f "$_vllm_devops_here/.venv/bin/activate" ]; then . "$_vllm_devops_here/.venv/bin/activate"; fi
  unset _vllm_devops_here _vllm_devops_sourced
  eval "unset _vllm_devops_status; return $_vllm_devops_status"
fi
exit "$_vllm_devops_status"
