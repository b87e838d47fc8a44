"""Make passwords and keys: ``python3 deploy/make_env.py [FILE]`` writes them, and prints what is to be given to people.

The file is ``deploy/.env``, where Docker Compose looks for it, unless another one is named. It has the passwords of the
stores, which only they and the gateways use, and digests of the keys and the token; those themselves are shown once
and stored nowhere. Needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from pathlib import Path

GIVEN = {
    "CHECKOUT_KEY_DIGEST": "key of tenant checkout (p0)",
    "ANALYTICS_KEY_DIGEST": "key of tenant analytics (p2)",
    "DUTY_TOKEN_DIGEST": "token of operator duty",
}


def main(arguments: list[str]) -> int:
    """Write the file; return the exit status."""
    file = Path(arguments[0]) if arguments else Path(__file__).resolve().parent / ".env"
    postgres, valkey, grafana = (secrets.token_hex(24) for _ in range(3))  # in URLs there is nothing to escape
    lines = {
        "POSTGRES_PASSWORD": postgres,
        "DATABASE_URL": f"postgresql://tidegate:{postgres}@postgres:5432/tidegate",
        "VALKEY_PASSWORD": valkey,
        "STORE_URL": f"valkey://:{valkey}@valkey:6379/0",
        "GRAFANA_PASSWORD": grafana,
    }
    shown = {"password of admin in Grafana": grafana}
    for name, what in GIVEN.items():
        key = "tg-" + secrets.token_urlsafe(32)
        lines[name] = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
        shown[what] = key
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.stderr.write(f"{file} is there already; remove it for new keys (the database keeps its old password)\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{file}: {error.strerror}\n")
        return 1
    with os.fdopen(descriptor, "w", encoding="ascii") as target:
        target.writelines(f"{name}={value}\n" for name, value in lines.items())
    sys.stdout.write(f"wrote {file}\n\nNot shown again:\n")
    for what, key in shown.items():
        sys.stdout.write(f"  {what + ':':<32} {key}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
