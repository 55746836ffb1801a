"""`warmlane key`: makes an API key."""

import argparse
import secrets
import sys

from cluster.api.tenants import Tenant, key_hash


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", help='name of the tenant, or "admin" for an administrator\'s key')


def run(args: argparse.Namespace) -> int:
    """Prints the key, which is stored nowhere, and the entry for the file that `--api-keys-file` names."""
    key = f"wl-{secrets.token_urlsafe(32)}"
    try:
        Tenant(name=args.tenant, key_hashes=(key_hash(key),))
    except ValueError as error:
        print(f"warmlane: {error}", file=sys.stderr)
        return 1
    print(f"# key, shown once: {key}")
    if args.tenant == "admin":
        print(f'admin_key_sha256: "{key_hash(key)}"')
    else:
        print(f'tenants:\n  - name: {args.tenant}\n    key_sha256: "{key_hash(key)}"')
    return 0
