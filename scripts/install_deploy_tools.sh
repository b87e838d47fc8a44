#!/usr/bin/env bash
# Installs what the tests of deploy/ run: haproxy and Prometheus, on Debian or Ubuntu, as root or with sudo. Neither is
# started as a service. Without them those tests are skipped and say so.
set -euo pipefail
missing=()
for name in haproxy prometheus; do
  command -v "$name" >/dev/null || [ -x "/usr/sbin/$name" ] || missing+=("$name")
done
if [ ${#missing[@]} -eq 0 ]; then echo "haproxy and prometheus are there"; exit 0; fi
if ! command -v apt-get >/dev/null; then echo "no apt-get here: install ${missing[*]} by hand, or tests of deploy/ are skipped" >&2; exit 1; fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! sudo -n true 2>/dev/null; then echo "not root: run 'sudo $0', or tests of deploy/ are skipped" >&2; exit 1; fi
  as_root=(sudo)
fi
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install -m 0755 /dev/stdin "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "installed ${missing[*]}"
