#!/usr/bin/env bash
# Installs the browser that the dashboard's tests drive, where that is possible: Debian or Ubuntu, as root or with sudo.
# Elsewhere install Chromium yourself, or name one in TIDEGATE_CHROMIUM; without any, those tests are skipped and say so.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then echo "browser for the dashboard's tests: $(command -v "$name")"; exit 0; fi
done
if ! command -v apt-get >/dev/null; then echo "no apt-get here: install Chromium by hand, or the dashboard's tests are skipped" >&2; exit 1; fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! sudo -n true 2>/dev/null; then echo "not root: run 'sudo $0', or the dashboard's tests are skipped" >&2; exit 1; fi
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
echo "browser for the dashboard's tests: $(command -v chromium)"
