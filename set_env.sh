#!/usr/bin/env bash
# shellcheck disable=SC2128 # BASH_SOURCE without an index: also sh reads this file
# Shows the settings of vllm-devops as the server sees them, never a secret.
#   ./set_env.sh        show them
#   . ./set_env.sh      also export what .env sets and the environment does not (bash, zsh)

_vllm_devops_set_env() {
  local here=$1 sourced=$2 assignments
  local python="$here/.venv/bin/python"
  if [ ! -x "$python" ]; then
    echo "There is no .venv yet: run 'make setup' in $here first." >&2
    return 1
  fi
  if [ "$sourced" = yes ]; then
    assignments=$(cd "$here" && "$python" -m backends.rehearsal.show_env --export) || return 1
    eval "$assignments"
  fi
  (cd "$here" && "$python" -m backends.rehearsal.show_env)
}

if [ -n "${ZSH_VERSION:-}" ]; then
  _vllm_devops_here=$(eval 'cd "${${(%):-%x}:h}" && pwd')
  case $ZSH_EVAL_CONTEXT in *:file*) _vllm_devops_sourced=yes ;; *) _vllm_devops_sourced=no ;; esac
else
  _vllm_devops_here=$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)
  if [ "${BASH_SOURCE:-$0}" = "$0" ]; then _vllm_devops_sourced=no; else _vllm_devops_sourced=yes; fi
fi

_vllm_devops_status=0
_vllm_devops_set_env "$_vllm_devops_here" "$_vllm_devops_sourced" || _vllm_devops_status=$?
unset -f _vllm_devops_set_env
unset _vllm_devops_here
if [ "$_vllm_devops_sourced" = yes ]; then
  unset _vllm_devops_sourced
  # `return` with a value that outlives the variable it came from.
  eval "unset _vllm_devops_status; return $_vllm_devops_status"
fi
exit "$_vllm_devops_status"
