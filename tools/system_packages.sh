#!/usr/bin/env bash
# The parts of the tests that come from the system. What needs a missing one is left out and says so;
# everything else runs.
#
#   tools/system_packages.sh            installs what is missing where that is possible: root and apt
#   tools/system_packages.sh left-out   says what a test run has left out, and the command that brings
#                                       it; nothing if it was complete
#
# SYSTEM_ROOT is where the system's files are, / unless a test says otherwise.
set -euo pipefail

# Debian's package, a file that tells it is there, the tests that need it.
parts=(
  "libgtest-dev|gtest/gtest.h|the C++ tests (googletest)"
  "libbenchmark-dev|benchmark/benchmark.h|"
  "zookeeper|zookeeper.jar|the tests with a real ZooKeeper"
  "zsh|zsh|the completion in zsh"
)

is_there() {
  for place in /usr/include /usr/local/include /usr/share/java /usr/bin /usr/local/bin /bin; do
    if [ -e "${SYSTEM_ROOT:-}$place/$1" ]; then return 0; fi
  done
  return 1
}

missing=()
needed=()
left_out=""
for part in "${parts[@]}"; do
  IFS='|' read -r package file tests <<<"$part"
  if is_there "$file"; then continue; fi
  missing+=("$package")
  if [ -n "$tests" ]; then
    needed+=("$package")
    left_out+="${left_out:+, }$tests"
  fi
done

if [ "${1:-}" = left-out ]; then
  if [ -z "$left_out" ]; then exit 0; fi
  if command -v apt-get >/dev/null; then
    echo "Left out: $left_out. To run them, too: sudo apt-get install --yes ${needed[*]}"
  else
    echo "Left out: $left_out. To run them, too, install what Debian calls ${needed[*]}"
  fi
elif [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${missing[*]} for the tests"
  apt() {
    DEBIAN_FRONTEND=noninteractive \
      apt-get "$@" -o Acquire::Retries=1 -o Acquire::http::Timeout=15 >/dev/null 2>&1
  }
  if ! { apt update && apt install --yes --no-install-recommends "${missing[@]}"; }; then
    echo "Could not install ${missing[*]}: the tests that need them are left out"
  fi
fi
