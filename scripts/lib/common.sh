# shellcheck shell=bash disable=SC2034
# Shared by scripts/run and scripts/test: sourced, never run. Everything it says goes to stderr.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# Where ccache is: dependencies from the compiler instead of a preprocessor run of its own for what it has not seen.
export CCACHE_DEPEND=${CCACHE_DEPEND:-1}

say() { printf '%s\n' "$*" >&2; }
die() { say "$(basename "$0"): $*"; exit 1; }

# Debian/Ubuntu packages by purpose; the last field says how to see that a thing is there without dpkg.
build_packages=(g++ cmake ninja-build libopenblas-dev libfmt-dev nlohmann-json3-dev libcli11-dev)
test_packages=(libgtest-dev python3 python3-jsonschema)
# What single tests need and skip without: a browser for pages (120 MB), plots as pictures, a linter.
optional_test_packages=(chromium python3-matplotlib python3-flake8)
# What allreduce_bench measures beside its own backends; a build without them has unsupported rows instead.
collective_packages=(libgloo-dev libopenmpi-dev openmpi-bin)

# ensure_packages NAME...: installs those that are missing, as root or with sudo; otherwise names them and stops.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    command -v cmake >/dev/null || die "no apt here and no cmake: install by hand: $*"
    return 0  # another distribution: the configure step names what it misses
  fi
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      die "these packages are missing and may not be installed from here: ${missing[*]}
Install them (apt-get install ${missing[*]}), then call this again."
    fi
  fi
  say "Installing: ${missing[*]}"
  local log
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  if ! "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    "${as_root[@]}" apt-get update >>"$log" 2>&1
    if ! "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
      tail -n 15 "$log" >&2
      rm -f "$log"
      die "apt-get could not install: ${missing[*]}"
    fi
  fi
  rm -f "$log"
}

# ensure_optional_packages NAME...: installs those that are missing and that this distribution has, where that takes no
# question; says what stays missing. Never stops.
ensure_optional_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null && command -v apt-cache >/dev/null || return 0
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=() left=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  if [ ${#as_root[@]} -eq 0 ] || sudo -n true 2>/dev/null; then
    say "Installing: ${missing[*]}"
    # A fresh image has no package lists yet.
    [ -n "$(find /var/lib/apt/lists -name '*_Packages*' -print -quit 2>/dev/null)" ] ||
      "${as_root[@]}" apt-get update >/dev/null 2>&1
    for package in "${missing[@]}"; do
      # Into a variable: a reader that stops early would break the pipe, and with pipefail the answer.
      [ -n "$(apt-cache show "$package" 2>/dev/null)" ] &&
        DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y --no-install-recommends "$package" >/dev/null 2>&1 ||
        left+=("$package")
    done
  else
    left=("${missing[@]}")
  fi
  [ ${#left[@]} -eq 0 ] || say "Not installed, so that what needs it is left out: ${left[*]}"
}

# quietly LABEL COMMAND...: output only when it fails.
quietly() {
  local label=$1 log
  shift
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "$label failed"
  fi
  rm -f "$log"
}

# build_lock DIRECTORY: one build at a time in a build folder; released when the script ends or unlocks.
build_lock() {
  mkdir -p "$1"
  exec 9>"$1/.lock"
  if command -v flock >/dev/null && ! flock -n 9; then
    say "Waiting for another build in $1"
    flock 9
  fi
}
build_unlock() { exec 9>&-; }
